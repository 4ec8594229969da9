"""Settings of all tests."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# How long examples take tells of a shared machine, and nothing of what is tested.
settings.register_profile("shared", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared")

HERE = Path(__file__).parent
OF_CLUSTERS = (HERE / "process", HERE / "parity")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of real clusters are ``make test-cluster``'s unless they are marked ``live_path``."""
    for item in items:
        of_clusters = any(folder in item.path.parents for folder in OF_CLUSTERS)
        if of_clusters and item.get_closest_marker("live_path") is None:
            item.add_marker(pytest.mark.cluster)
