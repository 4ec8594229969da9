"""Reduces gradients of a training's models: by Rota's tree, by torch's DDP, or layer by layer."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from rota.errors import InputError
from rota.live.wire import MAX_PLANNED_RANKS
from rota.train.world import World

if TYPE_CHECKING:
    import torch

    from rota.burst.runtime.outlook import Planned
    from rota.train.loader import Loader
    from rota.train.replica import Replica

TREE, DDP, BURST = "tree", "ddp", "burst"


class Reduction:
    """The one way of reduction for all models of a training, by request or by default.

    ``gradients`` are those of a loader's batches, once a loader is known to exist.
    """

    def __init__(self, world: World) -> None:
        self.gradients: Any = None
        self.tell: Callable[[Planned], None] | None = None  # of plans by layer
        self.wrapped: list[Any] = []  # models for DDP, or with layers on ranks of their own
        self._undecided: list[Any] = []  # models without a decision yet
        self._asked_for: set[str | None] = set()
        self._world = world

    def ask(self, reduction: str | None, plan: Any = None) -> None:
        """Note what the program wants for one more model. Raises InputError."""
        if plan is not None and reduction != BURST:
            raise InputError(
                f"s.prepare: plan is for reduction='burst', not for {reduction!r}; give both"
            )
        if reduction not in (None, TREE, DDP, BURST):
            raise InputError(f"s.prepare: reduction={reduction!r} must be 'tree', 'ddp' or 'burst'")
        self._asked_for.add(reduction)
        if len(self._asked_for) > 1:
            raise InputError(
                f"s.prepare: reduction={reduction!r} differs from that of a model before; the "
                "gradients of all models come together in one way, so give the same each time"
            )

    @property
    def by_layer(self) -> bool:
        """True if layers run on ranks of their own."""
        return BURST in self._asked_for

    def take(self, model: torch.nn.Module, device: torch.device, plan: Any = None) -> Any:
        """The last requested model, perhaps wrapped."""
        (reduction,) = self._asked_for
        if reduction == BURST:
            from rota.train.burst import BurstModel, plan_of

            self.wrapped.append(BurstModel(model, self._world, plan_of(plan)))
            return self.wrapped[-1]
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
        if self.by_layer:
            raise InputError(
                "s.prepare(..., reduction='burst') needs batches from s.loader(...), which gives "
                "each rank its samples; take batches from there, or leave reduction out"
            )
        for model in self._undecided:
            model.wrap()
        return bool(self.wrapped or self._undecided)

    def with_loader(
        self, loader: Loader, replica: Replica, others: Callable[[], Iterable[Any]] | None
    ) -> None:
        """Make the gradients of a loader's batches; with ``others`` their norms are measured."""
        if self.by_layer:
            from rota.train.burst import BurstGradients

            loader.even = True
            for model in self.wrapped:
                model.batch_size = lambda: loader.batch_size
                model.most_ranks = _most_to_tell(loader, self._world)
            if len(self.wrapped) == 1 and self._world.size <= MAX_PLANNED_RANKS:
                self.wrapped[0].tell = self.tell

            def parts() -> list[int] | None:
                ranks = range(self._world.size)
                found = [piece for rank in ranks for piece in loader.pieces_of(rank)]
                return [len(p.samples) for p in found] if all(p.weight for p in found) else None

            self.gradients = BurstGradients(self.wrapped, replica, self._world, parts)
            return
        loader.whole = bool(self.wrapped)
        if self.wrapped:
            from rota.train.parallel import DdpGradients

            self.gradients = DdpGradients(self.wrapped)
            return
        from rota.train.gradients import Gradients
        from rota.train.norms import Norms

        parameters = [p for model in replica.models for p in model.parameters()]
        buffers = [b for model in replica.models for b in model.buffers()]
        norms = Norms(others) if others is not None else None
        self.gradients = Gradients(parameters, buffers, norms)

    def gather(self) -> None:
        """Before ranks leave each other: those that may go alone have all of the state."""
        if self.by_layer:
            self.gradients.share()

    def adopted(self) -> None:
        """This process has taken over the state of one of the same rank."""
        for model in self.wrapped if self.by_layer else ():
            model.has_all(yes=self._world.rank == 0)

    def settle(self) -> None:
        """Continue among the ranks that had the state, without a lost one."""
        self.gradients.settle(self._world.rank, self._world.size)

    def moved(self) -> None:
        """The ranks are in a new group."""
        for model in self.wrapped:
            model.wrap()
        self.gradients.met = False


def _most_to_tell(loader: Loader, world: World) -> int:
    """The most ranks that steps are predicted for: 0 if the batch grows with the ranks."""
    if loader.varies:
        return 0
    most = max(int(os.environ.get("ROTA_MAX_WORLD", "1")), world.size)
    return min(most, loader.most_ranks, MAX_PLANNED_RANKS)
