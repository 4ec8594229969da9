"""Tells a page in which segment of its step a training is, by hooks on what it trains."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from rota.share.marks import BACKWARD, FORWARD, LOAD, OPTIMISE
from rota.share.page import MarkWriter

if TYPE_CHECKING:
    import torch


class Segments:
    """The marks of one rank, if it was told a page; without one no hook is set.

    A step begins with loading. Forward begins as the model is called, or as a loader's piece is
    there; backward as a gradient arrives at the model's output; the optimiser's segment lasts until
    the next step. Marks are those of the program: on a GPU, of when it launches what follows.
    """

    def __init__(self, path: str | None, device: int) -> None:
        self.page = MarkWriter(path, device)
        self._cut: Any = None

    def watch(self, model: torch.nn.Module, optimizers: Iterable[Any]) -> None:
        """Set the hooks of a model and of its optimisers."""
        if not self.page.on:
            return
        model.register_forward_pre_hook(self._forward)
        model.register_forward_hook(self._forward_over)
        for optimizer in optimizers:
            if hasattr(optimizer, "register_step_pre_hook"):
                optimizer.register_step_pre_hook(self._optimise)

    def end_step(self, segment: int, cut: Any) -> None:
        """A step is over; ``segment`` follows. Times are learned anew if its ``cut`` is another.

        That is whatever its time depends on: the ranks, how batches are cut.
        """
        if not self.page.on:
            return
        self.page.end_step(segment)
        if cut != self._cut:
            self._cut = cut
            self.page.renew()

    def move(self, device: int | None) -> None:
        """The training goes on, on this device if one is named."""
        if device is not None:
            self.page.move(device)
        self.page.renew()
        self.page.enter(LOAD)

    def _forward(self, *_: Any) -> None:
        self.page.enter_step(FORWARD)

    def _forward_over(self, _: Any, __: Any, output: Any) -> None:
        if (tensor := first_tensor(output)) is not None:
            tensor.register_hook(self._backward)

    def _backward(self, _: torch.Tensor) -> None:
        self.page.enter_step(BACKWARD)

    def _optimise(self, *_: Any) -> None:
        self.page.enter_step(OPTIMISE)


def first_tensor(output: Any) -> torch.Tensor | None:
    """The first tensor of a model's output that a gradient will arrive at; None without one."""
    if hasattr(output, "requires_grad"):
        return output if output.requires_grad else None
    parts: Iterable[Any] = ()
    if isinstance(output, Mapping):
        parts = output.values()
    elif isinstance(output, list | tuple):
        parts = output
    return next((found for each in parts if (found := first_tensor(each)) is not None), None)
