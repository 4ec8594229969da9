"""The dashboard: a process of its own that reads the cluster as any client does."""
