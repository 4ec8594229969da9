"""Tells hooks of events: what each is sent, how, and again until it has arrived."""
