"""A plan's column of CPU cores, and the stage that writes it."""

import pytest

from rota.errors import PlanError, PolicyError
from rota.model.allocation import of_parts, on_node
from rota.model.cluster import Node
from rota.model.decide.decision import Decider, take_decision
from rota.model.events import JobSubmitted, joined
from rota.model.job import JobState
from rota.model.notes import DesiredNodes, Notes
from rota.model.plan import CpuPlan, Plan
from rota.model.probe import Probe
from rota.model.state.state import ClusterState
from rota.policy.base import Policy
from rota.testing.builders import job

BOTH = of_parts([(0, 0b1), (1, 0b11)])


class Plans(Policy):
    """A policy that gives one plan, then changes nothing."""

    def __init__(self, *plans, cpus=None):
        self.plans = list(plans)
        self.cpus = cpus

    def decide(self, view):
        return self.plans.pop(0) if self.plans else view.unchanged()


class Says:
    """A stage that answers as told, and keeps what it was asked."""

    def __init__(self, *answers):
        self.answers, self.asked = list(answers), []

    def assign(self, view, plan):
        self.asked.append((view.plan, dict(view.stage_marks.get("cpus", {})), plan))
        answer = self.answers.pop(0) if self.answers else CpuPlan({})
        if isinstance(answer, Exception):
            raise answer
        return answer


def cluster(*jobs) -> ClusterState:
    """Nodes of two GPUs: one with 4 cores, one with 6, and one whose cores nobody knows."""
    state = ClusterState()
    for node in (Node("n0", 2, millicores=4000), Node("n1", 2, millicores=6000), Node("n2", 2)):
        state.apply(joined(0.0, node))
    for spec in jobs or (job("a", 3), job("b", 1)):
        state.apply(JobSubmitted(0.0, spec))
    return state


@pytest.mark.parametrize(
    ("cpus", "what"),
    [
        ({1: 4001}, "4.001 CPU cores of node n0, which has 4 CPU cores"),
        ({0: 9003}, "6.002 CPU cores of node n1, which has 6 CPU cores"),
        ({0: 3000, 1: 3001}, "4.001 CPU cores of node n0"),
        ({2: 1}, "row 2, which is not an active job"),
        ({1: 0}, "job b 0 thousandths of a CPU core; the least is 1"),
        ({1: 1.5}, "job b 1.5 thousandths"),
        ({1: True}, "job b True thousandths"),
    ],
)
def test_cores_that_nobody_has_or_can_have_are_refused_and_the_state_stays(cpus, what):
    state = cluster()
    plan = Plan({0: BOTH, 1: on_node(0, 0b10)}, {}, {}, cpus=cpus)
    with pytest.raises(PlanError, match=what):
        take_decision(state, Plans(plan), 1.0)
    assert (state.decision_seq, state.target_cpus, state.target) == (0, {}, [None, None])


def test_cores_without_gpus_or_of_a_node_whose_cores_are_unknown_are_refused():
    with pytest.raises(PlanError, match="job a 1 CPU core and no GPUs"):
        take_decision(cluster(), Plans(Plan({}, {}, {}, cpus={0: 1000})), 1.0)
    unknown = Plan({1: on_node(2, 0b1)}, {}, {}, cpus={1: 1})
    with pytest.raises(PlanError, match=r"node n2, which has a number of them that is not known"):
        take_decision(cluster(), Plans(unknown), 1.0)


def test_a_node_may_be_given_whole_and_a_job_over_two_takes_its_part_of_each():
    state = cluster()
    plan = Plan({0: BOTH, 1: on_node(0, 0b10)}, {}, {}, cpus={0: 9000, 1: 1000})
    take_decision(state, Plans(plan), 1.0)
    assert state.target_cpus == {0: 9000, 1: 1000}
    assert BOTH.shares(9000) == [(0, 3000), (1, 6000)]
    assert BOTH.shares(100) == [(0, 33), (1, 67)]


def test_jobs_that_move_take_their_cores_into_account():
    state = cluster()
    whole = Plan({1: on_node(1, 0b10)}, {}, {}, cpus={1: 5000})
    moved = Plan({1: on_node(0, 0b10)}, {}, {})
    with pytest.raises(PlanError, match="5 CPU cores of node n0"):
        decider = Decider(state, Plans(whole, moved))
        decider.decide(1.0)
        decider.decide(2.0)


def test_a_stage_adds_to_the_policys_plan_which_stays_its_own():
    state = cluster()
    mine = Plan({1: on_node(0, 0b1)}, {}, {}, wake_at_s=50.0)
    stage = Says(CpuPlan({1: 1500}, {"1": [2.5], "since": 1.0}, 20.0))
    decider = Decider(state, Plans(mine, cpus=stage))
    made = decider.decide(1.0)
    assert state.plan is mine
    assert (mine.cpus, mine.wake_at_s) == (None, 50.0)
    assert (made.cpus, made.wake_at_s) == ({1: 1500}, 20.0)
    assert state.wake_at_s == 20.0
    decider.decide(2.0)
    assert stage.asked[1][:2] == (mine, {"1": [2.5], "since": 1.0})


def test_marks_of_a_stage_end_as_it_says_with_their_job_and_with_another_policy():
    state = cluster()
    stage = Says(CpuPlan({}, {"0": 1, "1": 2, "own": 3}), CpuPlan({}, {"own": None}))
    policy = Plans(cpus=stage)
    for at_s in (1.0, 2.0):
        take_decision(state, policy, at_s)
    assert state.stage_marks == {"cpus": {"0": 1, "1": 2}}
    state.end(0, 3.0, JobState.CANCELLED, None, "")
    assert state.stage_marks == {"cpus": {"1": 2}}
    other = Plans(cpus=None)
    other.identity = "other"
    take_decision(state, other, 4.0)
    assert state.stage_marks == {}


def test_what_a_stage_tells_joins_the_notes_of_the_policy():
    state = cluster()
    probe = Probe(1.0, "cpus", 1.5, None, True, (1,), (), ())
    nodes = DesiredNodes(3, 0.5)
    stage = Says(
        CpuPlan({}, why={0: "it waits for data"}), CpuPlan({}, why={0: "it waits for data"})
    )
    stage.answers.append(CpuPlan({}, probes={1: (probe,)}))
    mine = Plan({}, {}, {}, notes=Notes(why={0: "it scales"}, nodes=nodes))
    decider = Decider(state, Plans(mine, cpus=stage))
    for at_s in (1.0, 2.0, 3.0):
        decider.decide(at_s)
    assert state.notes.why == {0: "it scales"}
    assert state.notes.why_cpus == {0: "it waits for data"}
    assert state.notes.probes == {1: [probe]}
    assert state.notes.nodes == nodes


@pytest.mark.parametrize(
    ("answer", "error", "what"),
    [
        (None, PlanError, "the stage of CPU cores decided None, which is no CpuPlan"),
        (CpuPlan({}, wake_at_s=1.0), PlanError, "woken at 1.0 s, which is no time after now"),
        (CpuPlan({}, {"a": {1}}), PlanError, "remember"),
        (CpuPlan({0: 1}), PlanError, "no GPUs"),
        (ValueError("no curve"), PolicyError, r"ValueError: no curve .*test_cpus.py, line"),
    ],
)
def test_what_a_stage_may_not_say_is_an_error_and_the_state_stays(answer, error, what):
    state = cluster()
    with pytest.raises(error, match=what):
        take_decision(state, Plans(cpus=Says(answer)), 1.0)
    assert state.decision_seq == 0
