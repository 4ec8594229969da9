"""What a job's program has planned for its layers: the step, idle GPUs, steps at other sizes."""

from __future__ import annotations

from typing import Any

from rota.model.allocation import gpus_text
from rota.model.events import BurstPlanned
from rota.model.figure import rounded
from rota.model.job import JobState
from rota.model.naming import few
from rota.model.state.state import ClusterState


def burst_of(state: ClusterState, row: int) -> dict[str, Any] | None:
    """``{"at_s", "batch", "gpus", "step_s", "idle", "by_gpus", "sentence"}``, JSON-able.

    The last plan that the program told: samples of a step, the number of GPUs that it is for, the
    predicted seconds of a step, the part of it for which each GPU is idle, and the seconds with 1,
    2, ... GPUs (None: not known). None for a job without one, and for one that has ended.
    """
    planned = state.burst_planned.get(row)
    if planned is None or JobState(state.state[row]).is_final:
        return None
    gpus = len(planned.idle)
    return {
        "at_s": planned.at_s,
        "batch": planned.batch,
        "gpus": gpus,
        "step_s": planned.step_s[gpus - 1],
        "idle": list(planned.idle),
        "by_gpus": list(planned.step_s),
        "sentence": _sentence(planned, gpus),
    }


def _sentence(planned: BurstPlanned, gpus: int) -> str:
    """``a step of 32 samples takes 30 ms on 2 GPUs, idle for 0 to 40 % of it; 54 ms on 1 GPU``."""
    idle = sorted({round(100 * part) for part in planned.idle})
    percent = f"{idle[0]} to {idle[-1]}" if len(idle) > 1 else str(idle[0])
    samples = "1 sample" if planned.batch == 1 else f"{planned.batch} samples"
    start = (
        f"a step of {samples} is predicted to take {_text(planned.step_s[gpus - 1])} on "
        f"{gpus_text(gpus)}, idle for {percent} % of it"
    )
    others = [
        f"{_text(seconds)} on {gpus_text(size)}"
        for size, seconds in enumerate(planned.step_s, 1)
        if seconds is not None and size != gpus and size & (size - 1) == 0
    ]
    return "; ".join([start, *([few(others, ", ")] if others else [])])


def _text(seconds: float | None) -> str:
    assert seconds is not None, "a step is told of as many GPUs as there are"
    return f"{rounded(1000 * seconds)} ms" if seconds < 1.0 else f"{rounded(seconds)} s"
