"""Standing of a trial in its search, from its job's state and its reports."""

from collections.abc import Sequence
from enum import Enum

from rota.model.job import JobState


class Standing(Enum):
    """Standing of a trial in its search."""

    OPEN = "open"  # running, or waiting to run
    DONE = "done"  # ended with a value
    STOPPED = "stopped"  # the search has ended it, or is about to
    FAILED = "failed"  # nothing can be learned from it but that
    CANCELLED = "cancelled"  # by its user


def standing_of(
    state: JobState, stopped: bool, values: Sequence[float | None], *, has_metric: bool = True
) -> Standing:
    """The standing of a trial that has reported these values, None for one that was no number.

    ``stopped`` is True if its search wanted its end. A trial has also failed if its last value is
    no number, or if it ended without any value although its search has a metric.
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
