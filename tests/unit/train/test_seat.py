"""A rank's seat: the turns that it waits for, and passes on."""

import os

import pytest

from rota.flow.page import HOST, OWNER, READY, SLOTS, Bells, Page, mark_of
from rota.train.turns import Seat

RING, OWN, OTHER = 0, 3, 4


@pytest.fixture
def page(tmp_path):
    made = Page(tmp_path / "page", 1, SLOTS, make=True)
    bells = Bells(tmp_path)
    for slot in (HOST, OWN, OTHER):
        bells.make(slot)
        bells.own(slot)
    yield made
    bells.close()
    made.close()


def taken(folder, page):
    """The seat that has the slot."""
    place = {"folder": str(folder), "slot": OWN, "ring": RING, "devices": 1}
    page.tell(OWN, OWNER, mark_of("its key"))
    return Seat(place | {"host": os.getpid(), "key": "its key"})


@pytest.fixture
def seat(tmp_path, page):
    made = taken(tmp_path, page)
    yield made
    made.close()


def test_a_turn_is_passed_on_once(page, seat):
    page.give(RING, 1, OWN)
    page.give(RING, 2, OTHER)
    assert seat.wait()
    seat.pass_on()
    assert (page.done(RING), page.head(RING)) == (1, OTHER)


def test_a_turn_that_the_host_has_passed_over_is_not_passed_on_again(page, seat):
    page.give(RING, 1, OWN)
    page.give(RING, 2, OTHER)
    assert seat.wait()
    page.pass_on(RING, 1)  # the seat was given up meanwhile
    seat.pass_on()
    assert (page.done(RING), page.head(RING)) == (1, OTHER)


def test_a_slot_that_another_has_by_now_gives_no_turns_and_is_left_alone(page, tmp_path):
    seat = taken(tmp_path, page)
    page.clear(OWN, 0)
    page.tell(OWN, OWNER, mark_of("another key"))
    page.give(RING, 1, OWN)
    assert seat.is_given_up
    assert not seat.wait()
    seat.close()
    assert page.of(OWN, READY) == 0
