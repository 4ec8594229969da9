"""Carry out a plan on a real cluster, and note all that is needed to judge what it did."""

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest

from rota.client.client import Client
from rota.errors import InputError, NotFoundError, RotaError, TransitionError
from rota.model.job import JobState
from rota.store.events import EventStore

from ..conftest import Cluster, Stops
from .draw import POLICIES, PROGRAMS, Job, Move, Plan

TICK_S = 0.02
WORKS_S = 0.3  # since the last line in the ledger: somebody works
IDLE_PACE = 0.2  # of the clock, while nobody does
LOOK_AGAIN_S = 0.1  # for somebody to kill
STALL_S = 240.0  # without a line in the ledger and without an event
OVERALL_S = 1800.0  # for all jobs to come to their ends
WORDS_OF_HARM = ("Traceback (most recent call last)", " ERROR ", " CRITICAL ")


class Kill(NamedTuple):
    """A SIGKILL to a process that lived. ``job`` is an id, "" for what is no job's."""

    at_s: float
    role: str
    pid: int
    job: str = ""
    attempt: int = 0
    rank: str = ""


class Asked(NamedTuple):
    """What a user asked for, when, when it was answered, and with which refusal if any."""

    at_s: float
    do: str
    name: str
    answered_s: float
    refusal: str = ""


class Found(NamedTuple):
    """All that is known of a run at its end."""

    plan: Plan
    ledger: list[dict[str, Any]]
    reference: dict[str, dict[int, int]]  # the weights before each step, by how batches are drawn
    events: list[Any]
    shows: list[dict[str, Any]]
    sweeps: list[dict[str, Any]]
    outputs: dict[str, str]  # of jobs that printed: all of their last attempt's
    kills: list[Kill]
    asked: list[Asked]
    harm: list[str]  # what happened that never may, seen while it ran


class _Process:
    """A process of the cluster, held so that no other one is ever meant."""

    def __init__(self, pid: int, role: str, home: bytes, of: tuple[str, int, str]) -> None:
        """Raises OSError if it is gone, or is none of this cluster's."""
        self.pid, self.role, self.of = pid, role, of
        self._handle = os.pidfd_open(pid)
        words = [Path("/proc", str(pid), name).read_bytes() for name in ("environ", "cmdline")]
        if not any(home in word for word in words):
            self.close()
            raise ProcessLookupError(pid)

    def send(self, number: signal.Signals) -> bool:
        """Send a signal; False if it has ended."""
        try:
            signal.pidfd_send_signal(self._handle, number)
            stat = Path(f"/proc/{self.pid}/stat").read_text()
        except OSError:
            return False
        return stat.rpartition(")")[2].split()[0] not in "ZX"

    def close(self) -> None:
        os.close(self._handle)


class Run:
    """One run of a plan."""

    def __init__(self, plan: Plan, base: Path) -> None:
        self.plan, self.base = plan, base
        self.cluster = Cluster(
            base,
            plan.policy,
            plan.gpus,
            plan.nodes,
            ("--host-memory", plan.host_memory),
            **POLICIES[plan.policy],
        )
        self._stops = Stops(base / "stops")
        self.cluster.environment = {**self._stops.environment, "STOPS_PIECE": str(1 << 16)}
        self._home = os.fsencode(self.cluster.folder.path)
        self._ledger = base / "ledger"
        self._jobs = {job.name: job for job in plan.jobs}
        self._users = _Users(self)
        self.kills: list[Kill] = []
        self.harm: list[str] = []
        self._armed: dict[str, Move] = {}
        self._later: list[tuple[float, Callable[[], None]]] = []
        self._waiting: list[Move] = []  # kills of whom nobody lived then
        self._paused: list[_Process] = []
        self._killed_controllers: set[int] = set()
        self._next_look_s = 0.0
        self._back_s = 0.0
        self._coming = False
        self.downs = 0  # how often a controller was asked to end
        self._seen: tuple[float, tuple[int, int]] = (0.0, (0, 0))

    # -- the whole ---------------------------------------------------------------------------------

    def run(self) -> Found:
        """The plan from its start to the end of all jobs and of the cluster."""
        reference = self._start_reference()
        try:
            self.cluster.up()
            self._users.start()
            self._carry_out()
            self._let_all_end()
            jobs = self.cluster.client.jobs(everything=True)
            shows = [self.cluster.client.job(job["id"]) for job in jobs]
            outputs = self._outputs(shows)
            sweeps = [
                self.cluster.client.sweep(each["name"])
                for each in self.cluster.client.sweeps(everything=True)
            ]
            self.cluster.down()
            if reference.wait(OVERALL_S):
                pytest.fail("the trainings that nobody disturbs have failed")
        finally:
            self._users.ends()
            for process in self._paused:
                process.send(signal.SIGCONT)
            if reference.poll() is None:
                reference.kill()
            reference.wait()
            if self.cluster.process is not None:  # it has not come to its end
                with contextlib.suppress(BaseException):  # and must not hide why
                    self.cluster.close()
        self.harm += [*self._remains(), *self._said_in_logs()]
        store = EventStore(self.cluster.folder.database)
        try:
            events = list(store.load())
        finally:
            store.close()
        return Found(
            self.plan,
            list(read_ledger(self._ledger)),
            _weights(read_ledger(self.base / "reference")),
            events,
            shows,
            sweeps,
            outputs,
            self.kills,
            self._users.log,
            self.harm,
        )

    def _start_reference(self) -> "subprocess.Popen[bytes]":
        steps = max((job.steps for job in self.plan.jobs if job.draw), default=1)
        environment = {k: v for k, v in os.environ.items() if not k.startswith("ROTA_")}
        environment |= {"LEDGER": str(self.base / "reference"), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, str(PROGRAMS / "reference.py"), str(steps)]
        return subprocess.Popen(command, env=environment)

    def _carry_out(self) -> None:
        """Make every move when its time has come, by a clock that goes slower while no job works.

        So about as much happens to jobs on a busy machine as on an idle one.
        """
        clock_s, now_s, worked_s, size = 0.0, time.monotonic(), 0.0, 0
        for move in self.plan.moves:
            while clock_s < move.at_s:
                self._look_after()
                self._kill_who_waits()
                time.sleep(TICK_S)
                before_s, now_s = now_s, time.monotonic()
                if self._ledger_size() != size:
                    worked_s, size = now_s, self._ledger_size()
                works = now_s - worked_s < WORKS_S
                clock_s += (now_s - before_s) * (1.0 if works else IDLE_PACE)
            self._do(move)

    def _let_all_end(self) -> None:
        """No more faults: everybody goes on, and every job ends."""
        for point in self._armed:
            (self._stops.folder / point).unlink(missing_ok=True)
        self._armed = {
            point: move._replace(what=move.what[:2], for_s=TICK_S)
            for point, move in self._armed.items()
        }
        for process in self._paused:
            process.send(signal.SIGCONT)
        submitted = {move.what[0] for move in self.plan.moves if move.do == "submit"}
        for name in submitted:
            if self._jobs[name].code is None:
                self._users.ask("cancel", name)
            elif self._jobs[name].kind != "sweep":
                self._users.ask("resume", name)
        self._until(self._users.idle, "every user has been answered")
        self._until(lambda: self._all_over() and self._all_quiet(), "all jobs have ended")

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for something; fails, with the state of everybody, if nothing happens any more."""
        began_s = time.monotonic()
        while not condition():
            self._look_after()
            now_s, size = time.monotonic(), (self._ledger_size(), self._log_size())
            if size != self._seen[1]:
                self._seen = (now_s, size)
            since_s = max(began_s, self._seen[0])
            if now_s - since_s > STALL_S or now_s - began_s > OVERALL_S:
                pytest.fail(f"{what}: not after {now_s - began_s:.0f} s\n{self.state_of_all()}")
            time.sleep(TICK_S * 5)

    def _ledger_size(self) -> int:
        return self._ledger.stat().st_size if self._ledger.exists() else 0

    def _log_size(self) -> int:
        database = self.cluster.folder.database
        files = (database, database.with_name(database.name + "-wal"))
        return sum(int(file.stat().st_mtime_ns) for file in files if file.exists())

    def _all_over(self) -> bool:
        try:
            jobs = self.cluster.client.jobs(everything=True)
            sweeps = self.cluster.client.sweeps(everything=True)
        except RotaError:
            return False
        over = all(JobState[job["state"]].is_final for job in jobs)
        return over and all(sweep["state"] == "ENDED" for sweep in sweeps)

    def _all_quiet(self) -> bool:
        """Whether no process is left that has ever written into the ledger."""
        return not list(living(self._ledger))

    # -- moves -------------------------------------------------------------------------------------

    def _do(self, move: Move) -> None:
        if move.do in ("submit", "suspend", "resume", "cancel"):
            self._users.ask(move.do, move.what[0])
        elif move.do == "down":
            self._back_s = move.for_s
            self._users.ask("down", "")
        elif move.do == "interrupt":
            self._back_s = move.for_s
            for process in self._find("controller"):
                self.downs += process.send(signal.SIGTERM)
                process.close()
        elif move.do == "kill" and not self._kill(move.what, move.for_s):
            self._waiting.append(move)
        elif move.do == "pause":
            self._pause(move.what[0], move.for_s)
        elif move.do == "arm":
            who, point = move.what[:2]
            if who != "controller":
                who = self._node(int(who.partition(":")[2]))
            self._armed[point] = move
            self._stops.arm(who, point)

    def _kill(self, parties: tuple[str, ...], back_s: float, *more: _Process) -> bool:
        """Kill all of them at once; False if none lives at the moment."""
        victims = [*more, *(found for party in parties for found in self._find(party))]
        living = [process for process in victims if process.send(signal.SIGSTOP)]
        for process in living:
            self._back_s = back_s
            self.kills.append(Kill(time.time(), process.role, process.pid, *process.of))
            if process.role == "controller":
                self._killed_controllers.add(process.pid)
            process.send(signal.SIGKILL)
        for process in victims:
            process.close()
        return bool(living)

    def _kill_who_waits(self) -> None:
        """Do one of the kills that found nobody, if somebody has come."""
        if self._waiting and time.monotonic() > self._next_look_s:
            self._next_look_s = time.monotonic() + LOOK_AGAIN_S
            move = self._waiting.pop(0)
            if not self._kill(move.what, move.for_s):
                self._waiting.append(move)

    def _pause(self, party: str, for_s: float) -> None:
        for process in self._find(party):
            process.send(signal.SIGSTOP)
            self._goes_on_later(process, for_s)

    def _goes_on_later(self, process: _Process, after_s: float) -> None:
        self._paused.append(process)
        self._later.append((time.monotonic() + after_s, lambda: process.send(signal.SIGCONT)))

    def _look_after(self) -> None:
        """Do what is due: some go on, some are killed where they have stopped, some come back."""
        now_s = time.monotonic()
        due = [call for at_s, call in self._later if at_s <= now_s]
        self._later = [(at_s, call) for at_s, call in self._later if at_s > now_s]
        for call in due:
            call()
        for point, move in list(self._armed.items()):
            at = self._stops.folder / f"{point}.at"
            if at.exists():
                self._reached(int(at.read_text()), move)
                at.unlink()
                del self._armed[point]
        process = self.cluster.process
        if process is not None and process.poll() is not None and not self._coming:
            self._controller_ended(process)

    def _reached(self, pid: int, move: Move) -> None:
        """A party has stopped itself at a point."""
        try:
            role = move.what[0].partition(":")[0]
            process = _Process(pid, role, self._home, ("", 0, ""))
        except OSError:
            return  # somebody was faster
        if move.for_s > 0:
            self._goes_on_later(process, move.for_s)
        else:
            self._kill(move.what[2:], 0.3, process)

    def _controller_ended(self, process: "subprocess.Popen[bytes]") -> None:
        asked = process.returncode in (0, -signal.SIGTERM) and self.downs > 0
        if not asked and process.pid not in self._killed_controllers:
            words = (self.base / "up.log").read_text()[-2000:]
            self.harm.append(f"the controller ended with {process.returncode}:\n{words}")
        self._coming = True
        self._later.append((time.monotonic() + self._back_s, self._come_back))
        self._back_s = 0.0

    def _come_back(self) -> None:
        self._coming = False
        self.cluster.start()

    # -- parties -----------------------------------------------------------------------------------

    def _find(self, party: str) -> list[_Process]:
        """The living processes that a word of a plan means at the moment."""
        kind, _, which = party.partition(":")
        found: list[tuple[int, str, tuple[str, int, str]]] = []
        if kind == "controller":
            assert self.cluster.process is not None
            found = [(self.cluster.process.pid, kind, ("", 0, ""))]
        elif kind in ("agent", "zygote", "sweep"):
            found = self._infrastructure(kind, which and self._node(int(which)))
        elif kind in ("shim", "worker", "process"):
            all_of_kind = list(self._of_jobs(kind))
            found = all_of_kind[int(float(which) * len(all_of_kind)) :][:1]
        elif kind == "node":
            node = self._node(int(which))
            found = self._infrastructure("agent", node) + self._infrastructure("zygote", node)
            found += [*self._of_jobs("shim", node), *self._of_jobs("process", node)]
        elif kind == "all":
            found = [*self._of_jobs("shim"), *self._of_jobs("process")]
            known = {pid for pid, *_ in found}
            for process in self.cluster.processes():
                if process.pid not in known:
                    mine = self.cluster.process is not None
                    mine = mine and process.pid == self.cluster.process.pid
                    found.append((process.pid, "controller" if mine else "other", ("", 0, "")))
        return list(self._hold(found))

    def _hold(self, found: list[tuple[int, str, tuple[str, int, str]]]) -> Iterator[_Process]:
        for pid, role, of in found:
            with contextlib.suppress(OSError):
                yield _Process(pid, role, self._home, of)

    def _node(self, index: int) -> str:
        return sorted(os.listdir(self.cluster.folder.path / "nodes"))[index]

    def _infrastructure(self, kind: str, node: str) -> list[tuple[int, str, tuple[str, int, str]]]:
        pids = []
        for process in self.cluster.processes():
            with contextlib.suppress(psutil.Error):
                words = process.cmdline()
                if kind == "sweep" and "rota.sweep" in words:
                    pids.append(process.pid)
                elif "rota.live.agent" in words and words[words.index("--node") + 1] == node:
                    if kind == "agent":
                        pids.append(process.pid)
                    else:
                        pids += [
                            child.pid
                            for child in process.children()
                            if "rota.train.zygote" in child.cmdline()
                        ]
        return [(pid, kind, ("", 0, "")) for pid in pids]

    def _of_jobs(
        self, kind: str, node: str = "*"
    ) -> Iterator[tuple[int, str, tuple[str, int, str]]]:
        """The living shims or workers, or all processes below shims, in the order of their jobs."""
        files = self.cluster.folder.path.glob(f"nodes/{node}/jobs/*/*/rank*.pid")
        for file in sorted(files, key=lambda file: file.parts[-3:]):
            if file.with_suffix(".exit").exists():
                continue
            of = (file.parts[-3], int(file.parts[-2]), file.stem)
            try:
                pids = json.loads(file.read_text())
                shim = psutil.Process(pids["shim"])
                if not pids["shim"] or not shim.cmdline()[0].startswith("rota job"):
                    continue
                if kind == "shim":
                    yield shim.pid, "shim", of
                elif kind == "worker":
                    yield pids["worker"], "worker", of
                else:
                    for child in shim.children(recursive=True):
                        yield child.pid, "process", of
            except (OSError, ValueError, psutil.Error):
                continue  # it ends at the moment

    # -- at the end --------------------------------------------------------------------------------

    def _outputs(self, shows: list[dict[str, Any]]) -> dict[str, str]:
        return {
            show["name"]: "".join(self.cluster.client.logs(show["id"]))
            for show in shows
            if show["name"] in self._jobs and self._jobs[show["name"]].kind == "talks"
            if show["state"] == "SUCCEEDED"
        }

    def _remains(self) -> Iterator[str]:
        """What is left of the cluster after `rota down`."""
        folder = self.cluster.folder
        for line in living(self._ledger):
            yield f"after rota down a process goes on: {line}"
        shared = Path("/dev/shm", folder._short_name())
        if shared.exists():
            yield f"after rota down there is {sorted(shared.rglob('*'))} in host memory"
        for pattern in ("*.arena*", "*.part", "attempt.json", "arrival.json"):
            for file in folder.path.glob(f"nodes/*/jobs/*/*/{pattern}"):
                yield f"after rota down there is {file}"

    def _said_in_logs(self) -> Iterator[str]:
        """What Rota's own processes say that they never should."""
        folder = self.cluster.folder
        logs = [folder.controller_log, folder.sweep_log, self.base / "up.log"]
        logs += [*folder.path.glob("nodes/*/agent.log"), *folder.path.glob("nodes/*/zygote.log")]
        for log in logs:
            lines = log.read_text(errors="replace").splitlines() if log.exists() else []
            for number, line in enumerate(lines):
                if any(word in line for word in WORDS_OF_HARM):
                    context = "\n    ".join(lines[max(0, number - 2) : number + 40])
                    yield f"{log.name} says:\n    {context}"
                    break

    def state_of_all(self) -> str:
        """Where every job is and why, for whoever reads of a stall."""
        told = [str(self.plan), f"kills: {self.kills}", f"users: {self._users.log[-20:]}"]
        try:
            with Client(folder=self.cluster.folder) as client:
                told.append(f"nodes: {client.nodes()}")
                for job in client.jobs(everything=True):
                    if JobState[job["state"]].is_final:
                        continue
                    told += [f"{job}", f"  why: {client.explain(job['id'])}"]
                    told += [f"  {event['line']}" for event in client.story(job["id"])[-20:]]
                    told.append("  log: " + "".join(client.logs(job["id"], tail=20)))
        except (RotaError, OSError) as error:
            told.append(f"the controller does not answer: {error!r}")
        told += [f"{process.pid}: {_words(process)}" for process in self.cluster.processes()]
        for log in (self.cluster.folder.controller_log, self.base / "up.log"):
            if log.exists():
                told.append(f"{log.name}:\n{log.read_text(errors='replace')[-3000:]}")
        for log in self.cluster.folder.path.glob("nodes/*/agent.log"):
            told.append(f"{log}:\n{log.read_text(errors='replace')[-3000:]}")
        return "\n".join(told)

    def fields(self, job: Job) -> dict[str, Any]:
        """What a user hands in for a job."""
        return {
            "name": job.name,
            "run": job.program.format(programs=PROGRAMS),
            "workdir": str(self.base),
            "env": {"LEDGER": str(self._ledger), "NAME": job.name},
            **job.fields,
        }

    def job(self, name: str) -> Job:
        """A job of the plan by its name."""
        return self._jobs[name]


class _Users(threading.Thread):
    """Whoever submits, suspends, resumes and cancels: one after another, each until answered."""

    def __init__(self, run: Run) -> None:
        super().__init__(daemon=True)
        self._run = run
        self._calls: queue.Queue[tuple[str, str] | None] = queue.Queue()
        self._ended = threading.Event()
        self._ids: dict[str, str] = {}
        self.log: list[Asked] = []

    def ask(self, do: str, name: str) -> None:
        """Ask for something as soon as all that was asked for before has been answered."""
        self._calls.put((do, name))

    def idle(self) -> bool:
        """Whether everything has been answered."""
        return self._calls.unfinished_tasks == 0

    def ends(self) -> None:
        """Ask for nothing more."""
        self._ended.set()
        self._calls.put(None)

    def run(self) -> None:
        with Client(folder=self._run.cluster.folder) as client:
            while (call := self._calls.get()) is not None:
                self._ask(client, *call)
                self._calls.task_done()

    def _ask(self, client: Client, do: str, name: str) -> None:
        at_s, refusal = time.time(), ""
        while not self._ended.is_set():
            try:
                self._call(client, do, name)
                break
            except (TransitionError, NotFoundError, InputError) as error:
                refusal = f"{type(error).__name__}: {error}"
                break
            except RotaError:  # nobody answers at the moment
                time.sleep(TICK_S)
        self.log.append(Asked(at_s, do, name, time.time(), refusal))

    def _call(self, client: Client, do: str, name: str) -> None:
        if do == "down":
            self._run.downs += 1
            client._call("POST", "/shutdown", patience_s=0.0)
        elif do == "submit":
            job, key = self._run.job(name), f"key-of-{name}"
            submit = client.submit_sweep if job.kind == "sweep" else client.submit
            answer = submit(self._run.fields(job), key=key)
            self._ids[name] = answer["name" if job.kind == "sweep" else "id"]
        elif name in self._ids:
            getattr(client, do)(self._ids[name])


def read_ledger(path: Path) -> Iterator[dict[str, Any]]:
    """The whole lines of a ledger, in the order in which they were written."""
    for line in path.read_bytes().splitlines() if path.exists() else ():
        with contextlib.suppress(ValueError):  # what a kill has cut short
            yield json.loads(line)


def living(ledger: Path) -> Iterator[dict[str, Any]]:
    """A line of each process that has written into the ledger, and lives."""
    last = {(line["pid"], line["born"]): line for line in read_ledger(ledger)}
    for (pid, born), line in last.items():
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            if int(fields[19]) == born and fields[0] not in "ZX":
                yield line


def _weights(lines: Iterator[dict[str, Any]]) -> dict[str, dict[int, int]]:
    found: dict[str, dict[int, int]] = {}
    for line in lines:
        if "weights" in line:
            step = line["n"] if line["what"] == "step" else line["steps"]
            found.setdefault(line["job"], {})[step] = line["weights"]
    return found


def _words(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return f"{process.status()} {' '.join(process.cmdline())[:150]}"
    return "gone"
