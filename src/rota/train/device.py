"""Moving a job's state between its device and host memory, and data-parallel set-up."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn.parameter import is_lazy


class DeviceState:
    """The tensors that tie a job to its device: parameters, gradients, buffers, optimiser state.

    On a CPU nothing needs to move. On a GPU :meth:`offload` copies them to page-locked host memory
    and gives the cache back to the driver; :meth:`restore` copies them to the GPU to go on with.
    Tensor objects stay the same, so that references held by the optimiser and by user code stay
    valid. The host memory is kept for the next time: making it costs more than the copy.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._models: list[torch.nn.Module] = []
        self._optimizers: list[torch.optim.Optimizer] = []
        self._host: dict[tuple[int, str], torch.Tensor] = {}

    def add(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Include a model and its optimiser."""
        self._models.append(model)
        self._optimizers.append(optimizer)

    def model_sizes(self) -> tuple[int, int]:
        """Bytes in all parameters of the models, each counted once, and in the largest of them.

        Parameters of lazy modules, whose shapes are not known yet, are left out.
        """
        parameters = {id(p): p for model in self._models for p in model.parameters()}
        sizes = [p.nbytes for p in parameters.values() if not is_lazy(p)]
        return sum(sizes), max(sizes, default=0)

    def offload(self) -> None:
        """Copy everything to host memory and free the device."""
        if self.device.type != "cuda":
            return
        self._replace(self._to_host)
        torch.cuda.synchronize(self.device)
        torch.cuda.empty_cache()

    def restore(self, index: int | None) -> None:
        """Copy everything back, to GPU ``index`` of the visible ones if it is given."""
        if self.device.type != "cuda":
            return
        if index is not None:
            self.device = torch.device("cuda", index)
            torch.cuda.set_device(self.device)
        self._replace(lambda tensor, _: tensor.to(self.device, non_blocking=True))
        torch.cuda.synchronize(self.device)

    def _to_host(self, tensor: torch.Tensor, key: tuple[int, str]) -> torch.Tensor:
        host = self._host.get(key)
        if host is None or host.shape != tensor.shape or host.dtype != tensor.dtype:
            host = torch.empty_like(tensor, device="cpu", pin_memory=True)
            self._host[key] = host
        return host.copy_(tensor, non_blocking=True)

    def _replace(self, change: Callable[[torch.Tensor, tuple[int, str]], torch.Tensor]) -> None:
        """Put what ``change`` makes of each tensor in its place."""
        for model in self._models:
            for parameter in model.parameters():
                parameter.data = change(parameter.data, (id(parameter), "data"))
                if parameter.grad is not None:
                    gradient = parameter.grad
                    gradient.data = change(gradient.data, (id(parameter), "grad"))
            for buffer in model.buffers():
                buffer.data = change(buffer.data, (id(buffer), "data"))
        for optimizer in self._optimizers:
            for parameter, state in optimizer.state.items():
                for name, value in state.items():
                    # Adam keeps its step count, a tensor without dimensions, on the host.
                    if hasattr(value, "dim") and value.dim() > 0:
                        state[name] = change(value, (id(parameter), name))


def choose_device(index: int | None) -> torch.device:
    """The device that this process was given: GPU ``index``, else the first GPU, else the CPU."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", index if index is not None else 0)
    torch.cuda.set_device(device)
    return device
