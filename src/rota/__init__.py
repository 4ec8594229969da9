"""Rota, the scheduler for deep-learning training: one policy, in a simulator and on live jobs."""

__version__ = "0.1.0"
