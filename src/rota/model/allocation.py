"""The GPUs that a job holds."""

from collections.abc import Sequence
from functools import lru_cache


class Allocation:
    """GPUs of one or more nodes, as ``(node index, bit mask of GPU indices)`` pairs.

    ``shared`` is True if the job shares its GPUs with others whose allocations are shared, too.
    ``background`` is True if it lies on the second layer, where a background job has GPUs beside
    those to whom the main layer gives them: the layers do not count each other's GPUs.
    ``batch`` is the batch it trains with there: samples that a GPU computes at once, and how often
    it adds up gradients before a step (0: not); None is the job's own. Immutable and reused: equal
    one-node allocations made by :func:`on_node` are the same object, so that comparing by identity
    is enough most of the time.
    """

    __slots__ = ("background", "batch", "num_gpus", "parts", "shared")

    parts: tuple[tuple[int, int], ...]
    num_gpus: int
    shared: bool
    batch: tuple[int, int] | None
    background: bool

    def __init__(
        self,
        parts: tuple[tuple[int, int], ...],
        shared: bool = False,
        batch: tuple[int, int] | None = None,
        background: bool = False,
    ) -> None:
        if any(node < 0 for node, _ in parts):
            raise ValueError(f"nodes are numbered from 0: {parts}")
        if batch is not None and not (len(batch) == 2 and batch[0] >= 1 and batch[1] >= 0):
            raise ValueError(f"a batch is 1 or more samples and 0 or more accumulations: {batch}")
        self.parts = parts
        self.num_gpus = sum(mask.bit_count() for _, mask in parts)
        self.shared = shared
        self.batch = batch
        self.background = background

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Allocation):
            return False
        return (
            self.parts == other.parts
            and self.shared == other.shared
            and self.batch == other.batch
            and self.background == other.background
        )

    def __hash__(self) -> int:
        return hash((self.parts, self.shared, self.batch, self.background))

    def __repr__(self) -> str:
        gpus = " ".join(f"{node}:{list(gpus)}" for node, gpus in self.gpus())
        batch = "" if self.batch is None else f" {self.batch[0]}x{self.batch[1] + 1}"
        layer = " background" if self.background else ""
        return f"Allocation({gpus}{' shared' if self.shared else ''}{layer}{batch})"

    def gpus(self) -> list[tuple[int, tuple[int, ...]]]:
        """``(node index, GPU indices in rising order)`` for each node."""
        return [(node, indices(mask)) for node, mask in self.parts]

    def without(self, other: "Allocation") -> "Allocation | None":
        """These GPUs less those of ``other``; None if nothing is left."""
        theirs = dict(other.parts)
        masks = ((node, mask & ~theirs.get(node, 0)) for node, mask in self.parts)
        parts = [part for part in masks if part[1]]
        return of_parts(parts, self.shared, self.batch, self.background) if parts else None

    def joined(self, other: "Allocation") -> "Allocation":
        """These GPUs and those of ``other``."""
        masks = dict(self.parts)
        for node, mask in other.parts:
            masks[node] = masks.get(node, 0) | mask
        return of_parts(sorted(masks.items()), self.shared, self.batch, self.background)

    def overlaps(self, other: "Allocation") -> bool:
        """True if there is a GPU in both, on the same layer."""
        return self.background == other.background and self.meets(other)

    def meets(self, other: "Allocation") -> bool:
        """True if there is a GPU in both, whatever their layers."""
        theirs = dict(other.parts)
        return any(mask & theirs.get(node, 0) for node, mask in self.parts)

    def with_sharing(self, shared: bool) -> "Allocation":
        """The same GPUs, shared or not."""
        if shared == self.shared:
            return self
        return of_parts(self.parts, shared, self.batch, self.background)

    def with_batch(self, batch: tuple[int, int] | None) -> "Allocation":
        """The same GPUs, used with that batch."""
        if batch == self.batch:
            return self
        return of_parts(self.parts, self.shared, batch, self.background)

    def shares(self, amount: int) -> list[tuple[int, int]]:
        """``amount`` split over the nodes as the GPUs are: whole parts, by (node index, part)."""
        parts, gpus, before = [], 0, 0
        for node, mask in self.parts:
            gpus += mask.bit_count()
            upto = amount * gpus // self.num_gpus
            parts.append((node, upto - before))
            before = upto
        return parts

    def nodes(self) -> tuple[int, ...]:
        """The node indices, in rising order."""
        return tuple(node for node, _ in self.parts)


@lru_cache(maxsize=65536)
def indices(mask: int) -> tuple[int, ...]:
    """The positions of the bits that are set in ``mask``, rising."""
    return tuple(i for i in range(mask.bit_length()) if mask >> i & 1)


def of_parts(
    parts: Sequence[tuple[int, int]],
    shared: bool = False,
    batch: tuple[int, int] | None = None,
    background: bool = False,
) -> Allocation:
    """The allocation of these parts, at least one, by rising node."""
    if len(parts) > 1 or batch is not None or (shared and background):
        return Allocation(tuple(parts), shared, batch, background)
    if background:
        return background_on_node(*parts[0])
    return shared_on_node(*parts[0]) if shared else on_node(*parts[0])


@lru_cache(maxsize=65536)
def on_node(node: int, mask: int) -> Allocation:
    """The allocation of the GPUs in ``mask`` on one node; the same object for equal arguments."""
    return Allocation(((node, mask),))


@lru_cache(maxsize=65536)
def shared_on_node(node: int, mask: int) -> Allocation:
    """Like :func:`on_node`, for a job that shares these GPUs with others."""
    return Allocation(((node, mask),), shared=True)


@lru_cache(maxsize=65536)
def background_on_node(node: int, mask: int) -> Allocation:
    """Like :func:`on_node`, for a background job."""
    return Allocation(((node, mask),), background=True)


def gpus_text(count: int) -> str:
    """A number of GPUs in words: ``1 GPU``, ``2 GPUs``."""
    return "1 GPU" if count == 1 else f"{count} GPUs"


def cores_text(millicores: int) -> str:
    """Thousandths of a CPU core in words: ``1 CPU core``, ``2.5 CPU cores``."""
    return "1 CPU core" if millicores == 1000 else f"{millicores / 1000:.10g} CPU cores"
