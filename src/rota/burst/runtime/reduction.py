"""Sums gradients over the ranks that keep a parameter, beside the rest of the backward pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from rota.burst.runtime.groups import Groups, Ranks, talk
from rota.errors import InputError

BUCKET_BYTES = 25 << 20  # as torch's DDP has them
FIRST_BYTES = 1 << 20  # so that reducing begins early


class Held(NamedTuple):
    """A parameter, the ranks that keep it, and the stage whose backward pass adds to it last."""

    parameter: torch.nn.Parameter
    ranks: Ranks
    last_stage: int


class _Bucket:
    """Gradients that are summed together, in one vector with a mark for each that there is."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self.parameters: list[torch.nn.Parameter] = []
        self.num_bytes = self.end = 0
        self.missing: set[int] = set()
        self.flat: torch.Tensor | None = None
        self.work: Any = None


class Reducer:
    """The reductions of the gradients of these parameters, which are not frozen, in model order.

    Every rank has the same order of buckets, and starts those in which it has a part in this order.
    """

    def __init__(self, held: Sequence[Held], rank: int, groups: Groups) -> None:
        self._groups = groups
        self.by_stage: dict[int, list[torch.nn.Parameter]] = {}
        self._bucket_of: dict[int, _Bucket] = {}
        made: list[_Bucket] = []
        open_: dict[tuple[Any, ...], _Bucket] = {}
        order = sorted(range(len(held)), key=lambda at: (-held[at].last_stage, -at))
        for place, at in enumerate(order):
            parameter, ranks, last_stage = held[at]
            if rank in ranks:
                self.by_stage.setdefault(last_stage, []).append(parameter)
            if len(ranks) == 1:
                continue
            key = (ranks, parameter.dtype)
            if key not in open_:
                open_[key] = _Bucket(ranks)
                made.append(open_[key])
            bucket = open_[key]
            bucket.parameters.append(parameter)
            bucket.num_bytes += parameter.nbytes
            bucket.end = place
            first = not any(b.ranks == ranks for b in made if b is not bucket)
            if bucket.num_bytes >= (FIRST_BYTES if first else BUCKET_BYTES):
                del open_[key]
        self._buckets = sorted((b for b in made if rank in b.ranks), key=lambda b: b.end)
        for bucket in self._buckets:
            self._bucket_of |= {id(parameter): bucket for parameter in bucket.parameters}
        self._next = 0

    @property
    def parameters(self) -> list[torch.nn.Parameter]:
        """The parameters that this rank keeps."""
        return [p for stage in self.by_stage.values() for p in stage]

    def begin(self) -> None:
        """Start a backward pass; nothing is reduced yet."""
        self._next = 0
        for bucket in self._buckets:
            bucket.missing = {id(parameter) for parameter in bucket.parameters}
            bucket.flat = bucket.work = None

    def ready(self, parameter: torch.nn.Parameter) -> None:
        """This rank has added all that it has to the parameter's gradient. Raises PeerLost."""
        bucket = self._bucket_of.get(id(parameter))
        if bucket is None:
            return
        bucket.missing.discard(id(parameter))
        while self._next < len(self._buckets) and not self._buckets[self._next].missing:
            self._start(self._buckets[self._next])
            self._next += 1

    def stage_done(self, stage: int) -> None:
        """The backward pass of a stage is over, or this rank has no part in it."""
        for parameter in self.by_stage.get(stage, ()):
            self.ready(parameter)

    def _start(self, bucket: _Bucket) -> None:
        grads = [parameter.grad for parameter in bucket.parameters]
        parts = [
            parameter.new_zeros(parameter.numel()) if grad is None else grad.reshape(-1)
            for parameter, grad in zip(bucket.parameters, grads, strict=True)
        ]
        used = [0.0 if grad is None else 1.0 for grad in grads]
        parts.append(parts[0].new_tensor(used))
        bucket.flat = torch.cat(parts)
        for parameter in bucket.parameters:
            parameter.grad = None
        bucket.work = talk(
            dist.all_reduce,
            bucket.flat,
            group=self._groups.of(bucket.ranks),
            async_op=True,
        )

    def finish(self) -> None:
        """Wait, and put the sums where optimisers look for them. Raises PeerLost.

        A parameter to which no rank has added anything has no gradient. Raises InputError if there
        were gradients after a sum had begun.
        """
        for bucket in self._buckets:
            talk(bucket.work.wait)
        for bucket in self._buckets:
            assert bucket.flat is not None
            if any(parameter.grad is not None for parameter in bucket.parameters):
                raise InputError(
                    "a parameter got a gradient several times in one backward pass, as a layer "
                    "does that several reentrant checkpoints run; give these use_reentrant=False"
                )
            sizes = [parameter.numel() for parameter in bucket.parameters]
            *values, used = bucket.flat.split([*sizes, len(sizes)])
            for parameter, value, mark in zip(
                bucket.parameters, values, used.tolist(), strict=True
            ):
                parameter.grad = value.view_as(parameter) if mark else None
            bucket.flat = bucket.work = None
