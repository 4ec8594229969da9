"""Standing grants, and what goes on after they are taken back."""

import os
import socket
from pathlib import Path

import pytest

from rota.flow import wire
from rota.flow.floor import Floor
from rota.flow.grants import Grants
from rota.flow.island import Island
from rota.flow.members import Member, Place
from rota.flow.order import Fifo
from rota.flow.page import ALLOWED, BEGUN, FINISHED, rings_of
from rota.flow.standing import Standing

CLIENT = 7
PAIR = 1  # a program of one operation on both workers
FIRST, SECOND = 1, 2  # the slots of workers 0 and 1, on devices 0 and 1


class Granted:
    """The floor of an island whose only client has a grant, on two devices."""

    def __init__(self, folder: Path) -> None:
        self.floor = Floor(folder, 2, 1 << 20, Island(rings_of(2), Fifo()))
        self.grants = Grants(self.floor, lambda _: "")
        self.connection, other = socket.socketpair()
        self.member = member = Member(CLIENT, other, self.floor.page)
        member.become(Standing.ORDERED)
        member.become(Standing.RETIRING)
        member.become(Standing.GRANTED)
        for device in range(2):
            slot = self.floor.free_slot(device)
            member.order.append(slot)
            member.slots[slot], member.slot_on[device] = device, slot
            self.floor.places[slot] = Place(slot, member, os.getpid())
            self.floor.page.grant(device, slot)
        self.floor.members[CLIENT] = member
        member.define(wire.DefineGangs(PAIR, [[0, 1]], [1], losses=[0], labels=["sum"]))

    def revoke(self) -> None:
        assert self.grants.revoke(self.member) == ""

    def tell(self, word: int, first: int, second: int) -> None:
        """The workers tell of operations."""
        self.floor.page.tell(FIRST, word, first)
        self.floor.page.tell(SECOND, word, second)

    def allowed(self) -> tuple[int, int]:
        """The last operation that each worker may run without a turn."""
        return self.floor.page.of(FIRST, ALLOWED), self.floor.page.of(SECOND, ALLOWED)

    def close(self) -> None:
        self.connection.close()
        self.member.connection.close()
        for place in self.floor.places.values():
            os.close(place.process)
        self.floor.bells.close()
        self.floor.page.close()


@pytest.fixture
def granted(tmp_path):
    made = Granted(tmp_path)
    yield made
    made.close()


def test_an_operation_that_all_have_told_of_beginning_is_allowed_to_all(granted):
    """One of them may have seen after that that the grant was gone, and wait."""
    granted.member.note([(PAIR, 1), (PAIR, 2), (PAIR, 3)])
    granted.tell(FINISHED, 1, 1)
    granted.tell(BEGUN, 2, 2)
    granted.revoke()
    assert granted.allowed() == (2, 2)
    assert granted.floor.draining == {FIRST: 2, SECOND: 2}
    for device in range(2):
        granted.floor.island.ready(CLIENT, device, 3)
    granted.floor.give_out()
    assert granted.floor.page.issued(0) == 0  # nobody has turns before these are over
    granted.tell(FINISHED, 2, 2)
    granted.floor.drain()
    granted.floor.give_out()
    assert [granted.floor.page.head(device) for device in range(2)] == [FIRST, SECOND]
    assert [granted.floor.page.issued(device) for device in range(2)] == [1, 1]


def test_an_operation_that_one_has_begun_is_allowed_to_the_others(granted):
    granted.member.note([(PAIR, 1), (PAIR, 2), (PAIR, 3)])
    granted.tell(BEGUN, 2, 0)
    granted.revoke()
    assert granted.allowed() == (2, 2)
    assert granted.floor.draining == {FIRST: 2, SECOND: 2}


def test_nothing_is_allowed_where_nothing_was_begun(granted):
    granted.tell(FINISHED, 1, 1)
    granted.tell(BEGUN, 1, 1)
    granted.member.note([(PAIR, 1), (PAIR, 2)])
    granted.revoke()
    assert granted.allowed() == (0, 0)
    assert granted.floor.draining == {}
