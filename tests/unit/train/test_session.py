"""The link and the session, driven by an agent of the test's own over a real Unix socket."""

import errno
import os
import socket
import threading
from unittest.mock import Mock

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from rota.burst.runtime.outlook import Planned
from rota.errors import InputError
from rota.live.wire import encode, split
from rota.live.wire.messages import planned_of
from rota.train import link as link_module
from rota.train.link import Link
from rota.train.progress import Progress
from rota.train.reports import Reports
from rota.train.session import Session
from rota.train.world import World


class Agent:
    """Listens where an agent would; one connection at a time."""

    def __init__(self, path):
        self.path = str(path)
        self.connection = None
        self._messages, self._buffer = [], bytearray()
        self.listen()

    def listen(self):
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.path)
        self._listener.listen()
        self._listener.settimeout(20)

    def accept(self):
        self.connection, _ = self._listener.accept()
        self.connection.settimeout(20)
        self._messages, self._buffer = [], bytearray()
        return self.hears("hello")

    def says(self, **message):
        self.connection.sendall(encode(message))

    def hears(self, kind):
        """The next message of this kind; others are passed over."""
        while True:
            while self._messages:
                message = self._messages.pop(0)
                if message["type"] == kind:
                    return message
            data = self.connection.recv(65536)
            assert data, f"the worker closed the connection before it said {kind}"
            self._buffer += data
            self._messages += split(self._buffer)

    def dies(self):
        if self.connection is not None:
            self.connection.close()
        self._listener.close()
        os.unlink(self.path)


@pytest.fixture
def agent(tmp_path, monkeypatch):
    monkeypatch.setattr(link_module, "RECONNECT_EVERY_S", 0.01)
    monkeypatch.setenv("ROTA_AGENT_SOCKET", str(tmp_path / "s"))
    monkeypatch.setenv("ROTA_JOB_ID", "5")
    monkeypatch.setenv("ROTA_ATTEMPT", "2")
    agent = Agent(tmp_path / "s")
    yield agent
    agent.dies()


class Worker:
    """A loop in a thread; each step waits until the test lets it go."""

    def __init__(self, total=10):
        self.may_step = threading.Semaphore(0)
        self.steps = []
        self._total = total
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        with Session() as s:
            for step in s.steps(self._total):
                assert self.may_step.acquire(timeout=30)
                self.steps.append(step)

    def goes(self, steps=1):
        for _ in range(steps):
            self.may_step.release()

    def ends(self):
        self.goes(self._total)
        self._thread.join(30)
        assert not self._thread.is_alive()
        assert self.steps == list(range(self._total))


def test_one_process_suspends_at_the_next_boundary_and_goes_on_when_told(agent):
    worker = Worker()
    hello = agent.accept()
    assert (hello["job_id"], hello["attempt"], hello["suspended"]) == ("5", 2, False)
    agent.says(type="pause", gang=False)
    worker.goes(3)
    assert agent.hears("suspended")["step"] == 1
    assert worker.steps == [0]
    agent.says(type="resume", device=None)
    agent.hears("resumed")
    worker.ends()


def test_a_rank_of_a_gang_holds_runs_on_and_suspends_where_the_agent_says(agent):
    worker = Worker()
    agent.accept()
    agent.says(type="pause", gang=True)
    worker.goes(6)
    assert agent.hears("at")["step"] == 1
    agent.says(type="run_to", step=3)
    assert agent.hears("at")["step"] == 3
    agent.says(type="run_to", step=4)
    assert agent.hears("at")["step"] == 4
    agent.says(type="offload")
    assert agent.hears("suspended")["step"] == 4
    assert worker.steps == [0, 1, 2, 3]
    agent.says(type="resume", device=0)
    agent.hears("resumed")
    worker.ends()


def test_a_pause_that_is_called_off_stops_nobody(agent):
    worker = Worker()
    agent.accept()
    agent.says(type="pause", gang=False)
    agent.says(type="resume", device=None)
    worker.goes(2)
    agent.says(type="pause", gang=True)
    worker.goes(1)
    agent.hears("at")
    agent.says(type="resume", device=None)
    worker.ends()


def test_an_agent_that_dies_while_a_gang_agrees_calls_the_pause_off(agent):
    worker = Worker()
    agent.accept()
    agent.says(type="pause", gang=True)
    worker.goes(1)
    agent.hears("at")
    agent.dies()
    agent.listen()
    worker.goes(1)
    worker.ends()


def test_a_suspended_worker_tells_the_next_agent_that_it_is(agent):
    worker = Worker()
    agent.accept()
    agent.says(type="pause", gang=False)
    worker.goes(1)
    suspended = agent.hears("suspended")
    agent.dies()
    agent.listen()
    hello = agent.accept()
    assert hello["suspended"] is True
    assert (hello["step"], hello["stopped_s"]) == (1, suspended["stopped_s"])
    agent.says(type="resume", device=None)
    agent.hears("resumed")
    worker.ends()


def test_the_cores_that_an_agent_tells_are_known_at_the_next_boundary(agent, monkeypatch):
    class Noting(Worker):
        def _run(self):
            with Session() as s:
                for step in s.steps(self._total):
                    assert self.may_step.acquire(timeout=30)
                    self.steps.append(step)
                    self.cores.append(s._world.cores.millicores)

    monkeypatch.delenv("ROTA_CPUS", raising=False)
    Noting.cores = []
    worker = Noting()
    agent.accept()
    agent.says(type="cpus", millicores=2500)
    agent.says(type="pause", gang=False)
    worker.goes(1)
    agent.hears("suspended")
    agent.says(type="resume", device=None)
    agent.says(type="cpus", millicores=None)
    agent.says(type="pause", gang=False)
    worker.goes(1)
    agent.hears("suspended")
    agent.says(type="resume", device=None)
    worker.ends()
    assert worker.cores == [None, 2500] + [None] * 8


def test_validations_are_reported_by_themselves(agent):
    class Validating(Worker):
        def _run(self):
            with Session() as s:
                for step in s.steps(self._total):
                    assert self.may_step.acquire(timeout=30)
                    self.steps.append(step)
                    with s.evaluate():
                        pass

    worker = Validating()
    agent.accept()
    agent.says(type="pause", gang=False)
    worker.goes(1)
    phases = agent.hears("report")["phases"]
    assert set(phases) == {"train", "evaluate"}
    assert phases["train"]["steps"] == phases["evaluate"]["steps"] == 1
    agent.hears("suspended")
    agent.says(type="resume", device=None)
    worker.ends()


def test_without_an_agent_the_loop_runs(monkeypatch):
    monkeypatch.delenv("ROTA_AGENT_SOCKET", raising=False)
    with Session() as s:
        for _ in s.steps(3):
            s.report(loss=float("nan"), samples=4, note=float("inf"))
        assert s._progress.step == 3


def test_a_step_that_is_left_by_break_counts_as_done(agent):
    with Session() as s:
        for step in s.steps(10):
            if step == 3:
                break
    agent.accept()
    assert agent.hears("report")["step"] == 4


def test_a_link_gives_messages_whole_and_comes_back_after_a_loss(agent):
    link = Link(agent.path)
    link.introduce({"type": "hello", "n": 1})
    assert link.connect() and link.connected
    assert agent.accept()["n"] == 1
    line = encode({"type": "pause", "gang": False})
    agent.connection.sendall(line[:5])
    assert link.poll() == []
    agent.connection.sendall(line[5:] + line)
    assert [link.wait(), link.wait()] == [{"type": "pause", "gang": False}] * 2
    agent.dies()
    assert link.wait() is None
    assert not link.connected
    assert not link.send({"type": "at", "step": 1})
    assert not link.offer({"type": "report"})
    agent.listen()
    link.introduce({"type": "hello", "n": 2})
    while not link.connected:
        link.wait()
    assert agent.accept()["n"] == 2
    link.close()
    assert link.poll() == [] and not link.connected


def test_a_link_never_waits_for_an_agent_that_does_not_listen(agent):
    link = Link(agent.path)
    link.introduce({"type": "hello"})
    link.connect()
    agent.accept()
    report = {"type": "report", "text": "x" * 1000}
    offered = [link.offer(report) for _ in range(2000)]
    assert offered[0] and not offered[-1]
    for _ in range(sum(offered)):
        assert agent.hears("report") == report
    link.close()


def test_counting_steps_twice_is_refused_with_what_to_do():
    with Session() as s:
        list(s.steps(2))
        with pytest.raises(InputError, match="in one loop"):
            list(s.steps(2))


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1) if list(model.parameters()) else None


class Preparing:
    """A session in a thread that prepares models when the test says so."""

    def __init__(self, *models):
        self.models, self.may_prepare = models, threading.Semaphore(0)
        self.prepared = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        with Session() as s:
            for model in self.models:
                assert self.may_prepare.acquire(timeout=30)
                s.prepare(model, sgd(model))
                self.prepared.release()
            for _ in s.steps(3):
                assert self.may_prepare.acquire(timeout=30)

    def prepares(self):
        self.may_prepare.release()
        assert self.prepared.acquire(timeout=30)

    def ends(self):
        self.may_prepare.release(3)
        self._thread.join(30)
        assert not self._thread.is_alive()


def test_the_size_of_the_model_and_its_largest_tensor_are_told_at_once(agent):
    worker = Preparing(nn.Sequential(nn.Linear(10, 4), nn.Linear(4, 2).half()))
    assert agent.accept()["model"] is None
    worker.prepares()
    told = agent.hears("model")
    assert told["largest_tensor_bytes"] == 4 * 10 * 4
    assert told["model_bytes"] == 4 * (10 * 4 + 4) + 2 * (4 * 2 + 2)
    worker.ends()


def test_several_models_are_told_as_one_and_shared_parameters_once(agent):
    first, second = nn.Linear(10, 4), nn.Linear(20, 4, bias=False)
    tied = nn.Linear(10, 4)
    tied.weight = first.weight
    worker = Preparing(first, second, tied)
    agent.accept()
    told = []
    for _ in range(3):
        worker.prepares()
        message = agent.hears("model")
        told.append((message["model_bytes"], message["largest_tensor_bytes"]))
    assert told == [(176, 160), (496, 320), (512, 320)]
    worker.ends()


def test_a_model_without_parameters_and_one_of_unknown_shape_tell_no_size(agent):
    worker = Preparing(nn.Dropout(), nn.LazyLinear(3), nn.Linear(1, 1))
    agent.accept()
    for _ in range(3):
        worker.prepares()
    assert agent.hears("model")["model_bytes"] == 8, "the first that is told is the third's"
    worker.ends()


def test_an_agent_that_comes_later_learns_the_sizes_by_the_hello(agent, monkeypatch):
    monkeypatch.setattr(link_module, "RECONNECT_EVERY_S", 0.0)
    worker = Preparing(nn.Linear(10, 4))
    agent.accept()
    agent.dies()
    worker.prepares()
    agent.listen()
    worker.may_prepare.release()
    hello = agent.accept()
    assert hello["model"] == {"model_bytes": 176, "largest_tensor_bytes": 160}
    worker.ends()


def test_a_plan_by_layer_is_told_and_again_to_an_agent_that_comes_later(agent):
    link = Link(agent.path)
    reports = Reports(link, World(), Progress(), lambda: 4)
    reports.introduce()
    link.connect()
    assert agent.accept()["planned"] is None
    reports.planned(Planned(8, (0.5, None, 0.25), (0.0,)))
    plan = {"batch": 8, "step_s": [0.5, None, 0.25], "idle": [0.0]}
    told = agent.hears("planned")
    assert told == {"type": "planned", **plan}
    assert planned_of(told) == plan
    agent.dies()
    assert link.wait() is None
    agent.listen()
    while not link.connected:
        link.wait()
    assert agent.accept()["planned"] == plan
    link.close()


def test_a_loader_without_a_prepared_model_is_an_error_with_what_to_do():
    with Session() as s, pytest.raises(InputError, match=r"call s\.prepare\(model, optimizer\)"):
        loader = s.loader(list(range(4)), batch_size=2)
        for _ in loader:
            pass


def descend(steps, *, stop_after=None, late=False):
    """Steps on data drawn by the step; the steps that were done, and the weights after them."""
    torch.manual_seed(1)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    done = []
    with Session() as s:
        s.prepare(model, optimizer, scheduler)
        for step in s.steps(steps):
            generator = torch.Generator().manual_seed(step)
            model(torch.randn(4, 3, generator=generator)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
            done.append(step)
            if step == stop_after and not late:
                s.checkpoint()
            if step == stop_after:
                break
        if late:
            s.checkpoint()
    return done, model.weight.detach()


@pytest.mark.parametrize("late", [False, True], ids=["in-the-step", "after-the-loop"])
def test_a_checkpoint_without_a_loader_goes_on_with_the_step_after_it(tmp_path, monkeypatch, late):
    _, undisturbed = descend(6)
    monkeypatch.setenv("ROTA_CHECKPOINT_DIR", str(tmp_path))
    done, _ = descend(6, stop_after=2, late=late)
    assert done == [0, 1, 2]
    done, weights = descend(6)
    assert done == [3, 4, 5]
    assert torch.equal(weights, undisturbed)


def test_a_folder_for_checkpoints_that_is_gone_is_made_again(tmp_path, monkeypatch):
    monkeypatch.setenv("ROTA_CHECKPOINT_DIR", str(tmp_path / "gone" / "7"))
    descend(6, stop_after=2)
    assert descend(6)[0] == [3, 4, 5]


@pytest.mark.parametrize("there", ["file", "link", "folder in its place", "not writable"])
def test_a_checkpoint_that_cannot_be_written_says_where_and_what_to_do(
    tmp_path, monkeypatch, there
):
    folder = tmp_path / "7"
    monkeypatch.setenv("ROTA_CHECKPOINT_DIR", str(folder))
    says = "must be a folder, or a link to one: move away what is there"
    if there == "file":
        folder.touch()
    elif there == "link":
        folder.symlink_to("nowhere")
    elif there == "folder in its place":
        (folder / "rota.pt").mkdir(parents=True)
        monkeypatch.setattr("rota.train.checkpoint.Checkpoint.open", lambda _: None)
        says = "move away the folder of that name"
    else:
        refused = PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        monkeypatch.setattr(os, "makedirs", Mock(side_effect=refused))
        says = "make its folder writable for the job"
    with pytest.raises(OSError, match=says) as refusal:
        descend(6, stop_after=2)
    assert str(folder / "rota.pt") in str(refusal.value)
    assert list(tmp_path.rglob("*.new")) == []


@pytest.mark.parametrize(
    ("sizes", "total", "total_samples"),
    [
        ({"batch_size": 4}, 6, 20),
        ({"batch_size": 4, "drop_last": True}, 4, 16),
        ({"batch_size_per_rank": 4}, None, 20),
    ],
    ids=["whole", "without-the-last", "growing"],
)
def test_a_loop_over_epochs_tells_how_much_there_is_to_do(agent, sizes, total, total_samples):
    model = nn.Linear(2, 1)
    with Session() as s:
        agent.accept()
        _, optimizer = s.prepare(model, sgd(model))
        loader = s.loader([torch.ones(2)] * 10, **sizes)
        for _ in s.epochs(2):
            for batch in loader:
                for x in batch:
                    model(x).sum().backward()
                optimizer.step()
    message = agent.hears("report")
    while message["samples"] < 16:
        message = agent.hears("report")
    assert (message["total"], message["total_samples"]) == (total, total_samples)


@pytest.mark.parametrize("below", ["nothing", "an-agent", "a-launcher"])
def test_a_single_rank_has_its_batch_in_one_piece_with_torchs_own_reduction(
    below, tmp_path, monkeypatch, request
):
    if below == "an-agent":
        request.getfixturevalue("agent")
    if below == "a-launcher":
        monkeypatch.setenv("RANK", "0")
        monkeypatch.setenv("WORLD_SIZE", "1")
    model = nn.Linear(2, 1)
    with Session() as s:
        wrapped, optimizer = s.prepare(model, sgd(model), reduction="ddp")
        s.loader([torch.ones(2)] * 8, batch_size=8, shards=4)
        for _ in s.steps(2):
            pieces = [x for x in s.next_batch() if wrapped(x).sum().backward() is None]
            assert [len(x) for x in pieces] == [8]
            optimizer.step()


def test_a_program_of_one_rank_opens_no_process_group(agent):
    model = nn.Linear(2, 1)
    with Session() as s:
        assert s.prepare(model, sgd(model))[0] is model
        for _ in s.steps(1):
            assert not torch.distributed.is_initialized()


def test_a_session_that_a_batch_of_the_schedulers_was_too_large_for_says_so(agent):
    data = TensorDataset(torch.zeros(64, 2))
    model = nn.Linear(2, 1)

    def train():
        with pytest.raises(torch.OutOfMemoryError), Session() as s:
            s.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
            s.loader(data, batch_size=8, adapt=True)
            adaptation = s._training.adaptation
            adaptation.hear((32, 16, 1, 1))
            raise torch.OutOfMemoryError("CUDA out of memory")

    worker = threading.Thread(target=train)
    worker.start()
    agent.accept()
    error = agent.hears("failing")["error"]
    worker.join(30)
    assert "16 samples at once on each GPU, of a batch of 32 that the scheduler chose" in error
