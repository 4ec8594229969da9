"""What a policy has tried with a job: read from its marks, and kept when these forget it."""

from collections.abc import Iterable
from typing import Any, NamedTuple

from rota.model.state import ClusterState


class Tried(NamedTuple):
    """One trial, at its end. Speeds are relative to before; ``measured`` is None if nothing was.

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


def tried_in(mark: Any) -> list[Tried]:
    """The trials that a job's mark tells of, in order.

    The entry ``trials`` has the first five fields of each, ``tried`` the others, of as many of the
    last: marks of before had none.
    """
    if not isinstance(mark, dict):
        return []
    told = [each for each in mark.get("trials", ()) if isinstance(each, list)]
    more = [_pairs(each) for each in mark.get("tried", ())]
    unknown: list[Any] = [((), (), ())] * (len(told) - len(more))
    return [Tried(*each, *rest) for each, rest in zip(told, [*unknown, *more], strict=True)]


def _pairs(entry: list[list[Any]]) -> tuple[tuple[Any, ...], ...]:
    mates, on, before = entry
    return tuple(mates), tuple(map(tuple, on)), tuple(map(tuple, before))


class Trials:
    """All trials of all jobs, from their marks as they were written one after another."""

    def __init__(self) -> None:
        self._of: dict[int, list[Tried]] = {}

    def note(self, row: int, mark: Any) -> None:
        """Take note of a job's new mark, which may have forgotten earlier trials."""
        told = tried_in(mark)
        if told:
            known = self._of.setdefault(row, [])
            recent = known[-len(told) :]
            known += [each for each in told if each not in recent]

    def of(self, row: int) -> list[Tried]:
        """A job's trials, oldest first."""
        return self._of.get(row, [])


def tell(state: ClusterState, trials: Iterable[Tried]) -> list[dict[str, Any]]:
    """Trials as the API tells them; ``with``, ``on`` and ``from`` as far as they are known."""
    told = []
    for each in trials:
        fields = each._asdict()
        mates, on, before = (fields.pop(name) for name in ("mates", "on", "before"))
        if mates:
            fields["with"] = state.ids(mates)
        fields |= {
            name: state.places(parts) for name, parts in (("on", on), ("from", before)) if parts
        }
        told.append(fields)
    return told
