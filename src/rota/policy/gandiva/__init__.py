"""Gandiva (OSDI 2018): introspective time-slicing, packing, moves and grow-shrink."""
