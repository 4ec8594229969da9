"""The event log: what a controller must still know after it was killed."""
