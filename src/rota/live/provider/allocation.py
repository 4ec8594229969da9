"""Nodes of a Slurm allocation that is there already: on each host a step keeps an agent alive.

``rota up --on slurm`` within ``salloc`` or ``sbatch`` uses them as they are: steps, started by
``srun --overlap``, take the place of pilots. They go on without the controller, and the next one
finds them by their names.
"""

import asyncio
import shlex
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from rota.live.provider.asked import Asked
from rota.live.provider.book import END_S, Book
from rota.live.provider.keeping import KEEP_ALIVE
from rota.live.provider.slurm import (
    ENDED,
    PACE_S,
    Answer,
    Call,
    Pilot,
    UntoldError,
    agents_words,
    call,
    environment,
    last_lines,
)

GONE = "Invalid job id"  # Slurm has forgotten it
KEPT = ("SLURM_CONF", "SLURM_TIME_FORMAT")  # other variables of Slurm would change a step


class Allocation(NamedTuple):
    """A job of Slurm, its hosts, and the GPUs that it has on each of them."""

    job: str
    hosts: Sequence[str]
    gpus: int = 0

    @property
    def looks(self) -> tuple[Sequence[str], Sequence[str]]:
        """The commands that tell of the job, and of its steps."""
        return (
            ("squeue", "--noheader", "--states=all", f"--jobs={self.job}", "--format=%T|%e"),
            ("squeue", "--noheader", "--steps", f"--jobs={self.job}", "--format=%i|%j|%N"),
        )


class Steps:
    """An agent on each host of an ``allocation``, for the nodes in ``book``.

    ``agent`` is the command that runs an agent, but for the name of its node; ``home`` is the state
    folder on the hosts, and ``log`` takes what ``srun`` says. ``pace_s`` is the time between two
    commands. Once the allocation has ended there are no nodes any more, and none is asked for.
    """

    def __init__(
        self,
        book: Book,
        allocation: Allocation,
        agent: Sequence[str],
        home: str,
        log: Path,
        *,
        pace_s: float = PACE_S,
    ) -> None:
        self._book, self._allocation, self._log = book, allocation, log
        self._agent, self._home, self._pace_s = agent, home, pace_s
        self._started: dict[str, tuple[str, subprocess.Popen[bytes]]] = {}  # host and srun
        self._is_over = False

    def first(self, noted: Sequence[str], pilots: Mapping[str, Pilot]) -> Sequence[str]:
        """The first node, if there is a host that has no step."""
        if self._is_over or not self._book.has_looked:
            return []  # a step of the last controller may be anywhere
        return noted[:1] if self._free(pilots) else []

    def _free(self, pilots: Mapping[str, Pilot]) -> list[str]:
        taken = {pilot.host for pilot in pilots.values()}
        taken |= {host for host, _ in self._started.values()}
        return [host for host in self._allocation.hosts if host not in taken]

    async def submit(
        self, call: Call, admitted: Mapping[str, str], pilots: Mapping[str, Pilot]
    ) -> str:
        """Start a step on the first host that has none."""
        ((name, text),), host = admitted.items(), self._free(pilots)[0]
        try:
            process = self._srun(name, host, self._step_script(name, text))
        except OSError as error:
            return f"srun can't be started: {error.strerror}"
        self._started[name] = host, process
        return ""

    def _srun(self, name: str, host: str, script: str) -> "subprocess.Popen[bytes]":
        """Start a step, which outlives this process, and whose program others can't read."""
        command = ["srun", "--overlap", f"--jobid={self._allocation.job}", f"--job-name={name}"]
        command += [f"--nodelist={host}", "--nodes=1", "--ntasks=1", "--mem=0", "--cpu-bind=none"]
        command += [f"--gres=gpu:{self._allocation.gpus}"] * bool(self._allocation.gpus)
        own = environment()
        with open(self._log, "ab") as log, tempfile.TemporaryFile() as text:
            text.write(script.encode())
            text.seek(0)
            return subprocess.Popen(
                [*command, "sh", "-s"],
                stdin=text,
                stdout=subprocess.DEVNULL,
                stderr=log,
                env={key: own[key] for key in own if not key.startswith("SLURM_") or key in KEPT},
                start_new_session=True,
            )

    def _step_script(self, name: str, admitted: str) -> str:
        """The program of a step."""
        return "\n".join(
            [
                "umask 077",
                f"place={shlex.quote(f'{self._home}/nodes/{name}')}",
                'mkdir -p "$place" && cd "$place" || exit',
                "exec >>agent.log 2>&1",
                f"printf '%s' {shlex.quote(admitted)} >joined.json",
                '[ -w "$XDG_RUNTIME_DIR" ] || unset XDG_RUNTIME_DIR',
                f"exec sh -c {shlex.quote(KEEP_ALIVE)} agent {shlex.join(self._agent)} "
                f"--node {shlex.quote(name)} </dev/null",
                "",
            ]
        )

    async def look(self, call: Call, pilots: Mapping[str, Pilot]) -> Mapping[str, Pilot]:
        """The steps that are there, and those that have ended since."""
        told = []
        for command in self._allocation.looks:
            told.append(await call(*command))
            await asyncio.sleep(self._pace_s)
        return self._found(told[0], told[1], pilots)

    def recall(self) -> Mapping[str, Pilot]:
        """The same."""
        told = []
        for command in self._allocation.looks:
            told.append(call(*command))
            time.sleep(self._pace_s)
        return self._found(told[0], told[1], {})

    def _found(
        self, job: Answer, steps: Answer, pilots: Mapping[str, Pilot]
    ) -> Mapping[str, Pilot]:
        """The steps that Slurm tells of."""
        for each in (job, steps):
            if each.code and GONE not in each.words:
                raise UntoldError(each.words)
        state, ends = "RUNNING", ""
        if job.code == 0 and job.output.strip():
            state, _, ends = job.output.strip().partition("|")
        else:
            state = "COMPLETED"
        if state in ENDED and not self._is_over:
            self._is_over = True
            words = f"Slurm job {self._allocation.job}, which had all nodes, ended: {state}"
            self._book.failure = words
            self._book.tell(words)
        told = "" if self._is_over or steps.code else steps.output
        found = _steps(told, self._book.asked, float(ends) if ends.isdecimal() else None)
        return found | self._ended(found, pilots, state if state in ENDED else "COMPLETED")

    def _ended(
        self, found: Mapping[str, Pilot], pilots: Mapping[str, Pilot], state: str
    ) -> dict[str, Pilot]:
        """The steps that have ended, of those that were there or were started."""
        over = {
            name: Pilot(pilot.job, state, None, pilot.host, "")
            for name, pilot in pilots.items()
            if name not in found
        }
        for name, (host, process) in [*self._started.items()]:
            if name in self._book.given_up and name not in found:
                process.terminate()  # its step has yet to begin
            if process.poll() is not None:
                del self._started[name]
                if name not in found:
                    over[name] = Pilot(self._allocation.job, state, None, host, "")
        return over

    def last_words(self, name: str) -> str:
        """The agent's, or srun's if it has started none."""
        lines = last_lines(self._log)
        return agents_words(self._home, name) or (f": {lines[-1]}" if lines else "")


def cancel_steps(job: str, asked: Asked) -> str:
    """Cancel all steps of a cluster that has no controller, and wait until they are gone.

    Returns Slurm's own words if that can't be; "" if it could.
    """
    look, deadline_s = Allocation(job, ()).looks[1], time.monotonic() + END_S
    while (told := call(*look)).code == 0:
        there = _steps(told.output, asked, None)
        if not there:
            return ""
        if time.monotonic() > deadline_s:
            return f"{', '.join(each.job for each in there.values())} do not end"
        time.sleep(PACE_S)
        call("scancel", "--signal=KILL", *(pilot.job for pilot in there.values()))
        time.sleep(PACE_S)
    return "" if GONE in told.words else told.words


def _steps(told: str, asked: Asked, ends_s: float | None) -> dict[str, Pilot]:
    """The steps of agents among those that ``squeue`` tells, by the names of their nodes."""
    found = {}
    for line in told.splitlines():
        step, name, host = line.split("|", 2)
        if asked.number(name):
            found[name] = Pilot(step, "RUNNING", ends_s, host, "")
    return found
