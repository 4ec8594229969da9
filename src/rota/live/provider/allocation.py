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
from rota.live.provider.slurm import (
    END_S,
    ENDED,
    KEEP_ALIVE,
    PACE_S,
    Admission,
    Answer,
    Pilot,
    SlurmProvider,
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


class AllocationProvider(SlurmProvider):
    """An agent on each host of an ``allocation``; ``log`` takes what ``srun`` says.

    Once the allocation has ended there are no nodes any more, and none is asked for.
    """

    def __init__(
        self,
        asked: Asked,
        allocation: Allocation,
        agent: Sequence[str],
        home: str,
        admission: Admission,
        log: Path,
        *,
        pace_s: float = PACE_S,
    ) -> None:
        count = len(allocation.hosts)
        super().__init__(asked, (count, count), (), agent, home, admission, pace_s=pace_s)
        self._allocation, self._log = allocation, log
        self._started: dict[str, tuple[str, subprocess.Popen[bytes]]] = {}  # host and srun
        self._is_over = False

    def recall(self) -> None:
        """Ask Slurm now which of the last controller's steps are there, and until when."""
        if not self._asked.names:
            return
        told = []
        for command in self._allocation.looks:
            told.append(call(*command))
            time.sleep(self._pace_s)
        self._take(*told)

    async def _submit(self) -> None:
        """Start a step for the first node that was noted, on a host that has none."""
        if not self._has_looked:  # a step of the last controller may be anywhere
            await self._look()
            return
        taken = {pilot.host for pilot in self._pilots.values()}
        taken |= {host for host, _ in self._started.values()}
        free = next((host for host in self._allocation.hosts if host not in taken), None)
        if free is None or self._is_over:
            await self._look()
            return
        name = self._asked.noted[0]
        script = self._step_script(name, self._admission.admit(name))
        self._asked.ask([name])
        try:
            self._started[name] = free, self._srun(name, free, script)
        except OSError as error:
            self._asked.refused([name])
            self._fail(f"srun can't be started: {error.strerror}")

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

    async def _look(self) -> None:
        told = []
        for command in self._allocation.looks:
            told.append(await self._call(*command))
            await asyncio.sleep(self._pace_s)
        self._looked_s = time.monotonic()
        for each in told:
            if each.code and GONE not in each.words and not self._trouble:
                self._errors.append(f"Slurm's queue can't be read: {each.words}")
        self._take(*told)

    def _take(self, job: Answer, steps: Answer) -> None:
        """Take note of what Slurm tells of the job and of its steps."""
        state, ends = "RUNNING", ""
        if job.code == 0 and job.output.strip():
            state, _, ends = job.output.strip().partition("|")
        elif job.code == 0 or GONE in job.words:
            state = "COMPLETED"
        if state in ENDED and not self._is_over:
            self._is_over = True
            self._failure = f"Slurm job {self._allocation.job}, which had all nodes, ended: {state}"
            self._errors.append(self._failure)
        if self._is_over:
            steps = Answer(0, "", "")
        if steps.code == 0:
            found = _steps(steps.output, self._asked, float(ends) if ends.isdecimal() else None)
            self._note(found | self._ended(found, state if state in ENDED else "COMPLETED"))

    def _ended(self, found: Mapping[str, Pilot], state: str) -> dict[str, Pilot]:
        """The steps that have ended, of those that were there or were started."""
        over = {
            name: Pilot(pilot.job, state, None, pilot.host, "")
            for name, pilot in self._pilots.items()
            if name not in found
        }
        for name, (host, process) in [*self._started.items()]:
            if name in self._given_up and name not in found:
                process.terminate()  # its step has yet to begin
            if process.poll() is not None:
                del self._started[name]
                if name not in found:
                    over[name] = Pilot(self._allocation.job, state, None, host, "")
        return over

    def _last_words(self, name: str) -> str:
        """The agent's, or srun's if it has started none."""
        lines = last_lines(self._log)
        return super()._last_words(name) or (f": {lines[-1]}" if lines else "")


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
