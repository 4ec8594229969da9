"""The trial of a background job on a GPU, judged by the steps of the foreground beside it."""

from __future__ import annotations

from math import isfinite
from typing import Any, NamedTuple

from rota.model.events import FillMeasured

ALONE = "alone"  # nobody is beside it
PROBE = "probe"  # the foreground's slowdown is being measured
KEPT = "kept"  # it was within the limit, or many pairs of segments could not show more
UNTOLD = "untold"  # nobody told of the foreground's steps: only idle moments are filled
UNDONE = "undone"  # the foreground was slowed down beyond its limit

PATIENCE = 10  # times ``trial_s``: a probe ends unjudged if nothing was told of steps by then
ENOUGH_PAIRS = 32  # of segments: a trial needs no more to end
LEAST_HARVEST = 0.02  # of its own speed: a job that gets less gets nothing
STARVED_S = 300.0  # for which a job that gets nothing stays
NOISE = 1e-9


class Trial(NamedTuple):
    """A background job on GPUs of a node since ``began_s``, with the foreground rows beside it.

    ``predicted`` is the share of each GPU that it was to find, ``starved_s`` since when the job has
    got nothing.
    """

    node: int
    gpus: tuple[int, ...]
    beside: tuple[int, ...]
    began_s: float
    predicted: float
    verdict: str
    starved_s: float | None = None

    def mark(self) -> list[Any]:
        """The trial as JSON has it: a single GPU as its number."""
        gpus = self.gpus[0] if len(self.gpus) == 1 else list(self.gpus)
        return [self.node, gpus, list(self.beside), *self[3:]]


def read(mark: list[Any]) -> Trial:
    """The trial of a mark."""
    # Marks of older logs have one more field before the last.
    node, gpus, beside, began_s, predicted, verdict, *_, starved_s = mark
    gpus = tuple(gpus) if isinstance(gpus, list) else (gpus,)
    return Trial(node, gpus, tuple(beside), began_s, predicted, verdict, starved_s)


def judged(
    trial: Trial,
    told: FillMeasured | None,
    limit: float,
    runs_s: float,
    now_s: float,
    trial_s: float,
) -> Trial:
    """The trial as it stands at ``now_s``; its verdict says what became of it.

    The job has run there since ``runs_s`` (below 0: not yet); ``told`` counts if it is from then
    on, and of a job beside. It is the interval of the slowdown that decides. The job is undone if
    all of it is beyond ``limit``. It is kept after ``trial_s`` if all of it is within, or if
    ENOUGH_PAIRS of segments leave that open; until then a probe goes on.
    """
    if trial.verdict == ALONE or runs_s < 0:
        return trial
    since_s = max(trial.began_s, runs_s)
    if told is not None and (told.at_s < since_s or told.beside not in trial.beside):
        told = None
    if told is not None:
        nothing = isfinite(told.harvest) and told.harvest < LEAST_HARVEST
        starved_s = told.at_s if trial.starved_s is None else trial.starved_s
        trial = trial._replace(starved_s=starved_s if nothing else None)
    if told is None or not (isfinite(told.slowdown) and told.slowdown > 0):
        if trial.verdict == PROBE and now_s >= since_s + PATIENCE * trial_s - NOISE:
            trial = trial._replace(verdict=UNTOLD)
        return trial
    if told.low is None or told.high is None:
        return trial
    if told.low > limit + NOISE:
        return trial._replace(verdict=UNDONE)
    is_judged = told.high <= limit + NOISE or told.pairs >= ENOUGH_PAIRS
    if is_judged and now_s >= since_s + trial_s - NOISE:
        trial = trial._replace(verdict=KEPT)
    return trial


def due_s(trial: Trial, runs_s: float, now_s: float, trial_s: float) -> float | None:
    """When time alone may change what becomes of the trial; None: never, or not before a report.

    Of a job that does not run there yet it is when patience would end.
    """
    since_s, times = max(trial.began_s, runs_s), list[float]()
    if trial.verdict == PROBE:
        times.append(since_s + PATIENCE * trial_s)
        if runs_s >= 0:
            times.append(since_s + trial_s)
    if trial.starved_s is not None:
        times.append(trial.starved_s + STARVED_S)
    return min((at_s for at_s in times if at_s > now_s + NOISE), default=None)


def is_starved(trial: Trial, now_s: float) -> bool:
    """True if the job has got nothing for long."""
    return trial.starved_s is not None and now_s >= trial.starved_s + STARVED_S - NOISE
