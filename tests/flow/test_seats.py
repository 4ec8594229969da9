"""Jobs' seats on an island: a host alone, and this process in place of its agent."""

import importlib
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from rota import flow
from rota.errors import FlowError, InputError, SliceChangedError, WorkerLostError
from rota.flow.client import Client
from rota.flow.page import DEVICE, FINISHED, MOVES, PLACED, SLOTS, Page
from rota.live.wire import island
from rota.live.wire.island import CONTROL, Called, Done, FromIsland, Lines, Seen, line_of
from support.flow_functions import Gate

from .conftest import TESTS, until

HERE = "support.flow_functions"
LATE = f"{HERE}:late_total"
DEVICES = 4
DEVICE_BYTES = 8_000_000
START_S = 120.0  # for a host that loads torch beside much else
SILENCE_S = 60.0  # after which something that must come has not
_keys = (f"{number}.1.secret" for number in itertools.count(1))


class Agent:
    """A connection to the host, as an agent has it."""

    def __init__(self, folder: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(SILENCE_S)
        self.socket.connect(str(folder / CONTROL))
        self._lines = Lines(FromIsland)
        self._numbers = itertools.count(1)
        self._done: dict[int, Done] = {}
        self.called: list[str] = []

    def begin(self, message: Callable[..., Any], *fields: Any, **named: Any) -> int:
        """Ask for something; the number of its answer."""
        number = next(self._numbers)
        self.socket.sendall(line_of(message(number, *fields, **named)))
        return number

    def answer(self, number: int) -> Done:
        """The answer with this number."""
        while number not in self._done:
            self._hear()
        return self._done.pop(number)

    def ask(self, message: Callable[..., Any], *fields: Any, **named: Any) -> Done:
        """Ask, and return the answer, which tells of no error."""
        done = self.answer(self.begin(message, *fields, **named))
        assert done.error is None, done.error
        return done

    def wait_called(self, key: str) -> None:
        """Wait to hear that a program whose workers are away has called something."""
        while key not in self.called:
            self._hear()
        self.called.remove(key)

    def has_answer(self, number: int) -> bool:
        """Whether it has come, before the answer to a question that is asked now."""
        self.ask(island.Look)
        return number in self._done

    def seen(self, key: str) -> Seen:
        """A seat by now."""
        [seen] = [each for each in self.ask(island.Look).seen if each.key == key]
        return seen

    def _hear(self) -> None:
        data = self.socket.recv(1 << 16)
        assert data, "the host has hung up"
        for message in self._lines.take(data):
            if isinstance(message, Called):
                self.called.append(message.key)
            else:
                self._done[message.number] = message


class Job:
    """A seat, and the program that has it."""

    def __init__(self, host: "Host", devices: list[int], weight: float, **more: Any) -> None:
        self.host, self.agent, self.devices = host, host.agent, devices
        self.key = next(_keys)
        self.log = host.local / f"{self.key}.log"
        told = {
            "key": self.key,
            "devices": devices,
            "cores": [[]] * len(devices),
            "weight": weight,
            "memory_bytes": None,
            "log": str(self.log),
            "workdir": str(TESTS),
            "env": dict(os.environ),
        }
        self.agent.ask(lambda number: island.Seat(number=number, **told | more))

    def connect(self) -> Client:
        """A client on its seat."""
        return Client(self.host.folder, self.key, 1, 1.0, None, key=self.key)

    def begin_pause(self) -> int:
        return self.agent.begin(island.Pause, self.key)

    def pause(self) -> None:
        self.agent.ask(island.Pause, self.key)

    def begin_place(self, *devices: int) -> int:
        return self.agent.begin(island.Place, self.key, list(devices), [[]] * len(devices))

    def place(self, *devices: int) -> None:
        self.agent.ask(island.Place, self.key, list(devices), [[]] * len(devices))

    def move(self, *devices: int) -> None:
        self.pause()
        self.place(*devices)

    def dismiss(self) -> None:
        self.agent.ask(island.Dismiss, self.key)

    @property
    def seen(self) -> Seen:
        return self.agent.seen(self.key)


class Host:
    """A host of jobs."""

    def __init__(self, folder: Path, local: Path, program: str = "rota.flow.host") -> None:
        self.folder, self.local = folder, local
        command = [sys.executable, "-m", program, str(folder), str(DEVICES)]
        self.process = subprocess.Popen([*command, str(DEVICE_BYTES), "cpu", "--agent"])
        until((folder / CONTROL).exists, "the host serves", START_S)
        self.agent = Agent(folder)
        self.page = Page(folder / "page", DEVICES, SLOTS)

    def descriptors(self) -> int:
        return psutil.Process(self.process.pid).num_fds()


@contextmanager
def serving(folder: Path, program: str = "rota.flow.host") -> Iterator[Host]:
    """A host of four devices."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="rota-seats-", dir="/dev/shm") as top:
        (place := Path(top) / "island").mkdir()
        host = Host(place, folder, program)
        try:
            yield host
            host.agent.ask(island.End)
            assert host.process.wait(SILENCE_S) == 0
            assert not place.exists()
        finally:
            host.process.kill()
            host.process.wait()


@pytest.fixture(scope="module")
def host(folder: Path) -> Iterator[Host]:
    """For all tests of this module."""
    with serving(folder) as made:
        yield made


@pytest.fixture
def seat(host: Host) -> Iterator[Callable[..., Job]]:
    """Take seats for jobs; they are dismissed."""
    jobs: list[Job] = []

    def take(*devices: int, weight: float = 1.0, **more: Any) -> Job:
        jobs.append(Job(host, list(devices), weight, **more))
        return jobs[-1]

    yield take
    for job in jobs:
        job.dismiss()
    assert not host.agent.ask(island.Look).seen


def function(where: flow.Slice, name: str) -> Any:
    return where.function(f"{HERE}:{name}", flow.Replicated() if where.size == 1 else flow.Each())


# -- suspensions and moves -------------------------------------------------------------------------


def drive(client: Client, gate: Gate, between: Callable[[int], None]) -> list[torch.Tensor]:
    """A program with collectives, moves between slices and a loop; its results.

    ``between`` is called three times: with an operation of two shards under way, and a lot behind.
    """
    pair, one = client.slice(2), client.slice(1)
    late, total, scale = (function(pair, name) for name in ("late_total", "plus_total", "scaled"))
    add = function(one, "added")
    generator = torch.Generator().manual_seed(7)
    x = torch.rand(400, generator=generator, dtype=torch.float64)
    x[0] = x[200] = gate.number
    gate.open()  # a worker in an operation can't say what another one would give
    made = [scale(total(late(pair.put(x, flow.Split(0))))), add(one.put(x), one.put(x))]
    gate.wait_begun()
    for part in range(3):
        y = late(pair.put(x, flow.Split(0)))
        for _ in range(8):
            z = scale(total(y))
            y = total(z)
        flat = pair.put(torch.ones(400, dtype=torch.float64), flow.Split(0))
        made.append(y)
        moved = one.put(x)
        for _ in range(5):
            moved = add(moved, moved)
        made += [moved, total(flat)]
        gate.wait_begun()
        between(part)
        made.append(scale(y))
    return [shard for each in made for shard in each.shards()]


def test_a_program_that_is_suspended_and_moved_has_the_same_results_bit_for_bit(seat, gate):
    still, moved = seat(0, 1), seat(0, 1)
    with still.connect() as client:
        expected = drive(client, gate, lambda _: gate.open())

    def running(job: Job) -> set[str]:
        return {each.operation.rpartition(" ")[2] for each in job.seen.runs}

    def interfere(part: int) -> None:
        asked = moved.begin_pause()
        assert not moved.agent.has_answer(asked)  # the collective that is under way is to end
        until(lambda: running(moved) == {LATE}, "what else it was in is over")
        gate.open()
        assert moved.agent.answer(asked).error is None
        seen = moved.seen
        assert (seen.away, seen.outstanding > 0) == (True, True)
        moved.place(*[(0, 3), (3, 0), (2, 1)][part])  # one elsewhere, permuted, both elsewhere

    with moved.connect() as client:
        found = drive(client, gate, interfere)
        assert client.devices == [2, 1]
    assert len(found) == len(expected)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_what_keeps_workers_that_are_in_no_operation_is_told(seat, gate):
    job = seat(0, 1)
    with job.connect() as client:
        one = client.slice(1)
        f, x = function(one, "gated_when_tried"), one.put(torch.zeros(gate.number))
        x.result()
        assert job.seen.runs == []
        caller = threading.Thread(target=lambda: f(x))
        caller.start()
        gate.wait_begun()
        assert job.seen.runs == []  # nobody waits for it
        asked = job.begin_pause()
        assert not job.agent.has_answer(asked)
        [told] = job.seen.runs
        assert told.operation == f"the trial of {HERE}:gated_when_tried with fake tensors"
        assert told.device == one.workers[0]
        assert job.seen.runs == [told]  # since the same time
        gate.open()
        assert job.agent.answer(asked).error is None
        assert job.seen.runs == []
        job.place(0, 1)  # the call waits for memory
        caller.join()


def test_operations_are_counted_over_clients_and_lost_workers(seat):
    job = seat(0)
    for made in (5, 2):
        with job.connect() as client:
            one = client.slice(1)
            scale, x = function(one, "scaled"), one.put(torch.ones(1))
            for _ in range(made):
                scale(x).result()
    until(lambda: not job.seen.present, "its second client has left")
    assert job.seen.operations == 7
    with job.connect() as client:
        one = client.slice(1)
        scale = function(one, "scaled")
        for _ in range(3):
            scale(one.put(torch.ones(1))).result()
        os.kill(job.seen.pids[0], signal.SIGKILL)
        until(lambda: not job.seen.pids, "its worker is gone")
        client.recover()
        assert job.seen.operations == 10
        scale(one.put(torch.ones(1))).result()
    until(lambda: not job.seen.present, "its third client has left")
    assert job.seen.operations >= 10  # those of the new worker are counted beyond those of the old


def test_gradients_of_a_pipeline_that_is_suspended_and_moved_are_the_same(seat, monkeypatch):
    examples = str(TESTS.parent / "examples")
    monkeypatch.syspath_prepend(examples)
    path = {"PYTHONPATH": os.pathsep.join([examples, os.environ["PYTHONPATH"]])}
    pipeline = importlib.import_module("rota_pipeline")
    torch.manual_seed(3)
    weights = [each.double() for each in pipeline.initial_weights(2)]
    batch = pipeline.draw(pipeline.load_data()[:10_000])
    results = []
    for moves in (False, True):
        job = seat(0, 1, env=dict(os.environ) | path)
        with job.connect() as client:
            drives = pipeline.Pipeline(client, 2)
            gradients = client.program(drives.gradients)
            begun = gradients(*drives.put(weights), *drives.put_batch(*batch))
            for devices in [(1, 0), (3, 0)] if moves else []:
                until(lambda: job.seen.operations > 0, "it has begun")  # noqa: B023
                job.move(*devices)
            results.append([each.result() for each in begun])
    assert results[0][1].dtype == torch.float64
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_arrays_come_and_go_while_the_program_is_suspended(seat):
    job = seat(0, 1)
    with job.connect() as client:
        pair = client.slice(2)
        numbers = torch.arange(200_000.0)
        before, spare = (pair.put(numbers, flow.Split(0)) for _ in range(2))
        client.wait()
        job.pause()
        spare.free()  # what it had may be used, and no more
        small, large = pair.put(numbers[:10]), pair.put(numbers[100:] * 2, flow.Split(0))
        assert torch.equal(before.result(), numbers)
        assert torch.equal(large.result(), numbers[100:] * 2)
        assert torch.equal(small.result(), numbers[:10])
        assert job.key not in job.agent.called
        scale = function(pair, "scaled")
        with ThreadPoolExecutor(1) as pool:  # a call that needs more memory waits
            made = pool.submit(lambda: torch.cat(scale(large).shards()))
            job.agent.wait_called(job.key)
            job.place(2, 3)
            assert torch.equal(made.result(SILENCE_S), numbers[100:] * 6 + 1)


def test_a_program_that_recovers_while_it_is_suspended_is_brought_back(seat):
    job = seat(0, 1)
    with job.connect() as client:
        first, second = client.slice(1), client.slice(1)
        lost, kept = first.put(torch.ones(1)), second.put(torch.ones(1))
        killed, _ = job.seen.pids
        job.pause()
        os.kill(killed, signal.SIGKILL)
        until(lambda: killed not in job.seen.pids, "its worker is gone")
        with ThreadPoolExecutor(1) as pool:
            recovered = pool.submit(client.recover)
            job.agent.wait_called(job.key)
            job.place(1, 0)
            recovered.result(SILENCE_S)
        assert function(second, "scaled")(kept).result().tolist() == [4.0]
        with pytest.raises(WorkerLostError):
            lost.result()
        assert function(first, "scaled")(first.put(torch.ones(1))).result().tolist() == [4.0]


def test_a_program_that_wants_memory_while_it_is_suspended_has_it_once_it_is_back(seat):
    other, job = seat(0), seat(0)
    most = torch.zeros(DEVICE_BYTES // 8 - 10_000)  # half of the device, nearly
    with other.connect() as beside, job.connect() as client:
        there = beside.slice(1).put(most)
        job.pause()
        one = client.slice(1)
        with ThreadPoolExecutor(1) as pool:
            put = pool.submit(lambda: [one.put(most), one.put(most)])
            job.agent.wait_called(job.key)
            # Before it is there it has to go again: what it has asked for is not forgotten.
            for each in (job.begin_place(0), job.begin_pause()):
                job.agent.answer(each)
            job.place(0)
            until(lambda: job.seen.held_bytes != [0], "it has the first array")
            assert not put.done()
            there.free()
            beside.wait()
            assert torch.equal(put.result(SILENCE_S)[1].result(), most)


def test_a_job_has_no_more_memory_than_its_seat_and_comes_back_only_where_there_is_room(seat):
    job, other = seat(0, memory_bytes=1_000_000), seat(1)
    with job.connect() as client, other.connect() as beside:
        assert client.memory_bytes == 1_000_000
        one = client.slice(1)
        with pytest.raises(FlowError, match="of 1,000,000"):
            one.put(torch.zeros(300_000))
        kept = one.put(torch.ones(200_000))
        taken = beside.slice(1).put(torch.zeros(DEVICE_BYTES // 4 - 100_000))
        job.pause()
        refused = job.agent.answer(job.begin_place(1))
        assert refused.error == (
            "the job's buffers have 800,000 bytes, and device 1 has room for 400,000"
        )
        assert job.seen.away
        taken.free()
        beside.wait()
        beside.close()  # and with it all its buffers
        other.seen  # noqa: B018  # the host knows
        job.place(1)
        assert kept.result().sum() == 200_000


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """A process that does nothing meanwhile."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_workers_on_their_way_go_on_when_a_place_without_room_for_them_is_refused(seat):
    job, other = seat(0), seat(1)
    with job.connect() as client, other.connect() as beside:
        kept = client.slice(1).put(torch.ones(200_000))
        taken = beside.slice(1).put(torch.zeros(DEVICE_BYTES // 4 - 100_000))
        client.wait()
        beside.wait()
        [pid] = job.seen.pids
        job.pause()
        with stopped(pid):
            asked = job.begin_place(0)
            refused = job.agent.answer(job.begin_place(1))
            assert refused.error and "device 1 has room for 400,000" in refused.error
            assert not job.agent.has_answer(asked)
        assert job.agent.answer(asked).error is None
        assert (job.seen.away, job.seen.devices) == (False, [0])
        assert (kept.result().sum(), taken.result().sum()) == (200_000, 0)


def test_workers_on_their_way_count_for_nothing_where_they_are_put_instead(seat):
    job = seat(0, 1)
    with job.connect() as client:
        kept = client.slice(2).put(torch.ones(DEVICE_BYTES // 4 * 3 // 5))  # 60 % of a device each
        client.wait()
        [pid, _] = job.seen.pids
        job.pause()
        with stopped(pid):
            job.begin_place(0, 1)
            asked = job.begin_place(1, 0)
            assert not job.agent.has_answer(asked)
        assert job.agent.answer(asked).error is None
        assert job.seen.devices == [1, 0]
        assert kept.result().sum() == DEVICE_BYTES // 4 * 3 // 5


def test_workers_that_have_hardly_begun_can_be_moved(seat):
    job = seat(0, 1)
    for _ in range(20):  # they are being forked
        with job.connect():
            job.move(2, 3)
            job.move(0, 1)


def test_a_command_that_is_overtaken_is_answered_and_workers_that_have_not_left_stay(seat, gate):
    job = seat(0, 1)
    with job.connect() as client:
        pair = client.slice(2)
        x = pair.put(torch.tensor([gate.number, 1.0]))
        y = function(pair, "late_total")(x)
        gate.wait_begun()
        asked = job.begin_pause()
        job.place(0, 1)
        assert job.agent.answer(asked).error == "another command came before it was done"
        assert not job.seen.away
        asked = job.begin_pause()
        refused = job.agent.answer(job.begin_place(2, 3))
        assert refused.error == "the workers of the seat are on other devices: pause it first"
        assert not job.agent.has_answer(asked)  # what was refused has changed nothing: they leave
        gate.open()
        assert job.agent.answer(asked).error is None
        assert job.seen.away
        assert y.shards()[0].shape == (2,)
        job.place(2, 3)
        assert torch.equal(function(pair, "scaled")(y).shards()[0], y.shards()[0] * 3 + 1)
        gate.open()
        again = function(pair, "late_total")(x)
        assert again.shards()[0].shape == (2,)


# -- resizes ---------------------------------------------------------------------------------------


def test_a_resize_spares_handles_and_ends_slices_that_lose_a_device(seat):
    job = seat(0, 1, 2)
    with job.connect() as client:
        three = client.slice(3)
        pair, last = client.slice(2), client.slice(1)
        numbers = torch.arange(12.0)
        x = three.put(numbers, flow.Split(0))
        done = function(three, "plus_total")(x)
        client.wait()
        assert pair.workers == (0, 1)
        job.move(0, 1, -1)
        with pytest.raises(SliceChangedError, match="make another slice"):
            function(three, "plus_total")(x)
        with pytest.raises(SliceChangedError):
            function(last, "scaled")(last.put(numbers))
        assert client.slice(2).workers == (0, 1)
        with pytest.raises(InputError, match="this program has 2"):
            client.slice(3)
        here = x.to(pair, flow.Split(0))
        assert torch.equal(here.result(), numbers)
        assert torch.equal(torch.cat(function(pair, "scaled")(here).shards()), numbers * 3 + 1)
        assert torch.equal(done.shards()[2], numbers[8:] + numbers.sum())
        job.move(0, 1, 3)
        with pytest.raises(SliceChangedError):  # once lost, a slice stays so
            function(three, "plus_total")(x)
        new = client.slice(3)
        back = function(new, "plus_total")(here.to(new, flow.Split(0)))
        assert torch.equal(torch.cat(back.shards()), numbers + numbers.sum())
        assert torch.equal(torch.cat(function(pair, "scaled")(here).shards()), numbers * 3 + 1)


def test_operations_that_are_outstanding_on_a_lost_slice_fail_alone(seat, gate):
    job, other = seat(0, 1, 2), seat(1)
    with job.connect() as client, other.connect() as beside:
        three, pair = client.slice(3), client.slice(2)
        x = three.put(torch.ones(3), flow.Split(0))
        middle = next(s for s in (client.slice(1) for _ in range(4)) if s.workers == (1,))
        small, ones = middle.put(torch.ones(1)), pair.put(torch.ones(2))
        spare = three.put(torch.ones(100))
        scale, total = function(middle, "scaled"), function(three, "plus_total")
        of_pair = function(pair, "plus_total")
        for made in (scale(small), total(x), of_pair(ones)):
            made.shards()
        client.wait()
        job.pause()
        spare.free()  # there is room for what follows
        held = beside.slice(1)
        y = function(held, "gated")(held.put(torch.tensor([float(gate.number)])))
        gate.wait_begun()
        # On the second device it stands behind another job, and so is not looked at there at first.
        before, passed = scale(small), job.host.page.of(client._slots[0], FINISHED)
        lost = total(x)
        after = of_pair(ones)
        job.place(0, 1, -1)
        page, first = job.host.page, client._slots[0]
        until(lambda: page.of(first, FINISHED) > passed, "the first worker has passed it")
        paused = job.begin_pause()  # waits for the other job if this one has its next turn
        gate.open()
        assert job.agent.answer(paused).error is None
        job.place(0, 1, 2)
        assert before.result() == 4
        for shard in range(3):
            with pytest.raises(SliceChangedError, match="plus_total: its slice has lost a device"):
                client._fetch(lost, [shard])
        assert after.shards()[0].tolist() == [5.0, 5.0]
        assert y.result() == gate.number + 1


# -- several jobs on a device ----------------------------------------------------------------------


def test_jobs_share_devices_by_their_weights(seat, gate, host):
    light, heavy, first = seat(0, 1), seat(0, 1, weight=3.0), seat(0, 1)
    record = host.local / "record"
    record.unlink(missing_ok=True)
    with light.connect() as one, heavy.connect() as other, first.connect() as holder:
        pair = holder.slice(2)
        held = function(pair, "late_total")(
            pair.put(torch.tensor([gate.number, 1.0]), flow.Split(0))
        )
        gate.wait_begun()
        futures = []
        for client, letter, count in ((one, "a", 20), (other, "b", 60)):
            pair = client.slice(2)
            x = pair.put(torch.tensor([float(ord(letter))] * 2), flow.Split(0))
            # Each is a function of its own: none has run before, and all count as much.
            futures += [function(pair, "recorded")(x) for _ in range(count)]
        gate.open()
        for future in (held, *futures):
            future.shards()
    written = record.read_bytes()
    assert len(written) == 160
    assert abs(written[:80].count(b"b") - 60) <= 6  # within three operations, of two shards each


# -- ends ------------------------------------------------------------------------------------------


def test_a_worker_that_is_killed_is_lost_alone(seat):
    job, other = seat(0, 1), seat(0, 1)
    with job.connect() as client, other.connect() as beside:
        pair, first, second = client.slice(2), client.slice(1), client.slice(1)
        x = torch.ones(2)
        mine = {s: s.put(x) for s in (pair, first, second)}
        there = beside.slice(2)
        y = there.put(x)
        functions = {s: function(s, "scaled") for s in mine}
        total = function(pair, "plus_total")
        for made in [functions[s](each) for s, each in mine.items()] + [total(mine[pair])]:
            made.shards()
        spare = pair.put(torch.ones(100))
        client.wait()
        job.pause()
        spare.free()  # there is room for what follows
        calls = {s: functions[s](each) for s, each in mine.items()}
        both = total(mine[pair])
        os.kill(job.seen.pids[1], signal.SIGKILL)
        until(lambda: len(job.seen.pids) == 1, "the host knows")
        job.move(2, 3)
        assert torch.equal(calls[first].result(), x * 3 + 1)
        with pytest.raises(WorkerLostError, match="signal 9"):
            calls[second].result()
        with pytest.raises(FlowError):  # what the other one would have sent it
            client._fetch(both, [0])
        assert torch.equal(function(there, "plus_total")(y).shards()[0], x + 4)


def test_buffers_of_a_lost_worker_take_no_room_where_it_is_put(seat):
    job, other = seat(0, 1), seat(2)
    with job.connect() as client, other.connect() as beside:
        pair = client.slice(2)
        kept = pair.put(torch.ones(200_000))
        taken = beside.slice(1).put(torch.zeros(DEVICE_BYTES // 4 - 100_000))
        client.wait()
        beside.wait()
        assert job.seen.held_bytes == [800_000, 800_000]
        job.pause()
        os.kill(job.seen.pids[1], signal.SIGKILL)
        until(lambda: len(job.seen.pids) == 1, "the host knows")
        assert job.seen.held_bytes == [800_000, 0]
        job.place(0, 2)
        client.recover()
        alone = next(s for s in (client.slice(1), client.slice(1)) if s.workers == (1,))
        assert alone.put(torch.ones(50_000)).result().sum() == 50_000
        with pytest.raises(WorkerLostError):
            kept.result()
        assert taken.result().sum() == 0


def program(job: Job) -> int:
    """Fork a process that is the job's program; its number, once it is there."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            client = job.connect()
            os.write(writer, b"%d" % len(client.devices))
            signal.pause()
        finally:
            os._exit(1)
    os.close(writer)
    assert os.read(reader, 1) == b"%d" % len(job.devices)
    os.close(reader)
    return pid


def test_the_workers_of_a_program_that_is_killed_are_gone_and_its_seat_is_free(seat):
    job = seat(0, 1)
    for away in (False, True):
        pid = program(job)
        with pytest.raises(FlowError, match="the job has a client already"):
            job.connect()
        workers = job.seen.pids
        if away:
            job.pause()
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        until(lambda: not job.seen.present, "the host knows")
        assert not any(map(psutil.pid_exists, workers))
    asked = job.begin_place(0, 1)  # without a program
    assert job.agent.answer(asked).error is None
    with job.connect() as client:
        one = client.slice(1)
        assert function(one, "scaled")(one.put(torch.ones(1))).result() == 4


def test_a_job_that_is_dismissed_ends_in_whatever_state(seat, gate):
    for away in (False, True):
        job = seat(0, 1)
        with job.connect() as client:
            one = client.slice(1)
            held = function(one, "gated")(one.put(torch.tensor([float(gate.number)])))
            gate.wait_begun()
            asked = job.begin_pause() if away else None
            pids = job.seen.pids
            job.dismiss()
            assert not any(map(psutil.pid_exists, pids))
            if asked is not None:
                assert job.agent.answer(asked).error == "its job is over"
            with pytest.raises(WorkerLostError, match="its job is over"):
                held.result()
        with pytest.raises(FlowError, match="the job that this program is of is over"):
            job.connect()


def test_programs_that_come_and_go_leave_nothing_in_the_host(seat, host):
    job = seat(0)
    descriptors = []
    for connections in (20, 100):  # the bells of slots are made once
        for _ in range(connections):
            job.connect().close()
        until(lambda: not job.seen.present, "the last one is gone")
        descriptors.append(host.descriptors())
    assert descriptors[1] <= descriptors[0]
    assert not list(host.folder.glob("client*"))


def test_who_comes_when_no_descriptor_is_free_is_turned_away(seat, host):
    job, process = seat(0), psutil.Process(host.process.pid)
    taken = {int(each) for each in os.listdir(f"/proc/{process.pid}/fd")}
    before = process.rlimit(psutil.RLIMIT_NOFILE)
    process.rlimit(psutil.RLIMIT_NOFILE, (min(set(range(1000)) - taken), before[1]))
    try:
        with socket.socket(socket.AF_UNIX) as other:
            other.settimeout(SILENCE_S)
            other.connect(str(host.folder / CONTROL))
            assert other.recv(1) == b""
    finally:
        process.rlimit(psutil.RLIMIT_NOFILE, before)
    with job.connect() as client:
        assert client.devices == [0]


# -- workers are of the job ------------------------------------------------------------------------


def test_workers_are_processes_of_their_job(seat, tmp_path):
    core = max(os.sched_getaffinity(0))
    door = tmp_path / "cgroup.procs"
    env = dict(os.environ) | {"ROTA_TEST_OF_JOB": "yes"}
    job = seat(0, cores=[[core]], tag=987_654, groups=[str(door), "/none/there"], env=env)
    with job.connect() as client:
        one = client.slice(1)
        found = function(one, "place")(one.put(torch.ones(1))).result().tolist()
        [pid] = job.seen.pids
        assert found == [pid, core, 987_654]
        assert door.read_text() == str(pid)
        assert job.log.read_text() == "a line of a worker\n"
        process = psutil.Process(pid)
        assert process.cwd() == str(TESTS)
        assert os.getpgid(pid) == pid


def test_workers_print_to_the_pipe_of_their_program(seat):
    job = seat(0)
    source, end = os.pipe()
    shim = subprocess.Popen(["sleep", "1000"], stdout=end)
    try:
        job.log.with_suffix(".pid").write_text(json.dumps({"shim": shim.pid}))
        with job.connect() as client:
            one = client.slice(1)
            function(one, "place")(one.put(torch.ones(1))).result()
            assert os.read(source, 1000) == b"a line of a worker\n"
        assert not job.log.exists()
    finally:
        shim.kill()
        shim.wait()
        os.close(source)
        os.close(end)
    with pytest.raises(FlowError, match="for jobs alone"):
        flow.connect(job.host.folder)


def test_workers_go_to_the_cores_of_their_devices(seat):
    first, second = min(os.sched_getaffinity(0)), max(os.sched_getaffinity(0))
    job = seat(0, cores=[[first]])
    with job.connect() as client:
        one = client.slice(1)
        where = function(one, "place")
        assert where(one.put(torch.ones(1))).result()[1] == first
        job.pause()
        job.agent.ask(island.Place, job.key, [1], [[second]])
        assert where(one.put(torch.ones(1))).result()[1] == second


# -- agents come and go, and strangers come by -----------------------------------------------------


def test_another_agent_finds_seats_as_they_were_and_hears_who_calls(seat, host, gate):
    job = seat(0, 1)
    with job.connect() as client:
        pair = client.slice(2)
        y = function(pair, "late_total")(pair.put(torch.tensor([gate.number, 1.0])))
        gate.wait_begun()
        first = Agent(host.folder)
        first.begin(island.Pause, job.key)
        first.ask(island.Look)
        first.socket.close()
        assert not job.seen.away
        gate.open()
        until(lambda: job.seen.away, "what was asked for happens all the same")
        scale = function(pair, "scaled")
        with ThreadPoolExecutor(1) as pool:
            z = pool.submit(lambda: scale(y).shards()[1])
            job.agent.wait_called(job.key)
            second = Agent(host.folder)
            assert second.seen(job.key).away
            second.wait_called(job.key)
            second.ask(island.Place, job.key, [0, 1], [[], []])
            assert torch.equal(z.result(SILENCE_S), y.shards()[1] * 3 + 1)
        second.socket.close()


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        (b"\xff\x00 garbage\n", "can't be read"),
        (b'{"type":"dance","number":1}\n', "can't be read"),
        (b'{"type":"pause","number":-1,"key":"a"}\n', "number"),
        (b'{"type":"look","number":%d}\n' % 10**40, "number"),
        (b'{"type":"pause","number":1,"key":"nobody"}\n', "no such seat"),
        (b'{"type":"place","number":1,"key":"KEY","devices":[0,0],"cores":[[],[]]}\n', "each once"),
        (b'{"type":"place","number":1,"key":"KEY","devices":[0,9],"cores":[[],[]]}\n', "0 to 3"),
        (b'{"type":"place","number":1,"key":"KEY","devices":[0,-2],"cores":[[],[]]}\n', "-1"),
        (b'{"type":"place","number":1,"key":"KEY","devices":[-1,-1],"cores":[[],[]]}\n', "give"),
        (b'{"type":"place","number":1,"key":"KEY","devices":[0],"cores":[[]]}\n', "has 2 workers"),
        (b'{"type":"place","number":1,"key":"KEY","devices":[0,1],"cores":[]}\n', "for each of 2"),
        (b'{"type":"place","number":1,"key":"KEY","devices":[0,1],"cores":[[-1],[]]}\n', "cores"),
        (b'{"type":"place","number":1,"key":"KEY","devices":[2,3],"cores":[[],[]]}\n', "pause it"),
    ],
)
def test_what_a_stranger_says_costs_the_stranger_alone(seat, host, said, answer):
    job = seat(0, 1)
    with job.connect() as client:
        pair = client.slice(2)
        x = pair.put(torch.ones(2))
        stranger = Agent(host.folder)
        stranger.socket.sendall(said.replace(b"KEY", job.key.encode()))
        [done] = Lines(FromIsland).take(stranger.socket.recv(1 << 16))
        assert answer in done.error
        stranger.socket.close()
        silent = [Agent(host.folder) for _ in range(20)]
        assert job.seen.pids
        assert function(pair, "plus_total")(x).shards()[0].tolist() == [5.0, 5.0]
        for each in silent:
            each.socket.close()


def test_a_message_without_an_end_is_refused(host, monkeypatch):
    stranger = Agent(host.folder)
    with pytest.raises(OSError):  # whatever a connection that is closed says
        for _ in range(200):
            stranger.socket.sendall(b"x" * (1 << 20))
    stranger.socket.close()
    assert host.agent.ask(island.Look).error is None


def test_all_workers_know_where_they_are(seat, host):
    job = seat(2, -1, 0)

    def places(client):
        """Where the workers were told to be, each of which has made all its moves."""
        of = host.page.of
        assert all(of(slot, PLACED) == of(slot, MOVES) for slot in client._slots)
        return [of(slot, DEVICE) for slot in client._slots]

    with job.connect() as client:
        assert client.devices == [2, -1, 0]
        assert client.slice(2).workers == (0, 2)
        job.pause()
        assert places(client) == [-2] * 3
        job.place(1, 3, -1)
        assert places(client) == [1, 3, -1]
        assert client.slice(2).workers == (0, 1)
