"""Which gap a background job takes, and whose turn is over."""

import pytest

from rota.policy.fill.gaps import Gap
from rota.policy.fill.seating import GAIN, TURN_S, Offer, Seat, best, in_order, longest_served

IDLE, HALF, TENTH = (
    Offer(Gap(1, (0,)), 1.0),
    Offer(Gap(0, (1,), (4,), 0.5), 0.5),
    Offer(Gap(0, (0,), (3,), 0.1), 0.1),
)
ALMOST = Offer(Gap(2, (0,), (5,), 1.0), 1.0)

TAKEN = {
    "nothing where there is none": ([], None, None),
    "an idle GPU before any other": ([HALF, IDLE, TENTH], None, IDLE),
    "an idle GPU before one that is left whole": ([ALMOST, IDLE], None, IDLE),
    "the largest part of one in use": ([TENTH, HALF], None, HALF),
    "of equal ones the first node": (
        [Offer(Gap(1, (0,)), 1), Offer(Gap(0, (5,)), 1)],
        None,
        (0, (5,)),
    ),
    "of equal ones the first GPU": (
        [Offer(Gap(0, (3,)), 1), Offer(Gap(0, (2,)), 1)],
        None,
        (0, (2,)),
    ),
    "its home where nothing is much larger": ([TENTH, HALF], (0, (0,)), TENTH),
    "its home only if it is not much smaller": ([TENTH, IDLE], (0, (0,)), IDLE),
    "a GPU of its home's node": (
        [Offer(Gap(0, (0,)), 1), Offer(Gap(1, (1,)), 1)],
        (1, (0,)),
        (1, (1,)),
    ),
}


@pytest.mark.parametrize("case", TAKEN)
def test_a_job_takes(case):
    offers, home, expected = TAKEN[case]
    found = best(offers, home)
    if isinstance(expected, tuple) and not isinstance(expected, Offer):
        assert (found.gap.node, found.gap.gpus) == expected
    else:
        assert found == expected
    assert best(reversed(offers), home) == found


def test_a_move_must_pay():
    near = Offer(Gap(0, (0,), (3,), 0.5), 1.0 - GAIN + 0.01)
    assert best([near, IDLE], (0, (0,))) == near


def test_those_that_have_run_least_come_first_then_the_earlier_ones():
    ran = {0: 5.0, 1: 0.0, 2: 5.0, 3: 1.0}
    assert in_order(ran, ran.get) == [1, 3, 0, 2]


SEATS = [Seat(7, 2000.0, Gap(0, (0,))), Seat(6, 1000.0, Gap(0, (1,))), Seat(5, 10.0, Gap(0, (2,)))]

TURNS = {
    "of the one that has run longest": (0.0, {0, 1, 2}, (7, 0.0)),
    "of the first one whose gap it can take": (0.0, {1, 2}, (6, 0.0)),
    "of one that still has some time": (1900.0, {0}, (7, TURN_S - 100.0)),
    "of nobody if all have run less": (2000.0, {0, 1, 2}, None),
    "of nobody if it can take no gap": (0.0, set(), None),
}


@pytest.mark.parametrize("case", TURNS)
def test_a_job_that_waits_has_the_place(case):
    attained_s, gpus, expected = TURNS[case]
    found = longest_served(SEATS, attained_s, lambda gap: [gap] if gap.gpus[0] in gpus else [])
    assert (found and (found.seats[0].row, found.left_s)) == expected
