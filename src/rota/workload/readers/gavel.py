"""Traces of Gavel (Narayanan et al., OSDI 2020): steps to run, not seconds.

A row has ten fields between tabs: job type, command, working directory, name of the command's steps
argument, whether it needs a data folder, steps, GPUs, weight, deadline, arrival. How many steps a
GPU type runs per second comes from Gavel's own table of measured rates if one is given
(:func:`read_gavel`), else from the model catalogue. Durations are for the GPU type ``REFERENCE``.
"""

import json
import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from math import inf
from pathlib import Path
from typing import NamedTuple, NoReturn

from rota.errors import TraceError
from rota.model.job import JobSpec
from rota.workload.catalog import look_up
from rota.workload.readers.base import Report, Source, jobs, number, whole, wrong
from rota.workload.readers.files import read_bytes
from rota.workload.readers.lines import split
from rota.workload.trace import MAX_GPUS, Trace

FIELDS = (
    *("job_type", "command", "working_directory", "num_steps_arg", "needs_data_dir"),
    *("total_steps", "scale_factor", "priority_weight", "SLO", "arrival_time"),
)
REFERENCE = "v100"
PRIORITY = 50  # of a job of weight 1, unless a larger weight would then be above MAX_PRIORITY
MAX_PRIORITY = 100
MAX_STEPS = 10**15

ALONE = "null"  # the table's name for no other job

# Steps per second of a job type on so many GPUs, all workers together, by GPU type; 0: can't run.
Rates = Callable[[str, int], dict[str, float]]


class Pair(NamedTuple):
    """Steps per second of two jobs, each alone on its GPUs and beside the other.

    Beside each other both are 0 if they could not run together, or were never measured so.
    """

    num_gpus: int
    alone: float
    other_alone: float
    beside: float
    other_beside: float

    @property
    def speeds(self) -> tuple[float, float]:
        """The speed of each beside the other, relative to alone."""
        return self.beside / self.alone, self.other_beside / self.other_alone


def matches(source: Source) -> bool:
    """True if the first line has as many fields as a row of this format."""
    return source.lines[0].count("\t") == len(FIELDS) - 1


def read(source: Source, report: Report) -> Iterable[JobSpec]:
    """The jobs, at the catalogue's rates. Ids count rows from 0."""
    return _read(source, report, catalog_rates)


def read_gavel(
    path: str | Path, throughputs: str | Path | None = None, *, strict: bool = False
) -> Trace:
    """The jobs of a Gavel trace at the rates of a table of its; the catalogue's without one.

    Both files may be gzipped. Rows that can't be read are counted in the trace; with ``strict`` the
    first is a TraceError. Raises TraceError for a file that is not of its format.
    """
    rates = catalog_rates if throughputs is None else read_rates(throughputs)
    path = Path(path)
    report = Report(str(path), strict)
    return report.trace(_read(Source(str(path), read_bytes(path)), report, rates))


def read_rates(path: str | Path) -> Rates:
    """Gavel's table of measured rates: jobs alone on a GPU type, on as few nodes as can be.

    The file maps GPU types to ``('JOB TYPE', GPUS)`` to ``null`` to steps per second. Raises
    TraceError.
    """
    path = Path(path)
    rates: dict[tuple[str, int], dict[str, float]] = {}
    for kind, of_kind in _table(path).items():
        if kind.endswith("_unconsolidated"):
            continue
        for key, beside in _mapping(path, kind, of_kind).items():
            alone = _mapping(path, f"{kind}, {key}", beside).get(ALONE)
            rates.setdefault(_job_of(path, kind, key), {})[kind] = _steps(path, kind, key, alone)
    return lambda job_type, gpus: rates.get((job_type, gpus), {})


def read_pairs(path: str | Path, kind: str) -> list[Pair]:
    """Pairs of jobs on the same GPUs of type ``kind``, of which the rates of both alone are known.

    From the same file, which maps ``('JOB TYPE', GPUS)`` further to ``('OTHER JOB TYPE', GPUS)`` to
    the steps per second of both; a pair comes as often as it is listed there. Raises TraceError.
    """
    path = Path(path)
    table = _table(path)
    if kind not in table:
        raise TraceError(
            f"throughputs {path}: there is no GPU type {kind!r}, only {', '.join(table)}"[:400]
        )
    beside = {
        key: _mapping(path, f"{kind}, {key}", of_key)
        for key, of_key in _mapping(path, kind, table[kind]).items()
    }
    gpus = {key: _job_of(path, kind, key)[1] for key in beside}
    alone = {key: _steps(path, kind, key, of_key.get(ALONE)) for key, of_key in beside.items()}
    return [
        Pair(gpus[key], alone[key], alone[other], *_both(path, kind, key, measured))
        for key, of_key in beside.items()
        for other, measured in of_key.items()
        if other in alone and gpus[other] == gpus[key] and alone[key] and alone[other]
    ]


@lru_cache(maxsize=4096)
def catalog_rates(job_type: str, gpus: int) -> dict[str, float]:
    """Steps per second by the catalogue's step times, a gang being on one node."""
    profile = look_up(job_type)
    if profile is None or profile.batch is None:
        return {}
    batch = profile.batch
    steps = profile.step_times.items()
    return {kind: gpus / model.step_s(gpus, 1, batch) for kind, model in steps}


def _read(source: Source, report: Report, rates: Rates) -> list[JobSpec]:
    weights: dict[str, float] = {}

    def make(row: tuple[int, str]) -> JobSpec:
        index, text = row
        spec, weight = _job(index, split(text, "\t", quoted=False), rates, report)
        weights[spec.job_id] = weight
        return spec

    lines = ((line, text) for line, text in enumerate(source.lines, start=1) if text.strip())
    rows = ((line, (i, text)) for i, (line, text) in enumerate(lines))
    found = list(jobs(rows, make, report))
    if found and max(weights.values()) == min(weights.values()) == 1:
        return found
    return _with_priorities(found, weights, report)


def _job(index: int, fields: list[str], rates: Rates, report: Report) -> tuple[JobSpec, float]:
    """The job of one row, and its weight. Raises TraceError."""
    if len(fields) != len(FIELDS):
        raise TraceError(
            f"{len(fields)} fields between tabs where a row of this format has {len(FIELDS)}"
        )
    row = dict(zip(FIELDS, map(str.strip, fields), strict=True))
    steps = whole("total_steps", row["total_steps"], MAX_STEPS)
    gpus = whole("scale_factor", row["scale_factor"], MAX_GPUS)
    weight = number("priority_weight", row["priority_weight"], "a number above zero")
    if not weight:
        wrong("priority_weight", row["priority_weight"], "it must be a number above zero")
    arrival_s = number("arrival_time", row["arrival_time"])
    by_type = rates(row["job_type"], gpus)
    rate = by_type.get(REFERENCE, 0.0)
    duration_s = steps / rate if rate > 0 else inf
    if duration_s == inf or max(by_type.values()) / rate == inf:
        wrong("job_type", row["job_type"], f"no rate is known for it on {gpus} {REFERENCE} GPUs")
    if number("SLO", row["SLO"], "a number", -inf) > 0:
        report.count("jobs with a deadline, which is not used")
    speeds = tuple((kind, each / rate) for kind, each in by_type.items())
    spec = JobSpec(str(index), gpus, arrival_s, duration_s, model=row["job_type"], speeds=speeds)
    return spec, weight


def _with_priorities(
    found: list[JobSpec], weights: dict[str, float], report: Report
) -> list[JobSpec]:
    """The jobs with priorities in the proportions of their weights, as far as whole numbers go."""
    if not found:
        return found
    unit = min(PRIORITY, MAX_PRIORITY / max(weights.values()))
    exact = True
    listed = []
    for spec in found:
        wanted = weights[spec.job_id] * unit
        priority = min(MAX_PRIORITY, max(1, round(wanted)))
        exact = exact and abs(priority - wanted) <= 1e-9 * MAX_PRIORITY
        listed.append(spec._replace(priority=priority))
    if not exact:
        report.note(f"weights are rounded to priorities from 1 to {MAX_PRIORITY}")
    return listed


def _table(path: Path) -> dict[str, object]:
    """The file of measured rates, as JSON. Raises TraceError."""
    try:
        table = json.loads(Source(str(path), read_bytes(path, "throughputs")).text)
    except (ValueError, RecursionError) as error:
        raise TraceError(f"throughputs {path}: not JSON: {error}") from None
    return _mapping(path, "the file", table)


def _job_of(path: Path, kind: str, key: str) -> tuple[str, int]:
    """Job type and GPUs. Raises TraceError."""
    job = re.fullmatch(r"\('(.*)', (\d{1,7})\)", key)
    if job is None:
        _refuse(path, kind, key, "('JOB TYPE', GPUS) with steps per second, zero or more, as null")
    return job[1], int(job[2])


def _steps(path: Path, kind: str, key: str, value: object) -> float:
    """Steps per second. Raises TraceError."""
    rate = _rate(value)
    if not 0 <= rate < inf:
        _refuse(path, kind, key, "('JOB TYPE', GPUS) with steps per second, zero or more, as null")
    return rate


def _both(path: Path, kind: str, key: str, value: object) -> tuple[float, float]:
    """The steps per second of two jobs, neither or both zero. Raises TraceError."""
    rates = [_rate(each) for each in value] if isinstance(value, list) else []
    if (
        len(rates) != 2
        or not all(0 <= rate < inf for rate in rates)
        or (0 in rates) != (not any(rates))
    ):
        _refuse(path, kind, key, "a list of two numbers above zero, or of two zeros, for a pair")
    return rates[0], rates[1]


def _refuse(path: Path, kind: str, key: str, must: str) -> NoReturn:
    raise TraceError(
        f"throughputs {path}: {kind[:80]}, {key[:80]} can't be read; it must be {must}"
    )


def _rate(value: object) -> float:
    """A JSON number; infinity for anything else."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return inf
    try:
        return float(value)
    except OverflowError:
        return inf


def _mapping(path: Path, where: str, value: object) -> dict[str, object]:
    if not isinstance(value, dict):
        raise TraceError(f"throughputs {path}: {where[:80]} must be a JSON object")
    return value
