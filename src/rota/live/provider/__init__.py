"""Providers of nodes: one module per engine."""
