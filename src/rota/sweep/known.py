"""A driver's copy of a search; the controller sends all of it once, then only changes."""

from collections.abc import Mapping
from math import inf
from typing import Any

from rota.model.sweep import Report
from rota.request.sweepfile import parse_sweep
from rota.sweep.trial import Trial, reports_of, trial_of


class Known:
    """One search, of which only its ``request`` is known at first.

    ``cursor`` marks what has been received, ``next_s`` is when to look again without news.
    """

    def __init__(self, told: Mapping[str, Any]) -> None:
        self.request = parse_sweep(told["request"], workdir="")
        self.cursor = ""
        self.next_s = inf
        self._trials: dict[int, Trial] = {}
        self._reports: dict[int, list[Report]] = {}

    def take(self, told: Mapping[str, Any]) -> None:
        """Add the controller's news since ``cursor``.

        A trial may have ``metrics`` as well: names of other metrics that it has reported.
        """
        self.cursor = told["cursor"]
        for each in told["trials"]:
            reports = self._reports.setdefault(each["number"], [])
            reports[each["known"] :] = reports_of(each["curve"])
            self._trials[each["number"]] = trial_of(self.request, each, reports)

    def trials(self) -> list[Trial]:
        """All trials, by number."""
        return [self._trials[number] for number in sorted(self._trials)]

    def budget_s(self, told: Mapping[str, Any]) -> float:
        """Least number of seconds for which the GPU hours last; infinity without a limit."""
        if self.request.gpu_hours is None:
            return inf
        return float((self.request.gpu_hours * 3600 - told["gpu_s"]) / max(1, told["gpus"]))
