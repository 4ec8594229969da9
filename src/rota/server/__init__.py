"""The controller's HTTP API: who may call it, what it answers, and how it is served."""
