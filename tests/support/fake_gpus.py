"""A host whose workers compute on made-up GPUs, and functions that know them.

    python -m support.fake_gpus FOLDER DEVICES MEMORY_BYTES cpu --agent

A tensor on a made-up GPU is in host memory like any other, but has a type of its own.
"""

import os
import shutil
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from rota import flow
from rota.errors import FlowError

HIDDEN = "HIDDEN_FAKE_GPU"  # the GPU that a job's workers can't have
# A folder: while it has a file "hold", nothing that was launched is over. Functions and waits write
# what they did to its file "notes".
HOLDING = "HOLDING_FAKE_GPUS"


class OnGpu(torch.Tensor):
    """A tensor on a made-up GPU."""


class Held:
    """See :class:`rota.flow.accelerator.Launch`."""

    def end(self) -> None:
        pass

    def over(self) -> bool:
        return HOLDING not in os.environ or not Path(os.environ[HOLDING], "hold").exists()

    def wait(self) -> None:
        while not self.over():
            time.sleep(0.001)
        _note("awaited")


class FakeGpus:
    """See :class:`rota.flow.accelerator.Accelerator`."""

    kind, moves, quantum_s = "cpu", True, 0.0

    def __init__(self) -> None:
        self._device: int | None = None

    def take(self, device: int) -> None:
        if os.environ.get(HIDDEN) == str(device):
            raise FlowError(f"there is no GPU {device}")
        self._device = device

    def leave(self) -> None:
        self._device = None

    def bring(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor if self._device is None else tensor.as_subclass(OnGpu)

    def host(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.as_subclass(torch.Tensor)

    def launch(self) -> "Held":
        return Held()

    def group(self, store: dist.Store, rank: int, size: int, timeout: timedelta) -> Any:
        return dist.ProcessGroupGloo(store, rank, size, timeout)

    def hang_up(self, backend: Any) -> None:
        pass


def doubled_there(x: torch.Tensor) -> torch.Tensor:
    """Twice its input, which must be on a made-up GPU unless the function is only outlined."""
    _must_be_there(x)
    return 2 * x


def total_there(x: torch.Tensor) -> torch.Tensor:
    """The sum over all shards, by a collective of GPUs."""
    _must_be_there(x)
    y = x + 0
    dist.all_reduce(y, group=flow.shard().group)
    return y


def noted(x: torch.Tensor) -> torch.Tensor:
    """Its input, noted."""
    if type(x).__name__ == OnGpu.__name__:  # this module is loaded twice, as the host too
        _note(int(x))
    return x + 0


def _note(what: object) -> None:
    if HOLDING in os.environ:
        with Path(os.environ[HOLDING], "notes").open("a") as file:
            print(what, file=file)


def _must_be_there(x: torch.Tensor) -> None:
    if type(x) in (torch.Tensor, torch.nn.Parameter):
        raise TypeError("this tensor is in host memory")


def main() -> None:
    """Be the host."""
    from rota.flow.host import Host

    torch.set_num_threads(1)
    folder, devices, memory_bytes = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    host = Host(folder, devices, memory_bytes, on=FakeGpus)
    try:
        host.serve(None)
    finally:
        host.close()
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
