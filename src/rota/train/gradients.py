"""Adding up the gradients of virtual shards: in a fixed binary tree, or as torch's DDP does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

# A sum over the shards index * 2**level ... (index + 1) * 2**level - 1.
Node = tuple[int, int]
CHUNK = 1 << 20  # so many numbers are on their way at once, and stay in the processor's caches
ROOM = 4  # vectors of all gradients that a newcomer makes room for, before it joins


class ShardTree:
    """Sums over virtual shards, in a fixed binary tree over their numbers.

    Neighbouring sums are added as soon as both are there, and never otherwise: what is left are the
    largest whole subtrees, at most two for each level. Floating-point sums depend on their order;
    this order depends on the shards alone, not on who computed them. ``release`` is given the
    vectors that are not needed any more.
    """

    def __init__(self, release: Callable[[torch.Tensor], object] | None = None) -> None:
        self.sums: dict[Node, torch.Tensor] = {}
        self._release = release

    def add(self, node: Node, value: torch.Tensor) -> None:
        """Take the sum of a subtree, which may be changed in place from now on."""
        level, index = node
        while (partner := self.sums.pop((level, index ^ 1), None)) is not None:
            left, right = (partner, value) if index & 1 else (value, partner)
            value = left.add_(right)
            self.release(right)
            level, index = level + 1, index >> 1
        self.sums[level, index] = value

    def release(self, vector: torch.Tensor) -> None:
        """This one is not needed any more."""
        if self._release is not None:
            self._release(vector)

    def total(self, num_shards: int) -> torch.Tensor:
        """The sum over all shards; those of which nothing came are left out."""
        sums, level = self.sums, 0
        while (1 << level) < num_shards or len(sums) > 1:
            upper: dict[Node, torch.Tensor] = {}
            for (height, index), value in sorted(sums.items()):
                if height > level:
                    upper[height, index] = value
                    continue
                parent = (level + 1, index >> 1)
                if parent in upper:
                    upper[parent].add_(value)
                    self.release(value)
                else:
                    upper[parent] = value
            sums, level = upper, level + 1
        self.sums = {}
        (value,) = sums.values()
        return value


def nodes_of(shards: Sequence[int]) -> list[Node]:
    """The largest whole subtrees over these shards, in order: what :class:`ShardTree` ends with."""
    present = {(0, shard) for shard in shards}
    level = 0
    while any(height == level for height, _ in present):
        for height, index in sorted(present):
            if height == level and not index & 1 and (level, index + 1) in present:
                present -= {(level, index), (level, index + 1)}
                present.add((level + 1, index >> 1))
        level += 1
    return sorted(present, key=lambda node: node[1] << node[0])


def reduce_tree(
    tree: ShardTree,
    spare: Callable[[], torch.Tensor],
    shards_of: Sequence[Sequence[int]],
    rank: int,
) -> torch.Tensor:
    """The sum over the shards of all ranks; the same bits on every rank.

    ``shards_of`` lists for each rank of the process group the shards that it has added to its
    ``tree``; ``spare`` makes room for a vector. Every rank sums one part of the vector over all
    shards, and then sends it to all: as many bytes as a ring reduction when each rank's shards are
    one subtree.
    """
    import torch.distributed as dist

    world = len(shards_of)
    num_shards = 1 + max(shard for shards in shards_of for shard in shards)
    if world == 1:
        return tree.total(num_shards)
    nodes = [nodes_of(shards) for shards in shards_of]
    own = [tree.sums[node] for node in nodes[rank]]
    result = own[0] if own else spare()
    for chunk, *others in zip(result.split(CHUNK), *(o.split(CHUNK) for o in own[1:]), strict=True):
        part = -(-chunk.numel() // world)
        outgoing = chunk.new_zeros(world, len(own), part)
        for position, value in enumerate([chunk, *others] if own else []):
            for receiver, piece in enumerate(value.split(part)):
                outgoing[receiver, position, : piece.numel()] = piece
        incoming = chunk.new_empty(sum(map(len, nodes)) * part)
        received = [len(each) * part for each in nodes]
        sent = [len(own) * part] * world
        dist.all_to_all_single(incoming, outgoing.flatten(), received, sent)
        parts = ShardTree()
        all_nodes = [node for each in nodes for node in each]
        for node, value in zip(all_nodes, incoming.split(part), strict=True):
            parts.add(node, value)
        whole = chunk.new_empty(world * part)
        dist.all_gather(list(whole.split(part)), parts.total(num_shards))
        chunk.copy_(whole[: chunk.numel()])
    for value in own[1:]:
        tree.release(value)
    tree.sums = {}
    return result


class Gradients:
    """The gradients of a batch: taken up shard by shard, added up over all ranks, given back.

    Float buffers (running statistics of batch normalisation) are treated alike: every shard starts
    from those of the batch before, and what comes out is their mean over the shards. Vectors of all
    gradients are used over and over: what is in ``.grad`` is good until the next batch begins.
    """

    def __init__(
        self,
        parameters: Sequence[torch.Tensor],
        buffers: Sequence[torch.Tensor],
        *,
        measure: bool = False,
    ) -> None:
        self._parameters = list(parameters)
        self._measure = measure
        # The mean of the squared norms of the shards' gradients, the squared norm of their mean.
        self.squares: tuple[float, float] | None = None
        self._floats = [b for b in buffers if b.is_floating_point()]
        self._counters = [b for b in buffers if not b.is_floating_point()]
        self._trees: dict[torch.dtype, ShardTree] = {}
        self._before: list[torch.Tensor] = []
        self._alone = False  # whether one piece is the whole batch: its gradients stay in place
        self._like: dict[torch.dtype, torch.Tensor] = {}
        self._free: dict[torch.dtype, list[torch.Tensor]] = {}
        self._given: list[torch.Tensor] = []  # what `.grad` refers to
        self._keep = False  # whether others may still ask for the sum of the last batch
        self.reduced: dict[torch.dtype, torch.Tensor] = {}  # of the last batch that was complete
        self.reduced_batch = -1

    def begin(self, weight: float, *, alone: bool) -> None:
        """Start a batch, or start it once more: nothing has been taken up.

        ``weight`` is the part of the batch's samples that this rank has; ``alone`` says that it has
        all of them, in a single piece.
        """
        if not self._before:
            self._before = [b.clone() for b in self._floats + self._counters]
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
        """Take up what backward passes of one shard have left; a weight of 0 takes nothing."""
        if self._alone:
            return
        if weight:
            for dtype, leaf in self._leaf(weight).items():
                self._tree(dtype).add((0, shard), leaf)
        for parameter in self._parameters:
            parameter.grad = None

    def next_shard(self) -> None:
        """Let the next shard start from the buffers of the batch before."""
        for buffer, before in zip(self._floats + self._counters, self._before, strict=True):
            buffer.copy_(before)

    def reduce(self, shards_of: Sequence[Sequence[int]], rank: int, batch: int) -> None:
        """Add up over all ranks. Raises RuntimeError if the process group fails."""
        if self._alone:
            self.reduced, self.reduced_batch = {}, batch
            return
        reduced = {
            dtype: reduce_tree(self._tree(dtype), partial(self._spare, dtype), shards_of, rank)
            for dtype in self._likes()
        }
        self._release(*self.reduced.values())
        self._trees = {}
        self.reduced, self.reduced_batch = reduced, batch
        self._keep = len(shards_of) > 1

    def settle(self, rank: int, size: int) -> None:
        """After a loss: those that got the sum of the last batch give it to those that did not.

        Ranks are never more than one batch apart: none can complete a batch without all others.
        Raises RuntimeError if the process group fails.
        """
        import torch
        import torch.distributed as dist

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

    def give(self) -> None:
        """Put the sums where optimisers look for them, and into the buffers."""
        self._before = []
        of_shards = of_mean = 0.0
        for dtype, reduced in self.reduced.items():
            parameters, floats = self._of(dtype)
            # Programs clip gradients, and zero them, in place.
            flat = self._spare(dtype).copy_(reduced) if self._keep else reduced
            self._given.append(flat)
            sizes = [p.numel() for p in parameters] + [b.numel() for b in floats]
            *values, used, square = flat.split([*sizes, len(parameters), int(self._measure)])
            if self._measure:
                of_shards += square.item()
                of_mean += _square(values[: len(parameters)])
            flags = used.tolist()
            for parameter, value, flag in zip(parameters, values, flags, strict=False):
                parameter.grad = value.view_as(parameter) if flag else None
            for buffer, value in zip(floats, values[len(parameters) :], strict=True):
                buffer.copy_(value.view_as(buffer))
        if self._measure and self.reduced:
            self.squares = of_shards, of_mean
        if not self._keep:
            self.reduced = {}

    def _of(self, dtype: torch.dtype) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        return (
            [p for p in self._parameters if p.dtype == dtype],
            [b for b in self._floats if b.dtype == dtype],
        )

    def _dtypes(self) -> list[torch.dtype]:
        return list(dict.fromkeys(t.dtype for t in [*self._parameters, *self._floats]))

    def _leaf(self, weight: float) -> dict[torch.dtype, torch.Tensor]:
        """One vector for each type: gradients, buffers, which parameters had one, their square."""
        import torch

        leaves = {}
        for dtype in self._dtypes():
            parameters, floats = self._of(dtype)
            grads = [p.grad for p in parameters]
            used = [0.0 if grad is None else 1.0 for grad in grads]
            if self._measure:
                used.append(_square([grad for grad in grads if grad is not None]))
            leaf = self._spare(dtype)
            values = [*grads, *floats, torch.tensor(used, dtype=dtype, device=leaf.device)]
            lengths = [t.numel() for t in parameters + floats] + [len(used)]
            for value, place in zip(values, leaf.split(lengths), strict=True):
                if value is None:
                    place.zero_()
                else:
                    torch.mul(value.detach().reshape(-1), weight, out=place)
            leaves[dtype] = leaf
        return leaves

    def make_room(self) -> None:
        """Have the memory ready that a batch needs, before others wait for it."""
        room = [self._spare(dtype).zero_() for dtype in self._likes() for _ in range(ROOM)]
        self._release(*room)

    def _tree(self, dtype: torch.dtype) -> ShardTree:
        if dtype not in self._trees:
            self._trees[dtype] = ShardTree(self._release)
        return self._trees[dtype]

    def _spare(self, dtype: torch.dtype) -> torch.Tensor:
        """A vector of all gradients of a type, with anything in it."""
        free = self._free.get(dtype)
        if free:
            return free.pop()
        like = self._likes()[dtype]
        return like.new_empty(like.numel())

    def _release(self, *vectors: torch.Tensor) -> None:
        """These may be used for something else."""
        for vector in vectors:
            self._free.setdefault(vector.dtype, []).append(vector)

    def _likes(self) -> dict[torch.dtype, torch.Tensor]:
        """An empty vector of the right length for each type, in one order on all ranks."""
        for dtype in self._dtypes():
            if dtype not in self._like:
                parameters, floats = self._of(dtype)
                length = sum(t.numel() for t in parameters + floats) + len(parameters)
                length += int(self._measure)
                one = (parameters or floats)[0].detach().new_empty(1)
                self._like[dtype] = one.expand(length)  # without memory of its own
        return self._like


def _square(values: Sequence[torch.Tensor]) -> float:
    """The squared norm of all these together."""
    return sum(float(value.float().square().sum()) for value in values)
