"""What jobs told and what was measured of them, beyond the columns of the state."""
