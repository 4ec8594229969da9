"""Engines that are there: each is started once for all tests of a process."""

from collections.abc import Iterator

import pytest

from support import slurm as engine


@pytest.fixture(scope="session")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[engine.Slurm]:
    """A Slurm with four nodes on this machine."""
    if reason := engine.why_none():
        pytest.skip(reason)
    with engine.slurm(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster
