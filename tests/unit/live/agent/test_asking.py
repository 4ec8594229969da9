"""Which processes are asked to end first, and which only once those have ended."""

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rota.live.agent.asking import LINGER_S, Asking, starts_ranks
from rota.live.agent.processes import descendants, signal_below

SHIM = """
import ctypes, os, subprocess, sys
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
subprocess.Popen(["bash", "-c", sys.argv[1]], preexec_fn=lambda: os.setpgid(0, 0))
while True:
    try:
        os.wait()
    except ChildProcessError:
        break
"""
# Handles SIGTERM: says so, and ends once the file NAME.go is there. Then it runs what follows.
PROGRAM = """
import os, signal, subprocess, sys, time
name = sys.argv[1]
def end(*_):
    say("asked")
    while not os.path.exists(name + ".go"):
        time.sleep(0.005)
    print(name, "is over", flush=True)
    os._exit(0)
def say(what):
    with open("said", "a") as file:
        file.write(f"{name} {what}\\n")
signal.signal(signal.SIGTERM, end)
for more in sys.argv[2:]:
    if more == "fork":
        if os.fork() == 0:
            name += ".fork"
            break
    else:
        env = os.environ | {"TORCHELASTIC_RUN_ID": "1"} if name == "launcher" else None
        subprocess.Popen(["bash", "-c", more], env=env)
say("runs")
while True:
    signal.pause()
"""


class Below:
    """The processes of a command, below one that stands for its rank's shim."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "program.py").write_text(PROGRAM)
        self.asking = Asking(0)
        self._late_s = 0.0

    def starts(self, command: str, *running: str, until_there: str = "") -> Asking:
        """Start a command, and wait until these programs of it run, and a file is there."""
        words = [sys.executable, "-c", SHIM, command]
        output = open(self.folder / "output", "w")  # noqa: SIM115
        self.shim = subprocess.Popen(words, cwd=self.folder, stdout=output, start_new_session=True)
        output.close()
        for name in running:
            self.until_said(f"{name} runs")
        until((self.folder / until_there).exists, until_there)
        self.asking = Asking(self.shim.pid)
        self.asking.begin()
        return self.asking

    def ends(self, name: str) -> None:
        """Let a program that was asked to end do so, and wait until it has."""
        self.until_said(f"{name} asked")
        (self.folder / f"{name}.go").touch()
        until(lambda: f"{name} is over" in (self.folder / "output").read_text(), name)

    def until_said(self, line: str) -> None:
        until(lambda: line in self.said, f"{line}: {self.said}")

    @property
    def said(self) -> list[str]:
        file = self.folder / "said"
        return file.read_text().splitlines() if file.exists() else []

    @property
    def asked(self) -> set[str]:
        """The programs that were asked so far; each was once."""
        found = [line.split()[0] for line in self.said if line.endswith("asked")]
        assert len(found) == len(set(found))
        return set(found)

    def looks_late(self) -> None:
        """Look twice, with time enough for others to end by themselves."""
        until(self._are_over, "all that were asked are over")
        self.asking.look(2 * LINGER_S)

    def looks_on(self) -> None:
        """Look once more, a while later: bash seems to handle the signal while it forks."""
        self._late_s += 2 * LINGER_S
        self.asking.look(self._late_s)

    def _are_over(self) -> bool:
        self.asking.look(0.0)
        return self.asking._over_s is not None


def until(true, what) -> None:
    deadline_s = time.monotonic() + 60.0
    while not true():
        assert time.monotonic() < deadline_s, what
        time.sleep(0.005)


@pytest.fixture
def below(tmp_path):
    it = Below(tmp_path)
    yield it
    signal_below(it.shim.pid, signal.SIGKILL)
    it.shim.wait(60.0)


def program(name: str, *more: str) -> str:
    return shlex.join([sys.executable, "program.py", name, *more])


def test_what_a_program_has_started_is_asked_once_the_program_has_ended(below):
    child = program("child")
    below.starts(program("main", "fork", child), "main", "main.fork", "child")
    below.until_said("main asked")
    for now_s in (0.0, 100.0):
        below.asking.look(now_s)
    assert below.asked == {"main"}
    below.ends("main")
    below.looks_late()
    below.until_said("main.fork asked")
    below.until_said("child asked")


def test_when_time_is_nearly_over_all_are_asked_and_none_twice(below):
    below.starts(program("main", "fork"), "main", "main.fork")
    below.until_said("main asked")
    below.asking.ask_all()
    below.until_said("main.fork asked")
    below.asking.ask_all()
    assert below.asked == {"main", "main.fork"}


@pytest.mark.parametrize(
    "command",
    [
        "{0}",
        "{0}; echo next",
        "{0} | tee copy",
        "cat /dev/zero | {0} 2>&1 | cat; echo next",
        "bash -c '{0}; echo next'; echo next",
        "(cd . && {0}) && echo next",
        "{0} & wait; echo next",
        "timeout 3600 {0}",
        "trap 'echo trap' TERM; {0}",
    ],
)
def test_a_program_in_a_shell_is_asked_and_no_other_follows(below, command):
    below.starts(command.format(program("main", "fork")), "main", "main.fork")
    below.until_said("main asked")
    assert below.asked == {"main"}
    below.ends("main")
    below.looks_late()
    below.until_said("main.fork asked")
    (below.folder / "main.fork.go").touch()
    below.shim.wait(60.0)
    output = (below.folder / "output").read_text()
    assert "main is over\n" in output
    assert "next" not in output
    assert ("trap" in output) is command.startswith("trap")


def test_a_shell_that_passes_signals_on_is_asked_alone(below):
    forwards = "trap 'echo trap; kill -USR1 $!' TERM; "
    below.starts(f"{forwards}{program('main')} & wait; wait", "main")
    until(lambda: "trap" in (below.folder / "output").read_text(), "the trap runs")
    assert below.asked == set()


def test_the_ranks_of_a_launcher_are_asked_and_then_the_launcher(below):
    ranks = [program("one", "fork"), program("two")]
    below.starts(program("launcher", *ranks), "launcher", "one", "one.fork", "two")
    below.ends("one")
    below.until_said("two asked")
    below.asking.look(0.0)
    assert below.asked == {"one", "two"}
    below.ends("two")
    below.looks_late()
    below.until_said("launcher asked")


def test_of_several_programs_those_are_asked_that_handle_it(below):
    others = "sleep 3601"
    below.starts(f"{program('main')} & {others} & wait", "main")
    below.until_said("main asked")
    names = {Path(f"/proc/{pid}/comm").read_text().strip() for pid in below_of(below)}
    assert "sleep" in names
    below.ends("main")
    below.looks_late()
    below.shim.wait(60.0)


def test_where_none_handles_it_all_are_asked(below):
    below.starts("sleep 3601 & sleep 3602 & touch one.go; wait", until_there="one.go")
    until(lambda: below.shim.poll() is not None or below.looks_on(), "all have ended")


def below_of(below: Below) -> list[int]:
    return [pid for pid in descendants(below.shim.pid)[1:] if os.path.exists(f"/proc/{pid}")]


@pytest.mark.parametrize(
    ("words", "is_launcher"),
    [
        (["/venv/bin/python", "/venv/bin/accelerate-launch", "t.py"], True),
        (["python", "-m", "accelerate.commands.accelerate_cli", "launch", "t.py"], True),
        (["python", "-u", "-m", "deepspeed.launcher.runner", "t.py"], True),
        (["python", "t.py", "accelerate-launch"], False),
    ],
)
def test_launchers_are_known_by_their_command(words, is_launcher):
    assert starts_ranks(words) == is_launcher
