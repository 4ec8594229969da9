"""Moving a job's state between its device and host memory, and data-parallel set-up."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


class DeviceState:
    """The tensors that tie a job to its device: parameters, gradients, buffers, optimiser state.

    On a CPU nothing needs to move. On a GPU :meth:`offload` copies them to host memory and gives
    the cache back to the driver; :meth:`restore` copies them to the GPU to go on with. Tensor
    objects stay the same, so that references held by the optimiser and by user code stay valid.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._models: list[torch.nn.Module] = []
        self._optimizers: list[torch.optim.Optimizer] = []

    def add(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Include a model and its optimiser."""
        self._models.append(model)
        self._optimizers.append(optimizer)

    def offload(self) -> None:
        """Copy everything to host memory and free the device."""
        if self.device.type != "cuda":
            return
        import torch

        torch.cuda.synchronize(self.device)
        self._move(torch.device("cpu"))
        torch.cuda.empty_cache()

    def restore(self, index: int | None) -> None:
        """Copy everything back, to GPU ``index`` of the node if it is given."""
        if self.device.type != "cuda":
            return
        import torch

        if index is not None:
            self.device = torch.device("cuda", index)
            torch.cuda.set_device(self.device)
        self._move(self.device)
        torch.cuda.synchronize(self.device)

    def _move(self, device: torch.device) -> None:
        for model in self._models:
            for parameter in model.parameters():
                parameter.data = parameter.data.to(device)
                if parameter.grad is not None:
                    parameter.grad.data = parameter.grad.data.to(device)
            for buffer in model.buffers():
                buffer.data = buffer.data.to(device)
        for optimizer in self._optimizers:
            for state in optimizer.state.values():
                for key, value in state.items():
                    # Adam keeps its step count on the host on purpose.
                    if hasattr(value, "to") and value.dim() > 0:
                        state[key] = value.to(device)


def choose_device(index: int | None) -> torch.device:
    """The device that this process was given: GPU ``index``, else the first GPU, else the CPU."""
    import torch

    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", index if index is not None else 0)
    torch.cuda.set_device(device)
    return device


def data_parallel(model: torch.nn.Module, device: torch.device) -> torch.nn.Module:
    """``model`` wrapped for data-parallel training over the ranks in the environment."""
    import torch
    import torch.distributed as dist

    if not dist.is_initialized():
        backend = "nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend)
    devices: Any = [device.index] if device.type == "cuda" else None
    return torch.nn.parallel.DistributedDataParallel(model, device_ids=devices)


def leave_process_group() -> None:
    """Close the process group if one is open."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        import torch.distributed as dist

        if dist.is_initialized():
            dist.destroy_process_group()
