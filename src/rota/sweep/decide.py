"""Decides a search's next actions: trials to stop, trials to start, or its end.

A function of the controller's data about the search alone, so that the successor of a killed driver
continues where it was.
"""

from bisect import bisect_right, insort
from collections.abc import Iterator, Mapping, Sequence
from math import inf
from typing import Any, NamedTuple

from rota.model.trial_standing import Standing
from rota.request.sweepfile import MAX_TRIALS, Rungs, SweepRequest
from rota.sweep.trial import Trial

TARGET, DONE, BUDGET, FAILED = "TARGET", "DONE", "BUDGET", "FAILED"
MOST_OPEN = 16  # trials under ``parallel: auto``, times what the cluster has room for


class Stop(NamedTuple):
    """A trial is to end now."""

    number: int
    why: str


class Start(NamedTuple):
    """A trial is to begin, with parameters yet to be proposed."""

    number: int


class End(NamedTuple):
    """The search is over, and its open trials must end."""

    outcome: str
    message: str


Action = Stop | Start | End


def decide(request: SweepRequest, told: Mapping[str, Any], trials: Sequence[Trial]) -> list[Action]:
    """The next actions, in this order.

    ``told`` is a sweep as the controller's API gives it, and ``trials`` has all of its trials, by
    number.

    1. The search ends once a trial has reached the target, too many trials have failed, its budget
    is used up, or all its trials have ended.

    2. A trial stops if its last report was no number, or if others have left it behind at a rung.

    3. Trials are started as long as there is room for them.
    """
    if told["state"] == "ENDED":
        return []
    end = _end(request, told, trials)
    if end is not None:
        return [end]
    stops = _stops(request, trials)
    stopped = {stop.number for stop in stops}
    still_open = [
        trial for trial in trials if trial.standing is Standing.OPEN and trial.number not in stopped
    ]
    return [*stops, *_starts(request, trials, still_open, told["gpus"])]


# -- the end -----------------------------------------------------------------------------------


def _end(request: SweepRequest, told: Mapping[str, Any], trials: Sequence[Trial]) -> End | None:
    metric, target = request.metric, request.target
    best = _best(request, trials)
    if best is not None and target is not None:
        value, trial = best
        reached = value >= target if request.maximize else value <= target
        if reached:
            return End(TARGET, f"{told['name']}.{trial.number} reached {metric} {value:g}")
    failed = [trial for trial in trials if trial.standing is Standing.FAILED]
    if len(failed) > request.max_failures:
        return End(
            FAILED,
            f"{_count(len(failed), 'trial')} failed; the last: {_last(told['name'], failed)}",
        )
    if request.gpu_hours is not None and told["gpu_s"] >= request.gpu_hours * 3600:
        return End(BUDGET, f"its trials have used {request.gpu_hours:g} GPU-hours")
    if request.max_trials is None or len(trials) < request.max_trials:
        return None
    if not all(trial.ended for trial in trials):
        return None
    if not metric:
        if len(failed) == len(trials):
            return End(FAILED, f"all have failed; the last: {_last(told['name'], failed)}")
        some = f", {len(failed)} of them failed" if failed else ""
        return End(DONE, f"{_ended(len(trials))}{some}")
    if best is None and failed:
        message = f"none of {_count(len(trials), 'trial')} came to a value; the last that failed"
        return End(FAILED, f"{message}: {_last(told['name'], failed)}")
    return End(DONE, _ended(len(trials)))


def _best(request: SweepRequest, trials: Sequence[Trial]) -> tuple[float, Trial] | None:
    """The best value and its trial; of equal ones the trial with the lowest number."""
    bests = [(trial.best(request.maximize), trial) for trial in trials]
    found = [(value, trial) for value, trial in bests if value is not None]
    pick = max if request.maximize else min
    return pick(found, key=lambda each: each[0], default=None)


def _last(name: str, failed: Sequence[Trial]) -> str:
    """The trial that failed last, and why."""
    return f"{name}.{failed[-1].number} {failed[-1].reason}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _ended(trials: int) -> str:
    return f"{_count(trials, 'trial')} {'has' if trials == 1 else 'have'} ended"


# -- trials to stop ----------------------------------------------------------------------------


def _stops(request: SweepRequest, trials: Sequence[Trial]) -> list[Stop]:
    stops = {
        trial.number: Stop(trial.number, f"it {trial.reason}")
        for trial in trials
        if trial.standing is Standing.FAILED and not (trial.ended or trial.stopping)
    }
    if request.rungs is not None:
        open_ones = {trial.number for trial in trials if trial.standing is Standing.OPEN}
        for reports in _rungs(request, request.rungs, trials):
            for number, why in _left_behind(request, request.rungs.eta, reports, trials):
                if number in open_ones:
                    stops.setdefault(number, Stop(number, why))
    return [stops[number] for number in sorted(stops)]


def _rungs(request: SweepRequest, rungs: Rungs, trials: Sequence[Trial]) -> Iterator[int]:
    """The rungs that trials have reached, as numbers of reports; none after the last."""
    most = max((len(trial.reports) for trial in trials), default=0)
    reports = rungs.first
    while reports <= most and (request.reports is None or reports < request.reports):
        yield reports
        reports *= rungs.eta


def _left_behind(
    request: SweepRequest, eta: int, reports: int, trials: Sequence[Trial]
) -> Iterator[tuple[int, str]]:
    """The trials that must stop at a rung, and why.

    This is the stopping rule of asynchronous successive halving (Li et al. 2020): of the trials
    that reached the rung until this one did, itself included, the best 1/eta continue, at least
    one. Trials that came later don't count, so that the answer stays the same however late it is
    asked. A trial's value there is its best until then; no value is worse than any. A training that
    goes back to a checkpoint reaches a rung anew.
    """
    came = sorted(
        (trial.reports[reports - 1].at_s, trial.number, trial.best(request.maximize, reports))
        for trial in trials
        if len(trial.reports) >= reports
    )
    values: list[float] = []  # sorted, better ones later
    for count, (_, number, value) in enumerate(came, start=1):
        signed = -inf if value is None else value if request.maximize else -value
        ahead = len(values) - bisect_right(values, signed)
        goes_on = max(1, count // eta)
        if ahead >= goes_on:
            shown = "no number" if value is None else f"{value:g}"
            yield (
                number,
                f"at report {reports} its best {request.metric} was {shown}, behind {ahead} of "
                f"{count} trials so far, of which the best {goes_on} went on",
            )
        insort(values, signed)


# -- trials to start ---------------------------------------------------------------------------


def _starts(
    request: SweepRequest, trials: Sequence[Trial], still_open: Sequence[Trial], gpus: int
) -> list[Start]:
    """Trials to start while there is room, with the lowest free numbers."""
    if request.algorithm == "manual":
        return []
    most = MAX_TRIALS if request.max_trials is None else request.max_trials
    count = min(_room(request, still_open, gpus), most - len(trials))
    taken = {trial.number for trial in trials}
    free = (number for number in range(MAX_TRIALS) if number not in taken)
    return [Start(number) for number, _ in zip(free, range(count), strict=False)]


def _room(request: SweepRequest, still_open: Sequence[Trial], gpus: int) -> int:
    """Number of further trials for which there is room.

    Under ``parallel: auto``, as many trials without a report are open as the cluster can run at
    once, so that there is always something new to look at, and at most MOST_OPEN times as many
    trials in all.
    """
    if request.parallel is not None:
        return request.parallel - len(still_open)
    at_once = max(1, gpus // request.job.num_gpus)
    silent = sum(not trial.reports for trial in still_open)
    return min(at_once - silent, MOST_OPEN * at_once - len(still_open))
