"""Every mechanism that holds a background back, with real processes, against one suite.

Progress is counted, and "for a while" is CPU time of this process: no test looks at a wall clock.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rota.live.agent.processes import descendants, have_stopped, signal_below
from rota.live.wire import encode
from rota.share.controllers import SlowdownFeedback
from rota.share.marks import FORWARD, IDLE
from rota.share.page import BODY, MarkWriter, PageReader, read_fill
from rota.share.stop import Duty, Throttle
from rota.share.weight import Autogroup, CgroupWeight, Nice, measure

pytestmark = pytest.mark.process
PATIENCE_CPU_S = 20.0
WHILE_CPU_S = 0.4  # longer than it takes to find a page, or to tell of pieces
TREE = """
import os, sys
for _ in range(2):
    os.fork()
folder, turns = sys.argv[1], 0
while True:
    turns += 1
    if turns % 20_000 == 0:
        with open(f"{folder}/{os.getpid()}", "w") as told:
            told.write(f"{turns:12d}")
"""


def training(told, steps, **environment):
    """A training that writes how many steps it has done."""
    script = Path(__file__).with_name("background.py")
    words = [sys.executable, str(script), str(told), str(steps)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"} | environment
    return subprocess.Popen(words, env=environment, start_new_session=True)


class Gated:
    """A training with a gate, which asks for itself."""

    def __init__(self, folder, page, **environment):
        self.page, self._told = page, folder / "steps"
        self.child = training(self._told, 1_000_000, ROTA_FILLS=str(page), **environment)

    def turn(self):
        """Nothing: the rank's hooks ask."""

    def progress(self):
        """Pieces, and steps."""
        fill = read_fill(self.page)
        return (fill.pieces if fill else 0, self._told.read_text() if self._told.exists() else "")

    def close(self):
        self.child.kill()
        self.child.wait()


class Stopped:
    """A program of four processes that knows nothing of Rota, in slices of time."""

    def __init__(self, folder, page):
        self._folder = folder / "turns"
        self._folder.mkdir()
        words = [sys.executable, "-IS", "-c", TREE, str(self._folder)]
        # As a shim does: one that is never stopped, above those that are.
        self.shim = subprocess.Popen(
            ["sh", "-c", '"$@" & wait', "sh", *words], start_new_session=True
        )
        self.reader = PageReader(page)
        self.duty = Duty([SlowdownFeedback()])
        self.throttle = Throttle([self.shim.pid], self.duty, self.send)

    def send(self, number):
        return signal_below(self.shim.pid, number)

    def below(self):
        return descendants(self.shim.pid)[1:]

    def turn(self):
        now_s = time.monotonic()
        self.throttle.turn([self.reader.read(now_s)], now_s)

    def progress(self):
        return sorted((file.name, file.read_text()) for file in self._folder.iterdir())

    def close(self):
        self.throttle.close()
        signal_below(self.shim.pid, signal.SIGKILL)
        self.shim.kill()
        self.shim.wait()
        self.reader.close()


MECHANISMS = {"gate": Gated, "stop": Stopped}


@pytest.fixture(params=MECHANISMS)
def background(request, tmp_path):
    made = MECHANISMS[request.param](tmp_path, tmp_path / "page")
    yield made
    made.close()


@pytest.fixture
def foreground(tmp_path):
    writer = MarkWriter(str(tmp_path / "page"))
    yield writer
    writer.close()


def until(condition, background, what):
    """Turn until something is so."""
    limit_s = time.process_time() + PATIENCE_CPU_S
    while not condition():
        assert time.process_time() < limit_s, what
        background.turn()
        time.sleep(0.002)


def goes_on(background):
    before = background.progress()
    until(lambda: background.progress() != before, background, "it goes on")


def stands_still(background):
    """Waits until it does no more for a while, and sees that it does no more for another."""

    def whiled():
        before, limit_s = background.progress(), time.process_time() + WHILE_CPU_S
        while time.process_time() < limit_s:
            background.turn()
        return background.progress() == before

    until(whiled, background, "it stands still")
    assert whiled()


def test_without_a_foreground_it_runs(background):
    goes_on(background)
    goes_on(background)


def test_it_is_held_while_times_are_learned_and_let_go_when_the_foreground_yields(
    background, foreground
):
    goes_on(background)
    foreground.enter(FORWARD)
    stands_still(background)
    foreground.enter(IDLE)
    goes_on(background)


def test_it_is_freed_when_the_foreground_goes_or_dies(background, foreground, tmp_path):
    goes_on(background)
    foreground.enter(FORWARD)
    stands_still(background)
    foreground.close()
    goes_on(background)
    dead = MarkWriter(str(tmp_path / "page"))
    dead._started_s = 0.25  # as of a process of the same number in the past
    dead.enter(FORWARD)
    goes_on(background)
    goes_on(background)


def test_a_page_of_garbage_holds_it_not_for_ever(background, tmp_path):
    goes_on(background)
    (tmp_path / "page").write_bytes(b"\x07" * (BODY.size + 4))
    for _ in range(3):
        goes_on(background)


def test_a_stopped_tree_runs_again_when_its_throttle_dies(tmp_path):
    background = Stopped(tmp_path, tmp_path / "page")
    try:
        until(lambda: len(background.progress()) == 4, background, "all four run")
        background.send(signal.SIGSTOP)
        until(lambda: have_stopped(background.below()), background, "all have stopped")
        background.throttle._guard._process.stdin.close()  # as the end of this process would
        until(lambda: not have_stopped(background.below()), background, "they run again")
        background.throttle._guard._process.wait()
    finally:
        background.close()


def test_a_stopped_tree_runs_again_when_throttling_ends(tmp_path, foreground):
    background = Stopped(tmp_path, tmp_path / "page")
    try:
        until(lambda: len(background.progress()) == 4, background, "all four run")
        foreground.enter(FORWARD)
        stands_still(background)
        background.throttle.close()
        until(lambda: not have_stopped(background.below()), background, "they run again")
    finally:
        background.close()


def test_a_suspension_never_hangs_behind_a_gate(tmp_path, foreground):
    """The agent asks for it while the gate holds the rank in the middle of a step."""
    path = str(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        background = Gated(tmp_path, tmp_path / "page", ROTA_AGENT_SOCKET=path, ROTA_JOB_ID="1")
        try:
            server.settimeout(60)
            agent, _ = server.accept()
            with agent, agent.makefile("r") as told:
                agent.settimeout(60)
                goes_on(background)
                foreground.enter(FORWARD)
                stands_still(background)
                agent.sendall(encode({"type": "pause", "gang": False}))
                kinds = (json.loads(line)["type"] for line in told)
                assert "suspended" in kinds
        finally:
            background.close()


def test_a_training_fills_another_on_one_core_and_goes_on_after_it(tmp_path):
    """By counts: times are learned, pieces run, and the foreground comes to its end."""
    core = min(os.sched_getaffinity(0))
    page = tmp_path / "page"
    foreground = training(tmp_path / "foreground", 60, ROTA_MARKS=str(page))
    background = Gated(tmp_path, page)
    try:
        for each in (foreground, background.child):
            os.sched_setaffinity(each.pid, {core})
        assert foreground.wait(60) == 0
        goes_on(background)
        fill = read_fill(page)
        assert fill.pieces > 0
        assert 0 <= fill.steps <= 60
    finally:
        foreground.kill()
        foreground.wait()
        background.close()


# -- weights ---------------------------------------------------------------------------------------


def autogroups_are_on():
    file = Path("/proc/sys/kernel/sched_autogroup_enabled")
    return file.exists() and file.read_text().strip() == "1"


def test_between_sessions_nice_does_nothing_and_that_is_measured():
    """The trap: what a process manager starts has a session, and so an autogroup, of its own."""
    if not autogroups_are_on():
        pytest.skip("this kernel has no autogroups, or they are off")
    if Path("/proc/self/cgroup").read_text().find(":cpu:/\n") < 0:
        pytest.skip("in a control group of its own a process is in no autogroup")
    # Somebody may switch autogroups off while one measures.
    assert any(not measure(Nice()).works for _ in range(3))


def test_the_nice_value_of_an_autogroup_works():
    if not autogroups_are_on():
        pytest.skip("this kernel has no autogroups, or they are off")
    if Path("/proc/self/cgroup").read_text().find(":cpu:/\n") < 0:
        pytest.skip("in a control group of its own a process is in no autogroup")
    found = measure(Autogroup())
    if found.ratio is None:
        pytest.skip(found.why)
    assert found.works
    assert found.ratio < 0.3


@pytest.mark.parametrize("top", ["/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct"])
def test_the_weight_of_a_control_group_works(top):
    if not os.access(top, os.W_OK):
        pytest.skip(f"{top} can't be written")
    way = CgroupWeight(Path(top), f"rota-test-{os.getpid()}")
    found = measure(way)
    if found.ratio is None:
        pytest.skip(found.why)
    assert found.works
    assert not list(Path(top).glob(f"rota-test-{os.getpid()}*"))


def test_a_way_that_is_refused_says_why(tmp_path):
    found = measure(CgroupWeight(tmp_path / "absent", "rota-test"))
    assert (found.ratio, found.works) == (None, False)
    assert "No such file" in found.why
