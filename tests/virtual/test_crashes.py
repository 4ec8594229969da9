"""Agents and controllers that die at any moment, and messages that are late or lost.

Each seed is a story of its own: some jobs, what their users ask for, and what fails. A failure
names its seed; ``make test-seeds FIRST=SEED SEEDS=1`` runs that one again, and does the same.
"""

import os
import tempfile
from pathlib import Path

import pytest

from rota.folder import HOST_MEMORY

from .cluster import POLICIES, Cluster

FIRST, SEEDS = (
    int(os.environ.get(name, default)) for name, default in (("FIRST", 0), ("SEEDS", 100))
)
AT_ONCE = 20  # in one test: a cluster lives for some hundredths of a second


@pytest.mark.parametrize("first", range(FIRST, FIRST + SEEDS, AT_ONCE))
def test_no_accepted_job_is_lost_and_no_job_runs_twice(first):
    for seed in range(first, min(first + AT_ONCE, FIRST + SEEDS)):
        policy = list(POLICIES)[seed % len(POLICIES)]
        with tempfile.TemporaryDirectory(dir=HOST_MEMORY) as home:
            cluster = Cluster(seed, Path(home, "home"), policy)
            try:
                cluster.run()
            except AssertionError as error:
                story = "\n".join(cluster.story)
                raise AssertionError(f"seed {seed}, {policy}: {error}\n{story}") from None
