"""Times of lines: kept while a log grows, thinned where it is cut, and true to about a second."""

import os
from array import array

import pytest

from rota.live.agent import line_times
from rota.live.agent.line_times import (
    TimeKeeper,
    begin,
    leave_out,
    note_end,
    read_times,
    times_file,
)
from rota.live.wire import clock


class Printed:
    """A log, with the agent that looks at it."""

    def __init__(self, folder):
        self.log = folder / "rank0.log"
        self.now_s = 0.0
        begin(self.log)
        self.keeper = TimeKeeper(self.log)

    def prints(self, num_bytes, at_s, *, looked=True, ended=False):
        """The job prints at a time, and the agent looks at once unless it is away."""
        with open(self.log, "ab") as log:
            log.write(b"x" * num_bytes)
        self.changed(at_s)
        self.now_s = at_s
        if looked:
            self.keeper.look(self.log.stat(), at_s, ended=ended)

    def changed(self, at_s):
        os.utime(self.log, (at_s, at_s))

    def entries(self):
        numbers = array("d", times_file(self.log).read_bytes())
        return [*zip(numbers[::2], numbers[1::2], strict=True)]

    def times(self):
        return read_times(self.log)


@pytest.fixture
def printed(tmp_path, monkeypatch):
    """The cluster's clock and the machine's are the same here."""
    it = Printed(tmp_path)
    monkeypatch.setattr(clock, "now_s", lambda: 1e6)
    monkeypatch.setattr(line_times.time, "time", lambda: 1e6)
    return it


def test_bytes_have_the_time_of_the_first_entry_behind_them(printed):
    printed.prints(10, 100.0)
    printed.prints(5, 200.0)
    times = printed.times()
    assert [times.at_s(offset) for offset in (0, 9, 10, 14)] == [100.0, 100.0, 200.0, 200.0]
    assert [times.since(at_s) for at_s in (0.0, 100.0, 100.5, 200.0, 200.5)] == [0, 0, 10, 10, None]


def test_a_log_that_grows_all_the_time_has_an_entry_a_second(printed):
    for tenth in range(31):
        printed.prints(1, 100 + tenth / 10)
    assert printed.entries() == [(100.0, 1), (101.0, 11), (102.0, 21), (103.0, 31)]
    times = printed.times()
    assert all(0 <= times.at_s(tenth) - (100 + tenth / 10) < 1 for tenth in range(31))


def test_what_came_after_the_last_entry_was_printed_by_the_last_change(printed):
    printed.prints(1, 100.0)
    printed.prints(1, 100.5)
    assert printed.entries() == [(100.0, 1)]
    assert printed.times().at_s(1) == 100.5
    assert printed.times().since(100.2) == 1
    assert printed.times().since(100.6) is None


def test_the_end_of_a_log_is_written_down_at_once(printed):
    printed.prints(1, 100.0)
    printed.prints(1, 100.5, ended=True)
    assert printed.entries() == [(100.0, 1), (100.5, 2)]


def test_an_agent_that_was_away_tells_when_the_last_of_it_was_printed(printed):
    printed.prints(10, 100.0)
    printed.prints(10, 200.0, looked=False)
    printed.keeper = TimeKeeper(printed.log)
    printed.keeper.look(printed.log.stat(), 5000.0)
    printed.prints(10, 6000.0)
    assert printed.entries() == [(100.0, 10), (200.0, 20), (6000.0, 30)]


def test_before_a_log_moves_its_end_is_written_down(printed):
    printed.prints(10, 100.0)
    printed.prints(10, 100.5, looked=False)
    note_end(printed.log)
    printed.changed(900.0)  # by being copied
    assert printed.times().at_s(19) == 100.5
    printed.log.unlink()
    note_end(printed.log)


def test_times_do_not_go_back_with_the_clock(printed):
    printed.prints(10, 100.0)
    printed.prints(10, 50.0)
    printed.keeper.look(printed.log.stat(), 102.0)
    assert printed.entries() == [(100.0, 10), (100.0, 20)]


def test_without_the_file_no_times_are_kept(printed):
    times_file(printed.log).unlink()
    printed.prints(10, 100.0)
    assert printed.times() is None
    assert not times_file(printed.log).exists()


def test_what_a_job_puts_in_the_place_of_the_file_is_not_written_to(printed, tmp_path):
    other = tmp_path / "other"
    other.write_bytes(b"")
    times_file(printed.log).unlink()
    times_file(printed.log).symlink_to(other)
    printed.prints(10, 100.0)
    assert printed.times() is None
    assert other.read_bytes() == b""


def test_an_entry_that_the_disk_had_no_room_for_is_passed_over(printed):
    printed.prints(10, 100.0)
    with open(times_file(printed.log), "ab") as file:
        file.write(b"torn")
    assert printed.times().at_s(3) == 100.0
    printed.prints(10, 200.0)
    assert printed.entries() == [(100.0, 10), (200.0, 20)]


def test_a_job_that_cuts_its_own_log_begins_anew(printed):
    printed.prints(10, 100.0)
    printed.prints(10, 200.0)
    os.truncate(printed.log, 10)
    printed.prints(2, 300.0)
    assert printed.entries() == [(100.0, 10), (300.0, 12)]
    os.truncate(printed.log, 0)
    printed.prints(2, 400.0)
    assert printed.entries() == [(400.0, 2)]


def test_of_a_part_that_is_left_out_no_times_are_kept(printed):
    for number in range(1, 10):
        printed.prints(10, 100.0 * number)
    before = printed.times()
    leave_out(printed.log, 35, 75)
    assert [size for _, size in printed.entries()] == [10, 20, 30, 40, 80, 90]
    kept = [*range(35), *range(75, 90)]
    assert [printed.times().at_s(at) for at in kept] == [before.at_s(at) for at in kept]
    printed.prints(10, 2000.0)
    assert printed.times().at_s(95) == 2000.0


def test_a_file_that_has_become_long_is_thinned(printed, monkeypatch):
    monkeypatch.setattr(line_times, "MOST_ENTRIES", 8)
    for number in range(1, 10):
        printed.prints(1, 100.0 * number)
    assert [size for _, size in printed.entries()] == [1, 3, 5, 7, 9]
    printed.prints(1, 2000.0)
    assert [size for _, size in printed.entries()] == [1, 3, 5, 7, 9, 10]
