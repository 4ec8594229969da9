"""A trial as its search sees it: what it tried, what it has reported, and what became of it."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rota.model.job import JobState
from rota.model.sweep import Report, Value
from rota.model.trial_standing import Standing, standing_of
from rota.request.sweepfile import SweepRequest

MOST_NAMES = 10  # of metrics, in a message


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
        return max(values, default=None) if maximize else min(values, default=None)


def reports_of(curve: Sequence[Sequence[Any]]) -> list[Report]:
    """The reports in a curve as it is told."""
    return [Report(step, at_s, _number(value)) for step, at_s, value in curve]


def trial_of(request: SweepRequest, told: Mapping[str, Any], reports: Sequence[Report]) -> Trial:
    """One trial as it is told, with its reports so far."""
    state = JobState[told["state"]]
    last = [each.value for each in reports[-1:]]
    has_metric = bool(request.metric)
    standing = standing_of(state, told["why"] is not None, last, has_metric=has_metric)
    return Trial(
        told["number"],
        told["params"],
        standing,
        reports,
        _reason(request, state, standing, told, reports),
        ended=state.is_final,
        stopping=told["why"] is not None,
    )


def _number(value: Any) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _reason(
    request: SweepRequest,
    state: JobState,
    standing: Standing,
    told: Mapping[str, Any],
    reports: Sequence[Report],
) -> str:
    """The reason for which a trial failed, or its search has stopped it."""
    metric = request.metric
    if standing is Standing.STOPPED:
        return str(told["why"])
    if standing is not Standing.FAILED:
        return ""
    if reports and reports[-1].value is None:
        return f"reported {metric} as no number (NaN or infinite)"
    if state is not JobState.SUCCEEDED:
        return f"ended {state.name}: {told['message'] or 'see rota logs ' + told['job_id']}"
    return _silent(metric, told.get("metrics", ()))


def _silent(metric: str, others: Sequence[str]) -> str:
    """Says that a trial has not reported the metric, names those it did, and what to do."""
    call = f"s.report({metric}=...)" if metric.isidentifier() else f"s.report with {metric!r}"
    instead = f" (but of {', '.join(sorted(others)[:MOST_NAMES])})" if others else ""
    return f"ended without a report of {metric}{instead}: have it call {call}"
