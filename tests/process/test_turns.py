"""Gangs of trainings on the same GPUs take turns there: all GPUs see their steps in one order."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from support.lone_agent import LoneAgent

from .conftest import SCRIPTS, until
from .states import differences, outcome
from .test_elastic import Job as Training

STEPS = 30
GATE = 2


class Job(Training):
    """A training whose turns are told of in a folder that it has with others."""

    def __init__(
        self, agent: LoneAgent, out: Path, gpus: list[int], *words: object, **launch: Any
    ) -> None:
        self.turns = out.parent
        script = [SCRIPTS / "turns.py", self.turns]
        words = ("--steps", STEPS, *words)
        patient = {"group_timeout_s": 300} | launch
        super().__init__(agent, out, gpus, *words, before=script, **patient)

    @property
    def seat(self) -> str | None:
        """The seat that all its ranks have; None if they have none, or not the same."""
        seats = {rank.seat for rank in self.attempt.members}
        return seats.pop() if len(seats) == 1 else None

    def until_asked(self) -> None:
        """Wait in the gate until its ranks are asked to hold, to be seated."""
        self.until_at(GATE)
        until(lambda: self.attempt.hold is not None, "its ranks are to take turns")


def turns_of(folder: Path) -> Counter[str]:
    """How many turns each job has had, on all of its GPUs together."""
    return Counter(line.split()[0] for line in (folder / "turns").read_text().splitlines())


@pytest.fixture(scope="module")
def alone(agent, tmp_path_factory) -> dict[str, Any]:
    """The outcome of a run that shares its GPUs with nobody."""
    return outcome(Job(agent, tmp_path_factory.mktemp("alone") / "job", [0, 1]).succeeds())


def test_gangs_that_overlap_in_a_circle_end_with_the_weights_of_a_run_alone(
    launch, alone, tmp_path
):
    jobs = [launch(gpus, "--gate", GATE) for gpus in ([0, 1], [1, 2], [0, 2])]
    for job in jobs:
        job.until_asked()
    for job in jobs:
        job.opens(GATE)
    for job in jobs:
        assert not differences(outcome(job.succeeds()), alone)
    assert set(turns_of(tmp_path)) == {job.attempt.job_id for job in jobs}
