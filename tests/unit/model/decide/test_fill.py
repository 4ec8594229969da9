"""A stage for background jobs is asked after the policy, and held to its contract."""

import pytest

from rota.errors import PlanError, PolicyError
from rota.model.allocation import background_on_node, on_node
from rota.model.cluster import Node
from rota.model.commands import Launch, Suspend
from rota.model.decide.diff import diff
from rota.model.events import (
    DecisionTaken,
    JobFinished,
    JobSubmitted,
    NodeLost,
    WorkerRegistered,
    joined,
)
from rota.model.job import BACKGROUND, JobState, Share, Suspension
from rota.model.plan import FillPlan
from rota.model.probe import Probe
from rota.model.reason import Reason
from rota.policy.base import Policy
from rota.policy.fill.stage import FillStage
from rota.policy.ordering.fifo import FifoBackfill
from rota.policy.registry import again, create
from rota.testing.builders import job
from support.driven import DrivenCluster


def background(name, **more):
    return job(name, share=Share(BACKGROUND), **more)


class Told(FillStage):
    """A stage that decides what a test tells it to."""

    def __init__(self, plan):
        self.plan, self.asked = plan, 0

    def place(self, view, plan):
        self.asked += 1
        return self.plan


def told(plan, *jobs, cluster="1x2"):
    policy = FifoBackfill()
    policy.fill = Told(plan)
    return DrivenCluster(*jobs, cluster=cluster, policy=policy)


NOTHING = FillPlan({}, {})


def test_the_stage_is_not_asked_while_there_is_no_background_job():
    found = told(NOTHING, job("a"))
    found.settle()
    assert not found.policy.fill.asked


def test_what_it_adds_joins_the_policys_plan():
    probe = Probe(0.0, "fill", 1.0, 1.02, True)
    plan = FillPlan(
        {1: background_on_node(0, 1)}, {}, {"1": [2.5]}, 30.0, {1: "beside a"}, {1: (probe,)}
    )
    found = told(plan, job("a", 2), background("b"))
    events = []
    found.state.observers.append(events.append)
    found.decide()
    taken = events[-1]
    assert isinstance(taken, DecisionTaken)
    assert taken.allocations == {0: on_node(0, 0b11), 1: background_on_node(0, 1)}
    assert taken.fill_wake_at_s == found.state.wake_at_s == 30.0
    assert taken.wake_at_s is found.state.policy_wake_at_s is None
    assert found.state.stage_marks == {"fill": {"1": [2.5]}}
    assert found.state.notes.why[1] == "beside a"
    assert found.state.notes.probes[1] == [probe]
    assert list(found.state.plan.allocations) == [0], "the policy's own plan is told anew"
    found.state.validate()


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (None, "no FillPlan"),
        (FillPlan({0: background_on_node(0, 1)}, {}), "row 0, which is none of them"),
        (FillPlan({}, {0: 0}), "row 0, which is none of them"),
        (FillPlan({}, {}, why={0: "so"}), "row 0, which is none of them"),
        (FillPlan({1: on_node(0, 1)}, {}), "1 GPU of one node, on the layer"),
        (FillPlan({1: background_on_node(0, 3)}, {}), "1 GPU of one node, on the layer"),
        (FillPlan({1: background_on_node(4, 1)}, {}), "node 4, which is not there"),
        (FillPlan({1: background_on_node(0, 8)}, {}), "where a background job is already"),
        (
            FillPlan({1: background_on_node(0, 1), 2: background_on_node(0, 1)}, {}),
            "where a background job is already",
        ),
        (FillPlan({}, {1: 77}), "the reason 77"),
        (FillPlan({}, {}, {"x": {1, 2}}), "JSON can't carry"),
        (FillPlan({}, {}, {}, -1.0), "no time after now"),
        (FillPlan({}, {}, why={1: 3}), "no text"),
    ],
)
def test_a_plan_against_the_contract_is_refused(plan, words):
    found = told(plan, job("a"), background("b"), background("c"))
    before = found.state.copy()
    with pytest.raises(PlanError, match=words):
        found.decide()
    assert found.state.target == before.target
    assert found.state.decision_seq == 0


def test_a_policy_gives_nobody_gpus_of_the_other_layer():
    class Wrong(Policy):
        def decide(self, view):
            what_if = view.what_if()
            what_if.give(0, background_on_node(0, 1))
            return what_if.plan()

    found = DrivenCluster(job("a"), policy=Wrong())
    with pytest.raises(PlanError, match="layer of background jobs"):
        found.decide()


def test_an_error_in_the_stage_names_it():
    class Broken(FillStage):
        def place(self, view, plan):
            raise RuntimeError("oops")

    policy = FifoBackfill()
    policy.fill = Broken()
    found = DrivenCluster(background("b"), policy=policy)
    with pytest.raises(PolicyError, match=r"oops .*test_fill.py"):
        found.decide()


class Counting(FifoBackfill):
    """A policy that counts how often it is asked."""

    asked = 0

    def decide(self, view):
        self.asked += 1
        assert not view.background.keys() & view.active.keys()
        return super().decide(view)


def test_the_policy_is_not_asked_for_background_jobs():
    policy = Counting()
    policy.fill = create("fifo").fill
    found = DrivenCluster(job("a"), policy=policy)
    found.settle()
    asked = policy.asked
    for name in "bcd":
        found.happens(JobSubmitted, background(name))
        found.settle()
    found.happens(JobFinished, 1, JobState.SUCCEEDED)
    found.settle()
    assert policy.asked == asked
    found.happens(JobSubmitted, job("e"))
    found.settle()
    assert policy.asked == asked + 1
    found.state.validate()


def test_without_a_stage_background_jobs_wait_and_are_suspended():
    found = DrivenCluster(background("b"), policy=create("fifo"))
    found.settle()
    assert found.state_of(0) == JobState.RUNNING
    found.policy = create("fifo", {"fill": "off"})
    found.settle()
    assert found.state_of(0) == JobState.SUSPENDED
    assert found.state.reason[0] == Reason.WAIT_GAPS
    found.happens(JobSubmitted, background("c"))
    found.settle()
    assert found.state.reason[1] == Reason.WAIT_GAPS


def test_the_setting_is_on_by_default_and_changes_no_identity():
    plain, on, off = create("fifo"), create("fifo", {"fill": "on"}), create("fifo", {"fill": "off"})
    assert plain.identity == on.identity == "fifo"
    assert off.identity == "fifo fill=off"
    assert off.fill is None
    assert again(off).fill is None
    assert again(plain).fill is not None
    assert again(plain).fill is not plain.fill


def on_a_gpu(*jobs):
    """A cluster of one GPU with 80 GB, on which these jobs have settled."""
    found = DrivenCluster(policy=create("fifo"), cluster="1x1")
    found.state.apply(NodeLost(0.0, "node0"))
    found.state.apply(joined(0.0, Node("gpu", 1, "cuda", memory_gb=80.0)))
    for spec in jobs:
        found.happens(JobSubmitted, spec)
    found.settle()
    return found


def test_a_background_job_starts_where_the_memory_suffices_for_both():
    found = on_a_gpu(job("a", memory_gb=30.0), background("b", memory_gb=40.0))
    assert found.state_of(1) == JobState.RUNNING


@pytest.mark.parametrize("needs", [(50.0, 30.0), (None, 10.0), (10.0, None)])
def test_it_waits_where_memory_does_not_suffice_or_is_not_known(needs):
    a, b = needs
    found = on_a_gpu(job("a", memory_gb=a), background("b", memory_gb=b))
    assert found.state_of(0) == JobState.RUNNING
    assert found.state_of(1) == JobState.PENDING


def test_it_gives_way_in_the_decision_that_places_the_foreground_job():
    found = on_a_gpu(background("b", memory_gb=60.0))
    state = found.state
    assert found.state_of(0) == JobState.RUNNING
    found.policy = again(found.policy)
    found.policy.fill = Told(NOTHING)  # a stage that would keep it there
    found.happens(JobSubmitted, job("a", memory_gb=60.0))
    seq = state.decision_seq
    found.decide()
    assert state.decision_seq == seq + 1
    assert state.target[0] is None
    assert state.target[1] is not None
    assert state.reason[0] == Reason.WAIT_DEVICE_MEMORY
    (suspend,) = found.send()
    assert isinstance(suspend, Suspend)
    assert diff(state) == [], "the foreground job starts beside memory that it needs"
    found.confirm(suspend)
    (launch,) = found.send()
    assert isinstance(launch, Launch)
    assert launch.row == 1
    state.validate()


def test_a_foreground_job_does_not_wait_where_both_fit():
    found = on_a_gpu(background("b", memory_gb=20.0))
    found.happens(JobSubmitted, job("a", memory_gb=30.0))
    found.decide()
    (launch,) = found.send()
    assert isinstance(launch, Launch)
    assert found.state.held[0] is not None


def test_a_foreground_job_does_not_wait_for_a_background_job_that_was_undone():
    found = DrivenCluster(background("b"), cluster="1x1", policy=create("fifo"))
    found.settle()
    found.policy = create("fifo", {"fill": "off"})
    found.happens(JobSubmitted, job("a"))
    found.decide()
    assert {type(each) for each in found.send()} == {Suspend, Launch}


def test_memory_of_a_suspended_background_job_keeps_nobody_off_a_gpu():
    found = on_a_gpu(background("b", memory_gb=60.0))
    found.happens(WorkerRegistered, 0, Suspension.PROCESS, False, False, 0, False)
    found.happens(JobSubmitted, job("a", memory_gb=60.0))
    found.settle()
    assert found.state_of(0) == JobState.SUSPENDED
    assert found.state_of(1) == JobState.RUNNING
