"""One decision on a copy: what a job would bring about, and that nothing else notices."""

from functools import partial

import pytest

from rota.model.cluster import FreeGpus, Node
from rota.model.decide.decision import take_decision
from rota.model.decide.diff import diff
from rota.model.decide.preview import preview
from rota.model.events import CommandSent, JobLaunched, JobSubmitted, joined
from rota.model.reason import Reason
from rota.model.state.state import ClusterState
from rota.policy.registry import again, create
from rota.testing.builders import job


def cluster(policy, *jobs, gpus=2):
    """A node on which these jobs were decided on once, and what was started runs."""
    state = ClusterState()
    state.apply(joined(0.0, Node("here", gpus)))
    for each in jobs:
        state.apply(JobSubmitted(0.0, each))
    take_decision(state, policy, 0.0)
    for command in diff(state):
        state.apply(CommandSent(0.0, command))
        state.apply(JobLaunched(0.0, command.row, command.attempt))
    return state


def seen(state, policy, spec, now_s=10.0):
    return preview(state.copy(), partial(again, policy), spec, now_s)


def columns(state):
    """All that a state is, but for what a copy does without."""
    left_out = ("keeps_stories", "_stories", "_mates", "observers", "plan", "foreseen")
    told = {name: value for name, value in vars(state).items() if name not in left_out}
    return {name: value.masks if type(value) is FreeGpus else value for name, value in told.items()}


def test_a_job_that_fits_starts_now():
    policy = create("fifo")
    it = seen(cluster(policy, job(1, 1)), policy, job(2, 1))
    assert it.state.places(it.state.target[it.row].parts) == "here:1"
    assert (it.displaced, it.in_the_way) == ((), ())


def test_a_job_that_waits_displaces_nobody():
    policy = create("fifo")
    it = seen(cluster(policy, job(1, 2)), policy, job(2, 1))
    assert it.state.target[it.row] is None
    assert it.state.reason[it.row] == Reason.WAIT_RESOURCES
    assert it.displaced == ()


def test_a_job_that_comes_first_suspends_another():
    policy = create("smallest-first")
    it = seen(cluster(policy, job(1, 2)), policy, job(2, 1))
    assert [(each.row, each.how, each.before.num_gpus) for each in it.displaced] == [
        (0, "suspended", 2)
    ]
    assert it.in_the_way == (0,)


def test_what_would_change_without_the_job_is_not_laid_to_it():
    """The third job is submitted, and not decided on: it suspends the first one by itself."""
    policy = create("smallest-first")
    state = cluster(policy, job(1, 4), gpus=4)
    state.apply(JobSubmitted(5.0, job(2, 1)))
    it = seen(state, policy, job(3, 1))
    assert it.state.target[it.row] is not None
    assert it.displaced == ()
    assert it.in_the_way == (0,)


@pytest.mark.parametrize("name", ["fifo", "tiresias", "gandiva", "pollux", "elastic", "las"])
def test_neither_the_state_nor_the_policy_notices(name):
    policy, undisturbed = create(name), create(name)
    state, other = (cluster(each, job(1, 2), job(2, 1)) for each in (policy, undisturbed))
    plan = state.plan
    seen(state, policy, job(3, 1))
    assert columns(state) == columns(other)
    assert state.plan is plan
    for each in (state, other):
        each.apply(JobSubmitted(20.0, job(3, 1)))
    assert take_decision(state, policy, 20.0) == take_decision(other, undisturbed, 20.0)


def test_a_copy_shares_nothing_that_changes():
    policy = create("gandiva")
    state = cluster(policy, job(1, 2, program=None))
    told = columns(state.copy())
    twin = state.copy()
    twin.apply(JobSubmitted(1.0, job(2, 1)))
    take_decision(twin, again(policy), 1.0)
    twin.notes.why[0] = "it is tried"
    twin.refused.setdefault(0, {})["a100"] = None
    twin.sweeps.setdefault("lr", []).append(0)
    assert columns(state) == told
    assert columns(twin) != told
