"""Flow jobs: an agent, the host of its node's island, and programs whose workers come and go."""

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from rota.folder import OWNER, Folder
from support.flow_functions import FOLDER, Gate
from support.lone_agent import LoneAgent
from support.small_disk import small_disk

from .conftest import SCRIPTS, Cluster, until

TESTS = Path(__file__).parents[1]
OPERATIONS = 20  # of a batch of the script, beside the one that is held
IDLE_S = 0.5
TOLD = {"weight": 1.0, "memory_bytes": None, "idle_s": None}  # of a flow job


class Job:
    """The script on an agent, and the gates that it stops at."""

    def __init__(
        self,
        agent: LoneAgent,
        folder: Path,
        workers: int,
        batches: int,
        *,
        gpus: list[int] | None = None,
        idle_s: float | None = None,
        **more: Any,
    ) -> None:
        folder.mkdir()
        self.agent, self.folder, self.workers, self.batches = agent, folder, workers, batches
        self.gate = Gate(folder, 1)
        env = {FOLDER: str(folder), "PYTHONPATH": str(TESTS)}
        run = f"python {SCRIPTS}/flow_job.py {workers} {batches}"
        gpus = list(range(workers)) if gpus is None else gpus
        told = TOLD | {"idle_s": idle_s}
        self.launched = agent.launch(run, gpus, len(gpus), env=env, flow=told, **more)
        self.attempt = agent.attempt

    def begin(self, batch: int) -> None:
        """Begin a batch, and return with its first operation held."""
        (self.folder / f"go{batch}").touch()
        self.gate.wait_begun()

    def until_at(self, batch: int) -> None:
        """Wait until the script waits before a batch."""
        until((self.folder / f"at{batch}").exists, f"the script is at batch {batch}")

    def pids(self) -> list[int]:
        """The processes of its workers, as the agent knows them."""
        return list(self.agent.attempt.worker_pids)

    def until_on(self, *gpus: int) -> None:
        """Wait until the host says that the workers are on these GPUs."""

        def devices() -> Any:
            return self.agent.attempt.progress.get("flow", {}).get("devices")

        until(lambda: devices() == list(gpus), f"the workers are on {gpus}")

    def ended(self) -> dict[str, Any]:
        """What the agent says of its end."""
        kinds = ("ended", "lost")
        return self.agent.await_(
            lambda m: m["type"] in kinds and m["job_id"] == self.attempt.job_id
        )

    def ends_well(self) -> None:
        """Wait for its end, and see that each operation has run once."""
        ended = self.ended()
        assert (ended["type"], ended.get("exit_code")) == ("ended", 0), self.log()
        assert ended["progress"]["step"] == 1 + self.batches * (1 + OPERATIONS)
        recorded = (self.folder / "record").read_bytes()
        assert recorded == b"a" * self.workers * (1 + OPERATIONS * self.batches)
        total = 3 * self.workers
        lines = [line for line in self.log().splitlines() if line.startswith("batch")]
        values = [float(each) + total for each in [1, 2] * self.workers]
        assert [line.rpartition(" [")[0] for line in lines] == [
            f"batch {batch} {values}" for batch in range(self.batches)
        ]

    def log(self) -> str:
        return (self.attempt.folder / "rank0.log").read_text()


@pytest.fixture
def agents(tmp_path: Path) -> Iterator[Callable[[], LoneAgent]]:
    """Agents on one folder, each the next of one that has vanished; the last one is shut down."""
    home, stack = tmp_path / "home", contextlib.ExitStack()
    home.mkdir()
    made: list[LoneAgent] = []

    def start() -> LoneAgent:
        if made:
            made[-1].join()
        made.append(stack.enter_context(LoneAgent(home)))
        return made[-1]

    island = Folder(home).island("node0")
    with stack:
        yield start
    assert not island.exists()
    assert not island.parent.exists()


def is_held(folder: Path) -> bool:
    """Whether a process keeps this folder outside of a state folder."""
    with open(folder / OWNER, "rb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def hosts(agent: LoneAgent) -> list[psutil.Process]:
    """The living hosts of an agent's node."""
    island, found = str(agent._agent.folder.island("node0")), []
    for process in psutil.Process().children():
        with contextlib.suppress(psutil.Error):  # it has ended
            if island in process.cmdline():
                found.append(process)
    return found


# -- suspensions and resizes -----------------------------------------------------------------------


def test_a_flow_job_is_suspended_moved_and_resized_between_its_operations(launch, agent):
    job = launch(3, 4, gpus=[0, 1, 2])
    job.begin(0)
    asked = agent.begin("suspend")
    agent.heeded()
    job.gate.open()
    assert agent.answer(asked)["type"] == "done"
    assert (job.folder / "record").stat().st_size < 3 * OPERATIONS
    assert agent.command("resume", gpus=[0, 1, 3])["type"] == "done"
    job.until_at(1)
    job.until_on(0, 1, 3)
    job.begin(1)
    asked = agent.begin("resize", gpus=[3, 2, 1])
    agent.heeded()
    refused = agent.command("suspend")
    assert "is being resized; ask again" in refused["error"]
    job.gate.open()
    assert agent.answer(asked)["type"] == "done"
    job.until_at(2)
    job.until_on(2, 1, 3)
    for batch in (2, 3):
        job.begin(batch)
        job.gate.open()
    job.ends_well()
    assert "[2, 1, 3]" in job.log()


def test_a_job_whose_slice_loses_a_gpu_ends_with_that_error(launch, agent):
    job = launch(3, 2)
    job.until_at(0)
    assert agent.command("resize", gpus=[0, 2])["type"] == "done"
    (job.folder / "go0").touch()
    assert job.ended()["exit_code"] == 1
    assert "SliceChangedError" in job.log()
    assert "make another slice" in job.log()


def test_an_idle_job_says_so_and_says_when_it_calls(launch, agent):
    job = launch(2, 1, idle_s=IDLE_S)
    job_id = job.attempt.job_id
    agent.await_(lambda m: m["type"] == "idle" and m["job_id"] == job_id)
    assert agent.command("suspend")["type"] == "done"
    assert not [m for m in agent.said if m["type"] == "called" and m["job_id"] == job_id]
    (job.folder / "go0").touch()
    agent.await_(lambda m: m["type"] == "called" and m["job_id"] == job_id)
    assert agent.command("resume", gpus=[1, 3])["type"] == "done"
    job.gate.wait_begun()
    job.gate.open()
    job.ends_well()


# -- ends ------------------------------------------------------------------------------------------


@pytest.mark.sampled(2)
@pytest.mark.parametrize("state", ["running", "suspending", "suspended", "resuming"])
def test_a_flow_job_that_is_stopped_ends_in_whatever_state(launch, agent, state):
    job = launch(2, 1)
    job.begin(0)
    until(lambda: len(job.pids()) == 2, "its workers are known")
    pids = job.pids()
    if state != "running":
        asked = agent.begin("suspend")
    if state in ("suspended", "resuming"):
        job.gate.open()
        agent.answer(asked)
    if state == "resuming":
        agent.begin("resume", gpus=[2, 3])
    agent.begin("stop")
    ended = job.ended()
    assert not any(map(psutil.pid_exists, pids))
    assert ended["type"] == "ended"
    assert ended["stop_asked"] or ended["exit_code"] == 0


@pytest.mark.parametrize("suspended", [False, True])
def test_the_end_of_a_script_that_is_killed_is_told_once_its_workers_are_gone(
    launch, agent, suspended
):
    job = launch(2, 2)
    job.begin(0)
    job.gate.open()
    job.until_at(1)
    until(lambda: len(job.pids()) == 2, "its workers are known")
    pids = job.pids()
    if suspended:
        agent.command("suspend")
    os.kill(job.attempt.ranks[0].worker, signal.SIGKILL)
    ended = job.ended()
    assert not any(map(psutil.pid_exists, pids))
    assert ended["type"] == ("lost" if suspended else "ended")
    if suspended:
        assert "killed while suspended" in ended["error"]


def test_a_worker_that_is_killed_ends_its_own_job_alone(launch, agent):
    job, other = launch(2, 1), launch(2, 1)
    job.until_at(0)
    other.begin(0)
    until(lambda: len(job.attempt.worker_pids) == 2, "its workers are known")
    os.kill(job.attempt.worker_pids[1], signal.SIGKILL)
    (job.folder / "go0").touch()
    assert job.ended()["exit_code"] == 1
    assert "WorkerLostError" in job.log()
    other.gate.open()
    other.ends_well()


@pytest.mark.parametrize("suspended", [False, True])
def test_jobs_end_with_the_host_and_the_next_job_has_another(launch, agent, suspended):
    job = launch(2, 2)
    job.begin(0)
    until(lambda: len(job.pids()) == 2, "its workers are known")
    pids = job.pids()
    if suspended:
        job.gate.open()
        job.until_at(1)
        agent.command("suspend")
    [host] = hosts(agent)
    host.kill()
    until(lambda: not any(map(psutil.pid_exists, pids)), "its workers are gone")
    if suspended:
        until(lambda: not job.pids(), "the agent knows that they are")
        assert agent.command("resume", gpus=[0, 1])["type"] == "done"
        (job.folder / "go1").touch()
    assert job.ended()["exit_code"] == 1
    assert "WorkerLostError: the island's host is gone" in job.log()
    following = launch(2, 1)
    following.begin(0)
    following.gate.open()
    following.ends_well()


# -- agents that vanish ----------------------------------------------------------------------------


def test_agents_that_vanish_at_any_point_lose_no_operation_and_repeat_none(agents, tmp_path):
    agent = agents()
    job = Job(agent, tmp_path / "job", 3, 6, gpus=[0, 1, 2], idle_s=IDLE_S)

    def next_agent() -> None:
        nonlocal agent
        vanished, tasks = agent, list(agent.attempt.tasks)
        agent.vanish()
        agent = job.agent = agents()
        assert all(task.done() for task in tasks)
        assert not vanished.attempt.tasks

    job.begin(0)
    next_agent()  # while it runs
    assert agent.attempt.state == "running"
    job.gate.open()
    job.until_at(1)

    job.begin(1)
    agent.begin("suspend")
    agent.heeded()
    next_agent()  # while it is being suspended
    job.gate.open()
    job.until_at(2)

    job.begin(2)
    asked = agent.begin("suspend")
    job.gate.open()
    agent.answer(asked)
    agent.begin("resume", gpus=[1, 2, 3])
    next_agent()  # while it is being resumed
    job.until_at(3)
    job.until_on(3, 1, 2)

    agent.await_(lambda m: m["type"] == "idle")
    agent.command("suspend")
    next_agent()  # while it is suspended because it is idle
    assert agent.attempt.state == "suspended"
    (job.folder / "go3").touch()
    agent.await_(lambda m: m["type"] == "called")
    assert [m["type"] for m in agent._agent._greeting()].count("called") == 1
    agent.command("resume", gpus=[0, 1, 2])
    job.gate.wait_begun()
    job.gate.open()
    job.until_at(4)

    job.begin(4)
    agent.begin("resize", gpus=[3, 1, 2])
    agent.heeded()
    next_agent()  # while it is being resized
    job.gate.open()
    job.until_at(5)
    assert agent.command("resize", gpus=[3, 1, 2])["type"] == "done"
    job.begin(5)
    job.gate.open()
    job.ends_well()
    assert len(hosts(agent)) == 1


def test_an_agent_dismisses_seats_of_jobs_that_it_does_not_know(agents, tmp_path):
    agent = agents()
    job = Job(agent, tmp_path / "job", 1, 1)
    job.begin(0)
    until(job.pids, "its worker is known")
    pids, shim = job.pids(), job.attempt.ranks[0].shim
    record = job.attempt.folder / "attempt.json"
    agent.vanish()
    agent.join()
    island = agent._agent.folder.island("node0")
    assert is_held(island.parent)  # by the host
    record.rename(record.with_name("kept.json"))
    agent = agents()
    until(lambda: not any(map(psutil.pid_exists, pids)), "its worker is gone")
    until(lambda: not psutil.pid_exists(shim), "its script has ended")


# -- launches that fail ----------------------------------------------------------------------------


def test_a_launch_without_a_folder_for_the_island_fails_with_one_clear_error(agents, tmp_path):
    agent = agents()
    island = Folder(tmp_path / "home").island("node0")
    island.write_text("somebody's file")
    failed = agent.launch("python none.py", [0], 1, flow=TOLD)
    assert failed["error"] == (
        f"the folder of this node's flow jobs, {island}, can't be made: Not a directory; "
        "see what is there, and make room"
    )
    assert not hosts(agent)
    island.unlink()


def test_a_launch_in_full_host_memory_fails_with_one_clear_error(tmp_path, monkeypatch):
    with small_disk(tmp_path / "memory", 32 << 10) as memory:
        monkeypatch.setattr("rota.folder.HOST_MEMORY", memory)
        (home := tmp_path / "home").mkdir()
        with LoneAgent(home) as agent:
            failed = agent.launch("python none.py", [0], 1, flow=TOLD)
            island = Folder(home).island("node0")
            why = f"an island of 4 devices can't be made in {island}: No space left on device"
            assert failed["error"].startswith(
                f"the host of this node's flow jobs did not start: {why}; see "
            )
            assert not island.exists()


def test_an_agent_that_ends_while_a_host_starts_leaves_neither(agents, tmp_path):
    agent = agents()
    program = {"run": "sleep 1000", "workdir": str(tmp_path), "env": {}, "processes": "flow"}
    about = {"job_id": "1", "attempt": 1, "name": "early", "gpus": [0], "max_gpus": 1}
    asked = agent.begin("launch", program=program, flow=TOLD, adapt=None, at_s=0.0, **about)
    until(lambda: agent._agent.attempts, "it is being launched")
    agent._loop.call_soon_threadsafe(agent.attempt.stop)
    assert "told to end before it had started" in agent.answer(asked)["error"]
    until(lambda: not agent._agent._island._seated, "its seat is given back")


def test_an_agent_that_ends_leaves_no_host_that_does_not_answer(agents, tmp_path, monkeypatch):
    agent = agents()
    job = Job(agent, tmp_path / "job", 1, 1)
    job.begin(0)
    job.gate.open()
    job.ends_well()
    monkeypatch.setattr("rota.live.agent.island_link.END_S", 0.1)
    [host] = hosts(agent)
    host.suspend()
    agent.vanish()
    agent.join()
    until(lambda: not host.is_running() or host.status() == psutil.STATUS_ZOMBIE, "it is gone")


def test_a_host_that_does_not_answer_ends_its_jobs_and_keeps_no_other_out(
    agents, tmp_path, monkeypatch
):
    agent = agents()
    job = Job(agent, tmp_path / "job", 1, 2)
    job.begin(0)
    monkeypatch.setattr("rota.live.agent.island_link.ANSWERS_S", 0.1)
    [host] = hosts(agent)
    host.suspend()
    until(lambda: job.attempt.ended is not None, "the job ends, without its workers")
    assert "the island's host is gone" in job.log()
    monkeypatch.undo()
    other = Job(agent, tmp_path / "other", 1, 1)
    other.begin(0)
    other.gate.open()
    other.ends_well()


# -- on a cluster ----------------------------------------------------------------------------------


def submit(cluster: Cluster, out: str, workers: int, batches: int, **more: Any) -> tuple[str, Gate]:
    """Submit the script, which writes to the folder ``out``; the job's id, and its gate."""
    folder = cluster.base / out
    folder.mkdir()
    env = {FOLDER: str(folder), "PYTHONPATH": str(TESTS)}
    run = f"python {SCRIPTS}/flow_job.py {workers} {batches}"
    job = cluster.submit(run, gpus=workers, processes="flow", env=env, **more)
    return job, Gate(folder, 1)


def test_an_idle_flow_job_makes_room_and_comes_back_when_it_calls(make_cluster):
    cluster = make_cluster()
    island = cluster.folder.island(cluster.node_names()[0])
    job, gate = submit(cluster, "flow", 2, 2, idle="1s")
    (cluster.base / "flow" / "go0").touch()
    gate.wait_begun()
    other = cluster.train("other", "--until", "--steps", 100_000, gpus=2)
    gate.open()
    cluster.until_step_advances("other")
    assert cluster.show(job)["reason"] == "IDLE"
    (cluster.base / "flow" / "go1").touch()
    until(lambda: cluster.show(job)["reason"] != "IDLE", "it has called")
    (cluster.base / "other" / "enough").touch()
    cluster.ends(other)
    gate.wait_begun()
    gate.open()
    cluster.ends(job)
    assert (cluster.base / "flow" / "record").read_bytes() == b"a" * 2 * (1 + 2 * OPERATIONS)
    cluster.down()
    assert not island.parent.exists()


def test_a_flow_job_that_runs_is_taken_down_with_its_cluster(make_cluster):
    cluster = make_cluster(options=("--cpus", "sad"))
    island = cluster.folder.island(cluster.node_names()[0])
    job, gate = submit(cluster, "flow", 2, 1)
    (cluster.base / "flow" / "go0").touch()
    gate.wait_begun()
    workers = [p for p in cluster.processes() if "rota.flow.host" in p.parent().cmdline()]
    assert len(workers) == 2
    script = cluster.pids(job)["worker"]
    groups = {
        Path(f"/proc/{pid}/cgroup").read_text() for pid in (script, *(p.pid for p in workers))
    }
    assert len(groups) == 1
    cluster.down()
    assert not island.parent.exists()


# -- notebooks -------------------------------------------------------------------------------------

NOTEBOOK = "from rota import flow; client = flow.connect(gpus=2); print(client.devices, flush=True)"


@pytest.fixture
def notebook(make_cluster):
    """A cluster, what starts a program that asks for its GPUs and then waits, and its TMPDIR."""
    cluster, begun = make_cluster(), []
    place = Path(tempfile.mkdtemp(dir="/tmp"))  # short enough for the name of a socket

    def begin() -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", f"{NOTEBOOK}; input()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ | {"ROTA_HOME": str(cluster.folder.path), "TMPDIR": str(place)},
            text=True,
        )
        begun.append(process)
        return process

    yield cluster, begin, place
    for process in begun:
        process.kill()
        process.communicate()
    shutil.rmtree(place)


def test_notebooks_that_are_killed_end_their_jobs_and_leave_no_folder(notebook):
    cluster, begin, place = notebook
    first = begin()
    assert first.stdout.readline() == "[0, 1]\n"
    assert not list(place.iterdir())
    second = begin()
    assert second.stderr.readline() == "job 2 waits for its GPUs; `rota why 2` says why\n"
    second.kill()
    second.wait()
    cluster.ends("2", "CANCELLED")
    first.kill()
    cluster.ends("1")
    assert not list(place.iterdir())
