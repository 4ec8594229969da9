"""Gang operations of several clients: in one order they never hang, and share as weights say."""

import itertools
from collections.abc import Iterator

import pytest
import torch

from rota import flow
from rota.flow.page import FINISHED
from support.flow_functions import Gate
from support.flow_unordered import unordered_island

from .conftest import Island, until

HERE = "support.flow_functions"
PAIRS = ((0, 1), (1, 2), (2, 0))  # each of three clients has two of three devices


@pytest.fixture
def unordered(folder) -> Iterator[Island]:
    """An island whose devices serve first come, first served, each for itself."""
    with unordered_island(3) as (where, pid):
        yield Island(where, folder, 3, pid)


def three(island: Island) -> list[tuple]:
    """Three clients in a ring of devices: each with its function, an array, and its two workers.

    Of the workers, the first is on the device that it shares with the client before.
    """
    found = []
    for pair in PAIRS:
        before = island.workers()
        client = island.connect(devices=list(pair))
        new = [each for each in island.workers() if each not in before]
        pair_slice = client.slice(2)
        function = pair_slice.function(f"{HERE}:plus_total", flow.Split(0))
        x = pair_slice.put(torch.tensor([1, 2]), flow.Split(0))
        assert function(x).result().tolist() == [4, 5]  # its workers have met
        order = [client.devices.index(each) for each in pair]
        found.append((client, function, x, order, [new[each] for each in order]))
    return found


def cycle(island: Island, clients: list[flow.Client]) -> list[int]:
    """Clients that wait for each other in a ring, as the page shows it; none if it shows none.

    A client waits for another one if it is in an operation on a device where the turn is its own,
    and lacks the turn on another device, where it is the other one's.
    """
    page = island.page

    def look() -> tuple[list[int], dict[int, int]]:
        owner = {slot: i for i, each in enumerate(clients) for slot in each._slots}
        heads = [owner.get(page.head(device)) for device in range(island.devices)]
        waits = {}
        for i, client in enumerate(clients):
            done = [page.of(slot, FINISHED) for slot in client._slots]
            mine = [device for device in client.devices if heads[device] == i]
            others = [heads[device] for device in client.devices if heads[device] != i]
            if mine and others and others[0] is not None and len(set(done)) == 1:
                waits[i] = others[0]
        return [page.done(device) for device in range(island.devices)], waits

    before, waits = look()
    after, again = look()
    if before != after or waits != again:
        return []
    ring = [0]
    while ring[-1] in waits and waits[ring[-1]] not in ring:
        ring.append(waits[ring[-1]])
    return ring if waits.get(ring[-1]) == ring[0] else []


def stall(island: Island) -> list[tuple]:
    """Each client's collective comes to one of its devices first, another on each device."""
    clients = three(island)
    for *_, (_, second) in clients:
        second.suspend()
        until(lambda w=second: w.status() == "stopped", "the worker is stopped")
    calls = []
    for client, function, x, order, _ in clients:
        y = function(x)
        until(lambda c=client, o=order: island.ready(c, o[0]) >= 2, "it has come to the first")
        calls.append(y)
    return [(*each, y) for each, y in zip(clients, calls, strict=True)]


def test_first_come_first_served_three_clients_wait_for_each_other_for_ever(unordered):
    clients = stall(unordered)
    connections = [each[0] for each in clients]
    until(
        lambda: (
            [unordered.page.head(d) for d in range(3)]
            == [c._slots[c.devices.index(d)] for d, c in enumerate(connections)]
        ),
        "each device is another client's",
    )
    for each in clients:
        each[4][1].resume()
    until(lambda: sorted(cycle(unordered, connections)) == [0, 1, 2], "they wait in a ring")
    for each in clients:
        until(lambda c=each[0], o=each[3]: unordered.ready(c, o[1]) >= 2, "all have come")
    until(
        lambda: all(unordered.page.issued(d) - unordered.page.done(d) == 2 for d in range(3)),
        "both operations have their turns on each device",
    )
    assert sorted(cycle(unordered, connections)) == [0, 1, 2]
    for each in connections:
        each.close()


def test_with_tickets_the_same_three_clients_end(island):
    clients = stall(island)
    for each in clients:
        each[4][1].resume()
    assert [each[5].result().tolist() for each in clients] == [[4, 5]] * 3
    for each in clients:
        each[0].close()


def test_with_tickets_three_clients_end_whatever_the_order_of_many_collectives(island):
    clients = three(island)
    arrays = [each[2] for each in clients]
    for turn in itertools.islice(itertools.cycle([0, 1, 2, 2, 1, 0, 1, 0, 2]), 900):
        arrays[turn] = clients[turn][1](arrays[turn])
    expected = torch.tensor([1, 2])
    for _ in range(300):
        expected = expected + expected.sum()
    assert [each.result().tolist() for each in arrays] == [expected.tolist()] * 3
    for each in clients:
        each[0].close()


def test_a_grant_goes_whole_from_client_to_client(island):
    """A client that is alone needs no turns; one that comes takes that over on all its devices."""
    clients = [island.connect(devices=devices) for devices in ([1], [0, 1], [1, 2])]
    calls = []
    for client in clients:
        everywhere = client.slice(len(client.devices))
        function = everywhere.function(f"{HERE}:plus_largest", flow.Split(0))
        calls.append((client, function, everywhere.put(torch.tensor([1, 2]), flow.Split(0))))

    def stands(client: flow.Client, function: flow.Function, x: flow.ShardedBuffer) -> bool:
        largest = 3 if len(client.devices) == 1 else 2  # of the shards' sums
        assert function(x).result().tolist() == [1 + largest, 2 + largest]
        return [island.page.standing(each) for each in client.devices] == client._slots

    for each in [*calls, *calls, *reversed(calls)]:
        until(lambda e=each: stands(*e), "it has the grant of all its devices")
    for client in clients:
        client.close()


# -- shares ----------------------------------------------------------------------------------------


class Weighted:
    """A client on device 0 whose operations record its letter.

    Each operation is a function of its own, so that none has run before, and all count the same.
    """

    def __init__(self, island: Island, letter: str, weight: float) -> None:
        self.letter, self.weight = letter, weight
        self.client = island.connect(devices=[0], weight=weight)
        self.slice = self.client.slice(1)
        self.x = self.slice.put(torch.tensor([ord(letter)]))

    def submit(self, count: int) -> None:
        for _ in range(count):
            self.slice.function(f"{HERE}:recorded")(self.x)

    def hold(self, gate: Gate) -> None:
        """An operation that waits at a gate, and records nothing."""
        self.slice.function(f"{HERE}:gated")(self.slice.put(torch.tensor([gate.number])))
        gate.wait_begun()


def shares_hold(order: str, weights: dict[str, float], others: int = 0) -> None:
    """In every window of the order, each client's part is within one operation of its share.

    Or within one and so many times its share: see ``rota.flow.order``.
    """
    total = sum(weights.values())
    for letter, weight in weights.items():
        had = [0, *itertools.accumulate(each == letter for each in order)]
        for first, last in itertools.combinations(range(len(had)), 2):
            due = (last - first) * weight / total
            within = 1 + others * weight / total
            assert abs(had[last] - had[first] - due) <= within, (order[first:last], letter, due)


def test_shares_of_a_device_come_from_the_order_also_when_clients_come_and_idle(island, folder):
    gates = [Gate(folder, 1000 + each) for each in range(3)]
    a, b, c = (Weighted(island, *each) for each in (("a", 1.0), ("b", 2.0), ("c", 4.0)))
    holder = Weighted(island, "h", 1.0)
    clients = [a, b, c, holder]

    def ordered(gate: Gate) -> str:
        """What runs once the gate opens, and until all have ended."""
        before = len(island.record())
        gate.open()
        for each in clients:
            each.client.wait()
        return island.record()[before:].decode()

    holder.hold(gates[0])
    for each in (a, b, c):
        each.submit(int(10 * each.weight))
    order = ordered(gates[0])
    assert sorted(order) == sorted("a" * 10 + "b" * 20 + "c" * 40)
    shares_hold(order[1:], {"a": 1, "b": 2, "c": 4})  # the first was issued before others came

    holder.hold(gates[1])
    for each in (a, b, c):
        each.submit(int(10 * each.weight))
    d = Weighted(island, "d", 8.0)  # comes, while they are waiting
    clients.append(d)
    d.submit(80)
    order = ordered(gates[1])
    shares_hold(order[1:], {"a": 1, "b": 2, "c": 4, "d": 8})

    holder.hold(gates[2])
    for each in (a, b, d):  # c idles
        each.submit(int(10 * each.weight))
    order = ordered(gates[2])
    shares_hold(order[1:], {"a": 1, "b": 2, "d": 8}, others=1)
    for each in clients:
        each.client.close()
    for gate in gates:
        gate.close()


def test_nobody_has_a_turn_beside_a_client_with_a_grant(island, gate):
    """Also if the worker of the other one is ready before the host has heard of its operation."""
    holder, other = Weighted(island, "h", 1.0), Weighted(island, "a", 1.0)
    other.submit(1)
    other.client.wait()

    def stands() -> bool:
        holder.submit(1)
        holder.client.wait()
        return island.page.standing(0) == holder.client._slots[0]

    until(stands, "it has a grant")
    holder.hold(gate)
    island.host.suspend()
    try:
        issued, ready = island.page.issued(0), island.ready(other.client, 0)
        other.submit(1)
        until(lambda: island.ready(other.client, 0) > ready, "its worker is ready")
    finally:
        island.host.resume()
    until(lambda: island.page.standing(0) == 0, "the grant is taken back")
    assert island.page.issued(0) == issued
    gate.open()
    for each in (holder, other):
        each.client.wait()
        each.client.close()
