"""A live run under pollux, decided again from its log: by the same policy, and by others."""

import pytest

from rota.model.decide.decision import take_decision
from rota.model.events import JobResized, JobRetuned
from rota.model.state.state import ClusterState
from rota.model.view import View
from rota.policy.base import Policy
from rota.policy.registry import create

from ..process.conftest import PROMPT, Cluster, until
from ..process.test_pollux import changes, finish, train
from .test_replay import read, replay

SETTINGS = {"interval_s": "1"}


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    """Two adaptive jobs, a retune, a resize and a controller that was killed."""
    cluster = Cluster(tmp_path_factory.mktemp("run"), "pollux", 2, **SETTINGS)
    cluster.environment = PROMPT
    try:
        cluster.up()
        first = train(cluster, "first", "--steps", 1_000_000)
        until(lambda: changes(cluster, first, JobRetuned), "its batch is chosen anew")
        second = train(cluster, "second", "--steps", 60)
        cluster.kill_controller()
        cluster.up()
        cluster.ends(second)
        until(lambda: changes(cluster, first, JobResized), "its size has changed")
        finish(cluster, first, "first")
    finally:
        cluster.close()
    return read(cluster.folder.database)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("keep_indexes", [True, False], ids=["one-policy", "always-a-new-index"])
def test_a_live_run_with_retunes_replays_to_the_same_plans_and_commands(log, keep_indexes):
    decisions, commands = replay(log, create("pollux", SETTINGS), keep_indexes=keep_indexes)
    assert decisions > 5
    assert commands > 4


def test_a_policy_that_is_made_anew_for_each_decision_decides_the_same(log):
    """As after a restart of the controller at every point: what it knows comes from the log."""

    class Forgetful(Policy):
        identity = create("pollux", SETTINGS).identity

        def decide(self, view):
            return create("pollux", SETTINGS).decide(view)

    decisions, _ = replay(log, Forgetful(), keep_indexes=False)
    assert decisions > 5


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("policy", "settings"),
    [
        ("pollux", {"objective": "length", "fits": "job"}),
        ("pollux", {"objective": "pollux"}),
        ("optimus", {}),
        ("elastic", {}),
        ("gandiva", {}),
    ],
)
def test_another_policy_can_be_asked_at_every_moment_of_the_log(log, policy, settings):
    """As in its shadow: nothing comes of what it says, and it never fails."""
    shadow, state, asked = create(policy, settings), ClusterState(), 0
    for event in log:
        state.apply(event)
        if state.active:
            plan = shadow.decide(View(state, event.at_s, shadow))
            assert set(plan.allocations) <= set(state.active)
            asked += 1
    assert asked > 10


def test_pollux_decides_on_the_state_that_any_part_of_the_log_leads_to(log):
    """As what-if does: a controller takes over here, with another policy than the one before."""
    for end in range(1, len(log), 3):
        state = ClusterState()
        for event in log[:end]:
            state.apply(event)
        now_s = log[end - 1].at_s + 1.0
        take_decision(state, create("pollux", {"objective": "length"}), now_s)
        state.validate()
