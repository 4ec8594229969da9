"""Packs of flow jobs, of one GPU and of gangs, and of other gangs that take turns."""

import pytest
from tests.support.driven import DrivenCluster

from rota.model.events import JobFinished, WorkerRegistered, WorkerReported
from rota.model.job import JobState, Program, Suspension
from rota.policy.gandiva.packing import PATIENCE
from rota.policy.registry import create
from rota.testing.builders import job

LOOK_S, OPERATIONS_PER_S = 5.0, 100.0


class Island(DrivenCluster):
    """Jobs that tell operations, of which those that share GPUs do a part of what they do alone."""

    def __init__(self, *jobs, cluster, part, **settings):
        super().__init__(*jobs, cluster=cluster, policy=create("gandiva", settings))
        self._part, self.done = part, [0.0] * len(jobs)
        self.quiet: set[int] = set()  # rows of which no operation is asked
        self.settle()

    def goes_on(self, seconds):
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            self.passes(LOOK_S)
            for row, held in enumerate(self.state.held):
                runs = held is not None and self.state.state[row] == JobState.RUNNING
                if runs and row not in self.quiet:
                    part = self._part if self.state.sharers(row) else 1.0
                    self.done[row] += LOOK_S * OPERATIONS_PER_S * part
                    progress = {"at_s": self.now_s, "step": int(self.done[row]), "metrics": {}}
                    self.happens(WorkerReported, row, progress)
            if (wake_s := self.state.wake_at_s) is not None and wake_s <= self.now_s:
                self.settle()
                self.state.validate()

    def shared(self):
        return [target is not None and target.shared for target in self.state.target]

    def verdicts(self, row):
        return [(probe.what, probe.kept) for probe in self.state.notes.probes.get(row, ())]


def driving(name, gpus, processes="flow", **more):
    program = Program(f"python {name}.py", "/", processes=processes)
    return job(name, gpus)._replace(program=program, gpu_util=0.4, **more)


@pytest.mark.parametrize("gpus", [1, 2, 3])
def test_flow_jobs_that_do_more_work_together_share_all_their_gpus(gpus):
    jobs = [driving(name, gpus) for name in "ab"]
    island = Island(*jobs, cluster=f"1x{gpus}", part=0.8)
    island.goes_on(600.0)
    assert [island.verdicts(row) for row in (0, 1)] == [[("pack", True)]] * 2
    assert island.shared() == [True, True]
    assert island.state.held[0] == island.state.held[1]
    assert island.state.held[0].num_gpus == gpus
    assert island.state.notes.probes[0][0].measured == pytest.approx(1.6, rel=0.05)


def test_gangs_that_do_less_work_together_go_back_to_turns():
    island = Island(*(driving(name, 2) for name in "ab"), cluster="1x2", part=0.45)
    island.goes_on(600.0)
    assert [island.verdicts(row) for row in (0, 1)] == [[("pack", False)]] * 2
    assert island.shared() == [False, False]
    assert min(island.done) > 0.4 * max(island.done)


def test_a_probe_of_gangs_that_tell_nothing_soon_takes_turns():
    island = Island(*(driving(name, 2) for name in "abc"), cluster="1x2", part=0.8)
    while not any(island.shared()):
        island.goes_on(LOOK_S)
    island.quiet = {row for row, shared in enumerate(island.shared()) if shared}
    (waits,) = {0, 1, 2} - island.quiet
    before, held_s = island.done[waits], PATIENCE * 30.0
    island.goes_on(held_s / 2)
    assert island.done[waits] - before > OPERATIONS_PER_S * held_s / 8
    assert [island.verdicts(row)[0] for row in island.quiet] == [("pack", False)] * 2


@pytest.mark.parametrize(
    "jobs",
    [
        [driving(name, 2, "gpu") for name in "ab"],
        [driving("a", 2), driving("b", 2, "node")],
        [driving("a", 2), driving("b", 1)],
    ],
)
def test_no_other_gangs_and_no_jobs_of_unlike_sizes_are_packed(jobs):
    island = Island(*jobs, cluster="1x2", part=0.9)
    island.goes_on(600.0)
    assert not island.state.notes.probes
    assert min(island.done) > 0.0


def test_gangs_leave_their_pack_for_gpus_that_nobody_needs():
    jobs = [driving("a", 2), driving("b", 2), driving("c", 2, "gpu")]
    island = Island(*jobs, cluster="1x4", part=0.9)
    island.goes_on(600.0)
    assert island.shared()[:2] == [True, True]
    island.happens(JobFinished, 2, JobState.SUCCEEDED)
    island.settle()
    island.goes_on(60.0)
    assert island.shared()[:2] == [False, False]
    assert island.state.sharers(0) == []


@pytest.mark.parametrize(
    ("suspension", "settings", "packed"),
    [
        (Suspension.BOUNDARY, {"pack_gangs": "on"}, True),
        (Suspension.PROCESS, {"pack_gangs": "on"}, False),
        (Suspension.BOUNDARY, {}, False),
    ],
)
@pytest.mark.parametrize("other", ["gpu", "flow"])
def test_gangs_of_trainings_with_sessions_are_packed_if_asked_to(
    other, suspension, settings, packed
):
    jobs = [driving("a", 2, "gpu"), driving("b", 2, other)]
    island = Island(*jobs, cluster="1x2", part=0.8, **settings)
    for row in range(2):
        island.happens(WorkerRegistered, row, suspension, True)
    island.goes_on(600.0)
    assert island.shared() == [packed, packed]
    assert [island.verdicts(row) for row in (0, 1)] == [[("pack", True)] * packed] * 2
