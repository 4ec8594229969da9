"""Shortest remaining time first. An oracle: it reads durations that only a trace knows."""

from rota.model.plan import Plan
from rota.model.view import View
from rota.policy.stages import run_first_that_fit


class ShortestRemaining:
    """SRTF: least remaining run time first, preemptive; ties by arrival, then id."""

    name = "srtf"
    needs_duration = True

    def decide(self, view: View) -> Plan:
        """Run the jobs with the least left to do; skip what does not fit."""
        trial = view.trial()
        run_first_that_fit(trial, sorted(view.active, key=lambda row: (view.remaining_s(row), row)))
        return trial.plan()
