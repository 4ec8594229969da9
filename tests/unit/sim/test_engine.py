from rota.sim.engine import ARRIVE, CONFIRM, FINISH, Engine


def test_entries_come_by_time_then_kind_then_order_of_scheduling():
    engine = Engine()
    engine.at(5.0, ARRIVE, "arrival")
    engine.at(5.0, CONFIRM, "confirmation")
    engine.at(5.0, FINISH, "first finish")
    engine.at(5.0, FINISH, "second finish")
    engine.at(1.0, ARRIVE, "earlier")
    order = []
    while engine.next_time_s() is not None:
        order.append(engine.pop()[1])
    assert order == ["earlier", "first finish", "second finish", "confirmation", "arrival"]
    assert engine.now_s == 5.0


def test_entries_that_cannot_be_compared_are_no_trouble():
    engine = Engine()
    engine.at(1.0, FINISH, {})
    engine.at(1.0, FINISH, {})
    assert engine.pop() == engine.pop()
