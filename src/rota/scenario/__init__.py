"""A scenario: a trace, a cluster, a policy and its settings, run in the simulator."""
