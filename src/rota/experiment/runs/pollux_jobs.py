"""The jobs of Pollux' published workloads: as they are, by seed, wrongly declared."""

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from math import exp
from pathlib import Path
from random import Random

from rota.errors import DataMissingError
from rota.workload.readers import read_trace
from rota.workload.trace import Trace

WORKLOADS = (1, 2, 3, 4)
OTHERS = (5, 6, 7, 8)  # optional in the data
JITTER_S = 30.0  # half of the interval, so that no arrival keeps its place in it

Draw = Callable[[int], Trace]


def require(data: Path | None) -> Path:
    """The folder, which has what is needed. Raises DataMissingError."""
    if data is None:
        raise DataMissingError(
            "it needs the published profiles and workloads; give the folder in which "
            "pollux/profiles and pollux/workloads lie as --data"
        )
    needed = [data / "pollux" / "profiles", *(_file(data, number) for number in WORKLOADS)]
    absent = [str(path) for path in needed if not path.exists()]
    if absent:
        raise DataMissingError(
            f"there is no {absent[0]}; give the folder in which pollux/profiles and "
            "pollux/workloads lie as --data"
        )
    return data


def others(data: Path) -> list[int]:
    """The workloads that the data has besides those that it must have."""
    return [number for number in OTHERS if _file(data, number).exists()]


def workload(seed: int, data: Path, number: int) -> Trace:
    """One of the workloads, with its arrivals moved a little by the seed."""
    return jittered(jobs_of(data, number), seed)


def workloads(data: Path, numbers: Sequence[int] = WORKLOADS) -> list[Draw]:
    """For each workload, a function that draws its jobs by seed."""
    return [partial(workload, data=data, number=number) for number in numbers]


@lru_cache(maxsize=8)
def jobs_of(data: Path, number: int) -> Trace:
    """The jobs of a workload, from 1."""
    return read_trace(str(_file(data, number)))


def _file(data: Path, number: int) -> Path:
    return data / "pollux" / "workloads" / f"workload-{number}.csv"


def jittered(jobs: Trace, seed: int) -> Trace:
    """The jobs, each submitted up to JITTER_S sooner or later; with seed 0 as they were."""
    if seed == 0:
        return jobs
    chance = Random(f"jitter {seed}")
    moved = [
        spec._replace(submit_s=max(0.0, spec.submit_s + chance.uniform(-JITTER_S, JITTER_S)))
        for spec in jobs
    ]
    return jobs.with_jobs(moved)


def misdeclared(jobs: Trace, sigma: float, seed: int) -> Trace:
    """The jobs, whose users declare epochs that are wrong by a log-normal factor."""
    if not sigma:
        return jobs
    chance = Random(f"length {seed}")
    return jobs.with_jobs(
        spec._replace(epochs=(spec.epochs or 0.0) * exp(chance.gauss(0.0, sigma))) for spec in jobs
    )
