"""Which logs an agent cuts, and the room that it keeps behind them."""

import asyncio
import os
import shutil
from types import SimpleNamespace

import pytest

from rota.folder import Disk
from rota.live.agent import logs as module
from rota.live.agent.line_times import begin, read_times, times_file
from rota.live.agent.logs import AHEAD_BYTES, KEPT_IN_MIND_S, LEAST_LIMIT_BYTES, Logs
from rota.live.agent.output import LEAST_BYTES

MIB = 1 << 20
ROOMY = Disk(1 << 40, 1 << 39)  # whose reserve is 64 MiB
LOW = Disk(1 << 40, 127 * MIB)


class Node:
    """Jobs with files for logs; nobody runs."""

    def __init__(self, folder, limit_bytes):
        self.folder = folder
        self.attempts = []
        self.now_s = 0.0
        self.logs = Logs(folder, lambda: self.attempts, limit_bytes, clock=lambda: self.now_s)

    def attempt(self, job, number=1, ranks=1):
        where = self.folder / "jobs" / job / str(number)
        where.mkdir(parents=True)
        ranks = [SimpleNamespace(log=where / f"rank{slot}.log") for slot in range(ranks)]
        attempt = SimpleNamespace(ended=None, ranks=ranks)
        self.attempts.append(attempt)
        return attempt

    def look(self, disk=ROOMY):
        return dict(self.logs.look(disk))


def holds(attempt, num_bytes, rank=0):
    """Have a rank's log take so much room, whatever is in it."""
    file = attempt.ranks[rank].log
    with open(file, "ab") as log:
        os.posix_fallocate(log.fileno(), 0, num_bytes)
    return file


def held(file):
    return file.stat().st_blocks * 512


@pytest.fixture
def node(tmp_path):
    return Node(tmp_path, 64 * MIB)


def test_logs_within_the_limit_are_left_alone(node):
    holds(node.attempt("1", ranks=2), 30 * MIB)
    assert node.look() == {}


def test_the_logs_of_a_job_share_its_limit_and_short_ones_are_left_alone(node):
    first = node.attempt("1", number=1)
    first.ended = {}
    old = holds(first, 20 * MIB)
    second = node.attempt("1", number=2, ranks=2)
    long, short = holds(second, 50 * MIB, rank=0), holds(second, MIB, rank=1)
    holds(node.attempt("2"), 60 * MIB)
    assert node.look() == {old: 16 * MIB, long: 16 * MIB}
    assert short not in node.look()


def test_who_prints_no_more_is_not_looked_at_again(node, monkeypatch):
    holds(node.attempt("1"), 10 * MIB)
    node.look()
    monkeypatch.setattr(module, "_sizes", lambda job: pytest.fail("looked at"))
    assert node.look() == {}


def test_on_a_disk_with_little_room_the_longest_go_first_until_there_is_some(node):
    long = holds(node.attempt("1"), 40 * MIB)
    other = holds(node.attempt("2"), 30 * MIB)
    holds(node.attempt("3"), 3 * MIB)
    assert node.look(LOW) == {long: LEAST_BYTES}
    assert node.look(Disk(1 << 40, 0)) == {long: LEAST_BYTES, other: LEAST_BYTES}
    assert node.look() == {}


def test_a_log_that_has_filled_the_disk_is_cut_although_its_job_has_ended(node):
    attempt = node.attempt("1")
    file = holds(attempt, 40 * MIB)
    node.look()
    attempt.ended = {}
    assert node.look(LOW) == {file: LEAST_BYTES}
    node.attempts.clear()
    node.now_s += KEPT_IN_MIND_S + 1
    node.look()
    assert node.look(LOW) == {}


def test_logs_of_a_job_that_has_left_the_node_are_forgotten_and_others_are_cut(node):
    left, stays = node.attempt("1"), node.attempt("2")
    gone = holds(left, 40 * MIB)
    file = holds(stays, 30 * MIB)
    node.look()
    node.attempts.remove(left)
    shutil.rmtree(gone.parents[1])
    assert node.look(LOW) == {file: LEAST_BYTES}
    assert gone not in node.logs._logs


def test_there_is_room_behind_a_log_until_its_job_has_ended(node):
    attempt = node.attempt("1")
    file = attempt.ranks[0].log
    node.look()  # it has not begun to print
    file.write_bytes(b"x" * 100)
    node.look()
    assert held(file) >= AHEAD_BYTES
    file.write_bytes(b"x" * AHEAD_BYTES)
    node.look()
    assert held(file) >= 2 * AHEAD_BYTES - 4096
    attempt.ended = {}
    node.look()
    assert held(file) == AHEAD_BYTES
    assert file.stat().st_size == AHEAD_BYTES


def test_the_room_is_given_back_at_the_end_of_the_agent(node):
    ended, goes_on, gone = (node.attempt(job_id) for job_id in "123")
    files = [holds(attempt, MIB) for attempt in (ended, goes_on, gone)]
    node.look()
    ended.ended = {}
    node.attempts.remove(gone)  # the controller has heard of its end
    node.logs.close()
    assert [held(file) for file in files] == [MIB, MIB + AHEAD_BYTES, MIB]


def test_times_of_lines_are_kept_to_the_end_and_cut_with_their_log(node):
    attempt = node.attempt("1")
    file = attempt.ranks[0].log
    begin(file)
    for _ in range(8):
        with open(file, "ab") as log:
            log.write(b"x" * MIB)
        node.now_s += 2.0
        node.look()
    whole = times_file(file).stat().st_size
    attempt.ended = {}
    with open(file, "ab") as log:
        log.write(b"end\n")
    node.look()
    assert times_file(file).stat().st_size == whole * 9 // 8
    module._shorten(file, LEAST_BYTES)
    assert times_file(file).stat().st_size < whole
    assert read_times(file).since(0.0) == 0


def test_no_room_is_taken_of_a_disk_that_has_little(node):
    file = holds(node.attempt("1"), MIB)
    node.look(LOW)
    assert held(file) == MIB


def test_a_job_that_prints_without_end_holds_no_more_than_its_limit(node, monkeypatch):
    """It is looked after by itself; what it wrote first and last is there."""
    monkeypatch.setattr(module, "LONGEST_PAUSE_S", 0.001)
    node.logs = Logs(node.folder, lambda: node.attempts, LEAST_LIMIT_BYTES)
    file = node.attempt("1").ranks[0].log

    async def scenario():
        task = asyncio.create_task(node.logs.run())
        with open(file, "ab", buffering=0) as log:
            log.write(b"first\n")
            for _ in range(20):
                log.write(b"x" * 2 * MIB)
                async with asyncio.timeout(60):
                    while held(file) > LEAST_LIMIT_BYTES + AHEAD_BYTES:
                        await asyncio.sleep(0.001)
            log.write(b"last\n")
        task.cancel()

    asyncio.run(scenario())
    assert file.stat().st_size == 40 * MIB + 11
    with open(file, "rb") as log:
        assert log.read(6) == b"first\n"
        log.seek(-5, os.SEEK_END)
        assert log.read() == b"last\n"
