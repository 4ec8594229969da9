"""The jobs that take turns with a job on its nodes, as reported by its policy."""

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
