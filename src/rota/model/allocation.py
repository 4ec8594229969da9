"""Which GPUs a job holds."""

from functools import lru_cache


class Allocation:
    """GPUs of one or more nodes, as ``(node index, bit mask of GPU indices)`` pairs.

    Immutable and shared: equal one-node allocations made by :func:`on_node` are the same object,
    so that comparing by identity is enough most of the time.
    """

    __slots__ = ("num_gpus", "parts")

    parts: tuple[tuple[int, int], ...]
    num_gpus: int

    def __init__(self, parts: tuple[tuple[int, int], ...]) -> None:
        self.parts = parts
        self.num_gpus = sum(mask.bit_count() for _, mask in parts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Allocation) and self.parts == other.parts

    def __hash__(self) -> int:
        return hash(self.parts)

    def __repr__(self) -> str:
        return f"Allocation({' '.join(f'{node}:{list(gpus)}' for node, gpus in self.gpus())})"

    def gpus(self) -> list[tuple[int, tuple[int, ...]]]:
        """``(node index, GPU indices in rising order)`` for each node."""
        return [(node, indices(mask)) for node, mask in self.parts]

    def nodes(self) -> tuple[int, ...]:
        """The node indices, in rising order."""
        return tuple(node for node, _ in self.parts)


def indices(mask: int) -> tuple[int, ...]:
    """The positions of the bits that are set in ``mask``, rising."""
    return tuple(i for i in range(mask.bit_length()) if mask >> i & 1)


@lru_cache(maxsize=65536)
def on_node(node: int, mask: int) -> Allocation:
    """The allocation of the GPUs in ``mask`` on one node; the same object for equal arguments."""
    return Allocation(((node, mask),))
