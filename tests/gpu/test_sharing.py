"""What CUDA offers to a background, on a real device."""

import os

import pytest
import torch

from rota.share.cuda import EventPieces, bound_memory
from rota.share.mps import mps_environment

pytestmark = pytest.mark.gpu
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")


@needs_gpu
def test_a_piece_is_over_when_the_device_has_come_to_its_end():
    device = torch.device("cuda", 0)
    pieces = EventPieces(device)
    torch.cuda._sleep(200_000_000)
    pieces.launched()
    assert pieces.over() == 0
    torch.cuda.synchronize(device)
    assert (pieces.over(), pieces.over()) == (1, 0)


@needs_gpu
def test_a_background_runs_out_of_memory_first():
    device = torch.device("cuda", 0)
    try:
        assert 0 < bound_memory(device, bytes_at_most=64 << 20) < 1
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(256 << 20, dtype=torch.uint8, device=device)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device)


def test_priorities_of_mps_are_told_only_where_its_daemon_is():
    assert mps_environment({}, background=True) == {}
    there = {"CUDA_MPS_PIPE_DIRECTORY": os.devnull}
    assert mps_environment(there, background=False) == {"CUDA_MPS_CLIENT_PRIORITY": "0"}
    assert mps_environment(there, background=True, percentage=30) == {
        "CUDA_MPS_CLIENT_PRIORITY": "1",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "30",
    }
