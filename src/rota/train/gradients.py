"""Gradients of virtual shards, taken one by one and added up in a fixed binary tree."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from operator import is_not

import torch
import torch.distributed as dist

from rota.errors import InputError
from rota.predict.gradient_noise import Squares
from rota.train.agreement import MARKS, Places, compare
from rota.train.counters import Counters
from rota.train.norms import Norms
from rota.train.shard_tree import ShardTree, reduce_tree
from rota.train.shards import seed_of

TAIL = 5  # numbers at the end of what is added up in single precision: see `Gradients._leaf`
NOTHING = (0, 0, 0, 0)  # of whole numbers below 2**24
ROOM = 4  # vectors of all gradients that a newcomer makes room for, before it joins


class Gradients:
    """The gradients of a batch: taken up shard by shard, added up over all ranks, given back.

    Float and complex buffers (running statistics of batch normalisation) are treated alike: every
    shard starts from those of the batch before, and what comes out is their mean over the shards.
    Of integer buffers, those of the last shard come out. Vectors of all gradients are used over
    and over: what is in ``.grad`` is good until the next batch begins.
    """

    def __init__(
        self,
        parameters: Sequence[torch.Tensor],
        buffers: Sequence[torch.Tensor],
        norms: Norms | None = None,
    ) -> None:
        self._parameters = list(parameters)
        self._norms = norms
        self.squares: Squares | None = None  # of the last batch, if they were measured
        self.word = self.heard = NOTHING  # rank 0's word for a batch, sent and received
        self._floats = [b for b in buffers if b.is_floating_point() or b.is_complex()]
        self._counters = Counters(buffers)
        self._kept = self._floats + self._counters.changing
        self._place = self._last = 0
        self.met = False  # True once this group's ranks have compared their work in full
        self._trees: dict[torch.dtype, ShardTree] = {}
        self._before: list[torch.Tensor] = []
        self._alone = False  # True if one piece is the whole batch: its gradients stay in place
        self._active: list[torch.Tensor] = []  # the parameters that are not frozen
        self._which = 0  # a number that tells them from another choice
        self._like: dict[torch.dtype, torch.Tensor] = {}
        self._lengths: dict[torch.dtype, list[int]] = {}
        self._free: dict[torch.dtype, list[torch.Tensor]] = {}
        self._given: list[torch.Tensor] = []  # tensors that `.grad` refers to
        self._keep = False  # True if others may still ask for the sum of the last batch
        self.reduced: dict[torch.dtype, torch.Tensor] = {}  # of the last batch that was complete
        self.reduced_batch = -1
        self._find_active()

    def begin(
        self, weight: float, *, alone: bool, place: int = 0, last: int = 0, number: int = 0
    ) -> None:
        """Start a batch, or restart it; no gradient has been taken.

        ``weight`` is the part of the batch's samples that this rank has; ``alone`` is True if it
        has all of them, in a single piece. ``place`` is a number that identifies this batch,
        ``last`` the shard with its last samples; ``number`` counts batches.
        """
        self._find_active()
        self._place, self._last = place, last
        if self._norms is not None:
            self._norms.begin(self._by_dtype(), number, single=alone)
        self._counters.begin()
        if not self._before:
            self._before = [b.clone() for b in self._kept]
        for tree in self._trees.values():
            self._release(*tree.sums.values())
        self._trees = {}
        self.squares = None
        self._alone = alone
        self.next_shard()
        for parameter in self._parameters:
            parameter.grad = None
        self._release(*self._given)
        self._given = []

    def take(self, shard: int, weight: float) -> None:
        """Take the gradients that the backward passes of one shard left; a weight of 0 takes none.

        Raises InputError for sparse gradients, and for large integer buffers that have changed.
        """
        self._check_taken()
        if self._alone:
            return
        if weight:
            for dtype, leaf in self._leaf(shard, weight).items():
                self._tree(dtype).add((0, shard), leaf)
        for parameter in self._parameters:
            parameter.grad = None

    def next_shard(self) -> None:
        """Let the next shard start from the buffers of the batch before."""
        for buffer, before in zip(self._kept, self._before, strict=True):
            buffer.copy_(before)

    def reduce(self, shards_of: Sequence[Sequence[int]], rank: int, batch: int) -> None:
        """Add up over all ranks. Raises RuntimeError if the process group fails, InputError if
        the ranks work on different batches, or with different parameters."""
        if self._alone:
            self.reduced, self.reduced_batch = {}, batch
            return
        mark = self._mark(len(shards_of), rank)
        reduced = {
            dtype: reduce_tree(
                self._tree(dtype), partial(self._spare, dtype), shards_of, rank, mark
            )
            for dtype in self._likes()
        }
        self._release(*self.reduced.values())
        self._trees = {}
        self.reduced, self.reduced_batch = reduced, batch
        self._keep = len(shards_of) > 1

    def settle(self, rank: int, size: int) -> None:
        """After a loss: ranks that have the sum of the last batch send it to those that don't.

        Ranks are never more than one batch apart, because no rank can complete a batch without all
        others. Raises RuntimeError if the process group fails.
        """
        if size == 1:
            return
        likes = self._likes()
        device = next(iter(likes.values())).device
        batches = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(size)]
        dist.all_gather(batches, torch.tensor([self.reduced_batch], device=device))
        known = [int(batch.item()) for batch in batches]
        newest = max(known)
        if min(known) == newest:
            return
        for dtype in likes:
            flat = self.reduced[dtype] if known[rank] == newest else self._spare(dtype)
            dist.broadcast(flat, known.index(newest))
            self.reduced[dtype] = flat
        self.reduced_batch, self._keep = newest, True

    def give(self, parts: int = 1, scale: float = 1.0) -> None:
        """Put the sums where optimisers look for them, and into the buffers.

        The batch was that of so many ``parts``, and its size ``scale`` times the initial one.
        """
        self._before = []
        if self._norms is not None:
            tail = (
                self.reduced[torch.float32][-TAIL:].tolist() if self.reduced else [*self.word, 0.0]
            )
            first, second, third, fourth, of_parts = tail
            self.heard = (int(first), int(second), int(third), int(fourth))
            self.squares = self._norms.measured(self.reduced, of_parts, parts, scale)
        for dtype, reduced in self.reduced.items():
            parameters, floats = self._of(dtype)
            # Programs clip gradients, and zero them, in place.
            flat = self._spare(dtype).copy_(reduced) if self._keep else reduced
            self._given.append(flat)
            *values, used, counted, _ = flat.split(self._lengths[dtype])
            if counted.numel():
                self._counters.unpack(counted)
            flags = used.tolist()
            for parameter, value, flag in zip(parameters, values, flags, strict=False):
                parameter.grad = value.view_as(parameter) if flag else None
            for buffer, value in zip(floats, values[len(parameters) :], strict=True):
                buffer.copy_(value.view_as(buffer))
        if not self._keep:
            self.reduced = {}

    @property
    def measured_in(self) -> tuple[int, int]:
        """The unit of the squares, and for how many batches each that is measured stands."""
        return (self._norms.unit, self._norms.every) if self._norms is not None else (0, 1)

    def _by_dtype(self) -> dict[torch.dtype, list[torch.Tensor]]:
        found: dict[torch.dtype, list[torch.Tensor]] = {}
        for parameter in self._active:
            found.setdefault(parameter.dtype, []).append(parameter)
        return found

    def _of(self, dtype: torch.dtype) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        return (
            [p for p in self._active if p.dtype == dtype],
            [b for b in self._floats if b.dtype == dtype],
        )

    def _dtypes(self) -> list[torch.dtype]:
        kinds = list(dict.fromkeys(t.dtype for t in [*self._active, *self._floats]))
        if kinds and self._norms is not None and torch.float32 not in kinds:
            kinds.append(torch.float32)  # squares of smaller types would be out of their range
        return kinds

    def _leaf(self, shard: int, weight: float) -> dict[torch.dtype, torch.Tensor]:
        """One vector for each type.

        Each has gradients, buffers, a mark for each parameter that had a gradient, integer buffers
        byte by byte, rank 0's word, and the squared norm of all gradients.
        """
        leaves = {}
        for dtype in self._likes():
            parameters, floats = self._of(dtype)
            grads = [p.grad for p in parameters]
            flags = [0.0 if grad is None else 1.0 for grad in grads]
            leaf = self._spare(dtype)
            used = torch.tensor(flags, dtype=dtype, device=leaf.device)
            *places, counted, tail = leaf.split(self._lengths[dtype])
            for value, place in zip([*grads, *floats, used], places, strict=True):
                if value is None:
                    place.zero_()
                else:
                    torch.mul(value.detach().reshape(-1), weight, out=place)
            counted.zero_()
            if counted.numel() and shard == self._last:
                self._counters.pack(counted)
            tail.zero_()
            if shard == 0 and any(self.word) and tail.numel():
                tail[:-1] = torch.tensor(self.word)
            leaves[dtype] = leaf
        if self._norms is not None:
            self._norms.note(leaves, weight)
        return leaves

    def _find_active(self) -> None:
        """Find the trainable parameters: programs freeze and unfreeze them between batches."""
        which = [number for number, p in enumerate(self._parameters) if p.requires_grad]
        active = [self._parameters[number] for number in which]
        if len(active) != len(self._active) or any(map(is_not, active, self._active)):
            self._active, self._which = active, seed_of(*which)
            self._like, self._lengths, self._free = {}, {}, {}

    def _mark(self, world: int, rank: int) -> int:
        """Digest of what all ranks must share; compared in full the first time in a group."""
        common = seed_of(self._place, self._which)
        if world > 1 and not self.met and self._likes():
            compare(Places(common).answers(), rank)
            self.met = True
        return common % MARKS

    def _check_taken(self) -> None:
        for parameter in self._active:
            if parameter.grad is not None and parameter.grad.layout != torch.strided:
                raise InputError(
                    f"the gradient of a parameter of shape {tuple(parameter.shape)} is sparse, and "
                    "can't be added up over shards; make the embedding with sparse=False"
                )
        self._counters.check()

    def make_room(self) -> None:
        """Allocate the memory that a batch needs, before others wait for it."""
        room = [self._spare(dtype).zero_() for dtype in self._likes() for _ in range(ROOM)]
        self._release(*room)

    def _tree(self, dtype: torch.dtype) -> ShardTree:
        if dtype not in self._trees:
            self._trees[dtype] = ShardTree(self._release)
        return self._trees[dtype]

    def _spare(self, dtype: torch.dtype) -> torch.Tensor:
        """A vector of all gradients of a type, with undefined contents."""
        free = self._free.get(dtype)
        if free:
            return free.pop()
        like = self._likes()[dtype]
        return like.new_empty(like.numel())

    def _release(self, *vectors: torch.Tensor) -> None:
        """Make these vectors available for other uses."""
        for vector in vectors:
            like = self._likes().get(vector.dtype)
            if like is None or like.numel() != vector.numel():
                continue  # made before parameters were frozen or unfrozen
            self._free.setdefault(vector.dtype, []).append(vector)

    def _likes(self) -> dict[torch.dtype, torch.Tensor]:
        """An empty vector of the right length for each type, in one order on all ranks."""
        if self._like:
            return self._like
        for number, dtype in enumerate(self._dtypes()):
            parameters, floats = self._of(dtype)
            counted = self._counters.num_bytes if number == 0 else 0
            measured = TAIL if self._norms is not None and dtype == torch.float32 else 0
            sizes = [t.numel() for t in parameters + floats]
            self._lengths[dtype] = [*sizes, len(parameters), counted, measured]
            one = (self._active or self._floats)[0].detach().new_empty(1, dtype=dtype)
            self._like[dtype] = one.expand(sum(self._lengths[dtype]))  # no memory of its own
        return self._like
