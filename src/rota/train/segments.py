"""Tells a page in which segment of its step a training is, by hooks on what it trains."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from rota.share.marks import BACKWARD, FORWARD, LIMIT, LOAD, OPTIMISE
from rota.share.page import MarkWriter

if TYPE_CHECKING:
    import torch


class Segments:
    """The marks of one rank, if it was told a page; without one no hook is set.

    ``limit`` is the slowdown that it allows, as text.

    A step begins with loading. Forward begins as the model is called, or as a loader's piece is
    there; backward as a gradient arrives at the model's output; the optimiser's segment lasts until
    the next step. Marks are those of the program: on a GPU, of when it launches what follows.
    """

    def __init__(self, path: str | None, limit: str | None = None) -> None:
        self.page = MarkWriter(path, _limit_of(limit))
        self._cut: Any = None

    def watch(self, model: torch.nn.Module, optimizers: Iterable[torch.optim.Optimizer]) -> None:
        """Set the hooks of a model and of its optimisers, which no framework has wrapped."""
        if not self.page.on:
            return
        model.register_forward_pre_hook(self._forward)
        model.register_forward_hook(self._forward_over)
        for optimizer in optimizers:
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

    def go_on(self) -> None:
        """The training goes on, maybe on another device."""
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


def _limit_of(text: str | None) -> float:
    """The limit; the usual one for what is none, which a program may have set."""
    try:
        limit = float(text or LIMIT)
    except ValueError:
        return LIMIT
    return limit if 1.0 <= limit < float("inf") else LIMIT


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
