"""The state of a cluster: how its columns change with each event."""
