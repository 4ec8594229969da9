"""Runs a training whose layers are on numbers of ranks of their own, as a plan says."""
