"""Nodes of a Slurm cluster, for a plain user: each belongs to a pilot, a job with a whole node.

A pilot's program keeps an agent alive on its node until that has ended in good order. Pilots that
are asked for at one time are the tasks of one array job, which has the name of the first of their
nodes. Slurm is asked by its own commands, one after another, at most one a second.
"""

import asyncio
import contextlib
import logging
import math
import os
import shlex
import subprocess
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from rota.errors import RotaError
from rota.live.provider.asked import Asked
from rota.live.provider.base import AwaitedNode, ProvidedNode, Provider

PACE_S = 1.0  # between two commands of Slurm
LOOK_PACES = 2  # from one look at the queue to the next while something is to change,
QUIET_PACES = 10  # and otherwise
CALL_S = 60.0  # for a command to answer: Slurm's own tries take up to 40 s
END_S = 60.0  # for an agent that was told to end to do so
GIVE_BACK_S = 120.0  # for all pilots to end
CANCEL_AGAIN_S = 10.0
RETRY_S, MOST_RETRY_S = 10.0, 600.0  # to ask again after a pilot that ended without an agent
NOT_THERE = 127  # the exit code of a command that this machine does not have
LAST_WORDS_BYTES = 4096
MOST_TASKS = 1000  # of an array job
POLL_S = 0.02

QUEUE = ("squeue", "--me", "--noheader", "--array", "--states=all", "--format=%i|%j|%K|%T|%e|%N|%r")
ENDED = {"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL"}
ENDED |= {"OUT_OF_MEMORY", "PREEMPTED", "REVOKED", "TIMEOUT"}
SILENT = ("down", "unknown", "fail")  # nodes that may do anything, as those marked with a *
UNREACHED = "Unable to contact slurm controller"
UNHEARD = ("Socket timed out", "Zero Bytes were transmitted", "did not answer")

# An agent that dies leaves its jobs to the next one. 0: it was told to end; 5: it is not wanted.
KEEP_ALIVE = """\
tries=0
while [ $tries -lt 10 ]; do
  began=$(date +%s)
  "$@" && exit
  code=$?
  [ $code -eq 5 ] && exit
  if [ $(($(date +%s) - began)) -lt 10 ]; then tries=$((tries + 1)); else tries=0; fi
  sleep 1
done
exit $code"""

log = logging.getLogger("rota.provider")


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


class Admission(Protocol):
    """The cluster's side of the nodes, each of which calls from its machine."""

    def admit(self, node: str) -> str:
        """The text of the file by which the agent of a new node is let in."""

    def keep(self, nodes: Collection[str]) -> None:
        """Let in none but these from now on."""

    def is_connected(self, node: str) -> bool:
        """True if its agent is connected."""

    def may_run(self, node: str) -> bool:
        """True if processes of jobs may run there, as far as anybody knows but the engine."""


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


class SlurmProvider(Provider):
    """Pilots by the names of ``asked``, each with the ``options`` of ``sbatch``.

    ``agent`` is the command that runs an agent, but for the name of its node; ``home`` is the state
    folder on the nodes. ``run`` runs a command, and ``pace_s`` is the time between two of them.
    """

    def __init__(
        self,
        asked: Asked,
        bounds: tuple[int, int],
        options: Sequence[str],
        agent: Sequence[str],
        home: str,
        admission: Admission,
        *,
        run: Callable[[Sequence[str], str], Awaitable[Answer]] = run_command,
        pace_s: float = PACE_S,
    ) -> None:
        self.bounds = bounds
        self._asked, self._options, self._agent, self._home = asked, options, agent, home
        self._admission, self._command, self._pace_s = admission, run, pace_s
        self._pilots: dict[str, Pilot] = {}
        self._lived: set[str] = set()  # the nodes whose agents have been connected
        self._given_up: dict[str, float] = {}  # when its pilot is cancelled, if it is there
        self._suspects: dict[str, str] = {}  # the host of a node whose pilot is over
        self._surely_gone: set[str] = set()
        self._looked_s = -math.inf
        self._has_looked = False
        self._ask_at_s, self._failures, self._failure = 0.0, 0, ""
        self._trouble = ""  # why Slurm does not answer
        self._errors: list[str] = []
        self._ends = False
        self._task: asyncio.Task[None] | None = None

    # -- the contract --------------------------------------------------------------------------

    def nodes(self) -> Collection[ProvidedNode]:
        """The nodes of pilots, also of those that wait, but for those given up before they began.

        One whose pilot is over stays until its own slurmd is heard again, or its lease is over.
        """
        self._note_living()
        return [
            ProvidedNode(
                name,
                self._admission.is_connected(name),
                pilot.ends_s if (pilot := self._pilots.get(name)) else None,
                about=pilot.about if pilot else "Slurm",
            )
            for name in self._asked.names
            if name in self._lived or name not in self._given_up
        ]

    def scale(self, desired: int) -> None:
        """Note how many more pilots are asked for, or give up some that wait."""
        if self._ends:
            return
        least, most = self.bounds or (0, 0)
        surplus = len(self._wanted()) - min(max(desired, least), most)
        for _ in range(-surplus):
            self._asked.note()
        if surplus > 0 and self._has_looked:  # else nobody knows which of them are there
            waiting = [node.name for node in self.awaited() if not self._runs(node.name)]
            for name in [*reversed(waiting)][:surplus]:
                self._give_up(name)

    def release(self, name: str) -> None:
        """Have a pilot end when its agent does, and otherwise cancel it after a minute."""
        self._note_living()
        if name in self._asked.names and name not in self._given_up:
            self._give_up(name)

    def awaited(self) -> Sequence[AwaitedNode]:
        """The pilots that wait, in Slurm's words, and those whose agents have yet to connect."""
        self._note_living()
        names = [name for name in self._wanted() if name not in self._lived]
        return [AwaitedNode(name, self._why(name)) for name in names]

    def errors(self) -> Sequence[str]:
        """Refusals of Slurm, ends of pilots and silence, each told once."""
        errors, self._errors = self._errors, []
        return errors

    def recall(self) -> None:
        """Ask Slurm now which of the last controller's pilots are there, and until when."""
        if not self._asked.names:
            return
        time.sleep(self._pace_s)  # Slurm was asked just now whether it would refuse a pilot
        if (told := call(*QUEUE)).code == 0:
            self._note(_pilots(told.output, self._asked))

    async def start(self) -> None:
        """Begin to ask Slurm, for no fewer pilots than the last controller."""
        self.scale(len(self._wanted()))
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Ask Slurm no more; pilots go on."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def end(self) -> None:
        """Return when Slurm has no pilot any more; one that was never connected is cancelled."""
        self._ends = True
        for name in self._asked.names:
            self.release(name)
        self._looked_s = -math.inf
        await self.start()
        while self._asked.names:
            await asyncio.sleep(POLL_S)
        await self.stop()

    async def wait_for_end(self, *, connected: Collection[str]) -> None:
        """The same, for two minutes at most: pilots are given back."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GIVE_BACK_S):
                await self.end()
        await self.stop()

    # -- what is known -------------------------------------------------------------------------

    def _wanted(self) -> list[str]:
        return [name for name in self._asked.names if name not in self._given_up]

    def _note_living(self) -> None:
        new = {name for name in self._asked.names if self._admission.is_connected(name)}
        if new - self._lived:
            self._failures, self._failure = 0, ""
        self._lived |= new

    def _why(self, name: str) -> str:
        pilot = self._pilots.get(name)
        if self._trouble:
            return f"Slurm does not answer: {self._trouble}"
        if name in self._asked.noted:
            return self._failure or "Slurm is asked for it"
        if pilot is None:
            return "Slurm was asked for it"
        if pilot.state != "PENDING":
            return f"{pilot.about}: its agent has yet to connect"
        wanted = self._wanted()
        held = [each for each in wanted if self._runs(each)]
        reason = "it has yet to look at it" if pilot.reason == "None" else pilot.reason
        return f"Slurm: {reason}, {len(held)} of {len(wanted)} nodes held"

    def _runs(self, name: str) -> bool:
        """True if a pilot may have an agent with jobs, which has yet to call this controller."""
        return name in self._pilots and bool(self._pilots[name].host)

    def _give_up(self, name: str) -> None:
        if name in self._asked.noted:
            self._asked.drop(name)
        else:
            wait_s = END_S if name in self._lived else 0.0
            self._given_up[name] = time.monotonic() + wait_s

    # -- what is asked -------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._pace_s)  # at first too: a check or a recall came before
            try:
                await self._call_once()
            except (OSError, RotaError) as error:
                # A full disk: nothing is asked for until there is room to note it.
                log.warning("Slurm can't be asked: %s", error)
            except Exception:  # else nothing would be asked for, or given back, any more
                log.exception("Slurm can't be asked, and is asked on")

    async def _call_once(self) -> None:
        """Give at most one command to Slurm: whatever is due first."""
        now_s = time.monotonic()
        due = [name for name, at_s in self._given_up.items() if at_s <= now_s]
        cancelled = [name for name in due if self._is_there(name)]
        if self._trouble:
            await self._look()
        elif self._asked.noted and now_s >= self._ask_at_s:
            await self._submit()
        elif cancelled:
            again_s = now_s + CANCEL_AGAIN_S
            self._given_up |= dict.fromkeys(cancelled, again_s)
            await self._call("scancel", *(self._pilots[name].job for name in cancelled))
            self._looked_s = -math.inf
        elif self._suspects:
            await self._look_at_hosts()
        elif now_s >= self._looked_s + self._look_every_s():
            await self._look()

    def _is_there(self, name: str) -> bool:
        return name in self._pilots and self._pilots[name].state not in ENDED

    async def _call(self, *command: str, text: str = "") -> Answer:
        answer = await self._command(command, text)
        trouble = answer.words if answer.is_silence else ""
        if trouble and not self._trouble:
            self._errors.append(f"Slurm does not answer: {trouble}; jobs go on, and it is asked on")
        self._trouble = trouble
        return answer

    async def _submit(self) -> None:
        """Ask for what was noted, as one array job."""
        asked = self._asked
        first = asked.number(asked.noted[0])
        tasks = {asked.number(name) - first: name for name in asked.noted}
        tasks = {task: name for task, name in tasks.items() if task < MOST_TASKS}
        admitted = {name: self._admission.admit(name) for name in tasks.values()}
        asked.ask(tasks.values())
        answer = await self._call(
            *("sbatch", "--parsable", f"--job-name={tasks[0]}"),
            *(f"--array={','.join(map(str, tasks))}", *self._options),
            text=self._script(tasks, admitted),
        )
        self._looked_s = -math.inf
        if answer.code == 0 or answer.is_unknown:
            return
        asked.refused(tasks.values())
        for name in [name for name in tasks.values() if name in self._given_up]:
            asked.drop(name)
            del self._given_up[name]
        if not self._trouble:
            self._fail(f"Slurm refuses it: {answer.words}")

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

    async def _look(self) -> None:
        answer = await self._call(*QUEUE)
        self._looked_s = time.monotonic()
        if answer.code == 0:
            self._note(_pilots(answer.output, self._asked))
        elif not self._trouble:
            self._errors.append(f"Slurm's queue can't be read: {answer.words}")

    def _look_every_s(self) -> float:
        is_quiet = not (self._given_up or self.awaited() or self._trouble)
        is_quiet = is_quiet and all(node.is_alive for node in self.nodes())
        return (QUIET_PACES if is_quiet else LOOK_PACES) * self._pace_s

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
            self._looked_s = -math.inf

    def _note(self, found: Mapping[str, Pilot]) -> None:
        """Take note of Slurm's queue."""
        self._has_looked = True
        self._note_living()
        there = {name for name, pilot in found.items() if pilot.state not in ENDED}
        over = set(self._asked.names) - there - set(self._asked.noted)
        may_run = {name for name in over if self._may_run(name, found.get(name))}
        ended = {name for name in over if name in found} - may_run
        before = set(self._asked.names)
        for name in sorted((over - may_run) & before - set(self._given_up)):
            self._tell_end(name, found.get(name))
        self._pilots = {name: self._pilots[name] for name in may_run & self._pilots.keys()}
        self._pilots |= {name: found[name] for name in there}
        self._asked.settle(there | may_run, ended)
        gone = before - set(self._asked.names)
        self._lived -= gone
        self._surely_gone -= gone
        for name in gone & self._given_up.keys():
            del self._given_up[name]
        self._admission.keep(self._asked.names)

    def _may_run(self, name: str, pilot: Pilot | None) -> bool:
        """True if processes may live on a node whose pilot is over, or is not in the queue."""
        if self._ends or name in self._surely_gone:
            return False
        if not (self._admission.may_run(name) or self._admission.is_connected(name)):
            return False
        if pilot is None:
            return name in self._asked.known
        if pilot.state != "NODE_FAIL" and pilot.host:
            self._suspects[name] = pilot.host
        return bool(pilot.host)

    def _tell_end(self, name: str, pilot: Pilot | None) -> None:
        if pilot is None:
            return
        text = f"{pilot.about} (node {name}) has ended: {pilot.state}"
        if name in self._lived:
            self._errors.append(text)
        else:
            self._fail(f"{text}, before its agent was connected{self._last_words(name)}")

    def _last_words(self, name: str) -> str:
        """The last line of an agent's log, if its node has the folder that is here."""
        lines = last_lines(Path(self._home, "nodes", name, "agent.log"))
        own = [line for line in lines if not line.startswith("srun:")]
        return f": {own[-1]}" if own else ""

    def _fail(self, text: str) -> None:
        """Put off what is asked for, longer each time."""
        if text != self._failure:
            self._errors.append(text)
        pause_s = min(RETRY_S * 2**self._failures, MOST_RETRY_S)
        self._ask_at_s, self._failure = time.monotonic() + pause_s, text
        self._failures += 1


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
