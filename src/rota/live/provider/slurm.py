"""Nodes of a Slurm cluster, for a plain user: each belongs to a pilot, a job with a whole node.

A pilot's program keeps an agent alive on its node until that has ended in good order. Pilots that
are asked for at one time are the tasks of one array job, which has the name of the first of their
nodes. Slurm is asked by its own commands, one after another, at most one a second.
"""

import asyncio
import contextlib
import os
import shlex
import subprocess
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from rota.live.provider.asked import Asked
from rota.live.provider.book import END_S, Book
from rota.live.provider.keeping import KEEP_ALIVE

PACE_S = 1.0  # between two commands of Slurm
CALL_S = 60.0  # for a command to answer: Slurm's own tries take up to 40 s
CANCEL_AGAIN_S = 10.0
NOT_THERE = 127  # the exit code of a command that this machine does not have
LAST_WORDS_BYTES = 4096
MOST_TASKS = 1000  # of an array job

QUEUE = ("squeue", "--me", "--noheader", "--array", "--states=all", "--format=%i|%j|%K|%T|%e|%N|%r")
ENDED = {"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL"}
ENDED |= {"OUT_OF_MEMORY", "PREEMPTED", "REVOKED", "TIMEOUT"}
SILENT = ("down", "unknown", "fail")  # nodes that may do anything, as those marked with a *
UNREACHED = "Unable to contact slurm controller"
UNHEARD = ("Socket timed out", "Zero Bytes were transmitted", "did not answer")


class Answer(NamedTuple):
    """The end of a command: its exit code and what it printed."""

    code: int
    output: str
    errors: str

    @property
    def words(self) -> str:
        """Slurm's own words about what was wrong, in one line."""
        lines = [line.strip() for line in (self.errors or self.output).splitlines()]
        return "; ".join(line for line in lines if line) or f"exit code {self.code}"

    @property
    def is_silence(self) -> bool:
        """True if Slurm itself has not answered."""
        return self.code != 0 and (UNREACHED in self.words or self.is_unknown)

    @property
    def is_unknown(self) -> bool:
        """True if Slurm may have done what it was asked for all the same."""
        return self.code != 0 and any(each in self.words for each in UNHEARD)


class Pilot(NamedTuple):
    """A task of an array job, as Slurm told it last."""

    job: str  # such as 17_0, or 17.2 of a step
    state: str
    ends_s: float | None  # at its time limit, or when it has to go before that
    host: str
    reason: str

    @property
    def about(self) -> str:
        """The pilot by the names that ``squeue`` and ``sacct`` have for it."""
        job, _, step = self.job.partition(".")
        return f"Slurm job {job}" + (f", step {step or 0}, on {self.host}" if self.host else "")


async def run_command(command: Sequence[str], text: str = "") -> Answer:
    """Run a command of Slurm, with ``text`` as its input."""
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=environment(),
            start_new_session=True,  # Ctrl-C in the terminal is for the controller
        )
    except OSError as error:
        return Answer(NOT_THERE, "", f"{command[0]}: {error.strerror}")
    try:
        async with asyncio.timeout(CALL_S):
            output, errors = await process.communicate(text.encode())
    except TimeoutError:
        process.kill()
        await process.wait()
        return _unheard(command)
    return Answer(process.returncode or 0, output.decode(), errors.decode())


def environment() -> dict[str, str]:
    """The environment of Slurm's commands: times are seconds, and no variable changes a request."""
    own = {
        key: each for key, each in os.environ.items() if not key.startswith(("SBATCH_", "ROTA_"))
    }
    return own | {"SLURM_TIME_FORMAT": "%s", "LC_ALL": "C"}


def options(
    partition: str | None = None,
    account: str | None = None,
    minutes: int | None = None,
    more: Sequence[str] = (),
) -> list[str]:
    """The options of ``sbatch`` for each pilot: a whole node, with all its memory."""
    given = {"--partition": partition, "--account": account, "--time": minutes}
    words = ["--nodes=1", "--exclusive", "--mem=0", "--no-requeue", "--output=/dev/null"]
    return words + [f"{name}={each}" for name, each in given.items() if each is not None] + [*more]


class Refusal(NamedTuple):
    """The reason why Slurm would give no pilot, in its own words, and what to do.

    ``is_silence``: it gave none, and may do so later.
    """

    text: str
    is_silence: bool = False


def refusal(words: Sequence[str]) -> Refusal | None:
    """The reason why Slurm would refuse a pilot with these options; None if it would not.

    Nothing is asked for.
    """
    said = call("sbatch", "--test-only", *words, text="#!/bin/sh\n")
    if said.code == 0:
        return None
    if said.code == NOT_THERE:
        return Refusal(f"{said.words}; run it where Slurm's commands are")
    if said.is_silence:
        text = f"Slurm does not answer: {said.words}; try again when `sinfo` answers"
        return Refusal(text, is_silence=True)
    fixes = {
        "partition": "give one of those that `sinfo -s` lists with --partition",
        "account": "give one of yours with --account (`sacctmgr show associations user=$USER`)",
        "time": "give another --time",
        "node configuration": "ask for what a node of the partition has (`sinfo -N -l`)",
    }
    fix = next((each for word, each in fixes.items() if word in said.words.lower()), None)
    return Refusal(f"Slurm would refuse that: {said.words}; {fix or 'change the options'}")


def cancel_all(asked: Asked) -> str:
    """Cancel all pilots of a cluster that has no controller, and wait until they are gone.

    Returns Slurm's own words if that can't be; "" if it could.
    """
    deadline_s = time.monotonic() + END_S
    while True:
        told = call(*QUEUE)
        if told.code:
            return told.words
        there = [each for each in _pilots(told.output, asked).values() if each.state not in ENDED]
        if not there:
            return ""
        if time.monotonic() > deadline_s:
            return f"{', '.join(each.job for each in there)}: {there[0].state}"
        time.sleep(PACE_S)
        call("scancel", *(each.job for each in there))
        time.sleep(PACE_S)


def call(*command: str, text: str = "") -> Answer:
    """Run a command of Slurm while nothing else has to go on."""
    try:
        done = subprocess.run(
            command, input=text, capture_output=True, text=True, timeout=CALL_S, env=environment()
        )
    except OSError as error:
        return Answer(NOT_THERE, "", f"{command[0]}: {error.strerror}")
    except subprocess.TimeoutExpired:
        return _unheard(command)
    return Answer(done.returncode, done.stdout, done.stderr)


def _unheard(command: Sequence[str]) -> Answer:
    return Answer(1, "", f"{command[0]} did not answer in {CALL_S:g} s")


class Call(Protocol):
    """Runs a command of Slurm, with ``text`` as its input, and notes whether Slurm has answered."""

    async def __call__(self, *command: str, text: str = "") -> Answer:
        """Its answer."""


class Jobs(Protocol):
    """How Slurm is asked for pilots, and tells of them."""

    def first(self, noted: Sequence[str], pilots: Mapping[str, Pilot]) -> Sequence[str]:
        """The nodes to ask for now, of all that were ``noted``, while there are ``pilots``.

        Empty if none can be asked for before the next look.
        """

    async def submit(
        self, call: Call, admitted: Mapping[str, str], pilots: Mapping[str, Pilot]
    ) -> str:
        """Ask for nodes, by the texts that let their agents in. Returns why Slurm refuses.

        That is "" also where nobody knows whether Slurm has heard of them.
        """

    async def look(self, call: Call, pilots: Mapping[str, Pilot]) -> Mapping[str, Pilot]:
        """The pilots, by the names of their nodes, after they were ``pilots``.

        Raises UntoldError if Slurm does not tell.
        """

    def recall(self) -> Mapping[str, Pilot]:
        """The same, before anything is known and while nothing else has to go on."""

    def last_words(self, name: str) -> str:
        """What the pilot of a node said last, if it is known here."""


class UntoldError(Exception):
    """Slurm does not tell of its pilots: its words."""


class Pilots:
    """The pilots of the nodes in ``book``, which are ``jobs``.

    ``run`` runs a command, and ``pace_s`` is the time between two of them.
    """

    def __init__(
        self,
        book: Book,
        jobs: Jobs,
        *,
        run: Callable[[Sequence[str], str], Awaitable[Answer]] = run_command,
        pace_s: float = PACE_S,
    ) -> None:
        self.book, self.pace_s = book, pace_s
        self._jobs, self._command = jobs, run
        self._pilots: dict[str, Pilot] = {}
        self._suspects: dict[str, str] = {}  # the host of a node whose pilot is over
        self._surely_gone: set[str] = set()

    def begin(self) -> None:
        """Nothing: what is there shows at the first look."""

    def close(self) -> None:
        """Nothing: a command that goes on ends by itself."""

    async def leave(self) -> None:
        """Nothing: there are pilots alone."""

    def recall(self) -> None:
        """Ask Slurm now which of the last controller's pilots are there, and until when."""
        if self.book.asked.names:
            time.sleep(self.pace_s)  # Slurm was asked just now whether it would refuse a pilot
            with contextlib.suppress(UntoldError):
                self._note(self._jobs.recall())

    # -- what is known -------------------------------------------------------------------------

    def about(self, name: str) -> str:
        """The pilot's job and step in Slurm, and its host."""
        return self._pilots[name].about if name in self._pilots else "Slurm"

    def leaves_s(self, name: str) -> float | None:
        """The end of the pilot's time."""
        return self._pilots[name].ends_s if name in self._pilots else None

    def wants_back(self, name: str) -> bool:
        """False: nobody waits for what is left of a pilot's time."""
        return False

    def why(self, name: str) -> str:
        """Slurm's reason, if it has one."""
        if said := self.book.why(name):
            return said
        pilot = self._pilots.get(name)
        if pilot is None:
            return "Slurm was asked for it"
        if pilot.state != "PENDING":
            return f"{pilot.about}: its agent has yet to connect"
        reason = "it has yet to look at it" if pilot.reason == "None" else pilot.reason
        return f"Slurm: {reason}, {self.book.held(self.is_placed)}"

    def is_placed(self, name: str) -> bool:
        """True if a pilot may have an agent with jobs, which has yet to call this controller."""
        return name in self._pilots and bool(self._pilots[name].host)

    # -- what is asked -------------------------------------------------------------------------

    async def turn(self) -> None:
        """Give at most one command to Slurm: whatever is due first."""
        book = self.book
        cancelled = [name for name in book.due() if self._is_there(name)]
        if book.trouble:
            await self._look()
        elif book.to_ask():
            await self._ask()
        elif cancelled:
            book.given_up |= dict.fromkeys(cancelled, book.clock() + CANCEL_AGAIN_S)
            await self._call("scancel", *(self._pilots[name].job for name in cancelled))
            book.look_soon()
        elif self._suspects:
            await self._look_at_hosts()
        elif book.is_look_due(self.pace_s):
            await self._look()

    def _is_there(self, name: str) -> bool:
        return name in self._pilots and self._pilots[name].state not in ENDED

    async def _call(self, *command: str, text: str = "") -> Answer:
        answer = await self._command(command, text)
        self.book.heard(answer.words if answer.is_silence else "")
        return answer

    async def _ask(self) -> None:
        names = self._jobs.first(self.book.asked.noted, self._pilots)
        if not names:
            await self._look()
            return
        admitted = {name: self.book.admission.admit(name) for name in names}
        self.book.asked.ask(names)
        refusal = await self._jobs.submit(self._call, admitted, self._pilots)
        self.book.look_soon()
        if refusal:
            self.book.refused(names)
            if not self.book.trouble:
                self.book.fail(refusal)

    async def _look(self) -> None:
        try:
            found = await self._jobs.look(self._call, self._pilots)
        except UntoldError as error:
            if not self.book.trouble:
                self.book.complain("look", f"Slurm's queue can't be read: {error}")
        else:
            self.book.content("look")
            self._note(found)
        finally:
            self.book.looks()

    async def _look_at_hosts(self) -> None:
        """Find out which nodes of pilots that are over are heard: nothing of these runs there."""
        suspects, self._suspects = self._suspects, {}
        hosts = ",".join(sorted(set(suspects.values())))
        answer = await self._call("sinfo", "--noheader", "--Node", f"--nodes={hosts}", "-o%N %T")
        if answer.code == 0:
            states = dict(line.split() for line in answer.output.splitlines())
            heard = {
                host
                for host, state in states.items()
                if not state.endswith("*") and not state.startswith(SILENT)
            }
            self._surely_gone |= {name for name, host in suspects.items() if host in heard}
            self.book.look_soon()

    def _note(self, found: Mapping[str, Pilot]) -> None:
        """Take note of what Slurm tells."""
        self.book.note_look()
        asked = self.book.asked
        there = {name for name, pilot in found.items() if pilot.state not in ENDED}
        over = set(asked.names) - there - set(asked.noted)
        may_run = {name for name in over if self._may_run(name, found.get(name))}
        ended = {name for name in over if name in found} - may_run
        for name in sorted((over - may_run) - self.book.given_up.keys()):
            self._tell_end(name, found.get(name))
        self._pilots = {name: self._pilots[name] for name in may_run & self._pilots.keys()}
        self._pilots |= {name: found[name] for name in there}
        self._surely_gone -= self.book.settle(there | may_run, ended)
        self.book.admission.keep(asked.names)

    def _may_run(self, name: str, pilot: Pilot | None) -> bool:
        """True if processes may live on a node whose pilot is over, or is not in the queue."""
        if self.book.ends or name in self._surely_gone or not self.book.may_run(name):
            return False
        if pilot is None:
            return name in self.book.asked.known
        if pilot.state != "NODE_FAIL" and pilot.host:
            self._suspects[name] = pilot.host
        return bool(pilot.host)

    def _tell_end(self, name: str, pilot: Pilot | None) -> None:
        if pilot is None:
            return
        text = f"{pilot.about} (node {name}) has ended: {pilot.state}"
        if name in self.book.lived:
            self.book.tell(text)
        else:
            words = self._jobs.last_words(name)
            self.book.fail(f"{text}, before its agent was connected{words}")


class ArrayJobs:
    """Pilots of a cluster's nodes, each a task of an array job with ``options`` of ``sbatch``.

    ``agent`` is the command that runs an agent, but for the name of its node; ``home`` is the state
    folder on the nodes.
    """

    def __init__(
        self, asked: Asked, options: Sequence[str], agent: Sequence[str], home: str
    ) -> None:
        self._asked, self._options, self._agent, self._home = asked, options, agent, home

    def first(self, noted: Sequence[str], pilots: Mapping[str, Pilot]) -> Sequence[str]:
        """The first ones, as many as an array job may have tasks."""
        least = self._asked.number(noted[0])
        return [name for name in noted if self._asked.number(name) < least + MOST_TASKS]

    async def submit(
        self, call: Call, admitted: Mapping[str, str], pilots: Mapping[str, Pilot]
    ) -> str:
        """Ask for them as one array job."""
        first = self._asked.number(next(iter(admitted)))
        tasks = {self._asked.number(name) - first: name for name in admitted}
        answer = await call(
            *("sbatch", "--parsable", f"--job-name={tasks[0]}"),
            *(f"--array={','.join(map(str, tasks))}", *self._options),
            text=self._script(tasks, admitted),
        )
        is_taken = answer.code == 0 or answer.is_unknown
        return "" if is_taken else f"Slurm refuses it: {answer.words}"

    def _script(self, tasks: Mapping[int, str], admitted: Mapping[str, str]) -> str:
        """The program of pilots, by the numbers of their tasks.

        Slurm keeps it where its administrators and this user alone can read it.
        """
        cases = [
            f"{task}) node={name} admitted={shlex.quote(admitted[name])} ;;"
            for task, name in tasks.items()
        ]
        return "\n".join(
            [
                "#!/bin/sh",
                "umask 077",
                'case "$SLURM_ARRAY_TASK_ID" in',
                *cases,
                "esac",
                f'place={shlex.quote(f"{self._home}/nodes/")}"$node"',
                'mkdir -p "$place" && cd "$place" || exit',
                "exec >>agent.log 2>&1",
                "printf '%s' \"$admitted\" >joined.json",
                '[ -w "$XDG_RUNTIME_DIR" ] || unset XDG_RUNTIME_DIR',
                "srun --overlap --nodes=1 --ntasks=1 --mem=0 --cpu-bind=none \\",
                '  --cpus-per-task="$SLURM_CPUS_ON_NODE" '
                '${SLURM_GPUS_ON_NODE:+--gres=gpu:"$SLURM_GPUS_ON_NODE"} \\',
                f'  sh -c {shlex.quote(KEEP_ALIVE)} agent {shlex.join(self._agent)} --node "$node"',
                "",
            ]
        )

    async def look(self, call: Call, pilots: Mapping[str, Pilot]) -> Mapping[str, Pilot]:
        """The pilots in the queue."""
        return self._found(await call(*QUEUE))

    def recall(self) -> Mapping[str, Pilot]:
        """The same."""
        return self._found(call(*QUEUE))

    def _found(self, told: Answer) -> Mapping[str, Pilot]:
        if told.code:
            raise UntoldError(told.words)
        return _pilots(told.output, self._asked)

    def last_words(self, name: str) -> str:
        """The last line of an agent's log, if its node has the folder that is here."""
        return agents_words(self._home, name)


def agents_words(home: str, name: str) -> str:
    """The last line of the log of a node's agent, after a colon; "" if there is none here."""
    lines = last_lines(Path(home, "nodes", name, "agent.log"))
    own = [line for line in lines if not line.startswith("srun:")]
    return f": {own[-1]}" if own else ""


def last_lines(path: Path) -> list[str]:
    """The last lines of a file that aren't empty; none if it can't be read."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - LAST_WORDS_BYTES))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return []
    return [line.strip() for line in lines if line.strip()]


def _pilots(told: str, asked: Asked) -> dict[str, Pilot]:
    """The pilots among the jobs that ``squeue`` tells, by the names of their nodes."""
    found = {}
    for line in told.splitlines():
        job, first, task, state, ends, host, reason = line.split("|", 6)
        number = asked.number(first)
        if number and task.isdecimal():
            ends_s = None
            with contextlib.suppress(ValueError):  # N/A
                ends_s = float(ends) if state != "PENDING" else None
            name = f"{asked.cluster}-{number + int(task)}"
            found[name] = Pilot(job, state, ends_s, host, reason)
    return found
