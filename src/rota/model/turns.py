"""The jobs that take turns with a job on its nodes, and those before it, as its policy reports."""

from enum import IntEnum
from typing import NamedTuple


class Turns(NamedTuple):
    """The jobs that take turns on ``nodes``.

    The rows are those that have their turn together, those that run now and those that wait, the
    next one first. The present turn ends at ``ends_s``.
    """

    nodes: tuple[int, ...]
    running: tuple[tuple[int, ...], ...]
    waiting: tuple[tuple[int, ...], ...]
    ends_s: float

    def position(self, row: int) -> int | None:
        """The job's place among those that wait, from 1; None if it runs."""
        places = (place for place, rows in enumerate(self.waiting, 1) if row in rows)
        return next(places, None)

    def left_s(self, now_s: float) -> float:
        """Seconds until the present turn ends."""
        return max(0.0, self.ends_s - now_s)


class Cause(IntEnum):
    """The cause for which another job comes before one that waits."""

    OWNER = 1  # its owner has had less of a fair share
    PRIORITY = 2  # its priority is higher
    SERVED = 3  # it has had less time, by its priority
    EARLIER = 4  # it came earlier


class Ahead(NamedTuple):
    """The jobs that come ``before`` one that waits, by cause.

    So many jobs are ``sharing`` so many ``gpus``, the waiting one included unless it waits to be
    let in.
    """

    sharing: int
    gpus: int
    before: tuple[tuple[Cause, tuple[int, ...]], ...]

    @staticmethod
    def by_cause(sharing: int, gpus: int, before: list[tuple[Cause, int]]) -> "Ahead":
        """The same of rows that are each told with their cause, in their order."""
        causes = dict.fromkeys(cause for cause, _ in before)
        rows = (tuple(row for each, row in before if each == cause) for cause in causes)
        return Ahead(sharing, gpus, tuple(zip(causes, rows, strict=True)))
