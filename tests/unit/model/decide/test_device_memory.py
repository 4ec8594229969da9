"""Two that do not fit a GPU together never take turns on it, whatever the policy plans."""

import random

import pytest
from tests.support.driven import DrivenCluster

from rota.errors import PlanError
from rota.explain.why import explain
from rota.model.allocation import on_node
from rota.model.cluster import Node
from rota.model.commands import Launch
from rota.model.decide.decision import take_decision
from rota.model.decide.device_memory import memory_keepers
from rota.model.events import (
    DecisionTaken,
    JobFinished,
    JobSubmitted,
    NodeJoined,
    ResumeRequested,
    StopRequested,
    SuspendRequested,
    WorkerRegistered,
)
from rota.model.fallback import IN_ORDER
from rota.model.job import JobState, Suspension
from rota.model.plan import Plan
from rota.model.reason import Reason
from rota.model.view import View
from rota.policy.base import Policy
from rota.policy.registry import BUILT_IN, create, policy_class
from rota.policy.stages.selection import place
from rota.testing.builders import job

PROCESS, BOUNDARY = Suspension.PROCESS, Suspension.BOUNDARY
TURNS = create("round-robin", {"quantum_s": "10"})


class Gpus(DrivenCluster):
    """Nodes with GPUs of 80 GB; jobs register as soon as they run."""

    def __init__(self, *jobs, nodes=(1,), kind="cuda", policy=TURNS):
        super().__init__(cluster="1x1", policy=policy)
        state = type(self.state)()
        self.state = state
        self.how = {}
        for index, gpus in enumerate(nodes):
            state.apply(NodeJoined(0.0, f"n{index}", gpus, kind, memory_gb=80.0))
        for spec, how in jobs:
            self.how[len(state.spec)] = how
            self.happens(JobSubmitted, spec)

    def confirm(self, command):
        super().confirm(command)
        if isinstance(command, Launch):
            how = self.how[command.row]
            movable = how != PROCESS
            self.happens(WorkerRegistered, command.row, how, movable)

    def turn(self):
        """The next quantum."""
        self.passes(11.0)
        self.settle()
        self.state.validate()

    def have_turns(self, count):
        """Which jobs run in so many quanta."""
        seen = set()
        for _ in range(count):
            self.turn()
            seen |= self.running()
        return seen

    def running(self):
        return {row for row, held in enumerate(self.state.held) if held is not None}


def plain(name, memory_gb=None, **more):
    return job(name, 1, **more)._replace(memory_gb=memory_gb), PROCESS


def session(name, memory_gb=None):
    return job(name, 1)._replace(memory_gb=memory_gb), BOUNDARY


def test_a_job_that_keeps_its_memory_keeps_its_gpu_until_it_ends():
    cluster = Gpus(plain("first"), plain("second"))
    for _ in range(4):
        cluster.turn()
        assert cluster.running() == {0}
    assert cluster.state.preemptions[0] == 0
    assert cluster.state.reason[1] == Reason.WAIT_DEVICE_MEMORY
    told = explain(cluster.state, 1, cluster.now_s)
    assert told["reason"] == "WAIT_DEVICE_MEMORY"
    first = told["blockers"][0]
    assert first["held_by"] == ["first"]
    assert first["have"] == "job first can't give its GPU memory up; see docs/start/gpu.md"
    assert told["would_start_if"].startswith("job first ended, or ")
    cluster.happens(JobFinished, 0, JobState.SUCCEEDED)
    cluster.settle()
    assert cluster.running() == {1}


def test_who_gives_its_memory_up_takes_turns():
    cluster = Gpus(session("first"), session("second"))
    assert cluster.have_turns(4) == {0, 1}


def test_a_job_that_may_have_been_suspended_elsewhere_waits_for_who_does_not():
    cluster = Gpus(session("first"), plain("second"), session("third"))
    cluster.turn()
    while cluster.running() != {1}:  # the plain one has its first turn
        cluster.turn()
    for _ in range(4):
        cluster.turn()
        assert cluster.running() == {1}


@pytest.mark.parametrize(("each_gb", "turns"), [(30.0, True), (36.0, True), (40.0, False)])
def test_those_that_are_known_to_fit_together_take_turns(each_gb, turns):
    cluster = Gpus(plain("first", each_gb), plain("second", each_gb))
    assert cluster.have_turns(4) == ({0, 1} if turns else {0})


def test_a_third_must_fit_beside_both_that_are_stopped():
    cluster = Gpus(plain("a", 30.0), plain("b", 30.0), plain("c", 30.0))
    assert cluster.have_turns(9) == {0, 1}


def test_who_can_go_elsewhere_does():
    cluster = Gpus(plain("first"), plain("second"), nodes=(1, 1))
    cluster.turn()
    assert cluster.running() == {0, 1}
    assert {cluster.state.held[row].nodes() for row in (0, 1)} == {(0,), (1,)}


def test_a_gang_does_not_push_out_who_keeps_a_part_of_its_gpus():
    cluster = Gpus(plain("small"), (job("gang", 2), BOUNDARY), nodes=(2,))
    for _ in range(4):
        cluster.turn()
        assert cluster.running() == {0}
    assert cluster.state.target[0] == on_node(0, 0b1)


def test_who_its_user_suspends_leaves_room_only_for_those_that_fit_beside_it():
    cluster = Gpus(plain("first", 50.0), plain("large", 50.0))
    cluster.settle()
    cluster.happens(SuspendRequested, 0)
    cluster.settle()
    cluster.turn()
    assert cluster.running() == set()
    assert cluster.state.reason[1] == Reason.WAIT_DEVICE_MEMORY
    cluster.happens(StopRequested, 1)
    cluster.happens(JobSubmitted, plain("small", 20.0)[0])
    cluster.how[2] = PROCESS
    cluster.turn()
    assert cluster.running() == {2}
    cluster.happens(ResumeRequested, 0)
    for _ in range(3):
        cluster.turn()
        assert len(cluster.running()) == 1


def test_on_slots_without_memory_of_their_own_all_take_turns():
    cluster = Gpus(plain("first"), plain("second"), kind="cpu")
    assert cluster.have_turns(4) == {0, 1}


@pytest.mark.parametrize("name", ["tiresias", "gandiva", "srtf", "max-min-fairness", "las"])
def test_no_policy_makes_it_share(name):
    cluster = Gpus(plain("first"), plain("second"), plain("third"), policy=create(name))
    for _ in range(40):
        cluster.passes(60.0)
        cluster.settle()
        assert cluster.running() == {0}
    assert not any(cluster.state.preemptions)


@pytest.mark.parametrize(("name", "knobs"), [("tiresias", {"thresholds": "100"}), ("las", {})])
def test_gpus_that_nobody_keeps_memory_of_are_not_left_idle(name, knobs):
    """A gang that can't push out a job which keeps its GPU does not hold up those behind it."""
    cluster = Gpus(plain("first"), nodes=(4,), policy=create(name, knobs))
    cluster.settle()
    cluster.passes(4000.0)
    for spec in (job("gang", 4), *(plain(name)[0] for name in ("a", "b", "c"))):
        cluster.how[len(cluster.state.spec)] = PROCESS
        cluster.happens(JobSubmitted, spec._replace(submit_s=cluster.now_s))
    cluster.settle()
    assert cluster.running() == {0, 2, 3, 4}
    assert cluster.state.reason[1] == Reason.WAIT_DEVICE_MEMORY


LIVE = [name for name in BUILT_IN if not policy_class(name).needs_duration]


@pytest.mark.parametrize("name", LIVE)
@pytest.mark.parametrize("seed", range(3))
def test_whatever_happens_no_gpu_is_promised_more_memory_than_it_has(name, seed):
    chance = random.Random(seed)
    cluster = Gpus(nodes=(2, 4), policy=create(name))
    state, started = cluster.state, 0
    for number in range(60):
        cluster.passes(chance.expovariate(1 / 200.0))
        how = chance.choice([PROCESS, PROCESS, BOUNDARY, Suspension.RESTART])
        memory_gb = chance.choice([None, None, 20.0, 35.0, 50.0])
        spec = job(f"j{number}", chance.choice([1, 1, 2, 4]), at=cluster.now_s)
        cluster.how[len(state.spec)] = how
        cluster.happens(JobSubmitted, spec._replace(memory_gb=memory_gb))
        cluster.settle()
        state.validate()
        check_memory(state)
        running = [row for row in state.active if state.held[row] is not None]
        started = max(started, len(running))
        row = chance.choice([*running, None, None])
        if row is not None:
            what, *more = chance.choice([(JobFinished, JobState.SUCCEEDED), (SuspendRequested,)])
            cluster.happens(what, row, *more)
        elif state.held_back and chance.random() < 0.5:
            cluster.happens(ResumeRequested, chance.choice(sorted(state.held_back)))
    assert started >= 2


def check_memory(state):
    """On no GPU are there processes of several jobs that do not fit together."""
    there = {}
    keepers = memory_keepers(state)
    for row in range(len(state.spec)):
        place = state.held[row] or keepers.get(row)
        for node, mask in place.parts if place is not None else ():
            for gpu in range(mask.bit_length()):
                if mask >> gpu & 1:
                    there.setdefault((node, gpu), []).append(row)
    for rows in there.values():
        needs = [state.spec[row].memory_gb for row in rows]
        assert len(rows) == 1 or (None not in needs and sum(needs) <= 72.0), rows


def test_those_that_fit_together_go_on_taking_turns_whoever_waits():
    cluster = Gpus(plain("first", 20.0), plain("second", 20.0))
    cluster.turn()
    cluster.turn()
    cluster.how[2] = PROCESS
    cluster.happens(JobSubmitted, plain("unknown")[0])
    seen = []
    for _ in range(6):
        cluster.turn()
        seen.append(cluster.running())
    assert all(running in ({0}, {1}) for running in seen)
    assert {0} in seen and {1} in seen
    assert cluster.state.reason[2] == Reason.WAIT_DEVICE_MEMORY


class Moves(Policy):
    """Wants every job on the GPU that a test says."""

    def __init__(self):
        self.places = {}

    def decide(self, view):
        return Plan({row: self.places[row] for row in view.active if row in self.places}, {}, {})


def test_a_job_that_keeps_its_memory_is_not_moved_to_other_gpus():
    policy = Moves()
    cluster = Gpus(plain("first"), nodes=(2,), policy=policy)
    policy.places = {0: on_node(0, 0b1)}
    cluster.settle()
    policy.places = {0: on_node(0, 0b10)}
    cluster.settle()
    assert cluster.state.held[0] == on_node(0, 0b1)


def test_a_job_goes_on_where_its_memory_is_whoever_else_has_some_there():
    """Both have it by now: that one goes on takes no more."""
    cluster = Gpus(plain("first", 30.0), plain("second", 30.0))
    cluster.turn()
    cluster.turn()
    for row in cluster.running():
        cluster.happens(SuspendRequested, row)
    cluster.settle()
    cluster.state.spec[:] = [spec._replace(memory_gb=None) for spec in cluster.state.spec]
    for row in list(cluster.state.held_back):
        cluster.happens(ResumeRequested, row)
    cluster.turn()
    assert len(cluster.running()) == 1


def test_a_job_that_can_go_on_only_where_it_is_goes_there_and_not_where_it_was_to_move():
    cluster = Gpus(session("first"), nodes=(1, 1), policy=create("fifo-backfill"))
    cluster.settle()
    state = cluster.state
    (here,) = state.held[0].nodes()
    cluster.happens(SuspendRequested, 0)
    cluster.settle()
    cluster.happens(WorkerRegistered, 0, BOUNDARY, False)
    cluster.happens(ResumeRequested, 0)
    state.target[0] = on_node(1 - here, 0b1)  # a policy's plan of before
    view = View(state, cluster.now_s, cluster.policy)
    what_if = view.what_if()
    what_if.release(0, Reason.PREEMPTED_BY)
    assert place(what_if, 0)
    assert what_if.target(0).nodes() == (here,)


def test_a_job_that_is_resumed_before_its_suspension_is_confirmed_goes_on_where_its_memory_is():
    cluster = Gpus(plain("first"), plain("second"), nodes=(2, 1), policy=create("fifo"))
    cluster.settle()
    place = cluster.state.held[0]
    cluster.happens(SuspendRequested, 0)
    [suspend] = cluster.send()
    cluster.happens(ResumeRequested, 0)
    cluster.decide()
    assert cluster.state.target[0] == place, "the policy alone would take another GPU"
    cluster.confirm(suspend)
    cluster.settle()
    assert cluster.state.held[0] == place


def test_what_was_said_before_is_not_said_again():
    cluster = Gpus(plain("first"), *(plain(f"other{i}") for i in range(20)))
    cluster.turn()
    cluster.turn()
    told = []
    cluster.state.observers.append(told.append)
    for _ in range(4):
        cluster.turn()
    decisions = [event for event in told if isinstance(event, DecisionTaken)]
    assert len(decisions) == 4
    assert not any(event.reasons or event.allocations for event in decisions)


@pytest.mark.parametrize("wrong", [{1: "GPU 0"}, {99: on_node(0, 0b1)}, {1: on_node(7, 0b1)}])
def test_a_plan_that_breaks_the_contract_is_refused_as_such(wrong):
    policy = Moves()
    cluster = Gpus(plain("first"), plain("second"), nodes=(2,), policy=policy)
    policy.places = {0: on_node(0, 0b1)}
    cluster.settle()
    policy.decide = lambda view: Plan({0: on_node(0, 0b10), **wrong}, {}, {})
    errors = []
    event = take_decision(cluster.state, policy, cluster.now_s + 1.0, failed=errors.append)
    assert [type(error) for error in errors] == [PlanError]
    assert event.fallback == IN_ORDER
    assert 0 not in event.allocations


def test_nodes_are_not_looked_at_one_by_one_for_each_decision(monkeypatch):
    cluster = Gpus((job("a"), PROCESS), nodes=[1] * 3, kind="cpu")
    asked = []
    monkeypatch.setattr(Node, "has_device_memory", property(asked.append))
    cluster.settle()
    assert cluster.state.held[0] is not None
    assert asked == []
