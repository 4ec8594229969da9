"""Which attempts of a node take turns on the GPUs that they share."""

from types import SimpleNamespace

import pytest

from rota.live.agent.ordering import in_gangs
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
