"""Memory of a device among programs that want more than there is."""

import pytest

from rota.flow.memory import Answer, Memory, Request


class Told:
    """What programs and workers have told, by slot."""

    def __init__(self):
        self.counted, self.held, self.took, self.allowed = {}, {}, {}, {}
        self.barriers = 0

    def counted_bytes(self, slot):
        return self.counted.get(slot, 0)

    def held_bytes(self, slot):
        return self.held.get(slot, 0)

    def taken(self, slot):
        return self.took.get(slot, 0)

    def allow(self, slot, allowed_bytes):
        self.allowed[slot] = allowed_bytes

    def barrier(self):
        self.barriers += 1


@pytest.fixture
def told():
    return Told()


@pytest.fixture
def memory(told):
    """One hundred bytes of each device; clients 1 and 2 on device 0, in slots 11 and 12."""
    memory = Memory(100, told)
    memory.join(1, 11, 0, 60)
    memory.join(2, 12, 0, 60)
    return memory


def test_each_may_use_what_nobody_else_may_without_asking(memory, told):
    assert told.allowed == {11: 60, 12: 40}
    assert not memory.waits
    assert memory.settle() == []


def test_what_others_do_not_use_is_taken_back(memory, told):
    told.counted[11], told.held[11] = 30, 20
    memory.want(2, Request(1, {12: 60}))
    assert memory.settle() == [Answer(2, 1, None)]
    assert told.allowed == {11: 30, 12: 60}
    assert told.barriers == 1


def test_who_wants_what_others_use_waits_for_it_and_those_behind_wait_as_well(memory, told):
    memory.join(3, 13, 0, 60)
    told.counted[11] = 60
    memory.want(2, Request(1, {12: 60}))
    memory.want(3, Request(1, {13: 5}))
    assert memory.settle() == []
    assert memory.waits
    told.counted[11] = 10
    assert memory.settle() == [Answer(2, 1, None), Answer(3, 1, None)]
    assert not memory.waits


def test_what_was_let_go_of_is_free_when_the_worker_holds_it_no_more(memory, told):
    told.counted[11], told.held[11] = 10, 60
    memory.want(2, Request(1, {12: 60}))
    assert memory.settle() == []
    told.held[11] = 10
    assert memory.settle() == [Answer(2, 1, None)]


def test_what_comes_free_while_it_is_looked_for_refuses_nobody(memory, told, monkeypatch):
    told.held[11] = 60
    refused = memory._refused

    def frees(lacking):
        told.held[11] = 0
        return refused(lacking)

    monkeypatch.setattr(memory, "_refused", frees)
    memory.want(2, Request(1, {12: 60}))
    assert memory.settle() == [Answer(2, 1, None)]


def test_what_was_given_stays_until_the_program_counts_on_it(memory, told):
    memory.want(1, Request(1, {11: 60}))
    assert memory.settle() == [Answer(1, 1, None)]
    memory.want(2, Request(1, {12: 60}))
    assert memory.settle() == []
    told.took[11] = 1
    told.counted[11] = 40
    assert memory.settle() == [Answer(2, 1, None)]


def test_all_devices_are_had_at_once_or_none(told):
    memory = Memory(100, told)
    memory.join(1, 11, 0, 100)
    memory.join(2, 21, 0, 100)
    memory.join(2, 22, 1, 100)
    told.counted[11] = 50
    memory.want(2, Request(1, {21: 60, 22: 100}))
    assert memory.settle() == []
    assert told.allowed[21] == 0
    told.counted[11] = 40
    assert memory.settle() == [Answer(2, 1, None)]
    assert (told.allowed[21], told.allowed[22]) == (60, 100)


def test_of_those_who_all_hold_and_wait_the_last_is_refused(memory, told):
    told.counted |= {11: 50, 12: 50}
    memory.want(1, Request(1, {11: 70}))
    memory.want(2, Request(1, {12: 70}))
    [answer] = memory.settle()
    assert answer.client == 2
    assert "device 0 (100 bytes) all wait for more" in answer.error
    assert memory.waits
    told.counted[12] = 20
    assert memory.settle() == [Answer(1, 1, None)]


def test_nobody_is_refused_while_somebody_lets_go(memory, told):
    told.counted |= {11: 50, 12: 50}
    told.held |= {11: 60, 12: 50}
    memory.want(1, Request(1, {11: 70}))
    memory.want(2, Request(1, {12: 70}))
    assert memory.settle() == []


def test_a_request_of_a_client_that_has_lost_a_worker_is_for_those_that_are_left(told):
    memory = Memory(100, told)
    memory.join(1, 11, 0, 100)
    memory.join(2, 21, 0, 100)
    memory.join(2, 22, 1, 100)
    told.counted[11] = 50
    memory.want(2, Request(1, {21: 60, 22: 100}))
    assert memory.settle() == []
    memory.leave(21)
    assert memory.settle() == [Answer(2, 1, None)]
    assert told.allowed[22] == 100


def test_a_worker_that_is_gone_holds_nothing_and_wants_nothing(memory, told):
    told.counted |= {11: 60, 12: 40}
    memory.want(2, Request(1, {12: 60}))
    memory.want(1, Request(1, {11: 60}))
    memory.leave(11)
    assert memory.settle() == [Answer(2, 1, None)]
    assert not memory.waits
    memory.leave(11)


def test_a_request_takes_the_place_of_the_one_before(memory, told):
    told.counted[11] = 60
    memory.want(2, Request(1, {12: 60}))
    assert memory.settle() == []
    memory.want(2, Request(2, {}))  # it was interrupted
    assert memory.settle() == [Answer(2, 2, None)]
    assert not memory.waits


def test_a_program_that_counts_on_more_than_it_may_use_gets_no_more_by_that(memory, told):
    told.counted[11] = 90  # it looks after that whether it may
    memory.want(2, Request(1, {12: 60}))
    assert memory.settle() == []
    assert told.allowed[11] == 60
