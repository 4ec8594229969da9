"""The Slurm of this machine, by its commands: an idle node with GPUs, and jobs on it."""

import re
import shlex
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rota.errors import InputError, SimulationError

CALL_S = 60.0
POLL_S = 1.0  # between two looks at the queue
MEMORY_MB = 1000  # of a job: GPUs alone keep another one waiting
WAITS = ("PENDING", "CONFIGURING")
LIVES = (*WAITS, "RUNNING", "COMPLETING", "SUSPENDED")


class Node(NamedTuple):
    """A node with GPUs."""

    name: str
    partition: str
    gpus: int


def idle_node(partition: str | None = None) -> Node:
    """An idle node with GPUs, of the partition if one is given.

    Raises InputError if there is none, or no Slurm that answers.
    """
    words = [] if partition is None else [f"--partition={partition}"]
    try:
        told = _run(
            "sinfo",
            "-h",
            "-N",
            "--states=idle",
            *words,
            "--Format=nodelist:|,partitionname:|,gres:|",
        )
    except OSError as error:
        raise InputError(f"there is no Slurm: {error}; run it where Slurm's commands are") from None
    except subprocess.CalledProcessError as error:
        said = " ".join(error.stderr.split())
        raise InputError(f"Slurm does not answer: {said}; try again when `sinfo` does") from None
    for line in told.splitlines():
        name, of, gres = line.split("|")[:3]
        if gpus := sum(map(int, re.findall(r"\bgpu:(?:[^:,(]+:)?(\d+)", gres))):
            return Node(name.strip(), of.strip(), gpus)
    where = "" if partition is None else f" of partition {partition}"
    raise InputError(
        f"Slurm has no idle node with GPUs{where}; `sinfo -N -o '%N %P %t %G'` lists all: give "
        "another --partition, or wait for one"
    )


def version() -> str:
    """Slurm's name and version."""
    return _run("sinfo", "--version").strip()


class Job:
    """A job of one task with all GPUs of a node, which prints into a file."""

    def __init__(self, node: Node, command: Sequence[str], log: Path) -> None:
        self.log = log
        options = [f"--partition={node.partition}", f"--nodelist={node.name}", "--nodes=1"]
        options += [f"--gres=gpu:{node.gpus}", f"--mem={MEMORY_MB}", "--ntasks=1"]
        options += [f"--output={log}", f"--job-name={log.stem}", f"--chdir={log.parent}"]
        said = _run("sbatch", "--parsable", *options, f"--wrap={shlex.join(command)}")
        self.id = said.strip().partition(";")[0]

    def state(self) -> tuple[str, str]:
        """Its state, and the reason for it, in Slurm's words."""
        words = _run("squeue", "-h", f"--jobs={self.id}", "--states=all", "--format=%T|%r")
        state, _, reason = words.strip().partition("|")
        return state, reason

    def wait(self, within_s: float) -> None:
        """Wait for its end. Raises SimulationError if it is late, or does not succeed."""
        deadline = time.monotonic() + within_s
        while (state := self.state()[0]) in LIVES:
            if time.monotonic() > deadline:
                raise SimulationError(f"Slurm's job {self.id}: {state} after {within_s:.0f} s")
            time.sleep(POLL_S)
        if state != "COMPLETED":
            tail = self.log.read_text()[-2000:].strip() if self.log.exists() else ""
            raise SimulationError(f"Slurm's job {self.id}: {state}; its last words: {tail}")

    def cancel(self) -> None:
        """Have it end, and wait for that."""
        _run("scancel", self.id)
        while self.state()[0] in LIVES:
            time.sleep(POLL_S)


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=CALL_S, check=True)
    return done.stdout
