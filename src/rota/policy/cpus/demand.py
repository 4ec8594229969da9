"""Speeds of jobs by CPU cores, from the step times that they and their kinds have told."""

from __future__ import annotations

from functools import lru_cache
from math import exp, isfinite, log

from rota.model.allocation import Allocation
from rota.model.measured.reports import CoreTime
from rota.model.view import View
from rota.predict.core_points import CorePoint, usable
from rota.predict.cpu_demand import CoreFit, fit

GRAIN = 0.01  # of logarithms of step times: smaller changes of a mean call for no new fit

Points = tuple[CorePoint, ...]


def gpu_type_of(view: View, place: Allocation) -> str:
    """The types of these GPUs, as measurements name them."""
    if len(place.parts) == 1:  # the usual case, made fast
        return view.nodes[place.parts[0][0]].gpu_type
    return "+".join(sorted({view.nodes[node].gpu_type for node in place.nodes()}))


@lru_cache(maxsize=4096)
def points_of(times: tuple[CoreTime, ...], gpus: int) -> Points:
    """The step times of a job with so many GPUs, rounded, by the cores for each of them.

    Those that can't be are left out.
    """
    known, _ = usable(
        CorePoint(each.millicores / (1000 * gpus), _rounded(each.step_s), each.gpu_type)
        for each in times
    )
    return tuple(known)


@lru_cache(maxsize=4096)  # of the times of a kind, all but one are mostly as they were
def _rounded(step_s: float) -> float:
    if not (isfinite(step_s) and step_s > 0):
        return step_s
    return float(f"{exp(round(log(step_s) / GRAIN) * GRAIN):.6g}")


@lru_cache(maxsize=4096)
def curve(points: Points, gpu_type: str) -> CoreFit | None:
    """The curve by cores on a type of GPU; None if it is not known."""
    found, _ = fit(points)
    return found if found is not None and gpu_type in found.demand.gpu_s else None


@lru_cache(maxsize=8192)
def speeds(
    points: Points, gpu_type: str, gpus: int, quantum: int, quanta: int
) -> tuple[float, ...]:
    """Steps in a second with 1, 2, ... quanta for so many GPUs; empty if that is not known."""
    found = curve(points, gpu_type)
    if found is None:
        return ()
    each = quantum / (1000 * gpus)
    return tuple(found.demand.speed(count * each, gpu_type) for count in range(1, quanta + 1))
