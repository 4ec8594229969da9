"""Moves of a client's workers, as the host makes them: the workers are this test."""

import pytest

from rota.errors import FlowError
from rota.flow.grants import Grants
from rota.flow.moves import Moves
from rota.flow.page import DEVICE, HELD_BYTES, MOVES, PLACED
from rota.flow.standing import Standing
from support.flow_floor import CLIENT, OneClient

DEVICE_BYTES = 1000
ANYWHERE = [[], []]  # cores for two workers


class Pair:
    """An island of four devices, whose only client has a worker on each of the first two."""

    def __init__(self, folder) -> None:
        self.client = OneClient(folder, 4, DEVICE_BYTES)
        self.floor, self.connection = self.client.floor, self.client.connection
        self.member = member = self.client.member
        self.moves = Moves(self.floor, Grants(self.floor, lambda _: ""))
        member.memory_bytes = DEVICE_BYTES
        for device, slot in member.slot_on.items():
            self.floor.memory.join(CLIENT, slot, device, DEVICE_BYTES)
        self.floor.island.join(CLIENT, 1.0, member.slot_on)
        member.become(Standing.ORDERED)

    def move(self, *workers: int) -> None:
        """These workers do what they were told."""
        for slot in (self.member.order[worker] for worker in workers):
            self.floor.page.tell(slot, PLACED, self.floor.page.of(slot, MOVES))

    def settle(self) -> Standing:
        self.moves.settle(self.member)
        return self.member.standing


@pytest.fixture
def pair(tmp_path):
    made = Pair(tmp_path)
    yield made
    made.client.close()


def test_workers_leave_and_come(pair):
    pair.moves.withdraw(pair.member)
    assert pair.settle() == Standing.GOING
    pair.move(0)
    assert pair.settle() == Standing.GOING
    pair.move(1)
    assert pair.settle() == Standing.AWAY
    pair.moves.put(pair.member, [2, 3], ANYWHERE)
    assert pair.settle() == Standing.COMING
    pair.move(0, 1)
    assert pair.settle() == Standing.ORDERED
    assert [place.device for place in pair.floor.places.values()] == [2, 3]


def test_a_worker_that_is_where_it_was_has_moved_only_once_it_says_so(pair):
    """It may not know yet that the other one has left, and its group with it."""
    pair.moves.withdraw(pair.member)
    pair.settle()
    pair.move(0)
    pair.moves.put(pair.member, [0, 1], ANYWHERE)
    assert pair.settle() == Standing.COMING
    pair.move(0)
    assert pair.settle() == Standing.COMING
    pair.move(1)
    assert pair.settle() == Standing.ORDERED


def test_workers_that_are_leaving_stay_if_they_are_given_the_same_devices_and_no_others(pair):
    pair.moves.withdraw(pair.member)
    assert pair.member.standing == Standing.LEAVING
    with pytest.raises(FlowError, match="pause it first"):
        pair.moves.put(pair.member, [2, 3], ANYWHERE)
    assert pair.member.standing == Standing.LEAVING
    pair.moves.put(pair.member, [0, 1], ANYWHERE)
    assert pair.member.standing == Standing.ORDERED


def test_a_worker_that_has_ended_needs_no_room(pair):
    pair.moves.withdraw(pair.member)
    pair.settle()
    pair.move(0, 1)
    pair.settle()
    first = pair.member.order[0]
    pair.floor.page.tell(first, HELD_BYTES, 600)
    pair.floor.memory.join(CLIENT + 1, 100, 2, 500)
    pair.floor.page.tell(100, HELD_BYTES, 500)
    with pytest.raises(FlowError, match="600 bytes, and device 2 has room for 500"):
        pair.moves.put(pair.member, [2, 3], ANYWHERE)
    assert pair.member.standing == Standing.AWAY
    pair.floor.places[first].gone = True
    pair.moves.put(pair.member, [2, 3], ANYWHERE)
    assert pair.member.standing == Standing.COMING


def test_who_is_rung_for_sees_where_all_are_to_be(pair, monkeypatch):
    """A worker passes over an operation whose slice has lost a device, and looks only once."""
    pair.moves.withdraw(pair.member)
    pair.settle()
    pair.move(0, 1)
    pair.settle()
    seen = []
    of, slots = pair.floor.page.of, pair.member.order
    monkeypatch.setattr(
        pair.floor.bells, "ring", lambda _: seen.append([of(slot, DEVICE) for slot in slots])
    )
    pair.moves.put(pair.member, [2, -1], ANYWHERE)
    assert seen == [[2, -1]] * 2
