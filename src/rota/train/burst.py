"""Models whose layers run on numbers of ranks of their own, and the gradients of their batches."""

from __future__ import annotations

import contextlib
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from rota.burst.layers.trace import Layered, check_again, layered, whole
from rota.burst.planner.costs import Costs
from rota.burst.planner.frontier import Frontier, Timed
from rota.burst.planner.plan import Group
from rota.burst.runtime.choice import given, planned
from rota.burst.runtime.elsewhere import away
from rota.burst.runtime.groups import PeerLost, gather_numbers
from rota.burst.runtime.outlook import Outlook, Planned, chosen_of
from rota.burst.runtime.runtime import Runtime
from rota.errors import GangError, InputError
from rota.model.layer_graph import LayerGraph
from rota.workload.layer_profiles import read_layer_profile

if TYPE_CHECKING:
    from rota.train.replica import Replica
    from rota.train.world import World

Plan = Mapping[str, int] | LayerGraph


class BurstModel(nn.Module):
    """A model whose forward and backward passes are those of all ranks together.

    ``module`` is the model itself. Without gradients, and in a group of one, it is called as it
    is. ``plan`` has the number of ranks of layers by name, or the profile to plan by; without one
    all layers are on all ranks.
    """

    def __init__(self, module: nn.Module, world: World, plan: Plan | None) -> None:
        super().__init__()
        self.module = module
        self._world, self._plan = world, plan
        self._runtime: Runtime | None = None
        self._split: Layered | None = None
        self._shapes: set[Any] = set()  # of samples for which the layers are known to be the model
        self._kept = True
        self._failure: str | None = None
        self.batch_size: Callable[[], int] | None = None  # of the loader, once there is one
        # Who is told of each plan by a profile, and the most ranks that steps are predicted for.
        self.tell: Callable[[Planned], None] | None = None
        self.most_ranks = 0
        self._outlook: Outlook | None = None
        self._told = False  # of the plan for the present group
        self.counts: Sequence[int] | None = None  # of each rank's samples, in this batch
        self.counted, self.place = True, 0

    def __getattr__(self, name: str) -> Any:
        """Attributes that this wrapper lacks are the model's."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("module"), name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The output for this rank's samples. Raises InputError for what can't be shared."""
        if not torch.is_grad_enabled():
            self._check_whole()
            return self.module(*args, **kwargs)
        if not dist.is_initialized() or dist.get_world_size() == 1:
            self._plan_alone()
            return self.module(*args, **kwargs)
        inputs = self._inputs(args, kwargs)
        if self.failure is None:
            try:
                runtime = self._runtime or self._open(inputs)
                self._check_layers(inputs)
                return runtime.step(
                    *inputs, counted=self.counted, counts=self.counts, place=self.place
                )
            except PeerLost as error:
                self._failure = str(error)
        with torch.no_grad():  # a lost rank is none of the program's business: see `Batch`
            output = self.module(*inputs)
        return output + torch.zeros((), device=output.device, requires_grad=True)

    @property
    def failure(self) -> str | None:
        """Why this batch can't be worked through: a rank was lost."""
        return self._failure or (self._runtime.failure if self._runtime is not None else None)

    @property
    def is_whole(self) -> bool:
        """True if this rank has all of the state of the model."""
        return self._kept and not (self._runtime is not None and self._runtime.stale)

    def has_all(self, *, yes: bool) -> None:
        """Note that this rank has, or lacks, what others have learned."""
        self._kept = yes
        if self._runtime is not None:
            self._runtime.stale = not yes

    def wrap(self) -> None:
        """Join the present group; there is no plan for it yet."""
        self._kept, self._failure, self._told = self.is_whole, None, False
        if self._runtime is not None:
            self._runtime.close()
            self._runtime = None

    def complete(self) -> None:
        """The batch is over on all ranks. Raises RuntimeError if a rank is lost, InputError."""
        if self._failure is not None:
            raise PeerLost(self._failure)
        if self._runtime is not None:
            self._runtime.complete(self.place)

    def _open(self, inputs: tuple[torch.Tensor, ...]) -> Runtime:
        ranks = dist.get_world_size()
        groups = [Group(0, ranks)]
        if self._split is None:
            split = (whole if self._plan is None else layered)(self.module, inputs)
            self._split, self._shapes = split, {_shapes(inputs)}
        split = self._split
        if isinstance(self._plan, LayerGraph):
            assert self.batch_size is not None
            tell = self._tell if self.tell is not None else None
            groups = planned(split, self._plan, self.batch_size(), ranks, tell)
        elif self._plan is not None:
            groups = given(split, self._plan, ranks)
        self._runtime = Runtime(split.pieces, split.output, groups, self._world.group)
        return self._runtime

    def _plan_alone(self) -> None:
        """Tell the plan of the only rank, if the profile has the links that more would use."""
        graph, wanted = self._plan, self.tell is not None and self._world.size == 1
        if self._told or not wanted or self.batch_size is None or not isinstance(graph, LayerGraph):
            return
        self._told = True
        if graph.network is not None:
            with contextlib.suppress(InputError):  # the profile may have no batch as large
                frontier = Frontier(Costs(graph, self.batch_size(), 1))
                self._tell(frontier, chosen_of(frontier))

    def _tell(self, frontier: Frontier, chosen: Timed) -> None:
        if self._outlook is None:
            self._outlook = Outlook(frontier.costs.graph, self.most_ranks)
        assert self.tell is not None
        self.tell(self._outlook.of(frontier, chosen))

    def _check_layers(self, inputs: tuple[torch.Tensor, ...]) -> None:
        """Raises InputError if the layers are not, or no longer, the model for these inputs."""
        assert self._split is not None
        changed = self._split.constants.changed()
        if changed is not None:
            raise InputError(
                f"{changed} was changed after the model was split into layers, which have its "
                "former value; change a buffer in place (self.rate.fill_(...)) instead, or leave "
                "the plan out"
            )
        if self._plan is not None and _shapes(inputs) not in self._shapes:
            check_again(self.module, self._split, inputs)
            self._shapes.add(_shapes(inputs))

    def _inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[torch.Tensor, ...]:
        """The tensors that the model is called with, in the order of its forward's arguments."""
        if kwargs:
            bound = inspect.signature(self.module.forward).bind(*args, **kwargs)
            if bound.kwargs:
                raise InputError(
                    f"the model was called with {', '.join(bound.kwargs)} by name alone; with "
                    "reduction='burst' a model's inputs are tensors that it takes by position"
                )
            args = bound.args
        for at, each in enumerate(args):
            if not isinstance(each, torch.Tensor):
                raise InputError(
                    f"input {at} of the model is a {type(each).__name__}; with reduction='burst' "
                    "inputs are tensors whose first dimension counts samples: make other values "
                    "part of the model, or leave reduction out"
                )
        return args

    def _check_whole(self) -> None:
        if not self.is_whole:
            raise InputError(
                f"rank {self._world.rank} does not keep all layers of the model, so that it can't "
                "run it alone; with reduction='burst' evaluate on rank 0 (if s.rank == 0: ...)"
            )


def _shapes(inputs: Sequence[torch.Tensor]) -> Any:
    return tuple((each.shape[1:], each.dtype) for each in inputs)


class BurstGradients:
    """The interface of ``Gradients`` for models that are shared by layers.

    ``parts`` are the samples of each rank in the batch at the position, None if a rank has none.
    """

    def __init__(
        self,
        models: Sequence[BurstModel],
        replica: Replica,
        world: World,
        parts: Callable[[], Sequence[int] | None],
    ) -> None:
        self._models, self._replica, self._world, self._parts = models, replica, world, parts
        self._parameters = [p for model in models for p in model.parameters()]
        self._norms = [
            buffer
            for model in models
            for module in model.modules()
            if isinstance(module, _BatchNorm)
            for buffer in module.buffers()
        ]
        self._before: tuple[int, list[torch.Tensor]] = (-1, [])
        self._broken: str | None = None
        self.met = False  # True once this group's ranks have compared what they have
        self.reduced_batch = -1
        self.squares = None  # not known here
        self.measured_in = (0, 1)

    def begin(
        self, weight: float, *, alone: bool, place: int = 0, last: int = 0, number: int = 0
    ) -> None:
        """Start a batch, or restart it; this rank has the part ``weight`` of its samples.

        In a new group, ranks that lack something get it first: see :meth:`share`.
        """
        self._broken = None
        self._restore(number)
        if not self.met and not alone:
            try:
                self.share()
            except RuntimeError as error:
                self._broken = str(error)
            self._before = (number, [buffer.clone() for buffer in self._norms])
        for model in self._models:
            model.counted, model.place = weight > 0, place
            model.counts = None if alone else self._parts()
        for parameter in self._parameters:
            parameter.grad = None

    def _restore(self, number: int) -> None:
        """Let a batch that is repeated start from the running statistics that it started from."""
        batch, before = self._before
        if batch == number:
            for buffer, kept in zip(self._norms, before, strict=True):
                buffer.copy_(kept)
        else:
            self._before = (number, [buffer.clone() for buffer in self._norms])

    def share(self) -> None:
        """Give all ranks the whole state; those of one group call it between two batches.

        Raises GangError if the only rank that had it is lost, RuntimeError if one is lost now.
        """
        whole = all(model.is_whole for model in self._models)
        known = [whole]
        if dist.is_initialized() and dist.get_world_size() > 1:
            known = [number == 1 for number in gather_numbers(int(whole))]
        if not any(known):
            raise GangError(
                "rank 0 was lost, and with it layers of the model that no other rank keeps; the "
                "job's next attempt goes on from its last checkpoint (s.checkpoint())"
            )
        root, lacking = known.index(True), [r for r, whole in enumerate(known) if not whole]
        if lacking and dist.get_rank() == root:
            self._replica.send(lacking, 0, 1)
        elif not whole:
            self._replica.receive([root])
        for model in self._models:
            model.has_all(yes=True)
        self.met = True

    def next_shard(self) -> None:
        """Nothing: a rank has one piece."""

    def make_room(self) -> None:
        """Nothing: the first step makes it."""

    def take(self, shard: int, weight: float) -> None:
        """Nothing: the gradients are where they belong."""

    def reduce(self, shards_of: Sequence[Sequence[int]], rank: int, batch: int) -> None:
        """Check that all ranks have come to the end of the batch.

        Raises RuntimeError if one is lost, InputError if they work on different batches.
        """
        if self._broken is not None:
            raise RuntimeError(self._broken)
        for model in self._models:
            model.complete()
        self.reduced_batch = batch

    def settle(self, rank: int, size: int) -> None:
        """After a loss: a batch that one rank has completed is complete on all.

        None can be without the others having all sums of their own parameters.
        """
        if size == 1:
            return
        self.reduced_batch = max(gather_numbers(self.reduced_batch))

    def give(self, parts: int = 1, scale: float = 1.0) -> None:
        """Nothing: the sums are in their place."""


def plan_of(plan: Any) -> Plan | None:
    """The plan that the user means: ranks by layer, or a path of a profile. Raises InputError."""
    if plan is None or isinstance(plan, Mapping):
        return plan
    if isinstance(plan, str | os.PathLike):
        return read_layer_profile(Path(plan))
    raise InputError(
        f"s.prepare: plan is a {type(plan).__name__}; give the path of a profile that python -m "
        "rota.burst.profile has made, or a dict with the number of ranks of each layer"
    )


def check_others(others: Sequence[Any]) -> None:
    """Raises InputError for what can't follow gradients that lie on other ranks."""
    for part in others:
        if isinstance(part, torch.amp.GradScaler) and part.is_enabled():
            raise InputError(
                "s.prepare(..., reduction='burst') takes no gradient scaler: it looks for "
                "overflows in all gradients, and a rank has those of its layers; use bfloat16, "
                "which needs none, or leave reduction out"
            )


def leave_alone(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    """Let an optimiser's steps leave out parameters whose gradients lie on other ranks."""
    optimizer.register_step_pre_hook(lambda *_: away(model.parameters()))
