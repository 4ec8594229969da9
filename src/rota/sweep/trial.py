"""A trial as its search sees it: what it tried, what it has reported, and what became of it."""

import math
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple

from rota.model.job import JobState
from rota.model.sweep import Report, Value
from rota.model.sweepfile import SweepRequest

MOST_NAMES = 10  # of metrics, in a message


class Standing(Enum):
    """What a trial is to its search."""

    OPEN = "open"  # it goes on, or waits to
    DONE = "done"  # it came to its end, with a value
    STOPPED = "stopped"  # the search has ended it, or is about to
    FAILED = "failed"  # nothing can be learned from it but that
    CANCELLED = "cancelled"  # by its user


class Trial(NamedTuple):
    """One trial. ``reason`` says why it failed, or why the search has stopped it.

    ``ended`` says whether its job is over, ``stopping`` whether the search wanted its end.
    """

    number: int
    params: Mapping[str, Value]
    standing: Standing
    reports: Sequence[Report] = ()
    reason: str = ""
    ended: bool = False
    stopping: bool = False

    def best(self, maximize: bool, reports: int | None = None) -> float | None:
        """The best number among its first ``reports``, or of all; None if there is none."""
        values = [report.value for report in self.reports[:reports] if report.value is not None]
        if not values:
            return None
        return max(values) if maximize else min(values)


def trials_of(request: SweepRequest, told: Mapping[str, Any]) -> list[Trial]:
    """The trials in what the controller tells of a search, by number.

    A trial may have ``metrics`` beside that: names of others that it has reported.
    """
    trials = [_trial(request, each) for each in told["trials"]]
    return sorted(trials, key=lambda trial: trial.number)


def _trial(request: SweepRequest, told: Mapping[str, Any]) -> Trial:
    reports = [Report(step, at_s, _number(value)) for step, at_s, value in told["curve"]]
    state = JobState[told["state"]]
    standing, reason = _standing(request, state, told, reports)
    return Trial(
        told["number"],
        told["params"],
        standing,
        reports,
        reason,
        ended=state.is_final,
        stopping=told["why"] is not None,
    )


def _number(value: Any) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _standing(
    request: SweepRequest, state: JobState, told: Mapping[str, Any], reports: Sequence[Report]
) -> tuple[Standing, str]:
    metric, why = request.metric, told["why"]
    if state is JobState.CANCELLED and why is None:
        return Standing.CANCELLED, ""
    if reports and reports[-1].value is None:
        return Standing.FAILED, f"reported {metric} as no number (NaN or infinite)"
    if why is not None and state is not JobState.SUCCEEDED:
        return Standing.STOPPED, why
    if not state.is_final:
        return Standing.OPEN, ""
    if state is not JobState.SUCCEEDED:
        return Standing.FAILED, f"ended {state.name}: {told['message'] or 'its log says more'}"
    if not any(report.value is not None for report in reports):
        return Standing.FAILED, _silent(metric, told.get("metrics", ()))
    return Standing.DONE, ""


def _silent(metric: str, others: Sequence[str]) -> str:
    """That a trial has not reported the metric, but maybe others, and what to do."""
    call = f"s.report({metric}=...)" if metric.isidentifier() else f"s.report with {metric!r}"
    instead = f" (but of {', '.join(sorted(others)[:MOST_NAMES])})" if others else ""
    return f"ended without a report of {metric}{instead}: have it call {call}"
