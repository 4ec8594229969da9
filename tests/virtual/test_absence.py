"""Controllers that stand still, machines that sleep, and copies of machines: nothing else fails.

Nobody's silence counts but while one was there to hear it: no attempt is lost. Of a machine that
sleeps past its lease alone, the jobs start elsewhere once; what was there does nothing on waking.
Nor does a program run on that has lost its shim, where no agent sees to it.
"""

import os
import tempfile
from pathlib import Path

import pytest

from rota.folder import HOST_MEMORY

from .cluster import ABSENCES, POLICIES, Cluster

FIRST = int(os.environ.get("FIRST", 0))
SEEDS = max(5, int(os.environ.get("SEEDS", 100)) // 20)


@pytest.mark.parametrize("absence", [each for each in ABSENCES if each])
def test_nothing_is_lost_and_nothing_runs_twice_for_an_absence_alone(absence):
    for seed in range(FIRST, FIRST + SEEDS):
        policy = list(POLICIES)[seed % len(POLICIES)]
        with tempfile.TemporaryDirectory(dir=HOST_MEMORY) as home:
            cluster = Cluster(seed, Path(home, "home"), policy, 1, 3, only=absence)
            try:
                cluster.run()
            except AssertionError as error:
                story = "\n".join(cluster.story)
                raise AssertionError(f"seed {seed}, {policy}: {error}\n{story}") from None
