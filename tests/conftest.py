"""Settings of all tests."""

from hypothesis import HealthCheck, settings

# How long examples take tells of a shared machine, and nothing of what is tested.
settings.register_profile("shared", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared")
