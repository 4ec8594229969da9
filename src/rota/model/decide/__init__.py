"""Turns a policy's plan into commands: check it, apply it, compare it with the state."""
