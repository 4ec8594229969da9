"""Simulations described by values, and many of them at once over the cores."""
