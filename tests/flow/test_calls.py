"""Calls on slices: what they give, when they return, what runs and is freed without the client."""

import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator

import psutil
import pytest
import torch

from rota import flow
from rota.flow import wire
from rota.flow.client import MOST_AHEAD
from rota.flow.parcels import unpack

from .conftest import until

HERE = "support.flow_functions"
LAYOUTS = (flow.Replicated(), flow.Split(0), flow.Split(1), flow.Split(-1))
SHAPES = ((4, 6), (5, 3), (1, 1), (0, 3), (3, 0))


@pytest.fixture
def messages(monkeypatch) -> Iterator[list]:
    """All messages that clients send from now on."""
    sent: list = []
    encoded = wire.encoded

    def counted(message):
        sent.extend(message if isinstance(message, list) else [message])
        return encoded(message)

    monkeypatch.setattr(wire, "encoded", counted)
    return sent


# -- values ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2])
def test_an_array_comes_back_as_it_was_put_in_every_layout(client, size):
    where = client.slice(size)
    for shape in SHAPES:
        x = torch.arange(shape[0] * shape[1]).reshape(shape)
        for layout in LAYOUTS:
            put = where.put(x, layout)
            assert put.shape == shape
            assert torch.equal(put.result(), x), (shape, layout)
            parts = [x] * size
            if isinstance(layout, flow.Split):
                parts = list(x.tensor_split(size, layout.dim))
            for have, want in zip(put.shards(), parts, strict=True):
                assert torch.equal(have, want), (shape, layout)


def test_an_array_moves_from_every_layout_to_every_other_one_on_every_slice(client):
    slices = [client.slice(2), client.slice(1), client.slice(1)]
    x = torch.arange(15.0).reshape(5, 3)
    for source in slices:
        for first in LAYOUTS:
            put = source.put(x, first)
            for target in slices:
                assert torch.equal(put.to(target).result(), x)
                for layout in LAYOUTS:
                    assert torch.equal(put.to(target, layout).result(), x), (first, layout)


@pytest.mark.parametrize(
    "dtype",
    [torch.bool, torch.uint8, torch.int64, torch.bfloat16, torch.float64, torch.complex64],
    ids=str,
)
def test_arrays_keep_their_types(client, dtype):
    where = client.slice(2)
    x = torch.tensor([1, 0, 1]).to(dtype)
    put = where.put(x, flow.Split(0))
    moved = put.to(client.slice(1), flow.Replicated())
    for found in (put.result(), moved.result()):
        assert found.dtype == dtype
        assert torch.equal(found, x)


@pytest.mark.parametrize("size", [1, 2])
def test_functions_run_on_all_shards_with_collectives(client, size):
    where = client.slice(size)
    x = torch.arange(5)
    total = where.function(f"{HERE}:plus_total", flow.Split(0))
    assert total(where.put(x, flow.Split(0))).result().tolist() == (x + 10).tolist()
    sums = where.function(f"{HERE}:sums", flow.Replicated())
    parts = [int(each.sum()) for each in x.tensor_split(size)]
    assert sums(where.put(x, flow.Split(0))).result().tolist() == parts
    two = where.function(f"{HERE}:two", [flow.Split(0), flow.Split(0)])
    less, more = two(where.put(x, flow.Split(0)), where.put(x + 1, flow.Split(0)))
    assert less.result().tolist() == [1] * 5
    assert more.result().tolist() == (2 * x).tolist()


def test_outputs_that_nothing_is_said_of_are_arrays_of_their_own(client):
    where = client.slice(2)
    ranks = where.function(f"{HERE}:doubled_ranks")(where.put(torch.tensor([1])))
    assert [each.tolist() for each in ranks.shards()] == [[2], [3]]


def test_arguments_come_from_other_slices(client):
    first, second = client.slice(1), client.slice(1)
    added = second.function(f"{HERE}:added")
    x, y = first.put(torch.tensor([1, 2])), second.put(torch.tensor([10, 20]))
    assert added(x, y).result().tolist() == [11, 22]


# -- asynchronous ----------------------------------------------------------------------------------


def test_calls_return_before_their_inputs_exist(island, client, gate):
    one, other = client.slice(1), client.slice(1)
    x = one.put(torch.tensor([gate.number]))
    scaled = one.function(f"{HERE}:scaled")
    scaled(x).result()  # a worker that is held could not tell its shapes
    before = island.finished(client)
    y = one.function(f"{HERE}:gated")(x)
    z = scaled(y)
    moved = z.to(other)
    last = other.function(f"{HERE}:scaled")(moved)
    x.free()
    gate.wait_begun()  # and all calls have returned
    assert [island.finished(client, worker) for worker in (0, 1)] == [before, 0]
    gate.open()
    assert last.result().tolist() == [3 * (3 * (gate.number + 1) + 1) + 1]


def test_a_result_does_not_wait_for_later_calls(island, client, gate):
    where = client.slice(1)
    x = where.put(torch.tensor([gate.number]))
    held = where.function(f"{HERE}:gated")
    first, second = held(x), held(x)
    gate.wait_begun()
    asked = [client._ask(0, wire.Fetch, each.number, "none") for each in (x, first)]
    gate.open()
    found = [int(unpack(client._answer(0, each).packed)) for each in asked]
    assert found == [gate.number, gate.number + 1]
    assert island.finished(client) == 1  # the second is held
    gate.open()
    assert second.result().tolist() == [gate.number + 1]


SCRIPT = """
import os
import sys

import torch

from rota import flow
from rota.flow import wire

FOLDER = os.environ["ROTA_TEST_FLOW_FOLDER"]
NUMBER = int(sys.argv[2])


def opened(kind):
    return os.open(f"{FOLDER}/{kind}{NUMBER}", os.O_RDWR)


def held(x):
    if type(x) is torch.Tensor:  # and not a fake one
        os.write(opened("begun"), b".")
        os.read(opened("gate"), 1)
    return x + 1


def plus_other(x):
    group = flow.shard().group
    total = x.sum()
    torch.distributed.all_reduce(total, group=group)
    return x + total % 7


with flow.connect(sys.argv[1], devices=[0, 1]) as c:
    pair = c.slice(2)
    first = pair.function(held, flow.Split(0))
    step = pair.function(plus_other, flow.Split(0))
    chain = c.program(lambda x: flow.repeat(128, step, first(x)))
    y = chain(pair.put(torch.tensor([1, 2]), flow.Split(0)))
    print(*c._slots, flush=True)
    print(*y.result().tolist(), flush=True)
"""


def test_a_chain_of_functions_of_a_script_runs_in_workers_while_the_script_is_stopped(
    island, gate, tmp_path
):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, str(script), str(island.folder), str(gate.number)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        slots = [int(each) for each in process.stdout.readline().split()]
        gate.wait_begun(2)
        process.send_signal(signal.SIGSTOP)
        seen = psutil.Process(process.pid)
        until(lambda: seen.status() == psutil.STATUS_STOPPED, "the script is stopped")
        gate.open(2)
        until(
            lambda: [island.page.of(each, 0) for each in slots] == [129, 129],
            "all operations have run",
        )
        assert seen.status() == psutil.STATUS_STOPPED
        process.send_signal(signal.SIGCONT)
        found = [int(each) for each in process.stdout.readline().split()]
    x = torch.tensor([2, 3])
    for _ in range(128):
        x = x + x.sum() % 7
    assert found == x.tolist()


def test_a_program_is_one_message_to_each_worker_and_its_definition_is_sent_once(client, messages):
    pair = client.slice(2)
    step = pair.function(f"{HERE}:plus_total", flow.Split(0))
    chain = client.program(lambda x: flow.repeat(128, step, x))
    x = pair.put(torch.tensor([0, 0]), flow.Split(0))
    y = chain(x)
    kinds = Counter(type(each).__name__ for each in messages)
    assert (kinds["DefineProgram"], kinds["Run"]) == (2, 2)
    assert kinds["DefineGangs"] == 1
    messages.clear()
    z = chain(y)
    assert Counter(type(each).__name__ for each in messages) == {"Run": 2}
    assert z.result().tolist() == [0, 0]


def test_futures_that_nobody_asks_for_make_submission_wait(island, gate):
    client = island.connect(devices=[0])
    called, kept, problems, ahead = [0], [], [], [0]

    def submit() -> None:
        try:
            one = client.slice(1)
            scaled = one.function(f"{HERE}:scaled")
            x = one.put(torch.tensor([gate.number]))
            kept.append(one.function(f"{HERE}:gated")(x))
            for called[0] in range(2, 3 * MOST_AHEAD):
                kept.append(scaled(x))
                ahead[0] = max(ahead[0], called[0] - island.finished(client))
            kept.append(x)
        except Exception as error:
            problems.append(error)

    thread = threading.Thread(target=submit)
    thread.start()
    gate.wait_begun()
    looks = [-1] * 50
    while len(set(looks)) > 1 or looks[0] < 2:  # it seems to wait
        looks = [*looks[1:], called[0]]
        time.sleep(0.002)
    assert thread.is_alive()
    assert island.finished(client) == 0
    gate.open()
    thread.join()
    assert not problems
    assert ahead[0] <= MOST_AHEAD + 1
    assert kept[-2].result().tolist() == [3 * gate.number + 1]
    client.wait()
    assert island.held_bytes(client) == [8 * len(kept)]
    kept.clear()
    client.wait()
    assert island.held_bytes(client) == [0]
    client.close()


# -- memory ----------------------------------------------------------------------------------------


def test_a_buffer_is_one_handle_and_is_freed_once_on_all_its_shards(island, client, messages):
    pair = client.slice(2)
    x = pair.put(torch.zeros(4, dtype=torch.float64), flow.Split(0))
    y = pair.function(f"{HERE}:plus_total", flow.Split(0))(x)
    client.wait()
    assert island.held_bytes(client) == [32, 32]
    number = y.number
    y.free()
    y.free()
    del y
    client.wait()
    freed = [each.buffers for each in messages if isinstance(each, wire.Free)]
    assert freed == [[number], [number]]  # by each worker
    assert island.held_bytes(client) == [16, 16]
    del x
    client.wait()
    assert island.held_bytes(client) == [0, 0]


def test_what_a_program_makes_on_the_way_is_gone_when_it_ends(island, client):
    pair = client.slice(2)
    scaled = pair.function(f"{HERE}:scaled", flow.Split(0))
    x = pair.put(torch.zeros(4, dtype=torch.float64), flow.Split(0))
    z = client.program(lambda x: flow.repeat(10, scaled, x))(x)
    client.wait()
    assert island.held_bytes(client) == [32, 32]
    del z, x
    client.wait()
    assert island.held_bytes(client) == [0, 0]
    # What it has run, and where its workers met.
    assert sorted(each.name for each in client.parcels.iterdir()) == ["log", "slice1.0.0"]


def test_what_a_client_had_is_gone_with_it(island):
    client = island.connect(devices=[0, 1])
    before = island.workers()
    pair = client.slice(2)
    x = pair.put(torch.zeros(4), flow.Split(0))
    pair.function(f"{HERE}:plus_total", flow.Split(0))(x).result()
    parcels = client.parcels
    client.close()
    until(lambda: not parcels.exists(), "its parcels are gone")
    until(lambda: not any(each.is_running() for each in before), "its workers are gone")


def test_a_wait_for_memory_that_is_interrupted_leaves_nothing(folder, monkeypatch):
    x = torch.zeros(600, dtype=torch.uint8)
    with (
        flow.LocalIsland(1, memory_bytes=1000) as island,
        island.connect() as one,
        island.connect() as other,
    ):
        held = one.slice(1).put(x)
        where = other.slice(1)

        def interrupted(_: float | None) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(other, "_look", interrupted)
            with pytest.raises(KeyboardInterrupt):
                where.put(x)
        assert where.put(x[:300]).result().shape == (300,)
        held.free()
        assert where.put(x).result().shape == (600,)
        assert one.slice(1).put(x).result().shape == (600,)


def test_importing_flow_and_what_agents_use_of_it_loads_no_torch():
    code = """
import sys
import rota.flow, rota.flow.island, rota.flow.order, rota.flow.page, rota.flow.layout
assert "torch" not in sys.modules
rota.flow.Split(0)
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
