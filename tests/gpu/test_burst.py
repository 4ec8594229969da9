"""Layers on GPUs of their own, by NCCL, train as one GPU does."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.gpu
SCRIPT = Path(__file__).with_name("burst_on_gpus.py")


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there are not two GPUs")
def test_a_plan_on_two_gpus_trains_as_one_gpu_does(tmp_path):
    trained = []
    for ranks in (1, 2):
        out = tmp_path / f"{ranks}.pt"
        launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
        subprocess.run([sys.executable, *launch, str(SCRIPT), str(out)], check=True, timeout=300)
        trained.append(torch.load(out))
    one, two = trained
    assert one.keys() == two.keys()
    assert max((one[name] - two[name]).abs().max().item() for name in one) < 1e-9
