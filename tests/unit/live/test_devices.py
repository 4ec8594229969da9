import os

from rota.live.agent import devices
from rota.live.agent.devices import discover


def test_without_gpus_there_is_a_slot_per_core_and_more_share_them_in_turn(monkeypatch):
    monkeypatch.setattr(devices, "count_gpus", lambda: 0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 1})
    assert discover(None) == ("cpu", 2, (1, 3))
    assert discover(1) == ("cpu", 1, (1,))
    assert discover(5) == ("cpu", 5, (1, 3, 1, 3, 1))
    assert discover(5).cores_of([4, 1]) == [1, 3]


def test_no_more_gpus_are_offered_than_there_are(monkeypatch):
    monkeypatch.setattr(devices, "count_gpus", lambda: 4)
    assert discover(None) == ("cuda", 4, ())
    assert discover(2) == ("cuda", 2, ())
    assert discover(9) == ("cuda", 4, ())
    assert discover(None).cores_of([0]) == []
