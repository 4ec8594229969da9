"""Elastic jobs: each job its least; the other GPUs go to the jobs that gain most by them."""
