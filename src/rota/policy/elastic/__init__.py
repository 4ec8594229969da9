"""Elastic jobs: every job its least, and what is left to those who make most of it."""
