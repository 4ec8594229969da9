"""Agents and controllers that die at any moment, and messages that are late or lost.

Each seed is a story of its own: some jobs, what their users ask for, and what fails. In some there
are machines that have joined, with leases, and gangs over several of them; they are cut off or lose
their power. One in three is crowded: states of jobs leave nodes that are drained. A failure names
its seed; ``make test-seeds FIRST=SEED SEEDS=1`` runs that one again, and does the same.
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
AT_ONCE = 20  # in one test: a cluster lives for a second at most


@pytest.mark.parametrize("first", range(FIRST, FIRST + SEEDS, AT_ONCE))
def test_no_accepted_job_is_lost_and_no_job_runs_twice(first):
    for seed in range(first, min(first + AT_ONCE, FIRST + SEEDS)):
        policy = list(POLICIES)[seed % len(POLICIES)]
        nodes = (1, 3) if seed // 10 % 3 == 0 else (2, 0)
        with tempfile.TemporaryDirectory(dir=HOST_MEMORY) as home:
            crowded = seed // 30 % 3 == 2
            cluster = Cluster(seed, Path(home, "home"), policy, *nodes, crowded=crowded)
            try:
                cluster.run()
            except AssertionError as error:
                story = "\n".join(cluster.story)
                raise AssertionError(f"seed {seed}, {policy}: {error}\n{story}") from None
