"""Stages that any policy composes: selection by count, quotas, fair share, rented nodes."""
