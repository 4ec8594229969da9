"""The live clock goes forward, whatever the system's does."""

import time
from itertools import pairwise

from rota.live.clock import Clock


def test_every_reading_is_later_than_the_last():
    clock = Clock()
    readings = [clock.now_s() for _ in range(1000)]
    assert all(early < late for early, late in pairwise(readings))


def test_it_starts_after_what_is_written_down():
    assert Clock(after_s=1e10).now_s() > 1e10


def test_it_goes_on_at_its_pace_when_the_system_clock_is_set_back(monkeypatch):
    clock = Clock()
    before_s = clock.now_s()
    monkeypatch.setattr(time, "time", lambda: before_s - 3600)
    passed_s = time.monotonic() + 5
    monkeypatch.setattr(time, "monotonic", lambda: passed_s)
    assert 4 < clock.now_s() - before_s < 6
