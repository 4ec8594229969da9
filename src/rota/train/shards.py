"""Assigns samples to the virtual shards of a batch, and shards to ranks.

A global batch is cut into a fixed number of virtual shards, whatever the number of ranks. Each rank
works through a run of neighbouring shards. So what a shard computes, and the order in which the
gradients are added up, does not depend on how many ranks there are (VirtualFlow, MLSys 2022).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rota.errors import InputError


class Piece(NamedTuple):
    """One shard of a batch: its number, the samples in it, and its weight in the mean gradient."""

    shard: int
    samples: Sequence[int]
    weight: float


def shards_of_rank(num_shards: int, world_size: int, rank: int) -> range:
    """The shards of one rank: neighbours, of equal number give or take one, none left out."""
    if world_size > num_shards:
        raise InputError(
            f"{world_size} ranks can't share {num_shards} virtual shards; "
            f"give s.loader(..., shards={world_size}) or more, or use fewer GPUs"
        )
    return range(num_shards * rank // world_size, num_shards * (rank + 1) // world_size)


def pieces(batch: Sequence[int], size: int, shards: range) -> list[Piece]:
    """The pieces of ``batch`` (indices of samples), of ``size`` samples each, of these shards.

    The last piece of a smaller batch may be smaller, and shards after it have none. If that leaves
    a rank nothing, it gets the first piece with weight 0, so that every rank takes part.
    """
    found = []
    for shard in shards:
        samples = batch[size * shard : size * (shard + 1)]
        if len(samples):
            found.append(Piece(shard, samples, len(samples) / len(batch)))
    return found or [Piece(shards[0], batch[:size], 0.0)]


def num_pieces(samples: int, shards: int, least: int) -> int:
    """Number of these shards that get samples if none gets fewer than ``least``."""
    return max(1, min(shards, samples // least))


def next_size(size: int, left: int, least: int) -> int:
    """The samples of the next batch of ``size``, of so many that are ``left`` of an epoch.

    A rest with fewer than ``least`` takes what it lacks from this batch, or is added to it.
    """
    if not 0 < left - size < least:
        return size
    return left - least if left >= 2 * least else left


def even_pieces(batch: Sequence[int], size: int, shards: range, least: int) -> list[Piece]:
    """The fewest pieces of at most ``size`` samples that make up the batch, of almost equal size.

    Sizes differ by one sample at most. None has fewer than ``least`` samples, unless the whole
    batch does, even if some are larger for that. The last shards then get none, and a rank without
    samples gets the first piece with weight 0.
    """
    samples = len(batch)
    parts = num_pieces(samples, -(-samples // size), least)
    found = []
    for shard in range(shards[0], min(shards[-1] + 1, parts)):
        piece = batch[samples * shard // parts : samples * (shard + 1) // parts]
        found.append(Piece(shard, piece, len(piece) / samples))
    return found or [Piece(shards[0], batch[: samples // parts], 0.0)]


def even_part(batch: Sequence[int], rank: int, world_size: int) -> Piece:
    """The rank's part of a batch whose parts differ by one sample at most.

    A rank without samples gets the first one, with weight 0.
    """
    samples = len(batch)
    part = batch[samples * rank // world_size : samples * (rank + 1) // world_size]
    return Piece(rank, part or batch[:1], len(part) / samples)


def one_piece(batch: Sequence[int], size: int, shards: range) -> list[Piece]:
    """The same samples as :func:`pieces`, all in one piece."""
    samples = batch[size * shards[0] : size * (shards[-1] + 1)]
    if not len(samples):
        return [Piece(shards[0], batch[:size], 0.0)]
    return [Piece(shards[0], samples, len(samples) / len(batch))]


def seed_of(*numbers: int) -> int:
    """A seed for the random generators, below 2**63, that any of ``numbers`` changes wholly."""
    mixed = 0x9E3779B97F4A7C15
    for number in numbers:  # the finaliser of splitmix64 (Steele, Lea and Flood, OOPSLA 2014)
        mixed = (mixed + number + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
        mixed ^= mixed >> 31
    return mixed >> 1
