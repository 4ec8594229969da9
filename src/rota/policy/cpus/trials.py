"""Trials of a job with other CPU cores: which to make next, and what they may cost.

A trial is over when the job has told of its step time. What a job does in it is not lost: it does
its steps, with more cores or with fewer.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from rota.model.allocation import Allocation
from rota.model.measured.phase_times import EVALUATE
from rota.model.view import View
from rota.policy.cpus.demand import Points, curve
from rota.predict.core_design import next_cores

WARM_UP, STEPS = 5, 20
PART = 0.02  # of a job's time
LONGEST_S = 60.0  # of one trial; steps of minutes are not tried
REPORTS_S = 30.0  # after which a job is not expected to tell any more
LOOK_S = 5.0  # between looks for what it tells
MOST_TRIES = 6  # of a phase on a type of GPU
MOST_AGAIN = 2  # with the same cores
ALIKE = 1.2  # times as many cores as were measured tell nothing new


class Trial(NamedTuple):
    """A trial under way: its cores and those before, in thousandths, its time, and a prediction.

    ``predicted`` is the speed relative to before; 1 if nothing is known.
    """

    millicores: int
    before: int
    began_s: float
    lasts_s: float
    predicted: float


def tries(mark: Mapping[str, Any], phase: str, gpu_type: str) -> dict[str, int]:
    """How often each number of thousandths was tried."""
    return dict(mark.get("tried", {}).get(f"{phase} {gpu_type}", {}))


@lru_cache(maxsize=4096)
def cores_to_try(
    points: Points,
    gpu_type: str,
    share: float,
    most: float,
    step: float,
    tried: tuple[tuple[str, int], ...],
    gpus: int,
) -> float | None:
    """Cores for each GPU to try next, in multiples of ``step`` up to ``most``; None: none.

    ``tried`` are the items of :func:`tries`.
    """
    known = [point.cores for point in points if point.gpu_type == gpu_type]
    times = dict(tried)
    if not known or sum(times.values()) >= MOST_TRIES:
        return None
    top = max(known)
    tells_more = most >= top * ALIKE
    most = most if tells_more else min(most, top)
    candidates = [
        each
        for count in range(1, int(most / step + 1e-9) + 1)
        if times.get(str(_millicores(each := count * step, gpus)), 0) < MOST_AGAIN
    ]
    if not candidates:
        return None
    if not tells_more:
        candidates.append(top)  # it is known, so that the design does not ask for ``most`` first
    found = next_cores(points, candidates, share, gpu_type)
    return None if found is None or found in known else found


def next_trial(
    view: View,
    row: int,
    place: Allocation,
    phase: str,
    points: Points,
    gpu_type: str,
    cores: float,
) -> Trial | None:
    """The trial with so many cores for each GPU; None if its steps take too long."""
    before = view.held_cpus[row]
    had = before / (1000 * place.num_gpus)
    here = [point for point in points if point.gpu_type == gpu_type]
    step_s = min(here, key=lambda point: abs(point.cores - had)).step_s
    steps = 1 if phase == EVALUATE else WARM_UP + STEPS
    lasts_s = steps * step_s * max(1.0, had / cores)
    if lasts_s > LONGEST_S:
        return None
    found, predicted = curve(points, gpu_type), 1.0
    if found is not None:
        times = (found.demand.step_s(each, gpu_type) for each in (had, cores))
        predicted = next(times) / next(times)
    return Trial(_millicores(cores, place.num_gpus), before, view.now_s, lasts_s, predicted)


def earliest_s(view: View, row: int, spent_s: float, trial: Trial) -> float:
    """When the trial may begin: trials are to take no more than their part of the job's time.

    Of a job that tells how many steps it has, the time is that to its end.
    """
    attained_s = view.attained_s(row)
    told = view.progress[row] or {}
    step, total, step_s = (told.get(name) for name in ("step", "total", "step_time_s"))
    left_s = (total - step) * step_s if total and step is not None and step_s else 0.0
    needed_s = (spent_s + trial.lasts_s) / PART
    return view.now_s + max(0.0, needed_s - attained_s - max(0.0, left_s))


def _millicores(cores: float, gpus: int) -> int:
    return round(1000 * cores * gpus)
