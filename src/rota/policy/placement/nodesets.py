"""Sets of nodes as integer bit sets, by the number of their free GPUs."""

from collections.abc import Iterator

from rota.model.allocation import Allocation, of_parts


def lowest(nodes: int) -> int:
    """The lowest-numbered node of a set that is not empty."""
    return (nodes & -nodes).bit_length() - 1


def members(nodes: int) -> Iterator[int]:
    """The nodes of a set, the lowest-numbered first."""
    while nodes:
        bit = nodes & -nodes
        yield bit.bit_length() - 1
        nodes ^= bit


def emptiest_first(by_count: list[int]) -> Iterator[int]:
    """Nodes with free GPUs, those with the most first, then the lowest-numbered."""
    for count in range(len(by_count) - 1, 0, -1):
        yield from members(by_count[count])


def lowest_gpus(mask: int, count: int) -> int:
    """The ``count`` lowest GPUs of ``mask``, which has that many."""
    taken = 0
    for _ in range(count):
        bit = mask & -mask
        taken |= bit
        mask ^= bit
    return taken


def first_gpus(allocation: Allocation, count: int) -> Allocation:
    """The first so many of these GPUs: those of a job's first ranks, which have its state."""
    parts = []
    for node, mask in allocation.parts:
        gpus = min(count, mask.bit_count())
        if gpus:
            parts.append((node, lowest_gpus(mask, gpus)))
        count -= gpus
    return of_parts(parts)


def fewest(by_count: list[int], num_gpus: int) -> list[tuple[int, int]] | None:
    """``(node, GPUs)`` on as few nodes as can be: the emptiest whole, the rest in a tight hole.

    Of nodes with as many free GPUs the lowest-numbered comes first. None if too few are free.
    """
    left = by_count.copy()
    parts = []
    while num_gpus:
        hole = next((c for c in range(num_gpus, len(left)) if left[c]), 0)
        count = hole or next((c for c in range(len(left) - 1, 0, -1) if left[c]), 0)
        if not count:
            return None
        node = lowest(left[count])
        left[count] &= ~(1 << node)
        parts.append((node, min(count, num_gpus)))
        num_gpus -= min(count, num_gpus)
    return parts
