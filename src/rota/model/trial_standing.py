"""How a trial of a search stands, by the state of its job and by what it has reported."""

from collections.abc import Sequence
from enum import Enum

from rota.model.job import JobState


class Standing(Enum):
    """What a trial is to its search."""

    OPEN = "open"  # it goes on, or waits to
    DONE = "done"  # it came to its end, with a value
    STOPPED = "stopped"  # the search has ended it, or is about to
    FAILED = "failed"  # nothing can be learned from it but that
    CANCELLED = "cancelled"  # by its user


def standing_of(
    state: JobState, stopped: bool, values: Sequence[float | None], *, has_metric: bool = True
) -> Standing:
    """How a trial stands that has reported these values, None for what was no number.

    ``stopped``: its search wanted its end. A trial has failed, too, if what it told last is no
    number, and if it came to its end without any though its search has a metric.
    """
    if state is JobState.CANCELLED and not stopped:
        return Standing.CANCELLED
    if values and values[-1] is None:
        return Standing.FAILED
    if stopped and state is not JobState.SUCCEEDED:
        return Standing.STOPPED
    if not state.is_final:
        return Standing.OPEN
    well = state is JobState.SUCCEEDED and (values or not has_metric)
    return Standing.DONE if well else Standing.FAILED
