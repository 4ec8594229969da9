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
from support.fake_gpus import HIDDEN

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
