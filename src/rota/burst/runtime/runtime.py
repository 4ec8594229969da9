"""One rank's steps of a training whose layers are on groups of ranks of their own.

DeepPool (MLSys 2022), section 4, with gradients that are exact for any plan: the loss is the mean
over the whole batch, as in one process.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd.function import once_differentiable

from rota.burst.layers.trace import normalises
from rota.burst.planner.plan import Group
from rota.burst.runtime.batchnorm import WholeBatch
from rota.burst.runtime.elsewhere import Elsewhere
from rota.burst.runtime.groups import (
    Groups,
    PeerLost,
    Ranks,
    broadcast_json,
    device_of,
    dtype_of,
    name_of,
    on_high_priority,
    talk,
)
from rota.burst.runtime.placement import Move, move
from rota.burst.runtime.reduction import Held, Reducer
from rota.burst.runtime.resharding import Rows, Transfer
from rota.burst.runtime.schedule import END, Layout, Schedule
from rota.errors import InputError

NONE = -1.0  # in place of a norm: there is no gradient
SKIPPED = (
    "one rank called backward for a batch, and another did not: whether a program does must not "
    "depend on its samples; decide it by what all ranks have (torch.distributed.all_reduce)"
)
MARKS = 1009  # few enough for sums of their squares to be exact


class Piece(Protocol):
    """One layer of a model: a module, and the names of the layers or inputs that it reads."""

    @property
    def name(self) -> str: ...

    @property
    def module(self) -> nn.Module: ...

    @property
    def inputs(self) -> Sequence[str]: ...


class _Route(NamedTuple):
    """A layout, and this rank's moves: forward and back by way."""

    layout: Layout
    forth: tuple[Move, ...]
    back: tuple[Move, ...]

    @property
    def still(self) -> bool:
        """True if no sample moves, on any rank."""
        return not any(part.ranks for part in (*self.forth, *self.back))


class Runtime:
    """The layers of a model on the ranks of torch's default group, as ``groups`` says.

    ``pieces`` are the layers, each after those that it reads, and ``output`` names the one whose
    output is the model's. Rank 0 keeps all parameters and buffers in step, other ranks those of
    their layers. ``make`` makes a process group of some ranks. Raises InputError for a plan that
    does not fit the model or the ranks.
    """

    def __init__(
        self,
        pieces: Sequence[Piece],
        output: str,
        groups: Sequence[Group],
        make: Callable[[Ranks], Any] = on_high_priority,
    ) -> None:
        self.rank, ranks = dist.get_rank(), dist.get_world_size()
        names, inputs = [piece.name for piece in pieces], [piece.inputs for piece in pieces]
        self.schedule = Schedule(names, inputs, output, groups, ranks)
        self.pieces = tuple(pieces)
        for piece in pieces:
            _check(piece)
        self._groups = Groups(make)
        # Reductions begin when a rank is ready, so that their order among these is not one.
        self._norms = Groups(make, apart=True)
        self._device = device_of()
        self._held = tuple(self._find_held())
        self._groups.ensure(each.ranks for each in self._held)
        self._normalises = tuple(
            any(normalises(pieces[layer].module) for layer in stage.layers)
            for stage in self.schedule.stages
        )
        kept = (t for p in pieces for t in (*p.module.parameters(), *p.module.buffers()))
        self._numbers = {id(tensor): at for at, tensor in enumerate(kept, 1)}
        self._away = tuple(self._find_away())
        self._layout: Layout | None = None  # of the last step
        self._active: list[bool] = []
        self._reducer: Reducer | None = None
        self._routes: dict[tuple[tuple[int, ...], tuple[int, ...]], _Route] = {}
        self.known: dict[int, dict[str, Rows]] = {}
        self._hooks: list[Any] = []
        self._set: dict[int, tuple[torch.Tensor, int]] = {}
        self.stage = END  # whose backward pass runs
        self.failure: str | None = None
        self.stale = False  # True if this rank lacks what others have learned

    def _find_held(self) -> Iterator[Held]:
        schedule = self.schedule
        found: dict[int, tuple[nn.Parameter, set[int], list[int]]] = {}
        for layer, piece in enumerate(self.pieces):
            group = schedule.stages[schedule.stage_of[layer]].group
            for parameter in piece.module.parameters():
                at = found.setdefault(id(parameter), (parameter, {0}, []))
                at[1].update(range(group.first, group.end))
                at[2].append(schedule.stage_of[layer])
        for parameter, ranks, stages in found.values():
            yield Held(parameter, tuple(sorted(ranks)), min(stages))

    def _find_away(self) -> Iterator[tuple[int, torch.Tensor]]:
        """The buffers of layers that rank 0 has no part in, with their stages."""
        for at, stage in enumerate(self.schedule.stages):
            if stage.group.first > 0:
                for layer in stage.layers:
                    yield from ((at, buffer) for buffer in self.pieces[layer].module.buffers())

    @property
    def keeps_all(self) -> bool:
        """True if this rank keeps all parameters and buffers in step."""
        everywhere = all(self.rank in held.ranks for held in self._held)
        return everywhere and all(
            stage.group.first <= self.rank < stage.group.end
            or not any(any(True for _ in self.pieces[at].module.buffers()) for at in stage.layers)
            for stage in self.schedule.stages
        )

    # -- a step --------------------------------------------------------------------------------

    def step(
        self,
        *inputs: torch.Tensor,
        counted: bool = True,
        counts: Sequence[int] | None = None,
        place: int = 0,
    ) -> torch.Tensor:
        """The output for this rank's samples, whose ``backward`` is that of the whole step.

        The loss must be a mean over these samples; gradients are then those of the mean over all
        ranks' samples. Not ``counted`` samples are copies of the first ones of the batch: they get
        outputs and give no gradient. ``counts`` are all ranks' samples, if known; ``place`` is a
        number of the batch, the same on all ranks. Raises InputError for inputs that can't be
        shared among ranks, PeerLost if a rank is lost.
        """
        samples = _samples(inputs)
        self._prepare()
        key = self._key(inputs)
        if not self.schedule.in_one or counts is None:
            counts, wants = self._meet(samples, counted, key, place)
        else:
            wants = [0] * len(counts)
        route = self._route(tuple(counts), tuple(wants))
        self._layout = route.layout
        run = _Run(self, route, self.known.get(key))
        output = run.forward(inputs)
        self.known.setdefault(key, run.rows)
        anchor = torch.zeros((), device=output.device, requires_grad=True)
        attached: torch.Tensor = _Attached.apply(anchor, output, run)
        return attached

    def complete(self, place: int = 0) -> None:
        """All ranks' backward passes are over, and none is lost; ``place`` is that of the batch.

        Afterwards ``.grad`` of parameters that other ranks keep has the right norm. Raises
        PeerLost, or InputError if gradients came from elsewhere than the model's output, or if the
        ranks are at different batches.
        """
        if self.failure is not None:
            raise PeerLost(self.failure)
        self._check_own(changed=True)
        lacking = [h for h in self._held if self._lacks(h)]
        mark = float(place % MARKS)
        norms = [_norm(h.parameter.grad) if self.rank == 0 else 0.0 for h in lacking]
        own = torch.tensor([1.0, mark, mark * mark, *norms], dtype=torch.float64)
        told = torch.cat((own.to(self._device), self._buffers_away()))
        talk(dist.all_reduce, told)
        here, total, squares, *norms = told[: len(own)].tolist()
        if here < self.schedule.ranks:
            raise InputError(SKIPPED)
        if total * total != self.schedule.ranks * squares:
            raise InputError(_other_batch(self.rank, "another rank"))
        for held, norm in zip(lacking, norms, strict=True):
            if self.rank in held.ranks:
                continue
            parameter = held.parameter
            if norm == NONE:
                parameter.grad = None
            else:
                known = torch.tensor(norm, dtype=torch.float64)
                parameter.grad = Elsewhere(parameter, known, held.ranks)
        if self.rank == 0 and self._away and self._layout is not None:
            sizes = [buffer.numel() for _, buffer in self._away]
            for (_, buffer), value in zip(self._away, told[len(own) :].split(sizes), strict=True):
                buffer.copy_(value.view_as(buffer))
        self._layout = None

    def going_back(self) -> Callable[[], None]:
        """Let ranks that are at :meth:`complete` know that this one is not.

        The result waits for the other ranks, and raises InputError if one is there, or PeerLost.
        """
        lacking = sum(self._lacks(each) for each in self._held)
        told = torch.zeros(3 + lacking, dtype=torch.float64, device=self._device)
        told = torch.cat((told, *(b.new_zeros(b.numel()).double() for _, b in self._away)))
        work = talk(dist.all_reduce, told, async_op=True)

        def check() -> None:
            talk(work.wait)
            if told[0].item():
                raise InputError(SKIPPED)

        return check

    def _buffers_away(self) -> torch.Tensor:
        """The buffers that rank 0 lacks, from one rank that has them."""
        found = [torch.empty(0, dtype=torch.float64, device=self._device)]
        for stage, buffer in self._away:
            owns = self._layout is not None and self._layout.active(stage)[0] == self.rank
            value = buffer if owns else torch.zeros_like(buffer)
            found.append(value.double().reshape(-1))
        return torch.cat(found)

    def _lacks(self, held: Held) -> bool:
        return held.parameter.requires_grad and len(held.ranks) < self.schedule.ranks

    def _check_own(self, *, changed: bool) -> None:
        """Raise InputError for gradients that are not the sums given, or that were ``changed``."""
        for parameter, gradient in ((h.parameter, h.parameter.grad) for h in self._held):
            if gradient is None or isinstance(gradient, Elsewhere):
                continue
            known, version = self._set.get(id(parameter), (None, 0))
            if known is not gradient or (changed and gradient._version != version):
                raise InputError(
                    f"the gradient of a parameter of shape {tuple(parameter.shape)} was changed "
                    "while a batch was worked through, or the loss depends on it in another way "
                    "than by the model's output; clip after the loop over the batch, and leave "
                    "penalties of weights to the optimiser's weight_decay"
                )

    def close(self) -> None:
        """Take the hooks from the model's parameters."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    # -- before a step -------------------------------------------------------------------------

    def _prepare(self) -> None:
        """Follow what has been frozen or unfrozen since the last step."""
        active = [held.parameter.requires_grad for held in self._held]
        if self._reducer is not None and active == self._active:
            return
        self.close()
        self._active = active
        held = [each for each in self._held if each.parameter.requires_grad]
        self._reducer = Reducer(held, self.rank, self._groups)
        for each in held:
            if self.rank in each.ranks and len(each.ranks) > 1:
                hook = partial(self._added, each.last_stage)
                self._hooks.append(each.parameter.register_post_accumulate_grad_hook(hook))

    def _added(self, last_stage: int, parameter: torch.Tensor) -> None:
        if self.stage == last_stage:
            self.reducer.ready(parameter)

    @property
    def reducer(self) -> Reducer:
        """The reductions of the parameters that are not frozen."""
        assert self._reducer is not None
        return self._reducer

    def _key(self, inputs: Sequence[torch.Tensor]) -> int:
        """A number for all on which shapes and types in the model may depend."""
        kind = inputs[0].device.type
        autocast = torch.is_autocast_enabled(kind) and str(torch.get_autocast_dtype(kind))
        shapes = [(tuple(each.shape[1:]), str(each.dtype)) for each in inputs]
        return zlib.crc32(repr((shapes, autocast, self._active)).encode())

    def _meet(
        self, samples: int, counted: bool, key: int, place: int
    ) -> tuple[list[int], list[int]]:
        """How many samples each rank brings, and of how many it wants outputs nonetheless."""
        own = [samples if counted else 0, samples, key, place]
        mine = torch.tensor(own, dtype=torch.int64, device=self._device)
        parts = [torch.empty_like(mine) for _ in range(self.schedule.ranks)]
        talk(dist.all_gather, parts, mine)
        told = torch.stack(parts).tolist()
        for other, (_, _, keyed, placed) in enumerate(told):
            if placed != place:
                raise InputError(_other_batch(self.rank, f"rank {other}"))
            if keyed != key:
                raise InputError(
                    f"the inputs of rank {self.rank} and rank {other} differ in more than their "
                    "number of samples, or other parameters are frozen there; samples move between "
                    "ranks, so give all ranks one shape and one type: pad to a fixed length"
                )
        counts = [count for count, _, _, _ in told]
        if not sum(counts):
            raise InputError("a batch has no sample on any rank; leave out batches without samples")
        return counts, [want for _, want, _, _ in told]

    def _route(self, counts: tuple[int, ...], wants: tuple[int, ...]) -> _Route:
        if (counts, wants) not in self._routes:
            layout = Layout(self.schedule, counts, wants)
            forth = tuple(move(way.source, way.target, self.rank) for way in layout.ways)
            back = tuple(move(way.back, way.source, self.rank) for way in layout.ways)
            groups = {part.ranks for part in (*forth, *back)}
            self._groups.ensure(groups)
            self._norms.ensure(layout.active(at) for at, has in enumerate(self._normalises) if has)
            self._routes[counts, wants] = _Route(layout, forth, back)
        return self._routes[counts, wants]

    # -- for a run -----------------------------------------------------------------------------

    def transfer(self, part: Move, own: torch.Tensor | None, rows: Rows) -> Transfer:
        """Start to move samples."""
        return Transfer(part, own, rows, self._device, self._groups)

    def normalising(self, stage: int, active: Ranks) -> AbstractContextManager[Any]:
        """Normalises over all ranks of a stage, if it is needed."""
        if not self._normalises[stage] or len(active) == 1:
            return nullcontext()
        return WholeBatch(self._norms.of(active), len(active), self._numbers)

    def set_aside(self) -> list[tuple[torch.nn.Parameter, torch.Tensor]]:
        """Gradients of earlier backward passes, to be added afterwards."""
        self._check_own(changed=False)
        earlier = [(p, p.grad) for p in self.reducer.parameters if p.grad is not None]
        for parameter, _ in earlier:
            parameter.grad = None
        return [(p, grad) for p, grad in earlier if grad is not None]

    def give(self, earlier: Sequence[tuple[torch.nn.Parameter, torch.Tensor]]) -> None:
        """The sums are where they belong; add the earlier ones."""
        for parameter, gradient in earlier:
            if parameter.grad is not None:
                gradient.add_(parameter.grad)
            parameter.grad = gradient
        self._set = {
            id(p): (p.grad, p.grad._version) for p in self.reducer.parameters if p.grad is not None
        }
        self.stale = self.stale or not self.keeps_all


class _Run:
    """One step: its forward pass, and then its backward pass."""

    def __init__(self, runtime: Runtime, route: _Route, rows: dict[str, Rows] | None) -> None:
        self._runtime, self._route, self._layout = runtime, route, route.layout
        self._rank = runtime.rank
        self._learns = rows is None and not route.still
        self.rows: dict[str, Rows] = rows or {}
        self._transfers: dict[int, Transfer] = {}
        self._leaves: dict[int, torch.Tensor] = {}
        self._made: dict[str, torch.Tensor] = {}
        self._over = False

    # -- forward -------------------------------------------------------------------------------

    def forward(self, inputs: Sequence[torch.Tensor]) -> torch.Tensor:
        """The output for this rank's samples."""
        schedule = self._runtime.schedule
        brings = self._layout.counts[self._rank] > 0
        for name in schedule.inputs:
            given = inputs[_number(name, len(inputs))]
            self.rows[name] = Rows(tuple(given.shape[1:]), given.dtype, needs_gradient=False)
            if brings:
                self._made[name] = given
        self._send(END)
        for at in range(len(schedule.stages)):
            if self._rank in self._layout.active(at):
                self._run(at)
            if self._learns:
                self._learn(at)
            self._send(at)
        output = self._transfers[self._layout.arriving[END, schedule.output]].arrived()
        for transfer in self._transfers.values():
            transfer.arrived()  # what this rank has sent is needed until then
        rows = self.rows[schedule.output]
        if output is None:
            output = torch.empty((0, *rows.shape), dtype=rows.dtype, device=inputs[0].device)
        self._transfers.clear()
        return output.detach()

    def _send(self, stage: int) -> None:
        for at in self._layout.leaving.get(stage, ()):
            value = self._layout.ways[at].value
            part = self._route.forth[at]
            own = self._made.get(value)
            self._transfers[at] = self._runtime.transfer(part, own, self.rows[value])

    def _leaf(self, way: int) -> torch.Tensor:
        if way not in self._leaves:
            arrived = self._transfers[way].arrived()
            assert arrived is not None
            needs = self.rows[self._layout.ways[way].value].needs_gradient
            self._leaves[way] = arrived.detach().requires_grad_(needs)
        return self._leaves[way]

    def _run(self, at: int) -> None:
        runtime, layout = self._runtime, self._layout
        stage = runtime.schedule.stages[at]
        active, samples = layout.active(at), len(layout.placements[at][self._rank])
        values = {name: self._leaf(layout.arriving[at, name]) for name in stage.takes}
        with runtime.normalising(at, active), torch.enable_grad():
            for layer in stage.layers:
                piece = runtime.pieces[layer]
                values[piece.name] = piece.module(*(values[name] for name in piece.inputs))
        for name in stage.gives:
            value = values[name]
            if not isinstance(value, torch.Tensor) or not value.dim() or len(value) != samples:
                shape = f"shape {tuple(value.shape)}" if hasattr(value, "shape") else ""
                raise InputError(
                    f"layer {name or 'of the whole model'} gave {type(value).__name__} {shape} for "
                    f"{samples} samples; with reduction='burst' a layer's output is one tensor "
                    "whose first dimension counts samples"
                )
            self._made[name] = value
            self.rows[name] = Rows(tuple(value.shape[1:]), value.dtype, value.requires_grad)

    def _learn(self, at: int) -> None:
        """Let all ranks know the shapes of what a stage gives."""
        stage = self._runtime.schedule.stages[at]
        known = [(name, self.rows[name]) for name in stage.gives if name in self.rows]
        told = [
            (name, rows.shape, name_of(rows.dtype), rows.needs_gradient) for name, rows in known
        ]
        for name, shape, dtype, needs in talk(broadcast_json, told, self._layout.active(at)[0]):
            self.rows[name] = Rows(tuple(shape), dtype_of(dtype), needs)

    # -- backward ------------------------------------------------------------------------------

    def backward(self, gradient: torch.Tensor) -> None:
        """Backward through all stages, from the last; gradients are summed on the way.

        Raises InputError if it is called again. A lost rank is noted in the runtime.
        """
        if self._over:
            raise InputError(
                "backward was called a second time for one output of a model that was prepared "
                "with reduction='burst'; add up the losses, and call it once"
            )
        self._over = True
        try:
            self._backward(gradient)
        except PeerLost as error:
            self._runtime.failure = str(error)
        finally:
            self._runtime.stage = END
            self._made.clear()
            self._leaves.clear()

    def _backward(self, gradient: torch.Tensor) -> None:
        runtime, layout = self._runtime, self._layout
        schedule, reducer = runtime.schedule, runtime.reducer
        earlier = runtime.set_aside()
        check_others = runtime.going_back()
        reducer.begin()
        returning: dict[int, Transfer] = {}
        end = layout.arriving[END, schedule.output]
        share = layout.counts[self._rank] / layout.samples
        own = gradient * share if share else None
        returning[end] = self._returned(end, own)
        for at in reversed(range(len(schedule.stages))):
            runtime.stage = at
            roots = self._roots(at, returning)
            if roots:
                outputs, gradients = zip(*roots, strict=True)
                with runtime.normalising(at, layout.active(at)):  # checkpoints run forward again
                    _backward_of(outputs, gradients)
            for name in schedule.stages[at].gives:
                self._made.pop(name, None)
            reducer.stage_done(at)
            for name in schedule.stages[at].takes:
                way = layout.arriving[at, name]
                if min(layout.ways[way].takers) == at and self.rows[name].needs_gradient:
                    leaf = self._leaves.pop(way, None)
                    returning[way] = self._returned(way, leaf.grad if leaf is not None else None)
        check_others()
        reducer.finish()
        runtime.give(earlier)
        for transfer in returning.values():
            transfer.arrived()

    def _returned(self, way: int, gradient: torch.Tensor | None) -> Transfer:
        """Start to move the gradient of what came by a way to where that was made."""
        rows, has = self.rows[self._layout.ways[way].value], self._layout.ways[way].back[self._rank]
        if gradient is None and has:
            gradient = torch.zeros(
                (len(has), *rows.shape), dtype=rows.dtype, device=self._runtime._device
            )
        return self._runtime.transfer(self._route.back[way], gradient, rows)

    def _roots(
        self, at: int, returning: dict[int, Transfer]
    ) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """What a stage has given, each with its gradient."""
        found: dict[str, torch.Tensor] = {}
        for way in self._layout.leaving.get(at, ()):
            if way not in returning:
                continue
            value, gradient = self._layout.ways[way].value, returning[way].arrived()
            if gradient is not None:
                found[value] = found[value] + gradient if value in found else gradient
        return [
            (self._made[value], gradient)
            for value, gradient in found.items()
            if value in self._made and self._made[value].requires_grad
        ]


def _backward_of(outputs: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor]) -> None:
    """``torch.autograd.backward``, which would leave the present function mode meanwhile."""
    engine = torch.autograd.Variable._execution_engine
    engine.run_backward(
        tuple(outputs),
        tuple(gradients),
        False,  # the graph is not kept
        False,  # nor is one made of the gradients
        (),
        allow_unreachable=True,
        accumulate_grad=True,
    )


class _Attached(torch.autograd.Function):
    """The output of a run, whose backward pass is the run's."""

    @staticmethod
    def forward(ctx: Any, _: torch.Tensor, output: torch.Tensor, run: _Run) -> torch.Tensor:
        ctx.run = run
        return output.view_as(output)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[None, None, None]:
        ctx.run.backward(gradient)
        return None, None, None


def _samples(inputs: Sequence[torch.Tensor]) -> int:
    """The number of samples in the inputs. Raises InputError."""
    for at, each in enumerate(inputs):
        if not isinstance(each, torch.Tensor) or not each.dim() or len(each) != len(inputs[0]):
            raise InputError(
                f"input {at} of the model is a {type(each).__name__}"
                f"{' of shape ' + str(tuple(each.shape)) if hasattr(each, 'shape') else ''}; with "
                "reduction='burst' inputs are tensors whose first dimension counts samples"
            )
        if each.requires_grad:
            raise InputError(
                f"input {at} of the model needs a gradient, which reduction='burst' does not give "
                "to inputs; detach it, or leave reduction out"
            )
    if not inputs:
        raise InputError("the model was called without an input; give it one tensor or more")
    return len(inputs[0])


def _other_batch(rank: int, other: str) -> str:
    return (
        f"rank {rank} and {other} do not work on the same batch: what a program does must not "
        "depend on its rank, nor on loop counters of its own, which begin anew in a rank that "
        "joins; use s.epochs or s.steps, and keep counters by s.save and s.restore"
    )


def _number(name: str, given: int) -> int:
    number = int(name.removeprefix("input:"))
    if number >= given:
        raise InputError(f"the model was called with {given} inputs, and reads input {number}")
    return number


def _check(piece: Piece) -> None:
    for module in piece.module.modules():
        kind = type(module).__name__
        if isinstance(module, torch.jit.ScriptModule):
            kind = f"scripted {module.original_name}"
        if isinstance(module, nn.SyncBatchNorm) or kind.startswith("scripted Batch"):
            raise InputError(
                f"layer {piece.name} has a {kind}; use BatchNorm, which reduction='burst' "
                "takes over the whole batch of a layer by itself"
            )
        if getattr(module, "sparse", False) is True:
            raise InputError(
                f"layer {piece.name} has a {kind} with sparse gradients, which reduction='burst' "
                "does not add up; leave sparse=True out"
            )
    for parameter in piece.module.parameters():
        if parameter._post_accumulate_grad_hooks:
            raise InputError(
                f"layer {piece.name} has a parameter with a hook for its gradient, which comes "
                "before gradients of all ranks are added up; step the optimiser after the batch"
            )


def _norm(gradient: torch.Tensor | None) -> float:
    return NONE if gradient is None else float(torch.linalg.vector_norm(gradient))
