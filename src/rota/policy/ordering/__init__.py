"""Policies that are an order of the jobs, and the indexes that keep an order cheaply."""
