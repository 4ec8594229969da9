"""Runs programs plainly, and as jobs of an agent, and tells what each run left behind."""

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from differential.corpus import NEIGHBOUR, Case
from rota.live.agent.program_start import FORKED, SHELL_SYNTAX
from rota.model.job import WARM
from support.lone_agent import LoneAgent

OWN = os.path.dirname(sys.executable)
# What a job has in its environment beside that of its agent and its own: docs/reference/live.md.
TOLD = ("ROTA_", "RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "PET_")
GIVEN = {
    "PATH": OWN + os.pathsep + os.environ.get("PATH", os.defpath),
    "PYTHONUNBUFFERED": "1",
    "OMP_NUM_THREADS": "1",
}
DEADLINE_S = 120.0


class Outcome(NamedTuple):
    """What a run printed, how it ended (-N: by signal N), and the files that it left."""

    log: str
    code: int
    files: dict[str, bytes]


def prepare(folder: Path, case: Case, way: str) -> list[str]:
    """Put the program into the folder; the words after ``python`` that run it in this way."""
    work = folder / "work"
    (work / "data").mkdir(parents=True)
    (work / "data" / "other.py").write_text("word = 'other'\n")
    (work / "data" / "sitecustomize.py").write_text("import sys\nsys.customized = 'yes'\n")
    home = work if way != "link" else folder / "elsewhere"
    home.mkdir(exist_ok=True)
    (home / "neighbour.py").write_text(NEIGHBOUR)
    (home / "cProfile.py").write_text(NEIGHBOUR)  # the name of a module that torch loads
    program = home / "program.py"
    program.write_text(case.source)
    if way == "link":
        (work / "program.py").symlink_to(program)
    return [*(("-m", "program") if way == "-m" else ("program.py",)), *case.arguments]


def plainly(folder: Path, case: Case, way: str) -> Outcome:
    """Run the program as a shell would, output and errors together."""
    words = prepare(folder, case, way)
    with open(folder / "log", "ab") as log:
        code = subprocess.run(
            ["python", *words],
            cwd=folder / "work",
            env=os.environ | GIVEN | dict(case.env),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            check=False,
            executable=sys.executable,
            timeout=DEADLINE_S,
            preexec_fn=default_signals,
        ).returncode
    return _outcome(folder, (folder / "log").read_text(), code)


def default_signals() -> None:
    """In a child: have signals at their defaults, whatever the tests were started by ignores."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        with contextlib.suppress(OSError):
            signal.signal(number, signal.SIG_DFL)


def as_job(agent: LoneAgent, folder: Path, case: Case, way: str, start: str) -> Outcome:
    """Run the program as a job with this ``start``."""
    words = prepare(folder, case, way)
    run = shlex.join(["python", *words])
    forked = start == WARM and not case.env and not SHELL_SYNTAX & set(run)
    before = len(agent.said)
    answer = agent.launch(
        run,
        [0],
        1,
        env=dict(case.env),
        workdir=str(folder / "work"),
        start=start,
    )
    assert answer["type"] == "done", answer
    job = agent.attempt.job_id
    until_s = time.monotonic() + DEADLINE_S
    while not (ends := _ends(agent.said[before:], job)):
        assert time.monotonic() < until_s, f"{case.name} does not end"
        time.sleep(0.005)
    assert (agent.attempt.record.started == FORKED) == forked
    return _outcome(folder, agent.log(0), ends[0]["exit_code"])


def _ends(said: Sequence[dict], job: str) -> list[dict]:
    return [each for each in said if each.get("type") == "ended" and each["job_id"] == job]


def _outcome(folder: Path, log: str, code: int) -> Outcome:
    """What is the same wherever and whenever the program runs."""
    log = log.replace(str(folder), "FOLDER")
    log = re.sub(r"0x[0-9a-f]{6,}|started [0-9]+", "ADDRESS", log)
    log = re.sub(rf"(?m)^(?:{'|'.join(TOLD)}).*\n", "", log)
    log = re.sub(r"\x1b\[[0-9;]*m", "", log)
    left = [path for path in (folder / "work").rglob("*") if path.is_file()]
    names = {str(path.relative_to(folder / "work")): path for path in left}
    made = {name: path.read_bytes() for name, path in names.items() if "__pycache__" not in name}
    return Outcome(log, code, made)
