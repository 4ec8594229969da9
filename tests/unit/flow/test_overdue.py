"""Operations that run for too long end; time for which their host stood still does not count."""

from types import SimpleNamespace

import pytest

from rota.flow import ends
from rota.flow.ends import Ends
from rota.flow.limit import Limit
from rota.flow.page import FINISHED, PRESENT

LIMIT_S = 10.0


class Member:
    """A client of one worker, which is in its fifth operation."""

    def __init__(self):
        self.limit, self.slots = Limit(LIMIT_S), {3: 0}

    def gang(self, _):
        return [3]


@pytest.fixture
def host(monkeypatch):
    """The ends of such a client, the worker's place, and the time of the clock."""
    words = {PRESENT: 5, FINISHED: 4}
    page = SimpleNamespace(of=lambda _, word: words[word])
    place = SimpleNamespace(is_stopped=False, overdue=0, killed=0)
    place.kill = lambda: setattr(place, "killed", place.killed + 1)
    floor = SimpleNamespace(members={1: Member()}, places={3: place}, page=page)
    time = SimpleNamespace(now_s=1000.0)
    time.monotonic = lambda: time.now_s
    monkeypatch.setattr(ends, "time", time)
    return Ends(floor, None, None, None), place, time  # type: ignore[arg-type]


def test_an_operation_ends_after_its_time_if_the_host_looks_in_time(host):
    ends, place, time = host
    for _ in range(int(LIMIT_S) + 1):
        ends.end_overdue()
        assert not place.killed
        time.now_s += 1.0
    ends.end_overdue()
    assert (place.killed, place.overdue) == (1, 5)


def test_time_for_which_the_host_stood_still_ends_no_operation(host):
    ends, place, time = host
    ends.end_overdue()
    time.now_s += 100.0
    ends.end_overdue()
    assert not place.killed
    for _ in range(int(LIMIT_S)):
        time.now_s += 1.0
        ends.end_overdue()
    assert place.killed == 1
