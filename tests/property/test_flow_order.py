"""Any clients on any devices of an island: nothing hangs, and shares are the weights'."""

import math
from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rota.flow.island import Island, Operation
from rota.flow.order import EarliestDeadline, Fifo, Stride
from support.gangs import Machine, Planned, Program, largest_error

MS = 1e-3
ORDERS = (Fifo, Stride, EarliestDeadline)
times_s = st.sampled_from([0.0, 0.05 * MS, 0.3 * MS, 1 * MS, 7 * MS])
took_s = st.sampled_from([0.02 * MS, 0.1 * MS, 1 * MS, 5 * MS])


@st.composite
def programs(draw, devices):
    """One client's program on some devices, as a tuple of planned operations, and its devices."""
    own = sorted(draw(st.sets(st.sampled_from(devices), min_size=1)))
    slices = [
        tuple(sorted(each))
        for each in draw(
            st.lists(st.sets(st.sampled_from(own), min_size=1), min_size=1, max_size=3)
        )
    ]
    planned, submit_s = [], 0.0
    for number in range(1, draw(st.integers(1, 10)) + 1):
        gang = draw(st.sampled_from(slices))
        each = st.tuples(*(took_s for _ in gang))
        submit_s += draw(times_s)
        planned.append(
            Planned(
                Operation(number, gang, draw(took_s), draw(st.none() | times_s)),
                draw(each),
                draw(st.booleans()),
                submit_s,
                draw(st.tuples(*(times_s for _ in gang))),
                draw(st.none() | st.integers(1, number - 1)) if number > 1 else None,
            )
        )
    return tuple(own), tuple(planned)


@st.composite
def islands(draw):
    """The devices of an island and the programs of its clients."""
    devices = list(range(draw(st.integers(1, 4))))
    clients = []
    for client in range(draw(st.integers(1, 4))):
        own, planned = draw(programs(devices))
        join_s = draw(times_s)
        leave_s = draw(st.none() | st.sampled_from([0.1 * MS, 2 * MS, 9 * MS]))
        clients.append(
            Program(
                client,
                draw(st.sampled_from([0.5, 1.0, 2.0, 8.0])),
                own,
                planned,
                join_s,
                None if leave_s is None else join_s + leave_s,
            )
        )
    return devices, clients


class Watch:
    """Checks at every moment that devices neither idle without reason nor have too many turns."""

    def __init__(self, least: int, window_s: float) -> None:
        self.least, self.window_s = least, window_s

    def full(self, machine: Machine, device: int) -> bool:
        turns = machine.turns[device]
        cost_s = math.fsum(
            machine.planned[turn.client, turn.number].operation.cost_s for turn in turns
        )
        return len(turns) >= self.least and cost_s >= self.window_s

    def __call__(self, machine: Machine) -> None:
        candidates = machine.candidates()
        for device, turns in machine.turns.items():
            window = max(self.least, self.window_s / (0.02 * MS) + 1)
            assert len(turns) <= window + self.least * len(machine.programs)
            if not turns:
                for client, operation in candidates:
                    assert device not in operation.devices or any(
                        self.may_hold(machine, client, operation, other, candidates)
                        for other in operation.devices
                    ), (device, client, operation)

    def may_hold(self, machine, client, operation, device, candidates) -> bool:
        """True if a candidate must wait for this device: it is full, and it is another's turn."""
        own = sum(turn.client == client for turn in machine.turns[device])
        others = (
            each for each in candidates if each != (client, operation) and device in each[1].devices
        )
        return self.full(machine, device) and (own >= self.least or any(others))


@settings(max_examples=150)
@given(
    islands(),
    st.sampled_from(ORDERS),
    st.integers(1, 3),
    st.sampled_from([0.0, 0.0002]),
)
def test_every_operation_of_a_client_that_stays_ends_and_tickets_never_cross(
    island, order, least, window_s
):
    devices, clients = island
    machine = Machine(
        clients,
        devices,
        Island(devices, order(), least=least, window_s=window_s),
        Watch(least, window_s),
    ).run()
    stayed = {key for key in machine.planned if machine.programs[key[0]].leave_s is None}
    assert stayed <= machine.ended
    assert not any(machine.turns.values())
    seqs = dict.fromkeys(devices, 0)
    for ticket in machine.tickets:
        assert [device for device, _ in ticket.turns] == list(
            machine.planned[ticket.client, ticket.number].operation.devices
        )
        for device, seq in ticket.turns:
            assert seq == seqs[device] + 1
            seqs[device] = seq
    for turns in machine.ran.values():
        assert [turn.seq for turn in turns] == sorted({turn.seq for turn in turns})


def witness(delays, rounds=1):
    """Three clients with collectives on {0, 1}, {1, 2} and {0, 2}; by client, inputs' delays."""
    return [
        Program(
            client,
            1.0,
            gang,
            tuple(
                Planned(Operation(number, gang, MS), (MS, MS), True, 0.0, delay)
                for number in range(1, rounds + 1)
            ),
        )
        for client, (gang, delay) in enumerate(zip([(0, 1), (1, 2), (0, 2)], delays, strict=True))
    ]


def test_the_witness_hangs_first_come_first_served():
    """The first on device 0 is client 0, on 1 client 1, on 2 client 2: each waits for the next."""
    delays = [(1 * MS, 2 * MS), (1 * MS, 2 * MS), (2 * MS, 1 * MS)]
    machine = Machine(witness(delays), range(3), None).run()
    assert machine.ended == set()
    assert all(machine.turns.values())


@given(
    st.lists(st.tuples(times_s, times_s), min_size=3, max_size=3),
    st.integers(1, 5),
    st.sampled_from(ORDERS),
)
def test_the_witness_never_hangs_with_tickets(delays, rounds, order):
    island = Island(range(3), order())
    machine = Machine(witness(delays, rounds), range(3), island).run()
    assert len(machine.ended) == 3 * rounds


class Waiters:
    """Clients on the same devices that wait all the time, or not at all."""

    def __init__(self, weights, least, devices) -> None:
        self.weights, self.devices, self.ahead = weights, devices, 2 * least
        self.island = Island(devices, Stride(), least=least)
        self.number = {}  # by client that has joined: its last operation
        self.waiting = {}  # by client: how many operations it has not issued
        self.open = deque()
        self.join(-1, 1.0)  # what it leaves fills the windows
        self.submit(-1, least)
        self.open.extend(self.island.issue())
        self.leave(-1)

    def join(self, client, weight):
        self.island.join(client, weight, self.devices)
        self.number[client] = self.waiting[client] = 0

    def leave(self, client):
        self.island.leave(client)
        del self.number[client], self.waiting[client]

    def submit(self, client, operations):
        numbers = range(self.number[client] + 1, self.number[client] + operations + 1)
        self.island.submit(client, [Operation(number, self.devices, MS) for number in numbers])
        self.number[client] = numbers[-1]
        self.waiting[client] += operations
        for device in self.devices:
            self.island.ready(client, device, self.number[client])

    def run(self, active, rounds, leave):
        """What was issued, each with who waited; those not active leave, or have no more work.

        Devices end the same operation at different moments, and tickets are issued in between.
        """
        for client in set(self.number) - active if leave else ():
            self.leave(client)
        issued = []
        for _ in range(rounds):
            for device, seq in self.open.popleft().turns:
                for client in sorted(active):
                    if client not in self.number:
                        self.join(client, self.weights[client])
                    if self.waiting[client] < self.ahead:
                        self.submit(client, self.ahead)
                self.island.done(device, seq)
                for ticket in self.island.issue():
                    self.open.append(ticket)
                    waiting = frozenset(each for each, some in self.waiting.items() if some)
                    issued.append((ticket.client, waiting))
                    self.waiting[ticket.client] -= 1
        return issued


def runs_of_same(issued):
    """What was issued, cut wherever other clients begin or cease to wait."""
    runs = []
    for client, waiting in issued:
        if not runs or runs[-1][0] != waiting:
            runs.append((waiting, []))
        runs[-1][1].append(client)
    return runs


def phases(clients):
    """Who is active, for how many operations, and whether the others leave or idle."""
    active = st.sets(st.integers(0, clients - 1), min_size=1)
    return st.lists(
        st.tuples(active, st.integers(1, 150), st.booleans()), min_size=1, max_size=6
    ).map(lambda some: [*some, (set(range(clients)), 230, False)])


def errors(weights, plan, least, devices):
    """By phase: its clients, and the largest error of a window of 100 operations in it."""
    waiters = Waiters(weights, least, devices)
    issued = [each for phase in plan for each in waiters.run(*phase)]
    for waiting, run in runs_of_same(issued):
        yield waiting, largest_error(run, {client: weights[client] for client in waiting})


@pytest.mark.parametrize("weights", [(1, 1, 1, 1), (1, 2, 4, 8), (8, 1, 4, 2)])
@settings(max_examples=40)
@given(
    plan=phases(4), least=st.integers(1, 4), devices=st.sampled_from([(0,), (0, 1), (0, 1, 2, 3)])
)
def test_shares_are_within_one_operation_whoever_came_went_or_idled(weights, plan, least, devices):
    for _, error in errors(dict(enumerate(map(float, weights))), plan, least, devices):
        assert error <= 1


@settings(max_examples=60)
@given(
    st.integers(1, 5).flatmap(
        lambda clients: st.tuples(
            st.lists(st.integers(1, 16), min_size=clients, max_size=clients), phases(clients)
        )
    )
)
def test_shares_of_any_weights_are_within_their_bound(drawn):
    weights = dict(enumerate(map(float, drawn[0])))
    for waiting, error in errors(weights, drawn[1], 2, (0, 1)):
        share = max(weights[client] for client in waiting) / sum(
            weights[client] for client in waiting
        )
        assert error <= 1 + max(0, len(waiting) - 2) * share + 1e-9


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(st.sampled_from([0.5, 1.0, 3.0]), st.lists(took_s, min_size=1, max_size=4)),
        min_size=2,
        max_size=4,
    )
)
def test_two_clients_that_wait_all_the_time_differ_by_half_an_operation_of_each(clients):
    """Operations of different costs, by device time over weight since both began."""
    island = Island((0, 1), Stride(), least=1, window_s=0.0)
    costs = {}
    for client, (weight, own) in enumerate(clients):
        costs[client] = [own[k % len(own)] for k in range(200)]
        island.join(client, weight, (0, 1))
        island.submit(
            client,
            [Operation(k, (0, 1), cost_s) for k, cost_s in enumerate(costs[client], 1)],
        )
        for device in (0, 1):
            island.ready(client, device, 200)
    had = dict.fromkeys(costs, 0.0)
    largest = {client: max(costs[client]) / clients[client][0] for client in costs}
    for _ in range(200):
        (ticket,) = island.issue()
        had[ticket.client] += costs[ticket.client][ticket.number - 1] / clients[ticket.client][0]
        for device, seq in ticket.turns:
            island.done(device, seq)
        for one in had:
            for other in had:
                assert had[one] - had[other] <= (largest[one] + largest[other]) / 2 + 1e-6
