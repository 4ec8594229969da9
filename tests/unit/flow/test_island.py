"""Tickets: who gets the next turns on which devices."""

import math

import pytest

from rota.errors import InputError
from rota.flow.island import Island, Operation, Ticket, Wait, Waiting
from rota.flow.order import EarliestDeadline, Fifo, Stride

MS = 0.001


class Desk:
    """An island whose clients' inputs are always there."""

    def __init__(self, devices=4, order=None, **settings):
        self.island = Island(range(devices), order or Fifo(), **settings)

    def join(self, client, devices, *gangs, cost_s=MS, weight=1.0):
        """A client joins and submits operations 1, 2, ... on these gangs."""
        self.island.join(client, weight, devices)
        self.island.submit(
            client, [Operation(number, gang, cost_s) for number, gang in enumerate(gangs, 1)]
        )
        for device in devices:
            self.island.ready(client, device, len(gangs))

    def issue(self):
        """What is issued now, as pairs (client, number)."""
        return [(ticket.client, ticket.number) for ticket in self.island.issue()]


def test_a_ticket_gives_the_next_turn_on_each_device():
    desk = Desk()
    desk.join(7, (0, 1, 2), (0, 2), (0, 1))
    assert desk.island.issue() == [
        Ticket(7, 1, ((0, 1), (2, 1))),
        Ticket(7, 2, ((0, 2), (1, 1))),
    ]
    assert desk.issue() == []


def test_a_device_has_so_many_turns_at_least():
    desk = Desk(least=3)
    desk.join(1, (0,), *[(0,)] * 9)
    assert desk.issue() == [(1, 1), (1, 2), (1, 3)]
    desk.island.done(0, 2)
    assert desk.issue() == [(1, 4), (1, 5)]


def test_a_device_has_short_turns_for_its_window():
    desk = Desk(window_s=MS)
    desk.join(1, (0,), *[(0,)] * 40, cost_s=MS / 8)
    assert len(desk.issue()) == 8
    for seq in range(1, 9):
        desk.island.done(0, seq)
        assert desk.issue() == [(1, seq + 8)]


def test_an_operation_without_a_cost_takes_part_of_the_window():
    desk = Desk(window_s=0.0002)
    desk.join(1, (0,), *[(0,)] * 100, cost_s=0.0)
    assert len(desk.issue()) == 40


def test_operations_of_disjoint_slices_do_not_wait_for_each_other():
    desk = Desk(least=1)
    desk.island.join(1, 1.0, (0, 1, 2))
    desk.island.submit(1, [Operation(1, (0, 1), MS), Operation(2, (2,), MS)])
    desk.island.ready(1, 2, 2)
    assert desk.issue() == [(1, 2)]
    desk.island.ready(1, 0, 1)
    assert desk.issue() == []
    desk.island.ready(1, 1, 1)
    assert desk.issue() == [(1, 1)]


def test_an_operation_waits_for_earlier_ones_on_any_of_its_devices():
    desk = Desk()
    desk.island.join(1, 1.0, (0, 1, 2))
    desk.island.submit(1, [Operation(1, (0, 1), MS), Operation(2, (1, 2), MS)])
    for device, number in ((1, 2), (2, 2)):
        desk.island.ready(1, device, number)
    assert desk.issue() == []
    desk.island.ready(1, 0, 1)
    assert desk.issue() == [(1, 1), (1, 2)]


def test_ready_may_come_before_the_operations_and_never_goes_back():
    desk = Desk()
    desk.island.join(1, 1.0, (0,))
    desk.island.ready(1, 0, 2)
    desk.island.ready(1, 0, 1)
    desk.island.submit(1, [Operation(number, (0,), MS) for number in (1, 2, 3)])
    assert desk.issue() == [(1, 1), (1, 2)]
    desk.island.done(0, 2)
    assert desk.issue() == []


def test_done_may_be_repeated_and_never_goes_back():
    desk = Desk(least=2)
    desk.join(1, (0,), *[(0,)] * 6)
    desk.issue()
    for seq in (2, 2, 1):
        desk.island.done(0, seq)
    assert desk.issue() == [(1, 3), (1, 4)]
    assert desk.issue() == []


def test_nobody_is_overtaken_on_the_same_devices_while_one_of_them_is_late():
    """Device 0 has ended what device 1 has not: the first in the order is still issued first."""
    desk = Desk(devices=2, order=Stride(), least=1, window_s=0.0)
    desk.join(1, (0, 1), *[(0, 1)] * 9, weight=8.0)
    desk.join(2, (0, 1), *[(0, 1)] * 9, weight=1.0)
    assert desk.issue() == [(1, 1)]
    desk.island.done(0, 1)
    assert desk.issue() == []
    desk.island.done(1, 1)
    assert desk.issue() == [(1, 2)]


def test_a_wide_gang_is_issued_in_its_turn_though_only_one_of_its_devices_has_room():
    desk = Desk(devices=2, least=1)
    desk.join(1, (0,), (0,), (0,))
    desk.join(2, (1,), (1,))
    desk.island.join(3, 1.0, (0, 1))
    desk.island.submit(3, [Operation(1, (0, 1), MS)])
    desk.join(4, (1,), (1,))
    assert desk.issue() == [(1, 1), (2, 1)]
    desk.island.done(0, 1)
    assert desk.issue() == [(1, 2)]
    for device in (0, 1):
        desk.island.ready(3, device, 1)
    desk.island.done(1, 1)
    assert desk.issue() == [(3, 1)]


def test_a_gang_with_one_slow_device_does_not_fill_its_queue():
    """Client 1 alone waits; device 1 has ended nothing yet, and device 0 everything."""
    desk = Desk(devices=2, least=2)
    desk.join(1, (0, 1), *[(0, 1)] * 9)
    assert desk.issue() == [(1, 1), (1, 2)]
    desk.island.done(0, 2)
    assert desk.issue() == []
    desk.island.done(1, 1)
    assert desk.issue() == [(1, 3)]


def test_the_next_operation_of_who_was_issued_may_go_before_those_that_waited():
    """Client 2 waits for device 0; the second operation of client 1 has the earliest deadline."""
    desk = Desk(devices=2, order=EarliestDeadline(), least=2)
    desk.join(9, (0,), (0,), (0,))
    assert desk.issue() == [(9, 1), (9, 2)]
    for client, device, deadlines in ((1, 1, (6.0, 1.0)), (2, 0, (5.0,)), (3, 1, (7.0,))):
        desk.island.join(client, 1.0, (device,))
        desk.island.ready(client, device, 2)
        desk.island.submit(
            client,
            [Operation(number, (device,), MS, each) for number, each in enumerate(deadlines, 1)],
        )
    assert desk.issue() == [(1, 1), (1, 2)]


def test_leaving_drops_what_was_not_issued_and_keeps_turns_until_they_are_done():
    desk = Desk(least=2)
    desk.join(1, (0,), *[(0,)] * 9)
    assert len(desk.issue()) == 2
    desk.island.leave(1)
    desk.island.leave(1)
    desk.island.ready(1, 0, 9)
    desk.join(1, (0,), (0,))
    assert desk.issue() == []
    assert desk.island.waiting(1) == Waiting(Wait.TURN, 0, 1)
    desk.island.done(0, 1)
    assert desk.island.issue() == [Ticket(1, 1, ((0, 3),))]


def test_a_client_is_alone_while_nobody_else_may_use_its_devices():
    desk = Desk()
    desk.join(1, (0, 1))
    desk.join(2, (2, 3))
    assert desk.island.is_alone(1)
    desk.join(3, (1, 2))
    assert not any(map(desk.island.is_alone, (1, 2, 3)))
    desk.island.leave(3)
    assert desk.island.is_alone(1)
    assert desk.island.is_alone(2)


def test_what_the_next_operation_waits_for():
    desk = Desk(devices=2, least=1)
    island = desk.island
    desk.join(1, (0, 1))
    assert island.waiting(1) == Waiting(Wait.WORK)
    island.submit(1, [Operation(1, (0, 1), MS)])
    island.ready(1, 0, 1)
    assert island.waiting(1) == Waiting(Wait.READY, 1)
    island.ready(1, 1, 1)
    assert island.waiting(1) == Waiting(Wait.NOBODY)
    desk.issue()
    assert island.waiting(1) == Waiting(Wait.NOBODY)
    desk.join(2, (1,), (1,))
    assert desk.issue() == []
    assert island.waiting(2) == Waiting(Wait.TURN, 1, 1)
    island.done(1, 1)
    assert desk.issue() == [(2, 1)]
    assert island.waiting(2) == Waiting(Wait.NOBODY)
    island.submit(1, [Operation(2, (0, 1), MS)])
    for device in (0, 1):
        island.ready(1, device, 2)
    island.done(0, 1)
    assert desk.issue() == [(1, 2)]
    assert island.waiting(1) == Waiting(Wait.TURN, 1, 2)
    island.done(1, 3)
    island.done(0, 2)
    assert island.waiting(1) == island.waiting(2) == Waiting(Wait.WORK)


@pytest.mark.parametrize(
    ("operation", "message"),
    [
        (Operation(1, (0,), MS), "operation 1 of client 1 comes after 1: number"),
        (Operation(2, (), MS), r"devices of operation 2 of client 1 are \(\): give some of"),
        (Operation(2, (1, 0), MS), r"are \(1, 0\): give some of \(0, 1\), sorted, each once"),
        (Operation(2, (0, 0), MS), r"are \(0, 0\)"),
        (Operation(2, (2,), MS), r"are \(2,\)"),
        (Operation(2, (0,), -MS), "cost_s of operation 2 of client 1 is -0.001: give seconds"),
        (Operation(2, (0,), math.nan), "cost_s of operation 2 of client 1 is nan"),
        (Operation(2, (0,), math.inf), "cost_s of operation 2 of client 1 is inf"),
    ],
)
def test_a_wrong_operation_is_refused_and_changes_nothing(operation, message):
    desk = Desk()
    desk.join(1, (0, 1), (0, 1))
    with pytest.raises(InputError, match=message):
        desk.island.submit(1, [operation])
    assert desk.issue() == [(1, 1)]
    desk.island.submit(1, [Operation(2, (0, 1), MS)])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda island: island.join(1, 1.0, (0,)), "client 1 has joined already"),
        (lambda island: island.join(2, 1.0, ()), r"devices of client 2 are \[\]: give some of"),
        (lambda island: island.join(2, 1.0, (0, 9)), r"devices of client 2 are \[0, 9\]"),
        (lambda island: island.join(2, 0.0, (0,)), "weight is 0.0"),
        (lambda island: island.submit(2, [Operation(1, (0,), MS)]), "client 2 has not joined"),
        (lambda island: island.done(0, 1), "turn 1 of device 0 is over before it was issued"),
        (lambda island: Island((0,), Fifo(), least=0), "least is 0: give 1"),
        (lambda island: Island((0,), Fifo(), window_s=math.nan), "window_s is nan: give seconds"),
    ],
)
def test_a_wrong_call_is_refused(call, message):
    desk = Desk()
    desk.join(1, (0,))
    with pytest.raises(InputError, match=message):
        call(desk.island)
