"""The speed of a job by its CPU cores, for users: measured, and as the fitted curve has it."""

from collections.abc import Iterable
from typing import Any, NamedTuple

from rota.model.measured.core_times import telling, wait_shares
from rota.model.measured.phase_times import EVALUATE, TRAIN
from rota.model.state.state import ClusterState
from rota.model.view import View
from rota.predict.core_points import CorePoint
from rota.predict.cpu_demand import fit

MOST_ROWS = 12
LEAST_CORES = 0.25


class Told(NamedTuple):
    """The facts of a job's curve by cores, which are those of the whole job.

    ``points`` are step times by phase, ``waits`` the measured parts of a step spent waiting for
    data, by phase and thousandths of a core. The job has ``now`` cores and is in ``phase``; its
    nodes have ``most`` cores, and ``gpu_type`` is as points name it.
    """

    points: dict[str, tuple[CorePoint, ...]]
    gpu_type: str
    now: float
    most: float
    phase: str
    waits: dict[str, dict[int, float]]


def told_by(state: ClusterState, row: int, now_s: float) -> Told | None:
    """Facts about a job's curve; None unless it runs on CPU cores that are controlled."""
    place, millicores = state.held[row], state.held_cpus.get(row)
    if place is None or millicores is None:
        return None
    view, nodes = View(state, now_s, None), [state.nodes[node] for node in place.nodes()]
    points = {
        phase: tuple(
            CorePoint(each.millicores / 1000, each.step_s, each.gpu_type)
            for each in view.core_times(row, place, phase)
        )
        for phase in (TRAIN, EVALUATE)
    }
    gpu_type = "+".join(sorted({node.gpu_type for node in nodes}))
    most = sum(node.millicores for node in nodes) / 1000
    waits = {}
    for phase in points:
        known = telling(view.profile(row), view.own_profile(row), place, phase)
        waits[phase] = wait_shares(known, place, phase, gpu_type)
    return Told(points, gpu_type, millicores / 1000, most, view.phase(row), waits)


def describe(told: Told | None) -> dict[str, Any] | None:
    """``{"now", "phases": [{"phase", "now", "missing", "warnings", "curve"}]}``, JSON-able.

    The rows of a ``curve`` are ``{"cores", "speed", "predicted_s", "measured_s", "wait_share",
    "predicted_wait_share"}``: cores of the whole job, steps a second relative to now, seconds of a
    step, and the part of it spent waiting for data. A phase of which nothing is known is left out.
    ``missing`` says why there is no prediction. The first fit loads SciPy.
    """
    if told is None:
        return None
    phases = [_phase(told, phase, points) for phase, points in told.points.items() if points]
    return {"now": told.now, "phases": phases}


def _phase(told: Told, phase: str, points: tuple[CorePoint, ...]) -> dict[str, Any]:
    found, warnings = fit(points)
    demand = None if found is None else found.demand
    if demand is None or told.gpu_type not in demand.gpu_s:
        demand, missing = None, warnings[-1] if warnings else "nothing was measured on its GPUs"
    else:
        missing = None
    measured = {each.cores: each.step_s for each in points if each.gpu_type == told.gpu_type}
    rows = []
    for cores in _shown(told, measured, demand is not None):
        row = {
            "cores": cores,
            "speed": None,
            "predicted_s": None,
            "measured_s": measured.get(cores),
            "wait_share": told.waits[phase].get(round(1000 * cores)),
            "predicted_wait_share": None,
        }
        if demand is not None:
            row["predicted_s"] = step_s = demand.step_s(cores, told.gpu_type)
            row["speed"] = demand.step_s(told.now, told.gpu_type) / step_s
            if not warnings:  # of a doubtful curve, the GPU's part is a guess
                row["predicted_wait_share"] = demand.waits(cores, told.gpu_type)
        rows.append(row)
    return {
        "phase": phase,
        "now": phase == told.phase,
        "missing": missing,
        "warnings": [] if demand is None else list(warnings),
        "curve": rows,
    }


def _shown(told: Told, measured: Iterable[float], predicted: bool) -> list[float]:
    """The measured cores, and of a curve those that the job has, and powers of two to the most."""
    cores = set(measured)
    if predicted:
        cores |= {told.now, told.most}
        more = LEAST_CORES if told.most < 4 else 1.0
        while more < told.most and len(cores) < MOST_ROWS:
            cores.add(more)
            more *= 2
    return sorted(cores)
