"""Standing grants, and what goes on after they are taken back."""

from pathlib import Path

import pytest

from rota.flow import wire
from rota.flow.grants import Grants
from rota.flow.page import ALLOWED, BEGUN, FINISHED
from rota.flow.standing import Standing
from support.flow_floor import CLIENT, OneClient

PAIR = 1  # a program of one operation on both workers
FIRST, SECOND = 1, 2  # the slots of workers 0 and 1, on devices 0 and 1


class Granted:
    """The floor of an island whose only client has a grant, on two devices."""

    def __init__(self, folder: Path) -> None:
        self.client = OneClient(folder, 2, 1 << 20)
        self.floor, self.connection = self.client.floor, self.client.connection
        self.member = member = self.client.member
        self.grants = Grants(self.floor, lambda _: "")
        member.become(Standing.ORDERED)
        member.become(Standing.RETIRING)
        member.become(Standing.GRANTED)
        for device, slot in member.slot_on.items():
            self.floor.page.grant(device, slot)
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


@pytest.fixture
def granted(tmp_path):
    made = Granted(tmp_path)
    yield made
    made.client.close()


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
