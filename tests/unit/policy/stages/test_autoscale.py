"""How many nodes are asked for: within a band of utility, up at once, down after a while."""

import pytest

from rota.errors import PolicySettingError
from rota.model.decide.decision import take_decision
from rota.model.decide.diff import diff
from rota.model.events import (
    CommandSent,
    JobLaunched,
    JobSubmitted,
    NodeJoined,
    WorkerRegistered,
)
from rota.model.job import Suspension
from rota.model.notes import DesiredNodes
from rota.model.state.state import ClusterState
from rota.policy.registry import create
from rota.policy.stages.autoscale import Autoscaler, wish_in
from rota.testing.builders import job

SCALER = Autoscaler(1, 16, 0.35, 0.65, 300.0)


def jobs(number):
    """The utility of nodes of which each job uses one well, and no second one."""
    return lambda nodes: min(1.0, number / nodes)


def decide(utility, *, before=None, there=None, now_s=0.0, needed=0, scaler=SCALER):
    there = before.desired if there is None else there
    return scaler.decide(now_s, before, there=there, needed=needed, utility=utility)


@pytest.mark.parametrize(("number", "nodes"), [(1, 2), (2, 4), (4, 8), (7, 14), (40, 16)])
def test_above_the_band_it_asks_at_once_for_the_nodes_nearest_to_its_middle(number, nodes):
    wish = decide(jobs(number), there=1)
    assert wish.desired == nodes


def test_within_the_band_the_number_stays():
    for there in (7, 8, 9, 10, 11):
        assert decide(jobs(4), before=DesiredNodes(there, 0.5)).desired == there


def test_below_the_band_it_asks_for_fewer_when_it_has_been_so_for_a_while():
    first = decide(jobs(2), before=DesiredNodes(16, 0.5), now_s=100.0)
    assert (first.desired, first.below_since_s) == (16, 100.0)
    assert SCALER.wake_at_s(first) == 400.0
    assert decide(jobs(2), before=first, now_s=399.0).desired == 16
    last = decide(jobs(2), before=first, now_s=400.0)
    assert (last.desired, last.below_since_s) == (4, None)
    assert SCALER.wake_at_s(last) is None


def test_a_utility_that_comes_back_into_the_band_lets_the_while_begin_anew():
    low = decide(jobs(2), before=DesiredNodes(16, 0.5), now_s=0.0)
    back = decide(jobs(8), before=low, now_s=200.0)
    assert back.below_since_s is None
    again = decide(jobs(2), before=back, now_s=301.0)
    assert (again.desired, again.below_since_s) == (16, 301.0)


def test_nodes_stay_where_one_more_would_be_further_from_the_middle():
    steps = {1: 0.7, 2: 0.1}
    scaler = SCALER._replace(most=2)
    assert decide(steps.__getitem__, there=1, scaler=scaler).desired == 1


def test_more_is_asked_for_than_utility_says_if_a_job_could_not_run_at_all():
    assert decide(lambda nodes: 0.0, there=1, needed=3).desired == 3
    assert decide(lambda nodes: 0.0, there=1, needed=99).desired == 16


def test_above_the_band_even_with_the_most_nodes_it_asks_for_the_most():
    uneven = {**dict.fromkeys(range(1, 16), 0.7), 16: 0.75}
    assert decide(uneven.__getitem__, there=15).desired == 16


def test_the_utility_that_is_noted_is_that_of_the_nodes_that_are_there():
    wish = decide(jobs(4), before=DesiredNodes(8, 0.5), there=5)
    assert wish == DesiredNodes(8, 0.8)


def test_without_any_node_it_goes_on_asking_for_what_it_asked_for():
    assert decide(jobs(9), there=0) == DesiredNodes(1, 0.0)
    assert decide(jobs(9), before=DesiredNodes(5, 0.5), there=0) == DesiredNodes(5, 0.0)


def test_a_load_that_goes_up_and_down_is_followed_without_flapping():
    wish, changes = None, 0
    loads = [3] * 20 + [7] * 20 + [3] * 20 + [0] * 20
    for minute, number in enumerate(loads):
        jitter = number + (0.2 if minute % 2 else -0.2) if number else 0
        before, there = wish, 1 if wish is None else wish.desired
        wish = decide(jobs(jitter), before=before, there=there, now_s=60.0 * minute)
        changes += wish.desired != there
        if minute % 20 > 6 and number:
            assert SCALER.low <= jobs(jitter)(wish.desired) <= SCALER.high
    assert changes == 4
    assert wish.desired == 1


@pytest.mark.parametrize("pinned", [0, 1])
def test_nodes_of_jobs_that_could_go_on_nowhere_else_are_kept(pinned):
    state = ClusterState()
    for event in (NodeJoined(0.0, "a", 1), NodeJoined(0.0, "b", 1)):
        state.apply(event)
    for name in ("one", "two"):
        state.apply(JobSubmitted(0.0, job(name)))
    take_decision(state, create("pollux", {}), 0.0)
    for command in diff(state):
        state.apply(CommandSent(0.0, command))
        state.apply(JobLaunched(0.0, command.row, command.attempt))
    kept = state.held[pinned].nodes()
    state.apply(WorkerRegistered(1.0, pinned, Suspension.PROCESS, True, portable=False))
    take_decision(state, create("pollux", {"nodes": "1,1"}), 2.0)
    (target,) = (target for target in state.target if target is not None)
    assert target.nodes() == kept


def test_other_marks_ask_for_no_nodes():
    assert wish_in(None) is wish_in([1]) is wish_in({"noise": {}}) is None


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"nodes": "16"}, "two whole numbers"),
        ({"nodes": "a,b"}, "two whole numbers"),
        ({"nodes": "9,3"}, "the least has to be 1 or more"),
        ({"nodes": "0,3"}, "the least has to be 1 or more"),
        ({"utility": "0.5"}, "two numbers"),
        ({"utility": "0.7,0.3"}, "two rising numbers between 0 and 1"),
        ({"utility": "0.3,nan"}, "two rising numbers between 0 and 1"),
        ({"shrink_after_s": "-1"}, "zero or a number above it"),
    ],
)
def test_settings_that_cant_be_are_refused(given, said):
    with pytest.raises(PolicySettingError, match=said):
        create("pollux", given)
