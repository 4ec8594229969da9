"""Trainings whose layers run on numbers of GPUs of their own (DeepPool, MLSys 2022)."""
