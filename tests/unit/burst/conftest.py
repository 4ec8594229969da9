"""Published layer profiles, where they are."""

import os
from pathlib import Path

import pytest

from rota.workload.layer_profiles import read_layer_profile

DATA = Path(os.environ.get("ROTA_TEST_DATA") or Path(__file__).parents[4] / "shared" / "data")


@pytest.fixture
def one_thread():
    """Threads that wait for each other take seconds for small models on a machine that is busy."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def published():
    """Reads a published profile; skips where the public data is not there."""

    def read(name):
        path = DATA / "deeppool" / f"A100_{name}.prof"
        if not path.exists():
            pytest.skip(f"there is no {path}; ROTA_TEST_DATA names the folder with the public data")
        return read_layer_profile(path)

    return read
