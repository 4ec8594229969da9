"""Background jobs, placed in what the plan of any policy leaves (DeepPool, MLSys 2022)."""
