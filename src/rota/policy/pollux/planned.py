"""Step times of jobs whose programs plan their layers, and choose no batch."""

from __future__ import annotations

from rota.model.measured.profile import Placement
from rota.model.view import View
from rota.predict.planned_steps import corrected


def planned_steps(view: View, row: int, gpu_type: str | None) -> dict[int, float]:
    """Seconds of a step by GPUs of one node: measured, or else as the program predicts them.

    Those measured are on GPUs of the type, or with None, of the type that the job is on, or was
    last. Empty unless each size that the job may have now is known.
    """
    planned, place = view.burst_planned(row), view.target[row] or view.home[row]
    elastic = view.spec[row].elastic
    if planned is None or elastic is None or elastic.by_restart:
        return {}
    if gpu_type is None and place is not None:
        gpu_type = view.nodes[place.parts[0][0]].gpu_type
    measured = {}
    for gpus in range(1, len(planned.step_s) + 1):
        seconds = view.step_s(row, Placement(gpu_type or "", gpus))
        if seconds:
            measured[gpus] = seconds
    steps_s = corrected(planned.step_s, measured)
    return steps_s if steps_s.keys() >= set(view.sizes(row)) else {}
