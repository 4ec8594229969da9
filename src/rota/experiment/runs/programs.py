"""Programs of an experiment's own, which measure whenever they are told to."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from rota.errors import SimulationError

LIMIT_S = 300.0  # that a program has to end in, once it is told nothing more


class Script(NamedTuple):
    """A Python program as text, and its arguments."""

    text: str
    words: Sequence[object] = ()


@contextmanager
def started(
    folder: Path, scripts: Sequence[Script], environment: Mapping[str, str]
) -> Iterator[list["subprocess.Popen[str]"]]:
    """Processes of these scripts in a folder, whose modules they can import.

    Each has one thread for computing, and ends when its standard input does; a process that does
    not end is killed after LIMIT_S.
    """
    given = {"PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", script.text, *map(str, script.words)],
            cwd=folder,
            env=os.environ | given | dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for script in scripts
    ]
    try:
        yield processes
    finally:
        for process in processes:
            assert process.stdin is not None
            process.stdin.close()
        for process in processes:
            try:
                process.wait(LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def asked(experiment: str, processes: Sequence["subprocess.Popen[str]"], what: str = "go") -> Any:
    """Returns the first process's answer once all were told the same line.

    Each answers a line with a line of JSON. Raises SimulationError if one has ended.
    """
    answers = []
    for process in processes:
        assert process.stdin is not None
        try:
            print(what, file=process.stdin, flush=True)
        except BrokenPipeError:
            raise _failed(experiment) from None
    for process in processes:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise _failed(experiment)
        answers.append(json.loads(line))
    return answers[0]


def _failed(experiment: str) -> SimulationError:
    return SimulationError(f"{experiment}: a program failed; see what it printed above")
