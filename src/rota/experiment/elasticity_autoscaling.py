"""Jobs that choose their number of GPUs, against every fixed number (Or et al., MLSys 2020).

*Resource Elasticity in Distributed Deep Learning* found job completion time
up to 45 % lower and GPU-time up to 85.1 % lower with ResNet on CIFAR-10 and ImageNet. Here a job
of 10,000 steps of a fixed global batch (theirs had 9,766 and 15,625) starts on 4 GPUs and may have
4 to 64 in steps of 4. Its throughput by GPUs is computed from the step times that the catalogue
has, for each model with a known cost of restarting and each type of GPU; steps vary by noise.

*Published search* and *fitted curve* resize without a restart: newcomers start up while the job
goes on, then it pauses. The same two resize by restarting from a checkpoint, for the catalogue's
restart cost. Two goals: throughput scaling above 0.1, and a deadline with a price per GPU-hour.
A saving "up to" says what the worst static size costs, and depends on which sizes and models one
counts in, theirs as ours. So it is shown beside each static size, and what judges the scalers is
the static size that would have been best, which nobody knows beforehand.

How many jobs meet the deadline is shown and not judged: scalers maximise value less cost, by which
the best static size is late for some jobs too.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from math import ceil, exp, log
from statistics import fmean
from typing import Any, NamedTuple

from rota.experiment.base import Figure, Outcome, for_each_seed, over_seeds
from rota.policy.scaling import (
    DeadlineUtility,
    FitScaler,
    Outlook,
    ProbeScaler,
    Replay,
    Resizing,
    Scaler,
    ThroughputScaling,
    UtilityOverCost,
    replay,
    sizes_every,
)
from rota.policy.scaling.condition import Condition
from rota.predict.step_time import StepTime
from rota.workload.catalog import load

NAME = "elasticity-autoscaling"
SEEDS = [0, 1, 2]
SIZES = sizes_every(4, 4, 64)
START = 4
STEPS = 10_000
NOISE = 0.05  # deviation of ln(step time); the quartile of public 10-worker jobs (Alibaba PAI)
GPUS_PER_NODE = 4
GLOBAL_BATCHES = 16  # the global batch, in batches that the catalogue has for one GPU
THRESHOLD = 0.1  # as published
# Published for a change of membership without restart: about 1 s (Elan, ICDCS 2020).
PAUSE_S = 1.0
DEADLINE = 1.5  # times the completion time at the fastest static size
VALUE = 2.0  # of meeting the deadline, over the job's cost at its first size
PRICE_PER_GPU_HOUR = 1.0
AS_JOBS = 3000  # a measurement takes about as long as simulating so many jobs
PUBLISHED_JCT, PUBLISHED_GPU_TIME = 45.0, 85.1

FIT, PROBE = "fitted curve", "published search"
# Closed form t_k = a + (1 - a) / k: (a, first size, size where scaling falls to 0.1, resizes of the
# published search).
WALKS = [(0.15518, 4, 48, 46), (0.4737, 16, 9, 13)]
FEW = 4
# Fixed beforehand. A search tries about four of sixteen sizes, each for at most 1 % of the steps,
# at a throughput that may be a few times lower: 15 % is what it may lose, and 2 % of worth what a
# curve that has not the fitted form may cost.
NEAR_BEST = (0.85, 1.15)
WORTH_LOST = (0.0, 0.02)
NO_SLOWER = (0.0, 1.0)
VALUE_KEPT = (0.9, 1.1)

Rate = Callable[[int], float]
Key = tuple[str, str]


class Job(NamedTuple):
    """A model on a GPU type: samples per second by GPUs, its global batch, its restart cost."""

    rate: Rate
    batch: float
    restart_s: float


def catalogue_rate(step: StepTime, batch: float, most: float) -> Rate:
    """Samples per second by GPUs for a fixed global batch, on nodes of 4 GPUs.

    A GPU whose part is larger than ``most`` samples takes it in several equal micro-steps, of
    which the last exchanges gradients.
    """

    def rate(gpus: int) -> float:
        part = batch / gpus
        micro_steps = max(1, ceil(part / most))
        nodes = ceil(gpus / GPUS_PER_NODE)
        last_s = step.step_s(gpus, nodes, part / micro_steps)
        return batch / ((micro_steps - 1) * step.compute_s(part / micro_steps) + last_s)

    return rate


@lru_cache(maxsize=1)
def jobs() -> dict[Key, Job]:
    """The catalogue's models with a restart cost, on each GPU type with every term measured."""
    found = {}
    for name, profile in load().items():
        for kind, step in profile.step_times.items():
            if profile.batch and profile.restart_s and None not in step:
                batch = profile.batch * GLOBAL_BATCHES
                rate = catalogue_rate(step, batch, profile.batch)
                found[name, kind] = Job(rate, batch, profile.restart_s)
    return found


def static(job: Job, size: int) -> Replay:
    """The job at a fixed size, in the mean over its noise."""
    jct_s = STEPS * job.batch / job.rate(size) * exp(NOISE**2 / 2)
    return Replay(jct_s, jct_s * size, (size,))


def deadline_s(job: Job) -> float:
    """The job's deadline, in seconds from its start."""
    return DEADLINE * min(static(job, size).jct_s for size in SIZES)


def deadline(job: Job) -> UtilityOverCost:
    """The goal of finishing in time, at a price."""
    value = VALUE * static(job, START).gpu_s / 3600 * PRICE_PER_GPU_HOUR
    return UtilityOverCost(DeadlineUtility(value, deadline_s(job)), PRICE_PER_GPU_HOUR)


def net_value(goal: UtilityOverCost, found: Replay) -> float:
    """The value of a job's completion, less the cost of its GPUs."""
    return goal.utility.at(found.jct_s) - found.gpu_s / 3600 * goal.price_per_gpu_hour


def worth_by_size(job: Job) -> dict[int, float]:
    """Worth of each size under the throughput condition; 0.01 is 1 % of throughput."""
    points = [(size, job.rate(size)) for size in SIZES]
    worths = ThroughputScaling(THRESHOLD).worths(points, Outlook())
    return dict(zip(SIZES, worths, strict=True))


def elastic(job: Job, scaler: str, goal: Condition, seed: int, *, restarts: bool) -> Replay:
    """The job under a scaler, resized live or by restarts from a checkpoint."""
    resizing = Resizing(job.restart_s) if restarts else Resizing(PAUSE_S, warm_up_s=job.restart_s)
    made: Scaler = (
        ProbeScaler(SIZES, goal)
        if scaler == PROBE
        else FitScaler(SIZES, goal, pause_s=resizing.pause_s)
    )
    return replay(
        job.rate,
        made,
        start=START,
        steps=STEPS,
        batch=job.batch,
        resizing=resizing,
        noise=NOISE,
        seed=seed,
    )


class Measured(NamedTuple):
    """One job on one seed under one scaler: live and with restarts, and live for a deadline."""

    live: Replay
    restarts: Replay
    timed: Replay


def measure(subject: tuple[Key, str], seed: int) -> Measured:
    """Replay one job under one scaler."""
    key, scaler = subject
    job, goal = jobs()[key], ThroughputScaling(THRESHOLD)
    run_one = partial(elastic, job, scaler, seed=seed)
    return Measured(
        run_one(goal=goal, restarts=False),
        run_one(goal=goal, restarts=True),
        run_one(goal=deadline(job), restarts=False),
    )


# Scaler -> for each seed, what each job came to.
Found = Mapping[str, list[dict[Key, Measured]]]


def run() -> Outcome:
    """Replay every job under every scaler and seed."""
    subjects = {(key, scaler): (key, scaler) for key in jobs() for scaler in (FIT, PROBE)}
    results = for_each_seed(measure, subjects, SEEDS, num_jobs=AS_JOBS)
    found = {
        scaler: [{key: results[key, scaler][at] for key in jobs()} for at in range(len(SEEDS))]
        for scaler in (FIT, PROBE)
    }
    figures = [*_walks(), *_against_best(found), *_against_restarts(found)]
    figures += [*_deadlines(found), *_savings(found), *_against_each(found)]
    return Outcome(NAME, SEEDS, _settings(), figures)


def _walks() -> list[Figure]:
    """Resizes and error of the final size on the published closed form, without noise."""
    figures = []
    sizes = tuple(range(4, 61))
    for a, start, best, published in WALKS:
        label = f"closed form, {start} to {best} workers"
        ends = [
            replay(partial(_closed_form, a), scaler, start=start, steps=STEPS)
            for scaler in (FitScaler(sizes), ProbeScaler(sizes))
        ]
        fit, walk = ends
        figures.append(
            Figure(f"{label}: resizes, {PROBE}", "", None, None, walk.resizes, published, published)
        )
        figures.append(
            Figure(f"{label}: resizes, {FIT}", "", None, walk.resizes, fit.resizes, 1, FEW)
        )
        errors = [abs(end.sizes[-1] - best) for end in ends]
        figures.append(
            Figure(f"{label}: error of size, {FIT}", "workers", None, errors[1], errors[0], 0, 0)
        )
    return figures


def _closed_form(a: float, workers: int) -> float:
    return 1 / (a + (1 - a) / workers)


def _mean_ratio(ratios: list[float]) -> float:
    return exp(fmean(map(log, ratios)))


def _seeds(
    name: str,
    unit: str,
    value: Callable[[dict[Key, Measured]], float],
    found: Found,
    bounds: tuple[float, float] | None = None,
    published: float | None = None,
) -> Figure:
    """The fitted curve's figure over seeds, beside that of the published search."""
    ours, theirs = ([value(seed) for seed in found[scaler]] for scaler in (FIT, PROBE))
    return over_seeds(name, unit, ours, baseline=theirs, bounds=bounds, published=published)


def _against_best(found: Found) -> list[Figure]:
    """Both scalers against the best static size, found with full knowledge."""
    best = {}
    for key, job in jobs().items():
        worth = worth_by_size(job)
        best[key] = max(worth, key=worth.__getitem__)

    def over_best(seed: dict[Key, Measured], what: str) -> float:
        return _mean_ratio(
            [
                getattr(each.live, what) / getattr(static(jobs()[key], best[key]), what)
                for key, each in seed.items()
            ]
        )

    def lost(seed: dict[Key, Measured]) -> float:
        worths = {key: worth_by_size(jobs()[key]) for key in seed}
        return fmean(
            worths[key][best[key]] - worths[key][each.live.sizes[-1]] for key, each in seed.items()
        )

    return [
        _seeds("JCT over the best static size", "times", partial(over_best, what="jct_s"), found,
               NEAR_BEST),
        _seeds("GPU-time over the best static size", "times", partial(over_best, what="gpu_s"),
               found, NEAR_BEST),
        _seeds("worth lost by the final size", "", lost, found, WORTH_LOST),
        _seeds("resizes, mean", "", lambda s: fmean(m.live.resizes for m in s.values()), found),
        _seeds("resizes, most", "", lambda s: max(m.live.resizes for m in s.values()), found),
    ]  # fmt: skip


def _against_restarts(found: Found) -> list[Figure]:
    """Live resizing against the same scaler with restarts."""
    figures = []
    for scaler in (FIT, PROBE):
        for what, label in (("jct_s", "JCT"), ("gpu_s", "GPU-time")):
            ratios = [
                _mean_ratio(
                    [getattr(m.live, what) / getattr(m.restarts, what) for m in seed.values()]
                )
                for seed in found[scaler]
            ]
            bounds = NO_SLOWER if what == "jct_s" else None
            name = f"{label}, {scaler}, live over checkpoint-restart"
            figures.append(over_seeds(name, "times", ratios, bounds=bounds))
    return figures


def _deadlines(found: Found) -> list[Figure]:
    """Jobs with a deadline and a price: value less cost, deadlines met, and resizes."""
    best = {}
    for key, job in jobs().items():
        value = partial(net_value, deadline(job))
        best[key] = max((static(job, size) for size in SIZES), key=value)

    def met(ends: Mapping[Key, Replay]) -> float:
        return fmean(float(end.jct_s <= deadline_s(jobs()[key])) for key, end in ends.items())

    def kept(seed: dict[Key, Measured]) -> float:
        ratios = []
        for key, each in seed.items():
            goal = deadline(jobs()[key])
            ratios.append(net_value(goal, each.timed) / net_value(goal, best[key]))
        return fmean(ratios)

    def on_time(seed: dict[Key, Measured]) -> float:
        return met({key: each.timed for key, each in seed.items()})

    def resizes(seed: dict[Key, Measured]) -> float:
        return fmean(each.timed.resizes for each in seed.values())

    return [
        _seeds("deadline: value less cost, over the best static size", "times", kept, found,
               VALUE_KEPT),
        _seeds("deadline: met", "of jobs", on_time, found),
        Figure("deadline: met by the best static size", "of jobs", None, None, met(best)),
        _seeds("deadline: resizes, mean", "", resizes, found),
    ]  # fmt: skip


def _savings(found: Found) -> list[Figure]:
    """The largest saving of any job against any static size, as the published figures are."""

    def largest(seed: dict[Key, Measured], what: str) -> float:
        return max(
            100 * (1 - getattr(each.live, what) / getattr(static(jobs()[key], size), what))
            for key, each in seed.items()
            for size in SIZES
        )

    return [
        _seeds("JCT saved, up to", "%", partial(largest, what="jct_s"), found,
               None, PUBLISHED_JCT),
        _seeds("GPU-time saved, up to", "%", partial(largest, what="gpu_s"), found,
               None, PUBLISHED_GPU_TIME),
    ]  # fmt: skip


def _against_each(found: Found) -> list[Figure]:
    """Both scalers against each static size, as the geometric mean over jobs."""

    def over(seed: dict[Key, Measured], what: str, size: int) -> float:
        return _mean_ratio(
            [
                getattr(each.live, what) / getattr(static(jobs()[key], size), what)
                for key, each in seed.items()
            ]
        )

    return [
        _seeds(f"{label} over {size} GPUs", "times", partial(over, what=what, size=size), found)
        for what, label in (("jct_s", "JCT"), ("gpu_s", "GPU-time"))
        for size in SIZES
    ]


def _settings() -> dict[str, Any]:
    return {
        "jobs": [f"{name} on {kind}" for name, kind in jobs()],
        "sizes": list(SIZES),
        "start": START,
        "steps": STEPS,
        "global_batch": f"{GLOBAL_BATCHES} times the catalogue's batch per GPU",
        "noise": NOISE,
        "threshold": THRESHOLD,
        "live": {"pause_s": PAUSE_S, "warm_up_s": "the restart cost, while the job goes on"},
        "restarts": {"pause_s": sorted({job.restart_s for job in jobs().values()})},
        "deadline": {
            "after": f"{DEADLINE} times the fastest static size",
            "value": f"{VALUE} times the cost at {START} GPUs",
            "price_per_gpu_hour": PRICE_PER_GPU_HOUR,
        },
        "ours": FIT,
        "baseline": PROBE,
    }
