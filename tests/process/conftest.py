"""Real clusters for tests: started on a private folder, and taken down without a trace."""

import contextlib
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import psutil
import pytest

from rota.client.client import Client
from rota.errors import RotaError
from rota.folder import Folder
from rota.live.agent import elastic, pausing, pulses
from rota.model.job import WARM, JobState
from rota.store.codec import decode
from support import tables
from support.lone_agent import LoneAgent

SCRIPTS = Path(__file__).parent / "scripts"
DEADLINE_S = float(os.environ.get("ROTA_TEST_DEADLINE_S", "120"))  # the machine may be shared
POLL_S = (0.01, 0.05)  # at first, and where it has taken long: each look costs others their time
MARK = "CLUSTER_UNDER_TEST"
Found = TypeVar("Found")


def until(
    condition: Callable[[], Found],
    what: str,
    deadline_s: float = DEADLINE_S,
    poll_s: float | None = None,
) -> Found:
    """What ``condition`` returns once that is true; fails with ``what`` if it never is.

    It is looked at every ``poll_s``, or at first often and then less so.
    """
    start = time.monotonic()
    while not (found := condition()):
        took_s = time.monotonic() - start
        if took_s > deadline_s:
            pytest.fail(f"{what}: not within {deadline_s:.0f} s")
        time.sleep(poll_s or min(max(POLL_S[0], took_s / 20), POLL_S[1]))
    return found


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that fails shows how its clusters stood: it may not fail again for weeks."""
    report = yield
    if report.failed:
        for cluster in Cluster.up_now:
            report.sections.append((f"cluster in {cluster.base}", cluster.in_words()))
    return report


class Cluster:
    """``rota up`` on a private folder, with what tests do to it and ask of it."""

    up_now: ClassVar[list["Cluster"]] = []  # a test that fails tells of them

    def __init__(
        self,
        base: Path,
        policy: str = "fifo-backfill",
        gpus: int = 2,
        nodes: int = 1,
        options: tuple[str, ...] = (),
        **settings: Any,
    ):
        self.base = base
        self.folder = Folder(base / "home")
        self.policy, self.gpus, self.settings = policy, gpus, settings
        self.nodes, self.options = nodes, options
        self.environment = with_stops()  # of `rota up`, beside this process's
        self.client = Client(folder=self.folder)
        self.process: subprocess.Popen[bytes] | None = None

    # -- life --------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the controller; returns at once."""
        command = [sys.executable, "-m", "rota.cli.main", "up", "--home", str(self.folder.path)]
        command += ["--gpus", str(self.gpus), "--policy", self.policy]
        command += ["--nodes", str(self.nodes), *self.options]
        for key, value in self.settings.items():
            command += ["--set", f"{key}={value}"]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("ROTA_")}
        with open(self.base / "up.log", "a") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment | {MARK: str(self.folder.path)} | self.environment,
            )
        if self not in self.up_now:
            self.up_now.append(self)

    def up(self, *, connected: bool = True) -> "Cluster":
        """Start the controller; returns when it answers and, unless told not to, has its nodes."""
        self.start()
        return self.until_up(connected=connected)

    def until_up(self, *, connected: bool = True) -> "Cluster":
        """Wait for a controller that was started, and for its nodes unless told not to."""
        until(self._answers, "the controller answers")
        if connected:
            until(lambda: self._connected() >= self.nodes, "the nodes are connected")
        return self

    def _connected(self) -> int:
        return sum(node["connected"] for node in self.client.nodes())

    def _answers(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            pytest.fail(f"rota up ended: {(self.base / 'up.log').read_text()}")
        with contextlib.suppress(RotaError, OSError, ValueError):
            return json.loads(self.folder.server.read_text())["pid"] == self.process.pid and bool(
                self.client.policies()
            )
        return False

    def down(self) -> None:
        """``rota down``; nothing of the cluster is left after it."""
        if self.process is None or self.process.poll() is not None:
            self.up()
        assert self.process is not None
        self.client.shut_down()
        assert self.process.wait(DEADLINE_S) == 0
        self.process = None
        until(lambda: not self.processes(), f"no process is left of {self.processes()}")
        assert not self.folder.server.exists()
        assert not self.socket_folder().exists()

    def close(self) -> None:
        """Take it down and assert that nothing is left; whatever happens, kill the rest."""
        self.resume()
        try:
            self.down()
        finally:
            for process in self.processes():
                with contextlib.suppress(psutil.Error):
                    process.kill()
            self.client.close()
            if self in self.up_now:
                self.up_now.remove(self)

    def in_words(self) -> str:
        """Its jobs that have not ended, and the last lines of its logs."""
        lines, active = [], [state.name for state in JobState if not state.is_final]
        with contextlib.suppress(RotaError, OSError, ValueError):
            jobs = self.client.jobs(states=active)
            lines += [json.dumps(self.client.job(job["id"])) for job in jobs]
        agents = sorted(self.folder.path.glob("nodes/*/agent.log"))
        for log in (self.base / "up.log", self.folder.controller_log, *agents):
            with contextlib.suppress(OSError):
                lines += [f"--- {log}", *log.read_text(errors="replace").splitlines()[-40:]]
        return "\n".join(lines)

    # -- processes ---------------------------------------------------------------------------------

    def suspend_in_step(self, job_id: str) -> None:
        """Suspend a job that waits in a step; returns when its ranks have been sent word of it.

        They find that at the end of the step. ``scripts/stops`` has the agent tell of it.
        """

        def times_asked() -> int:
            files = self.folder.path.glob(f"nodes/*/jobs/{job_id}/*/asked")
            return sum(file.stat().st_size for file in files)

        before = times_asked()
        self.client.suspend(job_id)
        until(lambda: times_asked() > before, "its ranks are asked to suspend")

    def suspend_at(self, job_id: str, out: str, gate: int) -> dict[str, Any]:
        """Suspend a training at the end of the step with this gate; the job then."""
        self.until_at(out, gate)
        self.suspend_in_step(job_id)
        self.opens(out, gate)
        return self.until_state(job_id, "SUSPENDED")

    def resume(self) -> None:
        """Let everybody go on who has been stopped."""
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                process.resume()

    def processes(self) -> list[psutil.Process]:
        """Every living process that belongs to this cluster, its jobs' included."""
        home, found = os.fsencode(self.folder.path), []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(psutil.Error, OSError):  # zombies have no words
                words = [Path("/proc", pid, name).read_bytes() for name in ("environ", "cmdline")]
                if any(home in word for word in words) and int(pid) != os.getpid():
                    found.append(psutil.Process(int(pid)))
        return found

    def of_job(self, job_id: str) -> list[psutil.Process]:
        """Every living process of a job but its shims: by its session, or by its environment."""
        pattern = f"nodes/*/jobs/{job_id}/*/rank*.pid"
        texts = [file.read_text() for file in self.folder.path.glob(pattern)]
        shims = {json.loads(text)["shim"] for text in texts if text}  # none: it was given up
        shims.discard(0)  # no process was claimed; in a container, 0 is also the outside's session
        found = []
        for process in self.processes():
            with contextlib.suppress(psutil.Error, OSError):
                marked = process.environ().get("ROTA_JOB_ID") == job_id
                if marked or (os.getsid(process.pid) in shims and process.pid not in shims):
                    found.append(process)
        return found

    def agent(self) -> psutil.Process:
        """The node's agent."""
        return self._only("rota.live.agent")

    def driver(self) -> psutil.Process:
        """What drives the cluster's searches."""
        return self._only("rota.sweep")

    def agent_of(self, node: str) -> psutil.Process:
        """The agent of one of several nodes."""

        def find() -> psutil.Process | None:
            for process in self.processes():
                with contextlib.suppress(psutil.Error):
                    words = process.cmdline()
                    if "rota.live.agent" in words and words[words.index("--node") + 1] == node:
                        return process
            return None

        return until(find, f"the agent of {node} runs")  # type: ignore[return-value]

    def node_names(self) -> list[str]:
        """The nodes that are there, in the order in which they joined."""
        return [node["name"] for node in self.client.nodes() if node["alive"]]

    def zygotes(self) -> list[psutil.Process]:
        """The zygotes of the agent, without the shims that they forked."""
        agent = self.agent()

        def find() -> list[psutil.Process]:
            with contextlib.suppress(psutil.Error):
                return [p for p in agent.children() if "rota.train.zygote" in p.cmdline()]
            return []

        return until(find, "a zygote runs")

    def _only(self, word: str) -> psutil.Process:
        def find() -> list[psutil.Process]:
            found = []
            for process in self.processes():
                with contextlib.suppress(psutil.Error):
                    if word in process.cmdline():
                        found.append(process)
            return found

        found = until(find, f"{word} runs")
        assert len(found) == 1
        return found[0]

    def pids(self, job_id: str, rank: int = 0, attempt: int = 1) -> dict[str, int]:
        """``{"shim": pid, "worker": pid}`` of one rank."""
        pattern = f"nodes/*/jobs/{job_id}/{attempt}/rank{rank}.pid"
        file = until(lambda: list(self.folder.path.glob(pattern)), f"rank {rank} has started")[0]
        return json.loads(file.read_text())

    def kill(self, *victims: psutil.Process | int) -> None:
        """kill -9, all at once; returns when they are gone."""
        processes = [v if isinstance(v, psutil.Process) else psutil.Process(v) for v in victims]
        for process in processes:
            process.send_signal(signal.SIGSTOP)
        for process in processes:
            process.kill()
        if self.process is not None and self.process.pid in {p.pid for p in processes}:
            self.process.wait()
        for process in processes:
            until(lambda process=process: is_gone(process), "it is dead")

    def controller(self) -> psutil.Process:
        """The controller."""
        assert self.process is not None
        return psutil.Process(self.process.pid)

    def kill_controller(self) -> None:
        """kill -9 of the controller."""
        assert self.process is not None
        self.kill(self.process.pid)

    def freeze(self, process: psutil.Process) -> None:
        """Stop a process of the cluster where it is."""
        process.send_signal(signal.SIGSTOP)
        until(lambda: process.status() == psutil.STATUS_STOPPED, "it is stopped")

    def socket_folder(self) -> Path:
        """Where the agent's socket lies while it runs."""
        import hashlib
        import tempfile

        base = Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir())
        digest = hashlib.sha256(os.fsencode(self.folder.path)).hexdigest()[:10]
        return base / f"rota-{os.getuid()}-{digest}"

    # -- jobs --------------------------------------------------------------------------------------

    def submit(self, run: str, *, gpus: int = 1, **more: Any) -> str:
        """Submit a command; its id. It runs in the base folder.

        It is forked with torch loaded, unless the test says otherwise: to import it anew takes
        longer than most tests.
        """
        job = {"run": run, "workdir": str(self.base), "resources": {"gpus": gpus}, "start": WARM}
        return str(self.client.submit(job | more)["id"])

    def train(self, out: str, *arguments: object, gpus: int = 1, **more: Any) -> str:
        """Submit the training script, which writes to the folder ``out``; the job's id."""
        (self.base / out).mkdir(exist_ok=True)
        words = ["python", SCRIPTS / "train.py", "--out", self.base / out, *arguments]
        return self.submit(" ".join(map(str, words)), gpus=gpus, **more)

    def show(self, job_id: str) -> dict[str, Any]:
        """Everything about a job."""
        return self.client.job(job_id)

    def until_state(self, job_id: str, *states: str) -> dict[str, Any]:
        """The job once it is in one of the states. Fails if it ends in another."""

        def look() -> dict[str, Any] | None:
            job = self.show(job_id)
            if job["state"] in states:
                return job
            if JobState[job["state"]].is_final:
                words = "".join(self.client.logs(job_id, tail=30))
                pytest.fail(f"job {job_id} is {job['state']}, not {states}: {job}\n{words}")
            return None

        return until(look, f"job {job_id} is {' or '.join(states)}")  # type: ignore[return-value]

    def ends(self, job_id: str, state: str = "SUCCEEDED") -> dict[str, Any]:
        """The job once it has ended in this state."""
        return self.until_state(job_id, state)

    def lines(self, out: str, rank: int = 0) -> list[dict[str, Any]]:
        """What the training script wrote down about itself."""
        file = self.base / out / f"rank{rank}.jsonl"
        if not file.exists():
            return []
        return [
            json.loads(line)
            for line in file.read_text().splitlines(keepends=True)
            if line[-1] == "\n"
        ]

    def step(self, out: str, rank: int = 0) -> int:
        """How many steps the training has begun."""
        file = self.base / out / f"step{rank}"
        return file.stat().st_size if file.exists() else 0

    def until_step_advances(self, out: str, by: int = 3) -> None:
        """Wait until the training has come further than it is now."""
        now = self.step(out)
        until(lambda: self.step(out) >= now + by, f"{out} goes on after step {now}")

    def opens(self, out: str, gate: int) -> None:
        """Let the training go on that waits, or will wait, at a gate."""
        (self.base / out / f"go{gate}").touch()

    def until_at(self, out: str, gate: int) -> None:
        """Wait until the training waits at a gate."""
        until((self.base / out / f"at{gate}").exists, f"{out} is at step {gate}")

    def events(self) -> list[Any]:
        """The event log so far."""
        with contextlib.closing(sqlite3.connect(self.folder.database)) as database:
            rows = database.execute(
                f"SELECT type, body FROM {tables.events.name} ORDER BY seq"
            ).fetchall()
        return [decode(json.loads(body) | {"type": type_}) for type_, body in rows]


def with_stops() -> dict[str, str]:
    """The environment of a cluster that heeds ``scripts/stops``."""
    path = [str(SCRIPTS / "stops"), os.environ.get("PYTHONPATH", "")]
    return {"PYTHONPATH": os.pathsep.join(filter(None, path))}


# Of a cluster whose policy is told at once what jobs report, and not after ten seconds.
PROMPT = {"REPORTS_EVERY_S": "0.2", **with_stops()}


class Stops:
    """Named points at which a party of a cluster stops itself; see ``scripts/stops``.

    A cluster with this ``environment`` has them.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        self.environment = {"STOPS": str(folder), **with_stops()}

    def arm(self, who: str, point: str) -> None:
        """Let a node's agent, or the ``controller``, stop when it comes there next."""
        (self.folder / f"{point}.at").unlink(missing_ok=True)
        (self.folder / point).write_text(who)

    def until_at(self, point: str) -> psutil.Process:
        """The process, once it has stopped there."""
        at = self.folder / f"{point}.at"
        until(at.exists, f"{point} is reached")
        process = psutil.Process(int(at.read_text()))
        until(lambda: process.status() == psutil.STATUS_STOPPED, "it is stopped")
        return process


def is_gone(process: psutil.Process) -> bool:
    """Whether it is dead, though maybe not yet buried."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def all_are_at(out: Path, gate: int) -> bool:
    """Whether rank 0 of a training waits in the step with this gate, and the others are there.

    Whoever is to hold then holds behind that step: nobody needs it to go on for another.
    """
    file = out / f"at{gate}"
    return file.exists() and len(list(out.glob(f"at{gate}.[0-9]*"))) >= int(file.read_text()) - 1


def node_of(job: dict[str, Any]) -> str:
    """The node that a job is on, which has it whole."""
    (part,) = job["gpus"]
    return str(part["node"])


@pytest.fixture(scope="module", autouse=True)
def _as_in_clusters() -> Iterator[None]:
    """Agents in this process, too, let ranks lag behind: on a busy machine any may."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pulses, "LAGS_BELOW", 0.0)
        yield


@pytest.fixture
def holding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Agents in this process have ranks that hold do so, however slow the others are.

    For tests that suspend and resize where :func:`all_are_at` a gate.
    """
    monkeypatch.setattr(pausing, "COUPLED_STEP_S", 1000.0)
    monkeypatch.setattr(elastic, "COUPLED_STEP_S", 1000.0)
    monkeypatch.setattr(pausing, "BOUNDARY_TIMEOUT_S", 1000.0)


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoneAgent]:
    """An agent of four slots without a controller, for all tests of a module."""
    with LoneAgent(tmp_path_factory.mktemp("agent")) as agent:
        yield agent


@pytest.fixture
def launch(agent: LoneAgent, tmp_path: Path, request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Start jobs on the agent, each a ``Job`` of the module's with a folder of its own."""
    count = iter(range(100))

    def launch(*words: object, **more: Any) -> Any:
        return request.module.Job(agent, tmp_path / f"job{next(count)}", *words, **more)

    return launch


@pytest.fixture
def make_cluster(tmp_path: Path) -> Iterator[Callable[..., Cluster]]:
    """Start a cluster of the test's own; taken down at its end."""
    made: list[Cluster] = []

    def make(
        policy: str = "fifo-backfill",
        gpus: int = 2,
        environment: dict[str, str] | None = None,
        **more: Any,
    ) -> Cluster:
        base = tmp_path / f"cluster{len(made)}"
        base.mkdir()
        made.append(Cluster(base, policy, gpus, **more))
        made[-1].environment |= environment or {}
        return made[-1].up()

    yield make
    for cluster in made:
        cluster.close()


@pytest.fixture
def cluster(make_cluster: Callable[..., Cluster]) -> Cluster:
    """A cluster of two slots, first in first out, that is the test's own."""
    return make_cluster()


@pytest.fixture(scope="module")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster of two slots, first in first out, for all tests of a module that leave it whole."""
    shared = Cluster(tmp_path_factory.mktemp("shared"))
    try:
        yield shared.up()
    finally:
        shared.close()


@pytest.fixture
def base(shared_cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A folder for this test's jobs on the shared cluster."""
    with own_base(shared_cluster, request):
        yield shared_cluster.base


@contextlib.contextmanager
def own_base(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[None]:
    """A folder for the jobs of one of several tests on a cluster, which are of kinds of their own.

    Its name tells the cases of a test apart, as the names of folders do kinds. However the test
    ends, the next one has the cluster for itself.
    """
    before = cluster.base
    name = re.sub(r"\W+", "-", request.node.name)
    cluster.base = before / f"{len(os.listdir(before))}-{name[:80]}"
    cluster.base.mkdir()
    try:
        yield
    finally:
        cluster.base = before
        cluster.resume()
        cancel_everything(cluster)


@contextlib.contextmanager
def stoppable_cluster(
    base: Path, environment: dict[str, str] | None = None, **more: Any
) -> Iterator[tuple[Cluster, Stops]]:
    """A cluster whose parties can be stopped at named points."""
    stops = Stops(base / "stops")
    cluster = Cluster(base, **more)
    cluster.environment = {**stops.environment, **(environment or {})}
    try:
        yield cluster.up(), stops
    finally:
        cluster.close()


def cancel_everything(cluster: Cluster) -> None:
    """End every job, so that the next test has the cluster for itself."""

    def active() -> list[str]:
        jobs = cluster.client.jobs()
        return [job["id"] for job in jobs if not JobState[job["state"]].is_final]

    for job in active():
        cluster.client.cancel(job)
    until(lambda: not active(), "every job has ended")
