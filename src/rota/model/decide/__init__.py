"""From a policy's plan to commands: the plan is checked, applied, and compared with what is."""
