"""Probes: what a policy tried with a job and measured, read from the marks of the job."""

from typing import Any, NamedTuple


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


def probes_in(mark: Any) -> list[Probe]:
    """The probes that a job's mark tells of, in order.

    The entry ``trials`` has the first five fields of each, ``tried`` the others, of as many of the
    last: marks of before had none.
    """
    if not isinstance(mark, dict):
        return []
    told = [each for each in mark.get("trials", ()) if isinstance(each, list)]
    more = [_pairs(each) for each in mark.get("tried", ())]
    unknown: list[Any] = [((), (), ())] * (len(told) - len(more))
    return [Probe(*each, *rest) for each, rest in zip(told, [*unknown, *more], strict=True)]


def _pairs(entry: list[list[Any]]) -> tuple[tuple[Any, ...], ...]:
    mates, on, before = entry
    return tuple(mates), tuple(map(tuple, on)), tuple(map(tuple, before))


class Probes:
    """All probes of all jobs, from their marks as they were written one after another."""

    def __init__(self) -> None:
        self._of: dict[int, list[Probe]] = {}

    def note(self, row: int, mark: Any) -> None:
        """Take note of a job's new mark, which may have forgotten earlier probes."""
        told = probes_in(mark)
        if told:
            known = self._of.setdefault(row, [])
            recent = known[-len(told) :]
            known += [each for each in told if each not in recent]

    def of(self, row: int) -> list[Probe]:
        """Returns the probes of a job, oldest first."""
        return self._of.get(row, [])
