"""Statistics of a trace: sizes, durations, arrivals, and users' demand."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from math import ceil, fsum
from typing import Any

from rota.model.job import JobSpec
from rota.report.statistic import mean, percentile
from rota.workload.trace import Trace

SLOT_S = 600.0
PERCENTS = (10, 50, 90, 95, 99)
MOST_SLOTS = 10_000_000
TOP = 10


def shape_of(trace: Trace, num_gpus: int | None = None) -> dict[str, Any]:
    """The figures of a trace, by name.

    ``span_s`` is from the first arrival to the last. ``sizes`` gives for each gang size the jobs
    and their share of jobs and of GPU-time. ``dispersion`` is the variance over the mean of the
    arrivals in ten minutes, daily cycle and all: 1 for Poisson arrivals; None below two such
    slots. ``load`` is the GPU-time over that of ``num_gpus`` GPUs in the span; None without them.
    """
    jobs = trace.jobs
    durations = sorted(_duration_s(spec) for spec in jobs)
    gpu_s = fsum(map(_gpu_s, jobs))
    span_s = jobs[-1].submit_s - jobs[0].submit_s
    return {
        "trace": trace.name,
        "jobs": len(jobs),
        "rejected": trace.num_rejected,
        "span_s": span_s,
        "gpu_hours": gpu_s / 3600,
        "mean_gpus": mean([spec.num_gpus for spec in jobs]),
        "max_gpus": max(spec.num_gpus for spec in jobs),
        "mean_duration_s": mean(durations),
        "duration_s": {f"p{percent}": percentile(durations, percent) for percent in PERCENTS}
        | {"max": durations[-1]},
        "sizes": _sizes(jobs, gpu_s),
        "dispersion": dispersion(jobs, span_s),
        "load": gpu_s / (num_gpus * span_s) if num_gpus and span_s else None,
        "vcs": _top(jobs, gpu_s, lambda spec: spec.vc),
        "users": _top(jobs, gpu_s, lambda spec: spec.user),
        "models": _top(jobs, gpu_s, lambda spec: spec.model),
        "notes": trace.notes,
    }


def dispersion(jobs: Iterable[JobSpec], span_s: float) -> float | None:
    """The variance over the mean of the number of arrivals in each ten minutes of the span."""
    slots = ceil(span_s / SLOT_S)
    if not 2 <= slots <= MOST_SLOTS:
        return None
    listed = list(jobs)
    first_s = listed[0].submit_s
    # What arrives at the very end belongs to the last slot.
    in_slot = (int((spec.submit_s - first_s) // SLOT_S) for spec in listed)
    arrivals = Counter(min(slot, slots - 1) for slot in in_slot)
    squares = sum(number * number for number in arrivals.values())
    per_slot = len(listed) / slots
    return max(0.0, squares / slots - per_slot**2) / per_slot


def _sizes(jobs: Iterable[JobSpec], gpu_s: float) -> list[dict[str, Any]]:
    counts: Counter[int] = Counter()
    times: dict[int, float] = defaultdict(float)
    for spec in jobs:
        counts[spec.num_gpus] += 1
        times[spec.num_gpus] += _gpu_s(spec)
    total = counts.total()
    return [
        {
            "num_gpus": size,
            "jobs": counts[size],
            "job_share": counts[size] / total,
            "gpu_time_share": times[size] / gpu_s if gpu_s else 0.0,
        }
        for size in sorted(counts)
    ]


def _top(
    jobs: Iterable[JobSpec], gpu_s: float, key: Callable[[JobSpec], str]
) -> list[dict[str, Any]]:
    """The ten keys with the most jobs, with their share of the GPU-time."""
    counts: Counter[str] = Counter()
    times: dict[str, float] = defaultdict(float)
    for spec in jobs:
        name = key(spec)
        counts[name] += 1
        times[name] += _gpu_s(spec)
    if list(counts) == [""]:
        return []
    ranked = sorted(counts, key=lambda name: (-counts[name], name))[:TOP]
    return [
        {"name": name, "jobs": counts[name], "gpu_time_share": times[name] / gpu_s if gpu_s else 0}
        for name in ranked
    ]


def _duration_s(spec: JobSpec) -> float:
    return spec.duration_s or 0.0


def _gpu_s(spec: JobSpec) -> float:
    return spec.num_gpus * _duration_s(spec)
