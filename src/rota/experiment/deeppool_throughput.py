"""A cluster does more if others use the GPU time that a training leaves (DeepPool, MLSys 2022).

Published: 1.2 to 2.3 times the work of a cluster on which one training runs with data parallelism.
Here the published A100 times of layers, a plan of the exact frontier, and a background job like the
foreground one on each GPU, in pieces of 0.5 ms that nothing interrupts. A piece runs in a gap of
the foreground's timeline if it fits; or it overruns the gap, as long as a step takes at most 1.1
times that of data parallelism. The plan is the one with which the cluster does most. This is
arithmetic on timelines: nothing is run.

Judged for each model on 8 and 16 GPUs, against data parallelism without overlap as published: work
is at least 1.2 times, at least 90 % of what the plan's gaps allow if pieces are endlessly small,
and never more than data parallelism wastes (its GPU time over that on one GPU). Beside it stands
the same against data parallelism whose reductions overlap the backward pass.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rota.burst.planner.costs import Costs
from rota.burst.planner.frontier import Frontier, Timed
from rota.burst.planner.timeline import Timeline, timeline
from rota.experiment.base import Figure, Outcome
from rota.experiment.runs.deeppool import MODELS, model, require
from rota.scenario.pool import over_cores

NAME = "deeppool-throughput"
SEEDS: list[int] = []
BATCHES = {"VGG-16": 32, "WideResNet-101-2": 16, "Inception-v3": 32}
GPUS = (8, 16)
PIECE_S = 0.5e-3
SLOWDOWN = 1.1
PUBLISHED = (1.2, 2.3)
LEAST_OF_BOUND = 0.9


class Shared(NamedTuple):
    """Work of the cluster and the temporal bound on it, in units of data parallelism alone."""

    work: float
    bound: float
    most: float  # what data parallelism wastes
    foreground: float  # speed of the foreground's steps over data parallelism


def run(data: Path | None = None) -> Outcome:
    """Read the profiles in ``data``. Raises DataMissingError."""
    data = require(data)
    calls = [(data, name, gpus) for name in MODELS for gpus in GPUS]
    each = over_cores(measured, calls, num_jobs=10_000)
    found = {(name, gpus): both for (_, name, gpus), both in zip(calls, each, strict=True)}
    settings = {"batches": BATCHES, "piece_s": PIECE_S, "slowdown": SLOWDOWN}
    return Outcome(NAME, SEEDS, settings, figures(found))


def measured(data: Path, name: str, gpus: int) -> tuple[Shared, Shared]:
    """A model on so many GPUs, without overlap of reductions and with it."""
    costs = Costs(model(data, name), BATCHES[name], gpus)
    plain, overlapped = (best_shared(Frontier(costs, overlap=overlap)) for overlap in (False, True))
    return plain, overlapped


def best_shared(frontier: Frontier) -> Shared:
    """The plan with which the cluster does most, at most 1.1 times as slow as data parallelism."""
    parallel = min(frontier.baselines, key=lambda base: base.step_s)
    limit_s = SLOWDOWN * parallel.step_s
    allowed = [point for point in frontier.points if point.step_s <= limit_s]
    return max(_shared(frontier, point, parallel.step_s) for point in allowed)


def _shared(frontier: Frontier, point: Timed, parallel_s: float) -> Shared:
    costs = frontier.costs
    one_s, gpus = costs.least_gpu_time_s, costs.gpus
    course = timeline(costs, point.plan, overlap=frontier.overlap)
    step_s, harvest_s = filled(course, SLOWDOWN * parallel_s)
    speed = parallel_s / point.step_s
    left_s = gpus * point.step_s - point.gpu_time_s
    return Shared(
        work=parallel_s / step_s * (1.0 + harvest_s / one_s),
        bound=speed * (1.0 + left_s / one_s),
        most=gpus * parallel_s / one_s,
        foreground=parallel_s / step_s,
    )


def filled(course: Timeline, limit_s: float) -> tuple[float, float]:
    """Seconds of a step beside background pieces, and the GPU-seconds of these.

    Pieces that overrun a gap delay the foreground by what they overrun; GPUs with the same gap
    begin them together, and delay it once.
    """
    gaps: dict[tuple[float, float], int] = {}
    for gpu in range(course.gpus):
        for gap in _around(course.gaps(gpu), course.step_s):
            gaps[gap] = gaps.get(gap, 0) + 1
    harvest_s, longer_s = 0.0, limit_s - course.step_s
    overruns = []
    for (start_s, end_s), gpus in gaps.items():
        whole, rest_s = divmod(end_s - start_s, PIECE_S)
        harvest_s += gpus * whole * PIECE_S
        overruns.append(((PIECE_S - rest_s) / gpus, PIECE_S - rest_s, gpus))
    step_s = course.step_s
    for _, overrun_s, gpus in sorted(overruns):
        gained = gpus * PIECE_S / max(harvest_s, PIECE_S) > overrun_s / step_s
        if overrun_s <= longer_s and gained:
            longer_s -= overrun_s
            step_s += overrun_s
            harvest_s += gpus * PIECE_S
    return step_s, harvest_s


def _around(gaps: Sequence[tuple[float, float]], step_s: float) -> list[tuple[float, float]]:
    """The gaps, one at the end of a step together with one at the beginning of the next."""
    if len(gaps) > 1 and gaps[0][0] == 0.0 and gaps[-1][1] == step_s:
        return [*gaps[1:-1], (gaps[-1][0], step_s + gaps[0][1])]
    return list(gaps)


def figures(found: dict[tuple[str, int], tuple[Shared, Shared]]) -> list[Figure]:
    """Figures of each model and number of GPUs."""
    made = []
    for (name, gpus), (plain, overlapped) in found.items():
        case = f"{name}, {gpus} GPUs"
        made += [
            Figure(f"{case}: work", "", PUBLISHED[1], 1.0, plain.work, PUBLISHED[0], plain.most),
            Figure(
                f"{case}: part of the temporal bound",
                "",
                None,
                None,
                plain.work / plain.bound,
                LEAST_OF_BOUND,
                plain.most / plain.bound,
            ),
            Figure(f"{case}: speed of the foreground", "", None, 1.0, plain.foreground),
            Figure(f"{case}, overlapped: work", "", None, 1.0, overlapped.work),
            Figure(
                f"{case}, overlapped: speed of the foreground", "", None, 1.0, overlapped.foreground
            ),
        ]
    return made
