"""Jobs' reports and measurements, beyond the columns of the state."""
