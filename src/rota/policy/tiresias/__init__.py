"""Tiresias (NSDI 2019): discretised queues by attained service, or by the Gittins index."""
