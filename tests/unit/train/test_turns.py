"""Turns of ranks, given out by a real host of an island in this process."""

import os
import select
import threading

import pytest

from rota.flow.host import Host
from rota.flow.page import FINISHED, GONE, HOST, OPEN, READY
from rota.live.wire import island
from rota.train.pulse import Pulse
from rota.train.turns import REDUCTION, Turns

DEVICES = 2


class Gang:
    """Two ranks, each a thread's, on both devices of a host's island."""

    def __init__(self, host, folder, key, *, gates=None):
        devices = list(range(DEVICES))
        fields = {"devices": devices, "pids": [os.getpid()] * DEVICES}
        told = island.Ranks(number=1, key=key, background=gates is not None, **fields)
        self.slots, rings = host.admit(told)
        self.said = []
        self.ranks = [Turns(Pulse(None), gate) for gate in gates or [None] * DEVICES]
        for turns, slot, ring in zip(self.ranks, self.slots, rings, strict=True):
            where = {"folder": str(folder), "devices": DEVICES, "host": os.getpid()}
            turns.tell = self.said.append
            turns.take(where | {"key": key, "slot": slot, "ring": ring})


class Gate:
    """A gate that is opened and shut by hand, and knows which pieces have begun."""

    on = True

    def __init__(self):
        self.opened, self.begun = threading.Event(), []

    def await_gap(self, piece):
        assert self.opened.wait(20)

    def has_gap(self, piece):
        return self.opened.is_set()

    def begin(self, piece):
        self.begun.append(piece)


class Seen:
    """A host whose thread is this one: it looks when a rank has rung."""

    def __init__(self, folder):
        self.host = Host(folder, DEVICES, 1 << 20)

    def looks(self):
        """Give out what may be next."""
        self.host._rung_for()
        self.host._order()

    def until_rung(self):
        """Wait for a rank to ring, and look then."""
        assert select.select([self.host._floor.bells.own(HOST)], [], [], 20)[0], "nobody has rung"
        self.looks()


@pytest.fixture
def seen(tmp_path):
    seen = Seen(tmp_path)
    yield seen
    seen.host.close()


def begins(turns):
    """A thread in which the next step begins."""
    thread = threading.Thread(target=turns.begin)
    thread.start()
    return thread


def both_begin(seen, gang):
    """Both ranks of a gang have their turns."""
    threads = [begins(turns) for turns in gang.ranks]
    while any(thread.is_alive() for thread in threads):
        if select.select([seen.host._floor.bells.own(HOST)], [], [], 0.05)[0]:
            seen.looks()
        for thread in threads:
            thread.join(0.01)


def test_a_step_waits_for_the_end_of_anothers_on_both_devices(seen, tmp_path):
    first, second = Gang(seen.host, tmp_path, "first"), Gang(seen.host, tmp_path, "second")
    both_begin(seen, first)
    threads = [begins(turns) for turns in second.ranks]
    page = seen.host._floor.page
    while any(page.of(slot, READY) == 0 for slot in second.slots):
        pass
    seen.looks()
    assert [page.head(device) for device in range(DEVICES)] == first.slots
    for turns in first.ranks:
        turns.end()
    for thread in threads:
        thread.join(20)
    assert [page.head(device) for device in range(DEVICES)] == second.slots
    assert [page.of(slot, FINISHED) for slot in first.slots] == [1, 1]


def test_a_rank_that_leaves_in_its_turn_leaves_nobody_waiting(seen, tmp_path):
    first, second = Gang(seen.host, tmp_path, "first"), Gang(seen.host, tmp_path, "second")
    both_begin(seen, first)
    for turns in first.ranks:
        turns.leave()
    both_begin(seen, second)
    assert first.said == ["first", "first", None, None]
    assert len(seen.host._floor.members) == 1


def test_a_rank_goes_on_without_turns_once_its_seat_is_taken_away(seen, tmp_path):
    gang = Gang(seen.host, tmp_path, "gang")
    both_begin(seen, gang)
    thread = begins(gang.ranks[0])  # has its turn already
    thread.join(20)
    seen.host.part("gang")
    for turns in gang.ranks:
        turns.end()
        turns.begin()
    assert [turns.key for turns in gang.ranks] == [None, None]
    assert [seen.host._floor.page.of(slot, READY) for slot in gang.slots] == [GONE, GONE]


@pytest.mark.parametrize("dead", range(DEVICES))
def test_a_gang_one_of_whose_ranks_has_died_can_be_let_go(seen, tmp_path, dead):
    gang = Gang(seen.host, tmp_path, "gang")
    both_begin(seen, gang)
    seen.host._ends.lose(seen.host._floor.places[gang.slots[dead]])
    seen.host.part("gang")
    assert not seen.host.serves_trainings
    both_begin(seen, Gang(seen.host, tmp_path, "other"))


def test_ranks_go_on_without_turns_once_the_host_has_refused_their_gang(seen, tmp_path):
    gang = Gang(seen.host, tmp_path, "gang")
    thread = begins(gang.ranks[0])
    seen.until_rung()
    seen.host._floor.page.tell(gang.slots[1], READY, 5)  # and never was for one before that
    seen.looks()
    thread.join(20)
    assert not thread.is_alive()
    assert gang.ranks[0].key is None
    gang.ranks[1].begin()
    assert gang.ranks[1].key is None


def test_a_rank_that_waits_for_one_that_has_left_gets_its_turn(seen, tmp_path):
    gang = Gang(seen.host, tmp_path, "gang")
    thread = begins(gang.ranks[0])
    seen.until_rung()
    assert thread.is_alive()
    gang.ranks[1].leave()
    while thread.is_alive():
        seen.looks()
        thread.join(0.01)
    assert seen.host._floor.page.head(0) == gang.slots[0]


def test_a_rank_that_skips_steps_loses_its_seat(seen, tmp_path):
    gang = Gang(seen.host, tmp_path, "gang")
    seen.host._floor.page.tell(gang.slots[0], READY, 3)
    seen.looks()
    assert not seen.host._floor.members


def until_open(seen, gang, opened):
    """Wait until the ranks say so of their gates."""
    page = seen.host._floor.page
    while [page.of(slot, OPEN) for slot in gang.slots] != opened:
        seen.looks()


def test_in_the_background_a_turn_begins_only_while_the_gates_of_both_ranks_are_open(
    seen, tmp_path
):
    gates = [Gate(), Gate()]
    gang, page = Gang(seen.host, tmp_path, "gang", gates=gates), seen.host._floor.page
    rings = [page.behind(device) for device in range(DEVICES)]
    threads = [begins(turns) for turns in gang.ranks]
    gates[0].opened.set()
    until_open(seen, gang, [1, 0])
    gates[0].opened.clear()
    until_open(seen, gang, [0, 0])
    gates[1].opened.set()
    until_open(seen, gang, [0, 1])
    assert [page.issued(ring) for ring in rings] == [0, 0]
    gates[0].opened.set()
    while any(thread.is_alive() for thread in threads):
        seen.looks()
    assert [page.head(ring) for ring in rings] == gang.slots
    assert [page.issued(device) for device in range(DEVICES)] == [0, 0]


def test_in_the_background_a_reduction_has_a_turn_of_its_own(seen, tmp_path):
    gates = [Gate(), Gate()]
    for gate in gates:
        gate.opened.set()
    gang = Gang(seen.host, tmp_path, "gang", gates=gates)
    both_begin(seen, gang)
    threads = [threading.Thread(target=turns.meet) for turns in gang.ranks]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        seen.looks()
    assert [seen.host._floor.page.of(slot, FINISHED) for slot in gang.slots] == [1, 1]
    assert [gate.begun for gate in gates] == [[REDUCTION], [REDUCTION]]


def test_the_foreground_waits_for_no_turn_of_the_background(seen, tmp_path):
    gates = [Gate(), Gate()]
    for gate in gates:
        gate.opened.set()
    behind = Gang(seen.host, tmp_path, "behind", gates=gates)
    both_begin(seen, behind)
    front = Gang(seen.host, tmp_path, "front")
    both_begin(seen, front)
    for turns in front.ranks:
        turns.meet()
    page = seen.host._floor.page
    assert [page.of(slot, FINISHED) for slot in front.slots] == [0, 0]
    assert [page.head(device) for device in range(DEVICES)] == front.slots


def test_two_gangs_in_the_background_take_turns_on_gpus_that_both_have(seen, tmp_path):
    gates = [[Gate(), Gate()] for _ in range(2)]
    for gate in (*gates[0], *gates[1]):
        gate.opened.set()
    first, second = (
        Gang(seen.host, tmp_path, key, gates=own) for key, own in zip("ab", gates, strict=True)
    )
    both_begin(seen, first)
    threads = [begins(turns) for turns in second.ranks]
    until_open(seen, second, [1, 1])
    seen.looks()
    page = seen.host._floor.page
    assert [page.head(page.behind(device)) for device in range(DEVICES)] == first.slots
    for turns in first.ranks:
        turns.end()
    while any(thread.is_alive() for thread in threads):
        seen.looks()
    assert [page.head(page.behind(device)) for device in range(DEVICES)] == second.slots
