"""Jobs that put up with each other may have the same GPUs; nobody else may."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.errors import PlanError
from rota.model.allocation import Allocation, on_node, shared_on_node
from rota.model.cluster import FreeGpus
from rota.model.decide.decision import check
from rota.model.decide.diff import diff
from rota.model.events import CommandSent, DecisionTaken, JobLaunched, JobSubmitted, NodeJoined
from rota.model.job import JobSpec
from rota.model.plan import Plan
from rota.model.state.state import ClusterState


def gpus(*masks):
    free = FreeGpus()
    for node, mask in enumerate(masks):
        free.set_mask(node, mask)
    return free


def test_sharers_take_a_gpu_once_and_give_it_back_when_the_last_is_gone():
    free = gpus(0b11, 0b1)
    both, one = Allocation(((0, 0b01), (1, 0b1)), shared=True), shared_on_node(0, 0b11)
    assert free.take(both)
    assert (free.count, free.masks) == (1, [0b10, 0])
    assert free.take(one)
    assert (free.count, free.masks) == (0, [0, 0])
    free.give(both)
    assert (free.count, free.masks) == (1, [0, 0b1])
    assert not free.fits(on_node(0, 0b01))
    free.give(one)
    assert (free.count, free.masks, free.sharers) == (3, [0b11, 0b1], {})


def test_nobody_shares_a_gpu_that_another_has_for_itself():
    free = gpus(0b11)
    assert free.take(on_node(0, 0b01))
    assert not free.fits(shared_on_node(0, 0b01))
    assert not free.take(shared_on_node(0, 0b11))
    assert free.masks == [0b10]
    assert free.take(shared_on_node(0, 0b10))
    assert not free.take(on_node(0, 0b10))


@given(st.lists(st.tuples(st.integers(1, 15), st.booleans(), st.booleans()), max_size=40))
def test_what_is_free_is_what_nobody_has(story):
    free, held = gpus(0b1111), []
    for mask, shared, gives in story:
        if gives and held:
            free.give(held.pop(mask % len(held)))
        wanted = (shared_on_node if shared else on_node)(0, mask)
        clash = any(
            other.overlaps(wanted) and not (other.shared and wanted.shared) for other in held
        )
        assert free.fits(wanted) == (not clash)
        if free.take(wanted):
            held.append(wanted)
        taken = 0
        for other in held:
            taken |= other.parts[0][1]
        assert free.masks[0] == 0b1111 & ~taken
        assert free.count == free.masks[0].bit_count()
        assert free.by_count[free.count] == 1
        assert free.copy().fits(wanted) == free.fits(wanted)


@pytest.fixture
def state():
    state = ClusterState()
    state.apply(NodeJoined(0.0, "n", 1))
    for name in "ab":
        state.apply(JobSubmitted(0.0, JobSpec(name, 1, 0.0, 100.0)))
    return state


def decide(state, **allocations):
    plan = Plan({"ab".index(name): value for name, value in allocations.items()}, {}, {})
    check(state, plan, 0.0)
    state.apply(DecisionTaken(0.0, state.decision_seq + 1, "", *plan))
    commands = []
    while new := diff(state):
        for command in new:
            state.apply(CommandSent(0.0, command))
        commands += new
    state.validate()
    return [(type(command).__name__, command.row) for command in commands]


def test_a_job_that_runs_shares_its_gpu_without_being_stopped(state):
    alone, shared = on_node(0, 1), shared_on_node(0, 1)
    assert decide(state, a=alone) == [("Launch", 0)]
    state.apply(JobLaunched(1.0, 0, 1))
    assert decide(state, a=shared, b=shared) == [("Launch", 1)]
    state.apply(JobLaunched(2.0, 1, 1))
    assert state.held == [shared, shared]
    assert decide(state, a=alone, b=None) == [("Suspend", 1)]
    assert state.held == [shared, shared]  # until the other is gone
    assert 0 in state.unsettled


def test_a_plan_in_which_only_one_of_two_wants_to_share_is_refused(state):
    with pytest.raises(PlanError, match="GPUs of n that are taken"):
        decide(state, a=on_node(0, 1), b=shared_on_node(0, 1))
