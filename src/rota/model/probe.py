"""Probes: trials of a policy with a job, which it measures, and undoes if they do not pay."""

from typing import NamedTuple


class Probe(NamedTuple):
    """One probe, at its end. Speeds are relative to before; ``measured`` is None if nothing was.

    ``mates`` are the rows it was tried with; ``on`` and ``before`` where it was then and earlier,
    as (node index, mask of GPUs) pairs: no GPUs stand for whichever of the node.
    """

    at_s: float
    what: str
    predicted: float
    measured: float | None
    kept: bool
    mates: tuple[int, ...] = ()
    on: tuple[tuple[int, int], ...] = ()
    before: tuple[tuple[int, int], ...] = ()
