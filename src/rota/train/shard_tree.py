"""Sums over virtual shards in a fixed binary tree, within a rank and over all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

from rota.train.agreement import compare

# A sum over the shards index * 2**level ... (index + 1) * 2**level - 1.
Node = tuple[int, int]
CHUNK = 1 << 20  # numbers sent at once; they fit into the processor's caches


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
    mark: int = 0,
) -> torch.Tensor:
    """The sum over the shards of all ranks; the same bits on every rank.

    Raises InputError if the ranks do not all give the same ``mark``, a number below ``MARKS``.

    ``shards_of`` lists for each rank of the process group the shards that it has added to its
    ``tree``; ``spare`` makes room for a vector. Every rank sums one part of the vector over all
    shards, and then sends it to all: as many bytes as a ring reduction when each rank's shards are
    one subtree.
    """
    world = len(shards_of)
    num_shards = 1 + max(shard for shards in shards_of for shard in shards)
    if world == 1:
        return tree.total(num_shards)
    nodes = [nodes_of(shards) for shards in shards_of]
    own = [tree.sums[node] for node in nodes[rank]]
    result = own[0] if own else spare()
    for chunk, *others in zip(result.split(CHUNK), *(o.split(CHUNK) for o in own[1:]), strict=True):
        part = -(-chunk.numel() // world)
        outgoing = chunk.new_zeros(world, 1 + len(own) * part)
        outgoing[:, 0] = mark
        for position, value in enumerate([chunk, *others] if own else []):
            first = 1 + position * part
            for receiver, piece in enumerate(value.split(part)):
                outgoing[receiver, first : first + piece.numel()] = piece
        received = [1 + len(each) * part for each in nodes]
        sent = [1 + len(own) * part] * world
        incoming = chunk.new_empty(sum(received))
        dist.all_to_all_single(incoming, outgoing.flatten(), received, sent)
        from_ranks = incoming.split(received)
        compare([values[0].real.item() for values in from_ranks], rank)
        parts = ShardTree()
        for each, values in zip(nodes, from_ranks, strict=True):
            for node, value in zip(each, values[1:].split(part), strict=False):
                parts.add(node, value)
        whole = chunk.new_empty(world * part)
        dist.all_gather(list(whole.split(part)), parts.total(num_shards))
        chunk.copy_(whole[: chunk.numel()])
    for value in own[1:]:
        tree.release(value)
    tree.sums = {}
    return result
