"""How one logical array lies on the shards of a slice, and how it gets from one layout to another.

A *shape* is the one of the logical array, a *shard shape* the one of the array on one device. A
transfer is planned per target shard: :func:`pieces` says which part of which source shard goes
where in it. Sizes are elements along a dimension; nothing here knows of types or bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from rota.errors import InputError

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Split:
    """Each shard has a range of the array along ``dim``; a negative one counts from the last.

    Sizes are those of ``torch.tensor_split``: where the length does not divide, the first shards
    have one more, and a length below the number of shards leaves the last shards empty.
    """

    dim: int


@dataclass(frozen=True, slots=True)
class Replicated:
    """Each shard has the whole array."""


@dataclass(frozen=True, slots=True)
class Each:
    """Shards are different arrays of one shape, and no parts of a whole.

    The shape is the one of each. Such shards can't be brought into another layout, or onto another
    number of shards. A single one is a whole array, and can.
    """


Layout = Split | Replicated | Each


class Region(NamedTuple):
    """A part of an array: ``array.narrow(dim, start, stop - start)``."""

    dim: int
    start: int
    stop: int


class Piece(NamedTuple):
    """A part of one source shard, and the part of the target shard that it becomes.

    Both have the same shape. None stands for all of the shard.
    """

    shard: int
    region: Region | None
    place: Region | None


def bounds(length: int, shards: int, index: int) -> tuple[int, int]:
    """The range, from start up to stop, that shard ``index`` has of ``length`` elements."""
    size, longer = divmod(length, shards)
    start = index * size + min(index, longer)
    return start, start + size + (index < longer)


def shard_shape(shape: Shape, layout: Layout, shards: int, index: int) -> Shape:
    """The shape of shard ``index``. Raises InputError."""
    _check_shard("shard", shards, index)
    if not isinstance(layout, Split):
        return shape
    dim = _split_dim(shape, layout)
    start, stop = bounds(shape[dim], shards, index)
    return (*shape[:dim], stop - start, *shape[dim + 1 :])


def whole_shape(shapes: Sequence[Shape], layout: Layout) -> Shape:
    """The shape of the logical array whose shards have these shapes.

    Raises InputError if no array lies so: a function's outputs are other than it was said of them.
    """
    if not shapes:
        raise InputError("shapes: there is none; an array has at least one shard")
    whole = tuple(shapes[0])
    if isinstance(layout, Split):
        dim = _split_dim(whole, layout)
        length = sum(shape[dim] for shape in shapes if len(shape) == len(whole))
        whole = (*whole[:dim], length, *whole[dim + 1 :])
    for index, shape in enumerate(shapes):
        expected = shard_shape(whole, layout, len(shapes), index)
        if tuple(shape) != expected:
            raise InputError(
                f"shard {index} of {len(shapes)} has shape {tuple(shape)}; as {layout}, with "
                f"shard 0 of shape {tuple(shapes[0])}, it must have {expected}; say another layout,"
                " or return other shapes"
            )
    return whole


def pieces(
    shape: Shape, source: Layout, source_shards: int, target: Layout, target_shards: int, index: int
) -> tuple[Piece, ...]:
    """The pieces that make target shard ``index``, in the order in which they lie in it.

    They cover the target shard once, and none is without elements: an empty target shard has no
    pieces. The same layout on the same number of shards is one piece, which is all of the shard of
    the same index, also where that is empty. Target shards take from the shards of a replicated
    source in turn, as even as can be, each from a single one.

    Raises InputError for a dimension that the shape lacks, and for shards of :class:`Each` that
    are to become others.
    """
    _check_shard("target shard", target_shards, index)
    if source == target and source_shards == target_shards:
        shard_shape(shape, source, source_shards, index)  # refuses what has no such dimension
        return (Piece(index, None, None),)
    source, target = _of_a_whole(source, source_shards), _of_a_whole(target, target_shards)
    if isinstance(source, Each) or isinstance(target, Each):
        raise InputError(
            f"layout: {source} on {source_shards} shards can't become {target} on {target_shards}: "
            "such shards are no parts of a whole; say Split(dim) or Replicated() of the function's "
            "outputs"
        )
    made = shard_shape(shape, target, target_shards, index)
    if not prod(made):
        return ()
    wanted = None  # in the array's coordinates
    if isinstance(target, Split):
        dim = _split_dim(shape, target)
        wanted = Region(dim, *bounds(shape[dim], target_shards, index))
    if not isinstance(source, Split):
        shard = index * source_shards // target_shards
        return (Piece(shard, _unless_all(wanted, shape), None),)
    joint = _split_dim(shape, source)
    length = shape[joint]
    start, stop = wanted[1:] if wanted and wanted.dim == joint else (0, length)
    first = _owner(length, source_shards, start)
    last = _owner(length, source_shards, stop - 1)
    found = []
    for shard in range(first, last + 1):
        begin, end = bounds(length, source_shards, shard)
        low, high = max(begin, start), min(end, stop)
        region = wanted
        if wanted is None or wanted.dim == joint:
            region = Region(joint, low - begin, high - begin)
        held = shard_shape(shape, source, source_shards, shard)
        place = Region(joint, low - start, high - start)
        found.append(Piece(shard, _unless_all(region, held), _unless_all(place, made)))
    return tuple(found)


def _of_a_whole(layout: Layout, shards: int) -> Layout:
    """The layout, but of a single shard that is a whole array by itself: replicated."""
    return Replicated() if shards == 1 and isinstance(layout, Each) else layout


def _owner(length: int, shards: int, element: int) -> int:
    """The shard that has this element of ``length``: the inverse of :func:`bounds`."""
    size, longer = divmod(length, shards)
    if element < longer * (size + 1):
        return element // (size + 1)
    return longer + (element - longer * (size + 1)) // size


def _unless_all(region: Region | None, shape: Shape) -> Region | None:
    """The region, or None if it is all of an array of this shape."""
    if region is None or region[1:] == (0, shape[region.dim]):
        return None
    return region


def _split_dim(shape: Shape, layout: Split) -> int:
    """The dimension along which an array of this shape is split, counted from the first."""
    if not -len(shape) <= layout.dim < len(shape):
        raise InputError(
            f"dim: {layout} of an array of shape {shape}, which has {len(shape)} dimensions; "
            + (
                f"give one from {-len(shape)} to {len(shape) - 1}"
                if shape
                else "a scalar can't be split, say Replicated()"
            )
        )
    return layout.dim % len(shape)


def _check_shard(name: str, shards: int, index: int) -> None:
    if not 0 <= index < shards:
        raise InputError(f"{name}: {index} of {shards}; there are shards 0 to {shards - 1}")
