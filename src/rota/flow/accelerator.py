"""The devices that workers compute on: cores of this machine, or its GPUs by CUDA.

A worker has its buffers there while it has a device, and in host memory while it has none. What it
sends to other workers and to its client goes by way of host memory.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist

from rota.errors import FlowError


class Launch(Protocol):
    """What an operation has launched on a device, which goes on after the operation returns."""

    def end(self) -> None:
        """All of it has been launched."""

    def over(self) -> bool:
        """Whether the device has come to its end; does not wait."""

    def wait(self) -> None:
        """Return once it is over."""


class Accelerator(Protocol):
    """A kind of devices, of which a worker has at most one at a time."""

    kind: str  # as torch calls it
    moves: bool  # True if buffers and process groups are of one device, and not of the process
    quantum_s: float  # for which programs should have a device in turns: see rota.flow.order

    def take(self, device: int) -> None:
        """Compute on this device from now on. Raises FlowError if there is no such device."""

    def leave(self) -> None:
        """Have no device: nothing may be there any more."""

    def bring(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor on the present device, or in host memory while there is none."""

    def host(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor in host memory."""

    def launch(self) -> Launch | None:
        """What is launched from now on; None if operations are over when they return."""

    def group(self, store: dist.Store, rank: int, size: int, timeout: timedelta) -> Any:
        """The backend of a process group whose collectives take tensors of the device."""

    def hang_up(self, backend: Any) -> None:
        """Have those fail who wait for this worker in a group; its sockets are hung up anyway."""


class Cores:
    """Cores of this machine: operations are over when they return."""

    kind, moves, quantum_s = "cpu", False, 0.0

    def take(self, device: int) -> None:
        """See :class:`Accelerator`."""

    def leave(self) -> None:
        """See :class:`Accelerator`."""

    def bring(self, tensor: torch.Tensor) -> torch.Tensor:
        """See :class:`Accelerator`."""
        return tensor

    def host(self, tensor: torch.Tensor) -> torch.Tensor:
        """See :class:`Accelerator`."""
        return tensor

    def launch(self) -> Launch | None:
        """See :class:`Accelerator`."""
        return None

    def group(self, store: dist.Store, rank: int, size: int, timeout: timedelta) -> Any:
        """See :class:`Accelerator`."""
        return dist.ProcessGroupGloo(store, rank, size, timeout)

    def hang_up(self, backend: Any) -> None:
        """See :class:`Accelerator`."""


class CudaLaunch:
    """Kernels of one stream before an event; see :class:`Launch`."""

    def __init__(self) -> None:
        self._last = torch.cuda.Event()

    def end(self) -> None:
        """See :class:`Launch`."""
        self._last.record()

    def over(self) -> bool:
        """See :class:`Launch`."""
        return bool(self._last.query())

    def wait(self) -> None:
        """See :class:`Launch`."""
        self._last.synchronize()


class Cuda:
    """GPUs of this machine, numbered as CUDA shows them to the worker.

    Kernels are launched in the order of tickets, and a turn is passed on when they are over: other
    programs' kernels come after them. Collectives are NCCL's.
    """

    # A GPU changes from one process to another in 0.1 to 0.2 ms, by MPS or without.
    kind, moves, quantum_s = "cuda", True, 0.002

    def __init__(self) -> None:
        self._device: torch.device | None = None

    def take(self, device: int) -> None:
        """See :class:`Accelerator`."""
        if device >= torch.cuda.device_count():
            raise FlowError(f"CUDA shows {torch.cuda.device_count()} GPUs, and no GPU {device}")
        torch.cuda.set_device(device)
        self._device = torch.device("cuda", device)

    def leave(self) -> None:
        """See :class:`Accelerator`."""
        self._device = None
        torch.cuda.empty_cache()  # else the allocator would keep what buffers had

    def bring(self, tensor: torch.Tensor) -> torch.Tensor:
        """See :class:`Accelerator`."""
        return tensor if self._device is None else tensor.to(self._device)

    def host(self, tensor: torch.Tensor) -> torch.Tensor:
        """See :class:`Accelerator`."""
        return tensor.cpu()

    def launch(self) -> Launch:
        """See :class:`Accelerator`."""
        return CudaLaunch()

    def group(self, store: dist.Store, rank: int, size: int, timeout: timedelta) -> Any:
        """See :class:`Accelerator`."""
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = timeout
        return dist.ProcessGroupNCCL(store, rank, size, options)

    def hang_up(self, backend: Any) -> None:
        """See :class:`Accelerator`."""
        backend.abort()


def kind_of(name: str) -> type[Cores] | type[Cuda]:
    """The accelerator of this kind. Raises FlowError if it is unknown, or torch lacks it."""
    known = {each.kind: each for each in (Cores, Cuda)}
    if name not in known:
        raise FlowError(f"kind: {name!r} is none; write one of {', '.join(known)}")
    if name == "cuda" and not (torch.backends.cuda.is_built() and dist.is_nccl_available()):
        raise FlowError("kind: this build of torch can't use GPUs; install one with CUDA and NCCL")
    return known[name]
