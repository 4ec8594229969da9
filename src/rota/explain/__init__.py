"""Explanations of why jobs wait and who shares GPUs, worded once for CLI, API and pages."""
