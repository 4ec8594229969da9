"""Programs of flow on real GPUs: kernels, collectives of NCCL, transfers by way of host memory."""

import os
from pathlib import Path

import pytest
import torch

from rota import flow
from rota.errors import OperationError

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"),
]
HERE = "support.flow_functions"


@pytest.fixture(autouse=True)
def path(monkeypatch: pytest.MonkeyPatch) -> None:
    tests = str(Path(__file__).parents[1])
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join(filter(None, (tests, os.environ.get("PYTHONPATH"))))
    )


def test_functions_compute_on_a_gpu() -> None:
    with flow.local(1, kind="cuda") as client:
        one = client.slice(1)
        doubled = one.function(f"{HERE}:doubled_ranks")
        x = one.put(torch.arange(100_000, dtype=torch.float32))
        for _ in range(10):
            x = doubled(x)
        assert x.result().equal(1024 * torch.arange(100_000, dtype=torch.float32))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there are not two GPUs")
def test_gangs_reduce_by_nccl() -> None:
    with flow.local(2, kind="cuda") as client:
        pair, one = client.slice(2), client.slice(1)
        total = pair.function(f"{HERE}:plus_total", out=flow.Split(0))
        x = total(pair.put(torch.ones(4), flow.Split(0)))
        assert x.result().tolist() == [5.0] * 4
        assert x.to(one, flow.Replicated()).result().tolist() == [5.0] * 4


def test_an_error_is_told_and_another_program_goes_on() -> None:
    with flow.LocalIsland(1, kind="cuda") as island:
        client, other = island.connect(name="one"), island.connect(name="other")
        one, beside = client.slice(1), other.slice(1)
        x = one.function(f"{HERE}:raises")(one.put(torch.ones(1)))
        with pytest.raises(OperationError):
            x.result()
        assert beside.function(f"{HERE}:doubled_ranks")(beside.put(torch.ones(1))).result() == 2
        for each in (client, other):
            each.close()
