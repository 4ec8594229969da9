"""Pollux on jobs whose programs plan their layers: step times at sizes that were never run."""

import pytest

from rota.model.commands import Launch, Resize
from rota.model.decide.decision import take_decision
from rota.model.decide.diff import diff
from rota.model.events import (
    BurstPlanned,
    CommandSent,
    JobLaunched,
    JobResized,
    JobSubmitted,
    NodeJoined,
    WorkerRegistered,
    WorkerReported,
)
from rota.model.job import Elastic, Program, Suspension
from rota.model.state.state import ClusterState
from rota.model.view import View
from rota.policy.pollux.planned import planned_steps
from rota.policy.registry import create
from rota.testing.builders import job

SCALES = (8.0, 4.0, 2.7, 2.0, 1.6, 1.4, 1.2, 1.0)
FLAT = (8.0,) * 8
SIZES = tuple(range(1, 9))


class Cluster:
    """A live node of 8 GPUs under Pollux, on which all that was decided happens at once."""

    def __init__(self, *jobs, **settings):
        self.state, self.now_s = ClusterState(), 0.0
        self.settings = {"restart_s": 0.1, "interference": "ignore", **settings}
        self.policy = self.new_policy()
        self.state.apply(NodeJoined(0.0, "n0", 8, "gpu", "t4"))
        for name, sizes in jobs:
            spec = job(name, sizes[0], elastic=Elastic(sizes) if len(sizes) > 1 else None)
            spec = spec._replace(program=Program(f"python {name}.py", "/w"), duration_s=None)
            self.state.apply(JobSubmitted(0.0, spec))

    def new_policy(self):
        return create("pollux", self.settings)

    def decides(self):
        self.now_s += 60.0
        take_decision(self.state, self.policy, self.now_s)
        for _ in range(3):  # what waits for GPUs that others give back comes next
            for command in diff(self.state):
                row = command.row
                self.state.apply(CommandSent(self.now_s, command))
                if isinstance(command, Launch):
                    self.state.apply(JobLaunched(self.now_s, row, command.attempt))
                    registered = WorkerRegistered(
                        self.now_s, row, Suspension.BOUNDARY, True, True, 8
                    )
                    self.state.apply(registered)
                elif isinstance(command, Resize):
                    self.state.apply(JobResized(self.now_s, row, command.allocation))
        return [held and held.num_gpus for held in self.state.held]

    def plans(self, row, step_s):
        ranks = self.state.num_gpus[row]
        self.state.apply(BurstPlanned(self.now_s, row, 32, tuple(step_s), (0.0,) * ranks))

    def reports(self, row, step_s, steps=20):
        """The job has done so many steps more, each in ``step_s``."""
        told = self.state.progress[row] or {"step": 0}
        self.now_s += steps * step_s
        progress = {"at_s": self.now_s, "step": told["step"] + steps, "metrics": {}}
        self.state.apply(WorkerReported(self.now_s, row, progress))

    def steps(self, row):
        return planned_steps(View(self.state, self.now_s, None), row, None)


@pytest.mark.parametrize("objective", ["service", "length", "pollux"])
def test_gpus_go_to_the_job_that_is_predicted_to_gain_by_them(objective):
    cluster = Cluster(("flat", SIZES), ("scales", SIZES), objective=objective)
    assert min(cluster.decides()) >= 1
    cluster.plans(0, FLAT)
    cluster.plans(1, SCALES)
    flat, scales = [cluster.decides() for _ in range(4)][-1]
    view = View(cluster.state, cluster.now_s, cluster.policy)
    assert cluster.policy.decide(view) == cluster.new_policy().decide(view)
    assert flat < scales
    assert scales >= 4


def test_a_job_that_was_never_measured_grows_to_any_size_that_is_predicted():
    cluster = Cluster(("scales", SIZES))
    assert cluster.decides() == [4], "as far as a job of which nothing is known"
    cluster.plans(0, SCALES)
    assert cluster.decides() == [8]


def test_what_was_measured_comes_before_what_was_predicted():
    cluster = Cluster(("a", SIZES))
    (gpus,) = cluster.decides()
    cluster.plans(0, FLAT)
    assert cluster.steps(0) == dict(zip(SIZES, FLAT, strict=True))
    for _ in range(10):
        cluster.reports(0, 4.0)
    found = cluster.steps(0)
    assert found[gpus] == pytest.approx(4.0)
    assert all(seconds == pytest.approx(4.0) for seconds in found.values())


def test_a_prediction_that_lacks_a_size_and_one_for_a_fixed_size_are_passed_over():
    cluster = Cluster(("a", SIZES), ("b", (2,)))
    cluster.decides()
    cluster.plans(0, SCALES[:6])
    cluster.plans(1, SCALES)
    assert [cluster.steps(row) for row in (0, 1)] == [{}, {}]
