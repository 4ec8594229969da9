"""The shown facts of a sweep, from the API's JSON document."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from typing import Any, NamedTuple

from rota.model.job import JobState
from rota.model.trial_standing import standing_of

# How a trial stands for its search; in this order they are listed and drawn.
RUNNING, WAITING, DONE, STOPPED, FAILED, CANCELLED = STANDINGS = (
    "running",
    "waiting",
    "done",
    "stopped",
    "failed",
    "cancelled",
)
OFF_GPUS = (JobState.PENDING, JobState.HELD, JobState.SUSPENDED)


class Point(NamedTuple):
    """A value of the metric, None if it was no number; ``at_s`` is since the sweep's submission."""

    step: float
    at_s: float
    value: float | None


class Turn(NamedTuple):
    """A time in which a trial worked, and its GPUs, each as ``NODE:INDEX``."""

    start_s: float
    stop_s: float
    gpus: tuple[str, ...]


class TrialStory(NamedTuple):
    """One trial; times are seconds after the sweep's submission, None if not yet.

    ``best`` is the report with its best value, None if it has reported none.
    """

    number: int
    job_id: str
    state: str
    standing: str
    params: Mapping[str, Any]
    curve: tuple[Point, ...]
    best: Point | None
    why: str
    gpu_s: float
    submit_s: float
    finish_s: float | None
    ran: tuple[Turn, ...]


class SweepStory(NamedTuple):
    """A sweep and its trials in order of their numbers; ``end_s`` is its end, or now.

    ``winner`` is the number of the best trial; ``space`` has the fields of each parameter as the
    sweep file says them; ``rest`` is the document that all this was read from.
    """

    name: str
    metric: str
    maximize: bool
    target: float | None
    end_s: float
    space: Mapping[str, Mapping[str, Any]]
    winner: int | None
    trials: tuple[TrialStory, ...]
    rest: Mapping[str, Any]

    @property
    def is_array(self) -> bool:
        """True if it is an array, whose trials are its tasks."""
        return bool(self.rest.get("array"))  # older controllers don't tell

    @property
    def best(self) -> TrialStory | None:
        """The trial with the best value, None if there is no value."""
        return next((trial for trial in self.trials if trial.number == self.winner), None)

    @property
    def parameters(self) -> list[str]:
        """The parameters of the space, then those that trials have besides."""
        names = dict.fromkeys(self.space)
        for trial in self.trials:
            names |= dict.fromkeys(trial.params)
        return list(names)


def read_sweep(document: Mapping[str, Any], now_s: float) -> SweepStory:
    """The story in a sweep's document.

    ``now_s`` is the time, in seconds since 1970, until which running trials are drawn.
    """
    search = document["request"]["sweep"]
    maximize = search.get("goal") == "maximize"
    zero_s = document["submit_s"]
    told = document["trials"]
    known_s = [zero_s, *(report[1] for trial in told for report in trial["curve"])]
    known_s += [
        edge for trial in told for turn in trial["ran"] for edge in turn if edge is not None
    ]
    # Clocks of two machines differ: what was heard of has happened.
    end_s = document["finish_s"] or max(now_s, *known_s)
    metric = search.get("metric", "")
    trials = [_trial(trial, metric, maximize, zero_s, end_s) for trial in told]
    trials = [t if t.why else t._replace(why=_unsaid(document, t)) for t in trials]
    trials.sort(key=lambda trial: trial.number)
    best = document["best"]
    return SweepStory(
        name=document["name"],
        metric=metric,
        maximize=maximize,
        target=_finite(search.get("target")),
        end_s=end_s - zero_s,
        space=search["space"],
        winner=None if best is None else best["number"],
        trials=tuple(trials),
        rest=document,
    )


def _trial(
    told: Mapping[str, Any], metric: str, maximize: bool, zero_s: float, end_s: float
) -> TrialStory:
    curve = tuple(Point(step, at_s - zero_s, _finite(value)) for step, at_s, value in told["curve"])
    numbers = [report for report in curve if report.value is not None]
    sign = 1 if maximize else -1
    # The first of equal ones: max keeps it.
    best = max(numbers, key=lambda report: sign * (report.value or 0.0), default=None)
    finish_s = told["finish_s"]
    return TrialStory(
        number=told["number"],
        job_id=told["job_id"],
        state=told["state"],
        standing=_standing(told, curve, has_metric=bool(metric)),
        params=told["params"],
        curve=curve,
        best=best,
        why=told["why"] or told["message"] or "",
        gpu_s=told["gpu_s"],
        submit_s=told["submit_s"] - zero_s,
        finish_s=None if finish_s is None else finish_s - zero_s,
        ran=tuple(
            Turn(
                start_s - zero_s,
                (end_s if stop_s is None else stop_s) - zero_s,
                tuple(f"{part['node']}:{gpu}" for part in held for gpu in part["gpus"]),
            )
            for (start_s, stop_s), held in zip(told["ran"], told["ran_on"], strict=True)
        ),
    )


def _unsaid(document: Mapping[str, Any], trial: TrialStory) -> str:
    """The reason for a trial's failure, if nothing else gives it; "" otherwise."""
    if trial.standing != FAILED:
        return ""
    if trial.state == JobState.SUCCEEDED.name and not trial.curve:
        return f"it never reported {document['request']['sweep']['metric']}"
    return f"`rota logs {document['name']}.{trial.number}` tells"


def _standing(told: Mapping[str, Any], curve: Sequence[Point], *, has_metric: bool) -> str:
    state = JobState[told["state"]]
    if not state.is_final:
        return WAITING if state in OFF_GPUS else RUNNING
    values = [each.value for each in curve]
    return standing_of(state, told["why"] is not None, values, has_metric=has_metric).value


def _finite(value: Any) -> float | None:
    return None if value is None or not isfinite(value) else float(value)


def ranked(story: SweepStory) -> list[TrialStory]:
    """The trials, the best first: the winner, then by value; at last those without one."""
    sign = -1 if story.maximize else 1

    def key(trial: TrialStory) -> tuple[bool, bool, float, int]:
        value = 0.0 if trial.best is None or trial.best.value is None else trial.best.value
        return trial.number != story.winner, trial.best is None, sign * value, trial.number

    return sorted(story.trials, key=key)


def best_so_far(story: SweepStory) -> list[tuple[float, float, int]]:
    """(time, value, trial number) of each report that was better than all before it."""
    reports = sorted(
        (report.at_s, trial.number, report.value)
        for trial in story.trials
        for report in trial.curve
        if report.value is not None
    )
    found: list[tuple[float, float, int]] = []
    for at_s, number, value in reports:
        if not found or (value > found[-1][1] if story.maximize else value < found[-1][1]):
            found.append((at_s, value, number))
    return found


def thinned(curve: Sequence[Point], most: int) -> list[Point]:
    """About ``most`` reports at most: the first, last, best and worst are among them."""
    if len(curve) <= most:
        return list(curve)
    told = [n for n, report in enumerate(curve) if report.value is not None]
    ends = {0, len(curve) - 1}
    if told:
        ends |= {pick(told, key=lambda n: curve[n].value or 0.0) for pick in (min, max)}
    # Closer together at the beginning, where curves rise and other trials end.
    some = {round((part / (most - 1)) ** 2 * (len(curve) - 1)) for part in range(most)}
    return [curve[n] for n in sorted(ends | some)]


def values_of(story: SweepStory) -> Iterator[float]:
    """Every number that any trial has reported."""
    return (r.value for trial in story.trials for r in trial.curve if r.value is not None)


def counts(story: SweepStory) -> dict[str, int]:
    """Number of trials by standing, in the order of STANDINGS; without zeros."""
    standings = [trial.standing for trial in story.trials]
    return {name: standings.count(name) for name in STANDINGS if name in standings}


def value_text(value: Any) -> str:
    """A metric's or parameter's value in a few characters: four digits; a dash for None."""
    if value is None or (isinstance(value, float) and not isfinite(value)):
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and abs(value) < 1e9:
        return str(value)
    return f"{value:.4g}" if isinstance(value, int | float) else str(value)


def params_text(params: Mapping[str, Any]) -> str:
    """Parameters as text, such as ``lr 0.01, width 64``."""
    return ", ".join(f"{name} {value_text(value)}" for name, value in params.items())
