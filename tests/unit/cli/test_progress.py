"""Progress bars: on a terminal alone, and only of what takes long."""

import io
import sys
from threading import Event

import pytest

from rota.cli.progress import _times, many_runs, one_run
from rota.scenario.pool import over_cores


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def terminal(monkeypatch):
    """Makes stderr a terminal, of which it returns what was drawn: pytest sets it for each test."""

    def terminal():
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setattr(sys, "stderr", Terminal())
        return sys.stderr

    return terminal


def twice(number):
    return 2 * number


def test_runs_are_counted_however_deep_down_they_are_started(terminal):
    screen = terminal()
    with many_runs():
        assert over_cores(twice, [(1,), (2,)], num_jobs=1) == [2, 4]
        assert over_cores(twice, [(3,)], num_jobs=1) == [6]
    assert "3 of 3 runs" in screen.getvalue()


def test_nothing_is_drawn_where_there_is_no_terminal(monkeypatch):
    for stderr in (io.StringIO(), None):
        monkeypatch.setattr(sys, "stderr", stderr)
        with many_runs(), one_run(lambda: (0, 1)):
            over_cores(twice, [(1,), (2,)], num_jobs=1)
        assert stderr is None or not stderr.getvalue()


def test_a_run_that_takes_long_tells_how_many_jobs_have_ended(terminal, monkeypatch):
    screen = terminal()
    asked = Event()

    def how_far():
        asked.set()
        return 30, 60

    monkeypatch.setattr("rota.cli.progress.PATIENCE_S", 0.0)
    monkeypatch.setattr("rota.cli.progress.EVERY_S", 0.001)
    with one_run(how_far):
        assert asked.wait(30)
    assert "jobs" in screen.getvalue()


def test_a_short_run_draws_nothing(terminal):
    screen = terminal()
    with one_run(lambda: (0, 1)):
        pass
    assert not screen.getvalue()


class Task:
    elapsed, total = 30.0, 4

    def __init__(self, completed):
        self.completed = completed


def test_the_time_to_go_is_told_once_something_is_done():
    assert _times(Task(0)) == "00:30 so far"
    assert _times(Task(1)) == "00:30 so far, about 01:30 to go"
