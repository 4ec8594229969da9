"""Optimus (EuroSys 2018): GPUs by how much sooner jobs end with one more."""
