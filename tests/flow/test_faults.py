"""What programs, workers and hosts of an island do to each other as they die, stop or misbehave."""

import contextlib
import os
import random
import signal
import socket
import struct
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from rota import flow
from rota.errors import (
    FlowError,
    FlowMemoryError,
    InputError,
    OperationError,
    WorkerLostError,
)
from rota.flow import wire
from rota.flow.host import MOST_SILENT
from rota.flow.island import Island
from rota.flow.order import LEAST_COST_S, Stride
from rota.flow.page import (
    DOING,
    HELD_BYTES,
    HOST,
    LOG,
    PRESENT,
    RING,
    SLOTS,
    SOCKET,
    Bells,
    Log,
    Page,
)
from support import flow_faults as functions

from .conftest import until

pytestmark = pytest.mark.process
HERE = "support.flow_faults"
ADD, GATED, LATE, SUMMED, PROCESS = (
    f"{HERE}:{name}" for name in ("add", "gated", "late", "summed", "process")
)
DEVICES = 3
LARGE = 100_000  # elements: too many to go with a message


@pytest.fixture(scope="module")
def island(tmp_path_factory: pytest.TempPathFactory) -> Iterator[flow.LocalIsland]:
    """An island of three devices whose workers find the functions of these tests."""
    with pytest.MonkeyPatch.context() as patch:
        _prepare(patch, tmp_path_factory.mktemp("gates"))
        with flow.LocalIsland(DEVICES) as island:
            yield island
        assert not island.folder.exists()


def _prepare(patch: pytest.MonkeyPatch, gates: Path) -> None:
    tests = str(Path(__file__).parents[1])
    patch.setenv(functions.FOLDER, str(gates))
    patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (tests, os.environ.get("PYTHONPATH")))))


@pytest.fixture(scope="module")
def witness(island: flow.LocalIsland) -> Iterator["Witness"]:
    """Another program on all devices, which goes on whatever happens beside it."""
    with island.connect(devices=list(range(DEVICES))) as client:
        yield Witness(client)


@pytest.fixture
def client(island: flow.LocalIsland) -> Iterator[flow.Client]:
    with island.connect(devices=[0, 1]) as client:
        yield client
    until(lambda: not client.parcels.exists(), "it is gone, and all that it had")


@pytest.fixture
def page(island: flow.LocalIsland) -> Iterator[Page]:
    page = Page(island.folder / "page", DEVICES, SLOTS)
    yield page
    page.close()


class Witness:
    """A program with a collective on all devices."""

    def __init__(self, client: flow.Client) -> None:
        self.client = client
        self.slice = client.slice(DEVICES)
        self.sum = self.slice.function(SUMMED)
        self.ones = self.slice.put(torch.ones(1))
        self.slots = {0, *client._slots}  # 0: nobody's

    def begin(self) -> flow.ShardedBuffer:
        return self.sum(self.ones)

    def goes_on(self) -> None:
        for _ in range(3):
            assert [int(each) for each in self.begin().shards()] == [DEVICES] * DEVICES


_gates = iter(range(1, 10_000))


class Gate:
    """What :func:`support.flow_faults.gated` waits for."""

    def __init__(self) -> None:
        self.number = next(_gates)

    def tensor(self) -> torch.Tensor:
        return torch.tensor([float(self.number)])

    def process(self, rank: int = 0) -> int:
        """The process of the shard that has come."""
        path = functions.entered(self.number, rank)
        until(path.exists, f"shard {rank} has come to gate {self.number}")
        return int(path.read_text())

    def open(self) -> None:
        functions.opened(self.number).touch()


class Program:
    """A forked process with a client of its own; ``body`` says what it does before it waits."""

    def __init__(self, folder: Path, body: Callable[[flow.Client], None]) -> None:
        reader, writer = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                client = flow.connect(folder, devices=[0, 1])
                body(client)
                os.write(writer, client.parcels.name.encode())
                signal.pause()
            finally:
                os._exit(1)
        os.close(writer)
        self.name = os.read(reader, 100).decode()
        os.close(reader)
        assert self.name, "the program failed"

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)


def workers(island: flow.LocalIsland) -> set[int]:
    return {each.pid for each in psutil.Process(island._process.pid).children()}


def is_over(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


# -- programs that are killed or stopped -----------------------------------------------------------


def connected(client: flow.Client, gate: Gate) -> None:
    """It has done nothing yet."""


def in_an_operation(client: flow.Client, gate: Gate) -> None:
    pair = client.slice(2)
    pair.function(GATED)(pair.put(gate.tensor()))
    gate.process(0), gate.process(1)


def with_hundreds_queued(client: flow.Client, gate: Gate) -> None:
    pair = client.slice(2)
    add, start = pair.function(ADD), pair.put(gate.tensor())
    chain = client.program(lambda x: flow.repeat(128, add, x))
    chain(start).shards()  # it is known by now what it gives
    x = pair.function(GATED)(start)
    for _ in range(7):
        x = chain(x)
    gate.process(0), gate.process(1)


def in_a_chain(client: flow.Client, gate: Gate) -> None:
    pair = client.slice(2)
    add, gated = pair.function(ADD), pair.function(GATED)
    chain = client.program(lambda x: flow.repeat(2000, add, gated(flow.repeat(64, add, x))))
    start = pair.put(gate.tensor() - 64)
    chain(start)
    gate.process(0), gate.process(1)


def in_a_collective(client: flow.Client, gate: Gate) -> None:
    pair = client.slice(2)
    pair.function(LATE)(pair.put(gate.tensor()))
    gate.process(0)


def with_a_grant(client: flow.Client, gate: Gate) -> None:
    pair = client.slice(2)
    add, x = pair.function(ADD), pair.put(torch.zeros(1))

    def granted() -> bool:
        add(x).shards()
        standing = {client._page.standing(each) for each in (0, 1)}
        return standing == set(client._slots)

    until(granted, "the program has a grant")


def with_a_grant_in_a_collective(client: flow.Client, gate: Gate) -> None:
    with_a_grant(client, gate)
    in_a_collective(client, gate)


def amid_a_call(client: flow.Client, gate: Gate) -> None:
    """It has told the first worker of an operation with a collective, and not the second one."""
    pair = client.slice(2)
    sums, x, tell = pair.function(SUMMED), pair.put(torch.ones(1)), client._tell
    sums(x).shards()
    with_a_grant(client, gate)
    client._tell = lambda worker, *told: None if worker else tell(worker, *told)  # type: ignore[method-assign]
    client._page.tell = lambda *told: None  # type: ignore[method-assign]
    sums(x)


PHASES = [
    connected,
    in_an_operation,
    with_hundreds_queued,
    in_a_chain,
    in_a_collective,
    with_a_grant,
    with_a_grant_in_a_collective,
    amid_a_call,
]


@pytest.mark.parametrize("how", [signal.SIGSTOP, signal.SIGKILL], ids=["stopped", "killed"])
@pytest.mark.parametrize("phase", PHASES, ids=lambda each: each.__name__)
def test_others_go_on_when_a_program_is(
    how: signal.Signals,
    phase: Callable[[flow.Client, Gate], None],
    island: flow.LocalIsland,
    witness: Witness,
    page: Page,
) -> None:
    before, gate = workers(island), Gate()
    program = Program(island.folder, lambda client: phase(client, gate))
    try:
        folder, own = island.folder / program.name, workers(island) - before
        assert folder.is_dir()
        assert len(own) == 2
        waiting = witness.begin()  # where the program has a grant, it is taken back
        until(lambda: {page.standing(0), page.standing(1)} <= witness.slots, "it has no grant")
        os.kill(program.pid, how)
        if how == signal.SIGSTOP:  # what it has begun ends, and is not waited for otherwise
            gate.open()
        waiting.shards()
        witness.goes_on()
        program.kill()
        until(lambda: not folder.exists(), "its parcels are gone")
        until(lambda: workers(island) == before, "its workers are gone")
        witness.goes_on()
    finally:
        gate.open()
        program.kill()


def test_a_program_that_is_killed_goes_although_a_process_it_forked_has_its_connections(
    island: flow.LocalIsland, witness: Witness
) -> None:
    children: list[int] = []
    reader, writer = os.pipe()

    def body(client: flow.Client) -> None:
        child = subprocess.Popen(
            ["sleep", "1000"],
            pass_fds=[client._host.fileno(), *(w.fileno() for w in client._workers)],
        )
        os.write(writer, str(child.pid).encode())

    program = Program(island.folder, body)
    children.append(int(os.read(reader, 100)))
    try:
        program.kill()
        until(lambda: not (island.folder / program.name).exists(), "it is gone")
        assert not is_over(children[0])
        witness.goes_on()
    finally:
        os.kill(children[0], signal.SIGKILL)
        os.close(reader)
        os.close(writer)


# -- workers that are killed -----------------------------------------------------------------------


def test_a_worker_killed_in_an_operation_is_lost_and_its_peer_goes_on(
    client: flow.Client, witness: Witness
) -> None:
    gate, pair, one = Gate(), client.slice(2), client.slice(1)
    add = one.function(ADD)  # on device 0
    single = add(one.put(torch.zeros(1)))
    y = pair.function(GATED)(pair.put(gate.tensor()))
    later = add(single)
    waiting = witness.begin()
    os.kill(gate.process(1), signal.SIGKILL)
    gate.open()
    with pytest.raises(WorkerLostError, match="device 1 has ended: signal 9"):
        y.shards()
    assert later.result() == 2
    waiting.shards()
    witness.goes_on()
    with pytest.raises(WorkerLostError):
        pair.function(ADD)(y)


def test_a_worker_killed_in_a_collective_is_an_error_of_its_peer(
    client: flow.Client, witness: Witness
) -> None:
    gate, pair, one = Gate(), client.slice(2), client.slice(1)
    add = one.function(ADD)
    add(one.put(torch.zeros(1)))  # it is known by now what it gives
    late = pair.function(LATE, out=flow.Replicated())
    more = pair.function(SUMMED, out=flow.Replicated())

    def both(x: Any) -> tuple[Any, Any]:
        y = late(x)
        return y, more(y)

    y, again = client.program(both)(pair.put(gate.tensor()))
    moved = add(y.to(one))
    os.kill(gate.process(0), signal.SIGKILL)
    for lost in (y, again):
        for shard in (0, 1):  # also that of its peer, which has lost a connection
            with pytest.raises(WorkerLostError, match="signal 9"):
                client._fetch(lost, [shard])
    with pytest.raises((WorkerLostError, OperationError)):
        moved.result()
    witness.goes_on()


def test_a_worker_that_never_ran_does_not_keep_its_peers_waiting(
    client: flow.Client, island: flow.LocalIsland, witness: Witness
) -> None:
    gate, pair, pids = Gate(), client.slice(2), []
    for one in (client.slice(1), client.slice(1)):
        pids.append(int(one.function(PROCESS)(one.put(torch.ones(1))).result()))
    gated, sums = pair.function(GATED), pair.function(SUMMED)
    z = client.program(lambda x: sums(gated(x)))(pair.put(gate.tensor()))
    os.kill(pids[1], signal.SIGKILL)  # before the slice has met, or while it is meeting
    gate.open()
    with pytest.raises((WorkerLostError, OperationError)):
        client._fetch(z, [0])
    witness.goes_on()


def test_who_waits_for_a_parcel_of_a_lost_worker_has_an_error(
    client: flow.Client, witness: Witness
) -> None:
    gate, first, second = Gate(), client.slice(1), client.slice(1)
    y = first.function(GATED)(first.put(gate.tensor()))
    z = second.function(ADD)(y.to(second))
    fine = second.function(ADD)(second.put(torch.ones(1)))
    os.kill(gate.process(), signal.SIGKILL)
    with pytest.raises(WorkerLostError, match="before it sent"):
        z.result()
    assert fine.result() == 2
    witness.goes_on()


def test_slots_are_used_again(island: flow.LocalIsland, witness: Witness) -> None:
    used = set()
    for _ in range(5):
        before = workers(island)
        with island.connect(devices=[0, 1]) as client:
            used |= set(client._slots)
        until(lambda before=before: workers(island) == before, "its workers are gone")
    assert len(used) <= 4
    witness.goes_on()


# -- new workers in place of lost ones -----------------------------------------------------------


def test_all_goes_on_with_a_new_worker_but_what_the_lost_one_held(
    client: flow.Client, island: flow.LocalIsland, witness: Witness
) -> None:
    gate, pair = Gate(), client.slice(2)
    first, second = client.slice(1), client.slice(1)
    late, sums, add = pair.function(LATE), pair.function(SUMMED), second.function(ADD)
    traced = []

    def plan(x: Any, y: Any) -> Any:
        traced.append(x)
        return sums(x), add(y).to(first)

    program = client.program(plan)
    x, there, here = pair.put(torch.ones(1)), first.put(torch.zeros(1)), second.put(torch.ones(1))
    _, moved = program(x, there)
    assert moved.result() == 1
    held = add(here)
    y = late(pair.put(gate.tensor()))
    waiting, before = witness.begin(), workers(island)
    os.kill(gate.process(0), signal.SIGKILL)
    with pytest.raises((WorkerLostError, OperationError)):
        y.shards()
    client.recover()
    waiting.shards()
    assert len(workers(island) - before) == 1
    for lost in (x, there, moved, y):
        with pytest.raises(WorkerLostError, match="a shard on device 0"):
            lost.shards()
        with pytest.raises(WorkerLostError, match="a shard on device 0"):
            first.function(ADD)(lost)
    assert held.result() == 2
    assert add(held).result() == 3
    new = pair.put(torch.ones(1)), first.put(torch.zeros(1))
    total, moved = program(*new)
    assert [int(each) for each in total.shards()] == [2, 2]
    assert moved.result() == 1
    assert len(traced) == 1
    witness.goes_on()


def test_workers_are_replaced_again_and_again_and_leave_nothing(
    client: flow.Client, page: Page, witness: Witness
) -> None:
    pair, first, second = client.slice(2), client.slice(1), client.slice(1)
    sums, add, ones = pair.function(SUMMED), second.function(ADD), torch.ones(LARGE)
    tell = [each.function(PROCESS) for each in (first, second)]
    gated = first.function(GATED)
    sums(pair.put(ones)), add(first.put(ones).to(second))  # it is known by now what they give
    for lost in ([0], [1], [0, 1], [0, 1]):
        gate, slots = Gate(), list(client._slots)
        pids = [
            int(function(where.put(torch.ones(1))).result())
            for function, where in zip(tell, (first, second), strict=True)
        ]
        held = gated(first.put(gate.tensor() + 0 * ones))
        moved, total = add(held.to(second)), sums(pair.put(ones))
        waiting = witness.begin()
        for each in lost:
            os.kill(pids[each], signal.SIGKILL)
        gate.open()
        with pytest.raises((WorkerLostError, OperationError)):
            total.shards()
        client.recover()
        waiting.shards()
        assert [i for i in (0, 1) if client._slots[i] != slots[i]] == lost
        del held, moved, total
        names = {each.name for each in client.parcels.iterdir()}
        assert {each for each in names if not each.startswith(("slice", DOING))} == {LOG}
        assert [int(each[0]) for each in sums(pair.put(ones)).shards()] == [2, 2]
        client.wait()
        until(
            lambda: not any(page.of(slot, HELD_BYTES) for slot in client._slots), "nothing is held"
        )
        witness.goes_on()


def test_slices_are_placed_on_workers_that_are_alive(client: flow.Client) -> None:
    one = client.slice(1)
    os.kill(int(one.function(PROCESS)(one.put(torch.ones(1))).result()), signal.SIGKILL)
    until(lambda: client._look(0.01) or client._lost, "the program has heard of it")
    for _ in range(3):
        other = client.slice(1)
        assert other.function(ADD)(other.put(torch.ones(1))).result() == 2
    with pytest.raises(
        WorkerLostError, match=r"1 whose workers are alive: call client.recover\(\)"
    ):
        client.slice(2)
    client.recover()
    pair = client.slice(2)
    assert pair.function(ADD)(pair.put(torch.ones(1))).shards() == [2, 2]
    assert one.function(ADD)(one.put(torch.ones(1))).result() == 2


def test_a_new_worker_has_the_time_limit_of_the_lost_one(
    island: flow.LocalIsland, witness: Witness
) -> None:
    with island.connect(devices=[0], op_timeout_s=1.0) as client:
        one = client.slice(1)
        add, gated = one.function(ADD), one.function(GATED)
        for _ in range(2):
            with pytest.raises(WorkerLostError, match=r"op_timeout_s=1.0"):
                gated(one.put(Gate().tensor())).result()
            client.recover()
            assert add(one.put(torch.ones(1))).result() == 2
    witness.goes_on()


# -- operations that hang -------------------------------------------------------------------------


def test_an_operation_that_hangs_ends_its_own_workers_alone(
    island: flow.LocalIsland, witness: Witness
) -> None:
    gate = Gate()
    with island.connect(devices=[0, 1], op_timeout_s=1.0) as client:
        pair, other = client.slice(1), client.slice(1)
        add, gated = pair.function(ADD), pair.function(GATED)

        def plan(x: Any) -> Any:
            return gated(add(x))

        hung = client.program(plan)(pair.put(gate.tensor() - 1))
        gate.process()
        waiting = witness.begin()
        with pytest.raises(
            WorkerLostError, match=r"device 0 .* plan: .*gated ran .*op_timeout_s=1.0"
        ):
            hung.result()
        waiting.shards()
        with pytest.raises(
            InputError, match=r"waits_on_stand_ins raised TimeoutError .* op_timeout_s"
        ):
            other.function(f"{HERE}:waits_on_stand_ins")(other.put(torch.ones(1)))
        assert other.function(ADD)(other.put(torch.ones(1))).result() == 2
        witness.goes_on()
    assert not functions.opened(gate.number).exists()


def test_an_operation_of_a_worker_that_is_stopped_is_not_taken_to_hang(
    island: flow.LocalIsland,
) -> None:
    stopped, hangs = Gate(), Gate()
    with (
        island.connect(devices=[0], op_timeout_s=1.0) as client,
        island.connect(devices=[1], op_timeout_s=1.0) as measure,
    ):
        one, other = client.slice(1), measure.slice(1)
        waits = one.function(GATED)(one.put(stopped.tensor()))
        worker = stopped.process()
        os.kill(worker, signal.SIGSTOP)
        hung = other.function(GATED)(other.put(hangs.tensor()))
        with pytest.raises(WorkerLostError, match="op_timeout_s"):  # began later, and was counted
            hung.result()
        os.kill(worker, signal.SIGCONT)
        stopped.open()
        assert waits.result() == stopped.number + 1


@pytest.mark.parametrize("op_timeout_s", [0, -1.0, float("nan"), float("inf")])
def test_a_time_limit_that_is_none_is_refused(
    op_timeout_s: float, island: flow.LocalIsland
) -> None:
    with pytest.raises(InputError, match="op_timeout_s"):
        island.connect(devices=[0], op_timeout_s=op_timeout_s)


# -- functions that misbehave ----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["leaves", "interrupts"])
def test_a_function_that_exits_fails_alone(name: str, client: flow.Client) -> None:
    one = client.slice(1)
    x = one.put(torch.ones(1))
    with pytest.raises(OperationError, match=f"{name}.* on device 0 exited"):
        one.function(f"{HERE}:{name}")(x).result()
    assert one.function(ADD)(x).result() == 2


@pytest.mark.parametrize(
    ("name", "why"),
    [("exits", "exit code 7"), ("crashes", "signal 11"), ("closes", "ended")],
)
def test_a_function_that_ends_its_process_ends_its_worker_alone(
    name: str, why: str, client: flow.Client, witness: Witness
) -> None:
    one, other = client.slice(1), client.slice(1)
    with pytest.raises(WorkerLostError, match=why):
        one.function(f"{HERE}:{name}")(one.put(torch.ones(1))).result()
    assert other.function(ADD)(other.put(torch.ones(1))).result() == 2
    witness.goes_on()


def test_a_function_that_forks_has_one_worker_and_leaves_no_process(
    island: flow.LocalIsland, witness: Witness
) -> None:
    with island.connect(devices=[0]) as client:
        one = client.slice(1)
        x = one.put(torch.ones(1))
        forks, add = one.function(f"{HERE}:forks"), one.function(ADD)
        for _ in range(3):
            x = forks(x)
        assert add(x).result() == 5
        pid = int(one.function(f"{HERE}:leaves_a_child")(x).result())
        worker = int(one.function(PROCESS)(x).result())
        assert not is_over(pid)
        os.kill(worker, signal.SIGKILL)
        with pytest.raises(WorkerLostError):
            add(x).result()
        until(lambda: is_over(pid), "what it has forked is gone")
    witness.goes_on()


@pytest.mark.parametrize("name", ["moves", "sets_defaults", "prints"])
def test_a_function_that_changes_its_process_changes_nothing_else(
    name: str, client: flow.Client
) -> None:
    pair, one = client.slice(2), client.slice(1)
    x = pair.put(torch.ones(2), flow.Split(0))
    y = pair.function(f"{HERE}:{name}", out=flow.Split(0))(x)
    assert y.to(one, flow.Replicated()).result().tolist() == [2, 2]
    z = pair.put(torch.zeros(2, dtype=torch.int64), flow.Split(0))
    assert pair.function(ADD, out=flow.Split(0))(z).result().tolist() == [1, 1]


# -- room, interrupts, forks -----------------------------------------------------------------------


def test_a_send_without_room_is_an_error_of_who_waits_for_it(client: flow.Client) -> None:
    first, second = client.slice(1), client.slice(1)
    y = first.function(f"{HERE}:fills")(first.put(torch.ones(LARGE)))
    z = second.function(ADD)(y.to(second))
    with pytest.raises(FlowMemoryError, match="no room"):
        z.result()
    with pytest.raises(FlowMemoryError, match="no room"):
        y.result()
    assert second.function(ADD)(second.put(torch.ones(1))).result() == 2


def test_a_put_without_room_leaves_nothing(
    client: flow.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair, allocate, calls = client.slice(2), os.posix_fallocate, iter(range(10))

    def full_at_the_second(*place: int) -> None:
        if next(calls):
            raise OSError(28, "No space left on device")
        allocate(*place)

    held = list(client._held)
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full_at_the_second)
        with pytest.raises(FlowMemoryError, match="put: there is no room"):
            pair.put(torch.ones(LARGE))
    assert client._held == held
    assert not list(client.parcels.glob("*put*"))
    assert pair.put(torch.ones(LARGE)).result().sum() == LARGE


def test_a_program_that_is_interrupted_in_result_goes_on(
    client: flow.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, one = Gate(), client.slice(1)
    y = one.function(GATED)(one.put(gate.tensor()))
    gate.process()

    def interrupted(timeout_s: float | None) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(client, "_look", interrupted)
        with pytest.raises(KeyboardInterrupt):
            y.result()
    gate.open()
    assert y.result() == gate.number + 1
    client.wait()
    assert not list(client.parcels.glob("fetch*"))


def test_a_program_that_is_interrupted_amid_a_call_says_so(
    island: flow.LocalIsland, monkeypatch: pytest.MonkeyPatch, witness: Witness
) -> None:
    with island.connect(devices=[0, 1]) as client:
        pair = client.slice(2)
        sums, x, tell = pair.function(SUMMED), pair.put(torch.ones(1)), client._tell
        sums(x).shards()

        def interrupted(worker: int, *messages: Any) -> None:
            if worker:
                raise KeyboardInterrupt
            tell(worker, *messages)

        monkeypatch.setattr(client, "_tell", interrupted)
        with pytest.raises(KeyboardInterrupt):
            sums(x)
        monkeypatch.undo()
        with pytest.raises(FlowError, match="interrupted amid a call"):
            sums(x)
    until(lambda: not client.parcels.exists(), "it is gone")
    witness.goes_on()


def test_a_client_is_not_that_of_a_forked_process(
    client: flow.Client, island: flow.LocalIsland
) -> None:
    one = client.slice(1)
    x = one.put(torch.ones(1))
    pid = os.fork()
    if pid == 0:
        try:
            x.result()
        except FlowError:
            island.close()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0
    assert one.function(ADD)(x).result() == 2


def test_numbers_may_be_long(client: flow.Client, witness: Witness) -> None:
    client._numbers["operation"] = client._numbers["buffer"] = 2**40
    first, second = client.slice(1), client.slice(1)
    waiting = witness.begin()
    y = second.function(ADD)(first.function(ADD)(first.put(torch.ones(1))).to(second))
    assert y.result() == 3
    waiting.shards()


# -- grants ----------------------------------------------------------------------------------------


def test_grants_are_given_and_taken_back_between_programs_that_overlap(
    island: flow.LocalIsland, page: Page
) -> None:
    with contextlib.ExitStack() as stack:
        calls = []
        for devices in ([0, 1], [1, 2], [0, 2]):
            client = stack.enter_context(island.connect(devices=devices))
            pair = client.slice(2)
            sums = pair.function(SUMMED)
            calls.append((client, sums, pair.put(torch.ones(1))))
        granted = 0
        for turn in range(90):
            client, sums, x = calls[turn * turn % 3]
            y = sums(x)
            if turn % 3 == 0:
                until(
                    lambda client=client, sums=sums, x=x: (
                        bool(sums(x).shards())
                        and page.standing(client.devices[0]) == client._slots[0]
                    ),
                    "it has a grant, as nobody else has anything to do",
                )
                granted += 1
            others = [f(each) for _, f, each in calls]
            for each in (y, *others):
                assert [int(shard) for shard in each.shards()] == [2, 2]
        assert granted == 30


def test_a_ring_has_room_for_all_turns_that_an_island_gives() -> None:
    island = Island([0], Stride())
    window = round(island._window_s / LEAST_COST_S)
    assert window + island._least * SLOTS <= RING


# -- hostile clients -------------------------------------------------------------------------------


class Raw:
    """A connection to the host that may say anything."""

    def __init__(self, folder: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(60)
        self.socket.connect(str(folder / SOCKET))

    def hello(self, devices: Any = (0, 1), weight: float = 1.0) -> wire.Welcome:
        self.socket.sendall(wire.encoded(wire.Hello("raw", list(devices), weight, None)))
        data, descriptors, _, _ = socket.recv_fds(self.socket, 1 << 16, 8)
        self.workers = [socket.socket(fileno=each) for each in descriptors]  # live as long as this
        return wire.Reader(wire.FromHost).take(data)[0]

    def is_refused(self) -> str:
        """What the host says as it hangs up."""
        data = b""
        with contextlib.suppress(ConnectionResetError):
            while more := self.socket.recv(1 << 16):
                data += more
        messages = wire.Reader(wire.FromHost).take(data)
        return " ".join(each.error for each in messages if isinstance(each, wire.Refused))


def told(*messages: Any) -> bytes:
    return b"".join(wire.encoded(each) for each in messages)


def gangs(gangs: list[list[int]], functions: list[int]) -> wire.DefineGangs:
    return wire.DefineGangs(1, gangs, functions, [0] * len(functions), [""] * len(functions))


GARBAGE = {
    "noise": (False, struct.pack("=I", 1000) + random.Random(7).randbytes(1000)),
    "a huge length": (False, struct.pack("=I", 2**32 - 1)),
    "no hello": (False, told(wire.Want(1, {}))),
    "a program before hello": (False, told(gangs([[0]], [1]))),
    "another kind": (False, told(wire.Free([1]))),
    "no list": (False, b"\x01\x00\x00\x00\x07"),
    "no devices": (False, told(wire.Hello("raw", [], 1.0, None))),
    "too few devices": (False, told(wire.Hello("raw", -1, 1.0, None))),
    "unknown devices": (False, told(wire.Hello("raw", [0, -1], 1.0, None))),
    "no time": (False, told(wire.Hello("raw", [0], 1.0, None, float("nan")))),
    "no weight": (False, told(wire.Hello("raw", [0], float("nan"), None))),
    "two hellos": (True, told(wire.Hello("raw", [0], 1.0, None))),
    "devices of others": (True, told(gangs([[2]], [1]))),
    "devices in disorder": (True, told(gangs([[1, 0]], [1]))),
    "no gang": (True, told(gangs([[]], [1]))),
    "no functions": (True, told(gangs([[0]], []))),
}
# After a program 1 of one operation, and a program 2 of very many: what is in the client's log.
BAD_RUNS = {
    "an unknown program": [(9, 1)],
    "numbers that fall": [(1, 5), (1, 5)],
    "a negative number": [(1, -5)],
    "a number beyond all": [(1, 2**62)],
    "operations without end": [(2, i * 70_000) for i in (1, 2, 3, 4)],
}


@pytest.mark.parametrize("kind", BAD_RUNS)
def test_a_client_whose_log_makes_no_sense_is_refused_alone(
    kind: str, island: flow.LocalIsland, witness: Witness
) -> None:
    raw, bells = Raw(island.folder), Bells(island.folder)
    folder = island.folder / f"client{raw.hello().client}"
    log = Log(folder / LOG)
    many = wire.DefineGangs(2, [[0]] * 70_000, [1] * 70_000, [0] * 70_000, [""] * 70_000)
    raw.socket.sendall(told(gangs([[0]], [1]), many))
    for run in BAD_RUNS[kind]:
        log.add(*run)
    bells.ring(HOST)
    assert raw.is_refused()
    log.close()
    bells.close()
    until(lambda: not folder.exists(), "it is gone")
    witness.goes_on()


def test_a_client_that_recovers_amid_its_operations_is_refused_alone(
    island: flow.LocalIsland, witness: Witness
) -> None:
    raw = Raw(island.folder)
    welcome = raw.hello()
    log = Log(island.folder / f"client{welcome.client}" / LOG)
    log.add(1, 1)
    raw.socket.sendall(told(gangs([[0]], [1]), wire.Recover([0, 300])))
    assert "not over" in raw.is_refused()
    log.close()
    witness.goes_on()


@pytest.mark.parametrize("kind", GARBAGE)
def test_a_client_that_sends_garbage_is_refused_alone(
    kind: str, island: flow.LocalIsland, witness: Witness
) -> None:
    after_hello, garbage = GARBAGE[kind]
    raw = Raw(island.folder)
    name = ""
    if after_hello:
        name = f"client{raw.hello().client}"
    raw.socket.sendall(garbage)
    assert raw.is_refused()
    if name:
        until(lambda: not (island.folder / name).exists(), "it is gone")
    witness.goes_on()


def test_clients_that_say_nothing_or_half_a_message_keep_nobody_out(
    island: flow.LocalIsland, witness: Witness
) -> None:
    half = told(wire.Hello("raw", [0], 1.0, None))[:-3]
    silent = [Raw(island.folder) for _ in range(MOST_SILENT + 36)]
    for each in silent[::2]:
        with contextlib.suppress(OSError):  # it has been let go already
            each.socket.sendall(half)
    with island.connect(devices=[0]) as client:
        one = client.slice(1)
        assert one.function(ADD)(one.put(torch.ones(1))).result() == 2
    assert "had not said hello" in silent[0].is_refused()
    gone = Raw(island.folder)
    gone.socket.sendall(told(wire.Hello("raw", [7], 1.0, None)))
    gone.socket.close()
    for each in silent:
        each.socket.close()
    witness.goes_on()


def test_a_folder_is_for_its_user_alone(island: flow.LocalIsland) -> None:
    assert island.folder.stat().st_mode & 0o777 == 0o700


# -- hosts -----------------------------------------------------------------------------------------

POOR = """
import resource, sys
from rota.flow import floor, host, page
floor.SLOTS, page.MEMBARRIER = 6, {}
resource.setrlimit(resource.RLIMIT_NOFILE, (60, 60))
host.main()
"""


class PoorIsland(flow.LocalIsland):
    """Its host has few slots, few descriptors, and no barriers: all goes by turns."""

    def __init__(self, devices: int) -> None:
        command = subprocess.Popen
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                subprocess,
                "Popen",
                lambda words, **options: command([words[0], "-c", POOR, *words[3:]], **options),
            )
            super().__init__(devices)
        self.gates = os.environ[functions.FOLDER]


@pytest.fixture(scope="module")
def poor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PoorIsland]:
    with pytest.MonkeyPatch.context() as patch:
        _prepare(patch, tmp_path_factory.mktemp("poor"))
        with PoorIsland(2) as island:
            yield island
        assert not island.folder.exists()


@pytest.fixture
def own_gates(poor: PoorIsland, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gates are where the functions of that island look."""
    monkeypatch.setenv(functions.FOLDER, poor.gates)


def test_turns_of_a_lost_worker_further_back_are_passed_over(
    poor: PoorIsland, own_gates: None
) -> None:
    gate, page = Gate(), Page(poor.folder / "page", 2, 6)
    clients = [poor.connect(devices=[0]) for _ in range(3)]
    ones = [each.slice(1) for each in clients]
    adds = [each.function(ADD) for each in ones]
    xs = [each.put(torch.ones(1)) for each in ones]
    for add, x in zip(adds, xs, strict=True):
        assert add(x).result() == 2
    pid = int(ones[1].function(PROCESS)(xs[1]).result())
    held = ones[0].function(GATED)(ones[0].put(gate.tensor()))
    gate.process()
    results = [adds[1](xs[1]) for _ in range(10)]

    def has_turns() -> bool:
        turns = range(page.done(0) + 1, page.issued(0) + 1)
        return clients[1]._slots[0] in [page.owner(0, turn) for turn in turns]

    until(has_turns, "it has turns further back")
    waiting = adds[2](xs[2])
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(WorkerLostError):
        results[0].result()
    gate.open()
    assert held.result() == gate.number + 1
    assert waiting.result() == 2
    assert adds[0](held).result() == gate.number + 2
    for each in clients:
        each.close()
    page.close()


def test_a_host_with_little_refuses_alone_and_its_end_is_an_error_of_all(
    poor: PoorIsland, own_gates: None
) -> None:
    gate = Gate()
    until(lambda: not workers(poor), "nobody else is left")
    clients = [poor.connect(devices=[0, 1]) for _ in range(2)]
    with pytest.raises(FlowError, match="5 workers at most"):
        poor.connect(devices=[0, 1])
    pairs = [each.slice(2) for each in clients]
    sums = [each.function(SUMMED) for each in pairs]
    xs = [each.put(torch.ones(1)) for each in pairs]
    for _ in range(50):  # by turns
        ys = [f(x) for f, x in zip(sums, xs, strict=True)]
        assert [int(each) for y in ys for each in y.shards()] == [2] * 4
    silent = [Raw(poor.folder) for _ in range(70)]
    assert silent[0].is_refused()
    assert [int(each) for each in sums[0](xs[0]).shards()] == [2, 2]
    for each in silent:
        each.socket.close()
    with poor.connect(devices=[0]) as client:  # the last slot
        one = client.slice(1)
        assert one.function(ADD)(one.put(torch.ones(1))).result() == 2
    waiting = pairs[0].function(GATED)(pairs[0].put(gate.tensor()))
    pids = [gate.process(rank) for rank in range(2)]
    poor._process.kill()
    for f, x in zip(sums, xs, strict=True):
        with pytest.raises(WorkerLostError):
            f(x).shards()
    with pytest.raises(WorkerLostError, match="host is gone"):
        waiting.shards()
    until(lambda: all(map(is_over, pids)), "the workers have ended")
    for each in clients:
        each.close()


def test_an_operation_whose_peer_waits_for_its_turn_is_not_taken_to_hang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _prepare(monkeypatch, tmp_path)
    held, hangs = Gate(), Gate()
    with PoorIsland(3) as island, contextlib.ExitStack() as stack:
        page = Page(island.folder / "page", 3, 6)
        holder = stack.enter_context(island.connect(devices=[1]))
        client = stack.enter_context(island.connect(devices=[0, 1], op_timeout_s=1.0))
        measure = stack.enter_context(island.connect(devices=[2], op_timeout_s=1.0))
        one, pair, alone = holder.slice(1), client.slice(2), measure.slice(1)
        sums, x = pair.function(SUMMED), pair.put(torch.ones(1))
        sums(x).shards()
        gated = one.function(GATED)(one.put(held.tensor()))
        held.process()
        y = sums(x)
        until(lambda: page.of(client._slots[0], PRESENT) == 2, "one of its shards has begun")
        hung = alone.function(GATED)(alone.put(hangs.tensor()))
        with pytest.raises(WorkerLostError, match="op_timeout_s"):  # began later, and was counted
            hung.result()
        assert page.of(client._slots[1], PRESENT) == 1
        held.open()
        assert [int(each) for each in y.shards()] == [2, 2]
        assert gated.result() == held.number + 1
        page.close()


def test_a_program_that_is_killed_leaves_no_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _prepare(monkeypatch, tmp_path)
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            client = flow.local(1)
            one = client.slice(1)
            worker = int(one.function(PROCESS)(one.put(torch.ones(1))).result())
            host = psutil.Process(worker).ppid()
            os.write(writer, f"{client.parcels.parent} {host} {worker}".encode())
            signal.pause()
        finally:
            os._exit(1)
    os.close(writer)
    folder, *pids = os.read(reader, 1000).decode().split()
    os.close(reader)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    until(lambda: not Path(folder).exists(), "the folder is gone")
    until(lambda: all(is_over(int(each)) for each in pids), "host and worker have ended")
