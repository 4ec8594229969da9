"""Traces as files: CSV or Parquet with our own columns, which `read_trace` reads back the same."""

from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import IO, Any

from rota.errors import TraceError, pip_install
from rota.model.job import BACKGROUND, FOREGROUND, Dependency, Elastic, JobSpec, Share, Suspension
from rota.workload.trace import COLUMNS, REQUIRED, SUSPENSIONS, Trace

WRITTEN = ("csv", "parquet")
NUMBERS = (
    "submit_s",
    "duration_s",
    "num_gpus",
    "priority",
    "skew",
    "gpu_util",
    "memory_gb",
    "batch",
    "time_limit_s",
    "flow_weight",
)
DEFAULTS = {"priority": 50, "skew": None, "speeds": (), "elastic": None}
DEFAULTS |= {"gpu_util": None, "memory_gb": None, "batch": None, "time_limit_s": None}
DEFAULTS |= {"depends_on": (), "share": None, "flow_weight": None}
DEFAULTS |= {"suspension": Suspension.UNKNOWN}
BATCH = 50_000  # jobs that are text at once


def write_trace(trace: Trace, file: IO[bytes], to: str = "csv") -> None:
    """Write the jobs as ``csv`` or ``parquet``. Raises TraceError for a job that can't be written.

    Columns in which no job has anything of its own are left out.
    """
    if to == "parquet":
        _write_parquet(trace, file)
        return
    for text in _csv(trace):
        file.write(text.encode())


def columns_of(trace: Trace) -> list[str]:
    """The columns that the jobs need: the required ones, and those that say something."""
    return [
        column
        for column in COLUMNS
        if column in REQUIRED
        or any(value != DEFAULTS.get(column, "") for value in map(_getter(column), trace))
    ]


def _getter(column: str) -> Callable[[JobSpec], Any]:
    """A function that takes a job to what it has in a column."""
    return {"share": _layer, "flow_weight": _weight}.get(column) or attrgetter(column)


def _layer(spec: JobSpec) -> Share | None:
    """The job's layer without its weight; None for a flow job without other wishes."""
    if spec.share is None or spec.share.weight is None:
        return spec.share
    share = spec.share._replace(weight=None)
    return None if share == Share(FOREGROUND) else share


def _weight(spec: JobSpec) -> float | None:
    return None if spec.share is None else spec.share.weight


def _csv(trace: Trace) -> Iterator[str]:
    columns = columns_of(trace)
    yield ",".join(columns) + "\n"
    for start in range(0, len(trace), BATCH):
        rows = zip(*(_texts(trace, column, start) for column in columns), strict=True)
        yield "".join([",".join(row) + "\n" for row in rows])


def _texts(trace: Trace, column: str, start: int) -> Iterator[str]:
    as_text: Callable[[Any], str] = _number if column in NUMBERS else _field
    if column in PACKED:
        as_text = PACKED[column]
    return map(as_text, map(_getter(column), trace.jobs[start : start + BATCH]))


def _number(value: float | None) -> str:
    """The shortest text that reads back as the same number; "" for None."""
    if value is None:
        return ""
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(value)


def _field(text: str) -> str:
    """``text`` as a CSV field. Raises TraceError if no field can hold it."""
    if "\n" in text or "\r" in text or "\0" in text:
        raise TraceError(f"{text[:80]!r} holds a line end or NUL, which no field may; rename it")
    if text != text.strip():
        raise TraceError(f"{text[:80]!r} begins or ends with a blank, which is not kept; rename it")
    if "," in text or '"' in text:
        return '"' + text.replace('"', '""') + '"'
    return text


def speeds_text(speeds: tuple[tuple[str, float], ...]) -> str:
    """(GPU type, speed) pairs as ``v100=1;k80=0.3``."""
    return _field(";".join(f"{gpu_type}={_number(speed)}" for gpu_type, speed in speeds))


def sizes_text(elastic: Elastic | None) -> str:
    """The sizes that a job may have as ``1;2;4``; what else it wants is not for traces."""
    return "" if elastic is None else ";".join(map(str, elastic.sizes))


def dependencies_text(dependencies: tuple[Dependency, ...]) -> str:
    """The jobs that a job waits for as ``3;5=ended``. Raises TraceError."""
    texts = []
    for job_id, when in dependencies:
        if {";", "="} & set(job_id):
            raise TraceError(f"{job_id[:80]!r} holds ; or =, which depends_on can't; rename it")
        texts.append(job_id if when == "succeeded" else f"{job_id}={when}")
    return _field(";".join(texts))


def share_text(share: Share | None) -> str:
    """``background``, ``foreground`` or ``foreground=1.05``; "" for a job without wishes."""
    if share is None or share.role == BACKGROUND:
        return "" if share is None else BACKGROUND
    slowdown = share.max_slowdown
    return FOREGROUND if slowdown is None else f"{FOREGROUND}={_number(slowdown)}"


def suspension_text(kind: Suspension) -> str:
    """``plain``, ``restart`` or ``cooperative``; "" where nothing is told."""
    return next((word for word, each in SUSPENSIONS.items() if each == kind), "")


PACKED: dict[str, Callable[[Any], str]] = {
    "speeds": speeds_text,
    "elastic": sizes_text,
    "depends_on": dependencies_text,
    "share": share_text,
    "suspension": suspension_text,
}


def _write_parquet(trace: Trace, file: IO[bytes]) -> None:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise TraceError(
            "writing Parquet needs pyarrow, which is not installed; install it with: "
            f"{pip_install('parquet')}"
        ) from None
    kinds = {
        "num_gpus": pyarrow.int64(),
        "priority": pyarrow.int64(),
        "submit_s": pyarrow.float64(),
        "duration_s": pyarrow.float64(),
        "skew": pyarrow.float64(),
        "gpu_util": pyarrow.float64(),
        "memory_gb": pyarrow.float64(),
        "batch": pyarrow.int64(),
        "time_limit_s": pyarrow.float64(),
        "flow_weight": pyarrow.float64(),
    }
    columns = {
        column: pyarrow.array(_values(trace.jobs, column), kinds.get(column, pyarrow.string()))
        for column in columns_of(trace)
    }
    parquet.write_table(pyarrow.table(columns), file, write_page_checksum=True)


def _values(jobs: list[JobSpec], column: str) -> list[Any]:
    values = list(map(_getter(column), jobs))
    if column in PACKED:
        return list(map(PACKED[column], values))
    if column not in NUMBERS:
        for text in values:
            _field(text)
    return values
