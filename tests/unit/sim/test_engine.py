from heapq import heappop

from rota.sim.engine import CONFIRM, FAULT, FINISH, Engine


def test_entries_come_by_time_then_kind_then_order_of_scheduling():
    engine = Engine()
    engine.at(5.0, FAULT, "fault")
    engine.at(5.0, CONFIRM, "confirmation")
    engine.at(5.0, FINISH, "first finish")
    engine.at(5.0, FINISH, "second finish")
    engine.at(1.0, FAULT, "earlier")
    order = [heappop(engine.heap)[-1] for _ in range(5)]
    assert order == ["earlier", "first finish", "second finish", "confirmation", "fault"]


def test_entries_that_cannot_be_compared_are_no_trouble():
    engine = Engine()
    first, second = {"first": 1}, {"second": 2}
    engine.at(1.0, FINISH, first)
    engine.at(1.0, FINISH, second)
    assert heappop(engine.heap)[-1] is first
    assert heappop(engine.heap)[-1] is second


def test_the_next_arrival_counts_as_what_is_due():
    engine = Engine()
    assert engine.next_time_s() is None
    engine.arrival_s = 3.0
    assert engine.next_time_s() == 3.0
    engine.at(1.0, FINISH, None)
    assert engine.next_time_s() == 1.0
