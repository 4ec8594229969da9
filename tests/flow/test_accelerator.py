"""Buffers are on the devices of their workers, and in host memory while these have none."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from rota import flow
from rota.errors import FlowError, WorkerLostError
from rota.flow.accelerator import Cores, kind_of
from rota.flow.page import FINISHED
from support.fake_gpus import HIDDEN, HOLDING

from .conftest import until
from .test_seats import DEVICES, Host, Job, serving

THERE = "support.fake_gpus"


@pytest.fixture(scope="module")
def gpus(folder: Path) -> Iterator[Host]:
    """A host of made-up GPUs."""
    with serving(folder, THERE) as made:
        yield made


def test_functions_compute_on_gpus_alone_wherever_their_inputs_come_from(gpus: Host) -> None:
    job = Job(gpus, list(range(DEVICES)), 1.0)
    with job.connect() as client:
        left, right, both = client.slice(1), client.slice(1), client.slice(2)
        doubled = [each.function(f"{THERE}:doubled_there") for each in (left, right)]
        total = both.function(f"{THERE}:total_there", out=flow.Replicated())
        large = torch.arange(50_000, dtype=torch.float32)  # does not fit a message
        for x in (torch.arange(3.0), large):
            here = doubled[0](left.put(x))
            there = doubled[1](here)  # a transfer
            assert there.result().equal(4 * x)
            assert type(there.result()) is torch.Tensor
            assert total(there.to(both, flow.Replicated())).result().equal(8 * x)


def test_buffers_and_gangs_follow_their_workers_to_other_gpus(gpus: Host) -> None:
    job = Job(gpus, [0, 1], 1.0)
    with job.connect() as client:
        pair = client.slice(2)
        doubled = pair.function(f"{THERE}:doubled_there", out=flow.Split(0))
        total = pair.function(f"{THERE}:total_there", out=flow.Each())
        x = doubled(pair.put(torch.arange(6.0), flow.Split(0)))
        assert total(x).shards()[0].tolist() == [6.0, 10.0, 14.0]
        job.pause()
        assert x.result().tolist() == [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]  # from host memory
        late = pair.put(torch.ones(2), flow.Split(0))  # into host memory
        waits = total(doubled(late))
        job.place(3, 2)
        assert [each.tolist() for each in waits.shards()] == [[4.0], [4.0]]
        assert [each.tolist() for each in total(doubled(x)).shards()] == [[12.0, 20.0, 28.0]] * 2
        job.move(2, 3)
        assert [each.tolist() for each in total(x).shards()] == [[6.0, 10.0, 14.0]] * 2


def test_a_program_in_the_middle_goes_on_where_its_worker_is_then(gpus: Host, gate: Any) -> None:
    job = Job(gpus, [0], 1.0)
    with job.connect() as client:
        one = client.slice(1)
        doubled = one.function(f"{THERE}:doubled_there")
        gated = one.function("support.flow_functions:gated")
        program = client.program(lambda x, number: (doubled(doubled(x)), gated(number), doubled(x)))
        values = program(one.put(torch.ones(2)), one.put(torch.tensor([gate.number])))
        gate.wait_begun()
        paused = job.begin_pause()
        gate.open()
        assert job.agent.answer(paused).error is None
        job.place(1)
        assert values[0].result().tolist() == [4.0, 4.0]
        assert values[2].result().tolist() == [2.0, 2.0]


class Holding:
    """Keeps what jobs launch from being over, while it is held."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.hold = folder, folder / "hold"
        self.env = dict(os.environ) | {HOLDING: str(folder)}

    def notes(self) -> list[str]:
        notes = self.folder / "notes"
        return notes.read_text().split() if notes.exists() else []


def test_a_program_alone_launches_operations_before_those_before_them_are_over(
    gpus: Host, tmp_path: Path
) -> None:
    holding = Holding(tmp_path)
    first, other = Job(gpus, [0], 1.0, env=holding.env), Job(gpus, [0], 1.0, env=holding.env)
    with first.connect() as client, other.connect() as beside:
        one, another = client.slice(1), beside.slice(1)
        noted, theirs = (each.function(f"{THERE}:noted") for each in (one, another))
        value = one.put(torch.tensor(1))
        assert (noted(value).result(), theirs(another.put(torch.tensor(7))).result()) == (1, 7)
        slot = client._slots[0]

        def alone() -> bool:
            noted(value)
            return gpus.page.standing(0) == slot

        until(alone, "it has the device for itself")
        client.wait()
        finished = gpus.page.of(slot, FINISHED)
        holding.hold.touch()
        before = len(holding.notes())
        held = [noted(value) for _ in range(3)]
        until(lambda: len(holding.notes()) == before + 3, "all three are launched")
        assert gpus.page.of(slot, FINISHED) == finished
        late = theirs(another.put(torch.tensor(8)))
        until(lambda: gpus.page.standing(0) == 0, "the other one is to have turns")
        paused = first.begin_pause()
        assert not gpus.agent.has_answer(paused)
        assert holding.notes()[before:] == ["1"] * 3
        holding.hold.unlink()
        assert late.result() == 8
        assert gpus.agent.answer(paused).error is None
        notes = holding.notes()[before:]
        assert notes[:4] == ["1"] * 3 + ["awaited"] and "8" in notes[4:]
        assert [each.result() for each in held] == [1] * 3


def test_a_worker_that_can_not_have_its_gpu_says_so_in_the_log_of_its_job(gpus: Host) -> None:
    job = Job(gpus, [1], 1.0, env=dict(os.environ) | {HIDDEN: "1"})
    with job.connect() as client:
        with pytest.raises(WorkerLostError, match="exit code 1"):
            client.wait()
        assert "FlowError: there is no GPU 1" in job.log.read_text()


def test_kinds_that_are_not_there_are_refused() -> None:
    assert kind_of("cpu") is Cores
    with pytest.raises(FlowError, match="write one of cpu, cuda"):
        kind_of("tpu")
    if not torch.backends.cuda.is_built():
        with pytest.raises(FlowError, match="install one with CUDA and NCCL"):
            kind_of("cuda")
