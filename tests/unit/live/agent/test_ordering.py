"""Which attempts of a node take turns on the GPUs that they share."""

import asyncio
from types import SimpleNamespace

import pytest

from rota.live.agent.ordering import Hold, in_gangs
from rota.live.agent.states import State


class Attempt:
    """What is looked at of an attempt."""

    def __init__(
        self, gpus, *, suspension="boundary", flow=False, background=False, state=State.RUNNING
    ):
        self.record = SimpleNamespace(gpus=gpus, suspension=suspension, background=background)
        self.state, self.seat = state, object() if flow else None


@pytest.mark.parametrize(
    ("others", "ordered"),
    [
        ([Attempt([0, 1])], True),
        ([Attempt([1, 2])], True),
        ([Attempt([1])], True),
        ([Attempt([0, 1], flow=True)], True),
        ([], False),
        ([Attempt([2, 3])], False),
        ([Attempt([0, 1], suspension="process")], False),
        ([Attempt([0, 1], background=True)], False),
        ([Attempt([0, 1], state=State.SUSPENDED)], False),
    ],
)
def test_a_gang_takes_turns_beside_whoever_takes_turns_there(others, ordered):
    gang = Attempt([0, 1])
    assert (gang in in_gangs([gang, *others])) == ordered


def test_jobs_of_one_gpu_need_no_order():
    assert not in_gangs([Attempt([0]), Attempt([0])])


@pytest.mark.parametrize(
    ("others", "ordered"),
    [
        ([Attempt([0, 1])], True),
        ([Attempt([1])], True),
        ([Attempt([1], suspension="process")], True),
        ([Attempt([1, 2], background=True)], True),
        ([Attempt([1, 2], background=True, suspension="process")], False),
        ([Attempt([0, 1], state=State.SUSPENDED)], False),
        ([Attempt([2])], False),
        ([], False),
    ],
)
def test_a_gang_in_the_background_takes_turns_beside_anybody_in_the_foreground(others, ordered):
    gang = Attempt([0, 1], background=True)
    found = in_gangs([gang, *others])
    assert (gang in found) == ordered
    assert not any(other in found for other in others if not other.record.background)


def test_a_background_job_of_one_gpu_takes_no_turns():
    assert not in_gangs([Attempt([0, 1]), Attempt([0], background=True)])


def test_ranks_that_are_suspended_by_now_are_not_asked_to_hold_for_anything_else():
    sent = []
    ranks = [SimpleNamespace(index=index, send=sent.append) for index in range(2)]
    attempt = Attempt([0, 1])
    attempt.members, attempt.can_hold = ranks, True
    hold = Hold(attempt, "seats")
    attempt.can_hold = False
    assert not asyncio.run(hold.reached())
    assert not sent


def test_ranks_that_train_are_asked_to_hold_at_one_boundary():
    sent = []
    ranks = [SimpleNamespace(index=index, send=sent.append) for index in range(2)]
    attempt = Attempt([0, 1])
    attempt.members, attempt.ranks, attempt.can_hold = ranks, ranks, True
    hold = Hold(attempt, "seats")

    async def held():
        reached = asyncio.create_task(hold.reached())
        await asyncio.sleep(0)
        assert sent == [{"type": "pause", "gang": True, "round": "seats"}] * 2
        hold.holds(0, 5)
        hold.holds(1, 5)
        return await reached

    assert asyncio.run(held())
