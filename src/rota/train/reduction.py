"""Reduces gradients of a training's models: by Rota's tree, or by torch's DDP."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from rota.errors import InputError
from rota.train.world import World

if TYPE_CHECKING:
    import torch

    from rota.train.replica import Replica

TREE, DDP = "tree", "ddp"


class Reduction:
    """The one way of reduction for all models of a training, by request or by default.

    ``gradients`` are those of a loader's batches, once a loader is known to exist.
    """

    def __init__(self, world: World) -> None:
        self.gradients: Any = None
        self.wrapped: list[Any] = []  # models for DDP
        self._undecided: list[Any] = []  # models without a decision yet
        self._asked_for: set[str | None] = set()
        self._world = world

    def ask(self, reduction: str | None) -> None:
        """Note what the program wants for one more model. Raises InputError."""
        if reduction not in (None, TREE, DDP):
            raise InputError(f"s.prepare: reduction={reduction!r} must be 'tree' or 'ddp'")
        self._asked_for.add(reduction)
        if len(self._asked_for) > 1:
            raise InputError(
                f"s.prepare: reduction={reduction!r} differs from that of a model before; the "
                "gradients of all models come together in one way, so give the same each time"
            )

    def take(self, model: torch.nn.Module, device: torch.device) -> Any:
        """The last requested model, perhaps wrapped."""
        (reduction,) = self._asked_for
        if reduction != DDP and (reduction is not None or self._world.size == 1):
            return model
        from rota.train.parallel import Replicated

        replicated = Replicated(model, device, self._world)
        if reduction == DDP:
            replicated.wrap()
            self.wrapped.append(replicated)
        else:
            self._undecided.append(replicated)
        return replicated

    def without_loader(self) -> bool:
        """Let DDP reduce the models left open, as there is no loader. True if it reduces any."""
        for model in self._undecided:
            model.wrap()
        return bool(self.wrapped or self._undecided)

    def with_loader(self, replica: Replica, others: Callable[[], Iterable[Any]] | None) -> bool:
        """Make the gradients of a loader's batches; with ``others`` their norms are measured.

        True if each rank gets its samples in one piece.
        """
        if self.wrapped:
            from rota.train.parallel import DdpGradients

            self.gradients = DdpGradients(self.wrapped)
            return True
        from rota.train.gradients import Gradients
        from rota.train.norms import Norms

        parameters = [p for model in replica.models for p in model.parameters()]
        buffers = [b for model in replica.models for b in model.buffers()]
        norms = Norms(others) if others is not None else None
        self.gradients = Gradients(parameters, buffers, norms)
        return False

    def settle(self) -> None:
        """Continue among the ranks that had the state, without a lost one."""
        self.gradients.settle(self._world.rank, self._world.size)

    def moved(self) -> None:
        """The ranks are in a new group."""
        for model in self.wrapped:
            model.wrap()
        self.gradients.met = False
