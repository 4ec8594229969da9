"""Pollux (OSDI 2021): GPUs and batch sizes chosen together, for goodput."""
