"""Jobs whose device memory goes to the host and back; the CUDA driver is a stand-in."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from rota.live.agent.checkpointing import Checkpointing
from rota.live.agent.devices import Devices
from support.checkpoint_contract import FakeDriver
from support.lone_agent import LoneAgent

from .conftest import DEADLINE_S, until

GPUS = Devices("cuda", 2, ids=("0", "1"))
# It waits for what never comes: a child to sleep would be a process of the job, without a GPU.
LOOP = "mkfifo {0}.no; exec 3<>{0}.no; while :; do echo x >> {0}; read -t 0.01 -u 3; done"


class Job:
    """A shell that writes a file, and seems to use a GPU."""

    def __init__(self, agent: LoneAgent, file: Path, before: str = "", **wish: object) -> None:
        self.agent, self.file = agent, file
        run = before + LOOP.format(file)
        answer = agent.launch(run, wish.pop("gpus", [0]), 1, env={"USES_CUDA": "1"}, **wish)
        assert answer["type"] == "done", answer
        self.job_id = agent.attempt.job_id
        until(file.exists, "it runs")

    @property
    def told(self) -> dict:
        """What the controller was last told of how it is suspended."""
        mine = [m for m in self.agent.said if m.get("job_id") == self.job_id]
        return [m for m in mine if m["type"] == "registered"][-1]

    def grows(self) -> None:
        size = self.file.stat().st_size
        until(lambda: self.file.stat().st_size > size, "it goes on")

    def statuses(self) -> set[str]:
        worker = psutil.Process(self.agent.attempt.ranks[0].worker)
        found = {process.status() for process in [worker, *worker.children(recursive=True)]}
        return found - {psutil.STATUS_ZOMBIE}  # of a shell that can't wait for it now

    def stands_still(self) -> bool:
        return self.statuses() == {psutil.STATUS_STOPPED}


@pytest.fixture
def driver():
    return FakeDriver()


@pytest.fixture(scope="module")
def shared(tmp_path_factory) -> Iterator[tuple[LoneAgent, FakeDriver]]:
    driver = FakeDriver()
    folder = tmp_path_factory.mktemp("agent")
    with LoneAgent(folder, devices=GPUS, driver=driver) as agent:
        yield agent, driver


@pytest.fixture
def agent(shared) -> Iterator[LoneAgent]:
    """An agent for all tests that leave it whole; its driver is as new."""
    agent, driver = shared
    driver.calls.clear()
    driver.restored_on.clear()
    yield agent
    driver.errors, driver.breaks = {}, False
    if agent.attempt.ended is None:
        agent.begin("stop")
        until(lambda: agent.attempt.ended is not None, "the job is over")


def test_it_is_checkpointed_and_stopped_and_goes_on_on_another_gpu(agent, shared, tmp_path):
    driver = shared[1]
    job = Job(agent, tmp_path / "file")
    assert (job.told["suspension"], job.told["movable"]) == ("checkpoint", False)
    assert agent.command("suspend")["type"] == "done"
    until(job.stands_still, "it stands still")
    assert (job.told["suspension"], job.told["movable"]) == ("checkpoint", True)
    assert not job.told["portable"]
    assert agent.command("resume", gpus=[1])["type"] == "done"
    job.grows()
    worker = agent.attempt.ranks[0].worker
    steps = [(verb, stopped) for verb, pid, stopped in driver.calls if pid == worker]
    assert steps == [(v, False) for v in ("lock", "checkpoint", "restore", "unlock")]
    first, second = driver.uuids()
    assert driver.restored_on[0] == {first: second, second: first}
    assert agent.command("suspend")["type"] == "done"  # from there
    assert agent.command("resume", gpus=[1])["type"] == "done"
    assert driver.restored_on[-1] == {}
    job.grows()


def test_who_may_look_for_a_gpu_later_goes_on_on_the_same(agent, tmp_path):
    other = f"touch {tmp_path}/there; exec sleep 1000"
    job = Job(agent, tmp_path / "file", before=f"env -u USES_CUDA bash -c '{other}' &\n")
    until((tmp_path / "there").exists, "the other is there")
    assert agent.command("suspend")["type"] == "done"
    until(job.stands_still, "it stands still")
    assert (job.told["suspension"], job.told["movable"]) == ("checkpoint", False)
    assert agent.command("resume", gpus=[0])["type"] == "done"
    job.grows()


def test_what_can_not_be_checkpointed_is_stopped_and_says_why(agent, shared, tmp_path):
    driver = shared[1]
    job = Job(agent, tmp_path / "file")
    driver.errors["checkpoint"] = "shared memory"
    assert agent.command("suspend")["type"] == "done"
    until(job.stands_still, "it stands still")
    assert (job.told["suspension"], job.told["movable"]) == ("process", False)
    assert "could not be checkpointed: shared memory" in job.told["why"]
    assert agent.command("resume", gpus=[0])["type"] == "done"
    job.grows()
    driver.errors.clear()  # it is tried each time
    assert agent.command("suspend")["type"] == "done"
    assert (job.told["suspension"], job.told["movable"]) == ("checkpoint", True)


def test_a_restoration_that_fails_leaves_it_suspended(agent, shared, tmp_path):
    driver = shared[1]
    job = Job(agent, tmp_path / "file")
    agent.command("suspend")
    driver.errors["restore"] = "the GPU is full"
    answer = agent.command("resume", gpus=[0])
    assert answer["type"] == "failed"
    assert "the GPU is full" in answer["error"]
    until(job.stands_still, "it stands still")
    driver.errors.clear()
    assert agent.command("resume", gpus=[0])["type"] == "done"
    job.grows()


def test_device_memory_that_is_lost_is_a_lost_attempt(agent, shared, tmp_path):
    driver = shared[1]
    Job(agent, tmp_path / "file")
    agent.command("suspend")
    driver.errors["restore"], driver.breaks = "broken", True
    agent.begin("resume", gpus=[0])
    until(lambda: agent.attempt.ended is not None, "it is over")
    assert agent.attempt.ended["type"] == "lost"
    assert "broken" in agent.attempt.ended["error"]


def test_a_checkpointed_job_can_be_stopped(agent, tmp_path):
    Job(agent, tmp_path / "file")
    agent.command("suspend")
    agent.begin("stop")
    until(lambda: agent.attempt.ended is not None, "it is over")
    assert agent.attempt.ended["stop_asked"]


@pytest.mark.parametrize(
    ("wish", "suspension", "why"),
    [
        ({"gpus": [0, 1]}, "process", "it has 2 GPUs, and processes that share GPU memory (NCCL)"),
        ({"suspend": "stop"}, "process", "it asked for that; its device memory stays in use"),
        ({"suspend": "restart"}, "restart", "it asked for that; SIGKILL follows"),
        ({"suspend": "cuda-checkpoint"}, "checkpoint", "it asked for that"),
    ],
)
def test_what_it_asks_for_counts_as_far_as_it_can_be(agent, tmp_path, wish, suspension, why):
    job = Job(agent, tmp_path / "file", **wish)
    assert job.told["suspension"] == suspension
    assert why in job.told["why"]
    if suspension == "restart":
        assert (job.told["movable"], job.told["portable"]) == (True, True)


def test_a_restarted_job_sees_the_gpus_that_it_has_then(agent, tmp_path):
    show = f"echo $CUDA_VISIBLE_DEVICES $ROTA_DEVICE >> {tmp_path}/seen\n"
    job = Job(agent, tmp_path / "file", before=show, suspend="restart")
    assert agent.command("suspend")["type"] == "done"
    assert agent.command("resume", gpus=[1])["type"] == "done"
    job.grows()
    assert (tmp_path / "seen").read_text() == "0 0\n1 0\n"


def test_a_node_that_can_not_says_why(tmp_path):
    driver = FakeDriver(refusal="its driver is too old")
    with LoneAgent(tmp_path / "agent", devices=GPUS, driver=driver) as agent:
        job = Job(agent, tmp_path / "file", suspend="cuda-checkpoint")
        assert "it asked for cuda-checkpoint, but its driver is too old" in job.told["why"]
        assert agent.command("suspend")["type"] == "done"
        until(job.stands_still, "it stands still")
        assert driver.calls == []


@pytest.mark.parametrize("point", ["taken", "put back"])
def test_an_agent_that_dies_half_way_leaves_it_to_the_next(tmp_path, monkeypatch, driver, point):
    reached = threading.Event()

    def die(*_: object) -> None:
        reached.set()
        raise asyncio.CancelledError

    with LoneAgent(tmp_path / "agent", devices=GPUS, driver=driver) as agent:
        job = Job(agent, tmp_path / "file")
        with monkeypatch.context() as patch:
            if point == "taken":
                patch.setattr(Checkpointing, "_signal", die)
                agent.begin("suspend")
            else:
                assert agent.command("suspend")["type"] == "done"
                patch.setattr(Checkpointing, "_processes", die)
                agent.begin("resume", gpus=[1])
            assert reached.wait(DEADLINE_S)
            agent.vanish()
            agent.join()
    with LoneAgent(tmp_path / "agent", devices=GPUS, driver=driver) as agent:
        job.agent = agent
        until(lambda: agent._agent.attempts, "it is adopted")
        worker = agent.attempt.ranks[0].worker
        if point == "taken":
            until(lambda: driver.calls[-1][0] == "unlock", "it was let go")
            assert agent.attempt.state == "running"
            job.grows()
            assert agent.command("suspend")["type"] == "done"
        assert agent.attempt.state == "suspended"
        until(job.stands_still, "it stands still")
        assert driver.state(worker) == "checkpointed"
        assert agent.command("resume", gpus=[1])["type"] == "done"
        job.grows()
