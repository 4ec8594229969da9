"""Who is beside whom on the devices of an island."""

import os
import socket

import pytest

from rota.flow.floor import Floor
from rota.flow.island import Island
from rota.flow.members import Member
from rota.flow.order import Fifo
from rota.flow.page import rings_of
from rota.flow.standing import Standing


@pytest.fixture
def floor(tmp_path):
    made = Floor(tmp_path, 1, 1 << 20, Island(rings_of(1), Fifo()))
    yield made
    for member in made.members.values():
        member.connection.close()
        os.close(member.process)
    made.bells.close()
    made.page.close()


def joined(floor, number, standing):
    """A client whose only device is the first one."""
    here, there = socket.socketpair()
    here.close()
    member = Member(number, there, floor.page)
    member.standing, member.slot_on = standing, {0: number}
    floor.members[number] = member
    floor.island.join(number, 1.0, [0])
    return member


def test_clients_that_come_to_a_device_at_the_same_time_are_beside_each_other_once(floor):
    one, other = joined(floor, 1, Standing.COMING), joined(floor, 2, Standing.ORDERED)
    floor.meet(other)
    assert other.beside == []
    one.become(Standing.ORDERED)
    floor.meet(one)
    assert (one.beside, other.beside) == ([other], [one])
    floor.part(one)
    floor.part(other)
    assert (one.beside, other.beside) == ([], [])
