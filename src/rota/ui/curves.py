"""Curves of what jobs report: from the event log at first, then as the reports come."""

from collections.abc import Mapping
from math import isfinite
from typing import Any, TypeGuard

MOST_POINTS = 1000  # of one curve; beyond, every second one is left out
MOST_CURVES = 2000
MOST_METRICS = 8  # of one job

Curve = list[tuple[float, float]]  # (step, value)


class Curves:
    """For each job, its metrics over its steps, by the names that it has given them."""

    def __init__(self) -> None:
        self._of_job: dict[str, dict[str, Curve]] = {}
        self._at_s: dict[str, float] = {}  # of each job's last report

    def add(self, job_id: str, progress: Mapping[str, Any]) -> None:
        """Take a report of a job; one that is no newer than the last one changes nothing."""
        told, at_s = progress.get("step"), progress.get("at_s", 0.0)
        if not _is_number(told) or (at_s and at_s <= self._at_s.get(job_id, 0.0)):
            return
        self._at_s[job_id] = at_s
        step = float(told)
        known = self._of_job.setdefault(job_id, {})
        for name, value in metrics_of(progress):
            curve = known.setdefault(name, [])
            if not curve or curve[-1][0] < step:
                curve.append((step, value))
            elif curve[-1][0] > step:  # the job began again
                known[name] = [(step, value)]
            if len(curve) > MOST_POINTS:
                del curve[1:-1:2]
        while len(self._of_job) > MOST_CURVES:
            gone = next(iter(self._of_job))
            del self._of_job[gone], self._at_s[gone]

    def of(self, job_id: str) -> dict[str, Curve]:
        """The curves of a job, by metric."""
        return self._of_job.get(job_id, {})


def metrics_of(progress: Mapping[str, Any]) -> list[tuple[str, float]]:
    """The loss and the metrics that a job has reported, as far as they are numbers."""
    told = progress.get("metrics")
    figures = {"loss": progress.get("loss")} | (dict(told) if isinstance(told, Mapping) else {})
    return [(str(name), float(value)) for name, value in figures.items() if _is_number(value)][
        :MOST_METRICS
    ]


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
