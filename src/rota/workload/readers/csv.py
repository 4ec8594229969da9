"""Traces in CSV files: Rota's own columns, and those of the Tiresias simulator."""

import csv
import gzip
import io
import zlib
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path

from rota.errors import TraceError
from rota.model.job import JobSpec
from rota.workload.trace import COLUMNS, REQUIRED, RowChecker, Trace

FORMATS = {
    "rota": ("job_id", "submit_s", "duration_s", "num_gpus"),
    "tiresias": ("job_id", "num_gpu", "submit_time", "duration"),
}


def read_trace(path: str | Path, format: str = "auto") -> Trace:
    """The jobs of a CSV file, plain or gzipped. Raises TraceError naming line, column and fix.

    ``format`` is ``rota``, ``tiresias`` (as the public Tiresias simulator reads them) or ``auto``,
    which tells them apart by their header.
    """
    path = Path(path)
    rows = csv.reader(io.StringIO(_text(path)), strict=True)
    try:
        header = [column.strip() for column in next(rows, [])]
        if not header:
            raise TraceError(f"{path.name} is empty; its first line must name the columns")
        format = _recognise(path.name, header, format)
        jobs = list(_specs(path.name, format, header, rows))
    except csv.Error as error:
        raise TraceError(f"{path.name}, line {rows.line_num}: not CSV: {error}") from None
    if not jobs:
        raise TraceError(f"{path.name} has a header but no job")
    return Trace(jobs, name=path.name)


def _text(path: Path) -> str:
    try:
        data = path.read_bytes()
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
        return data.decode("utf-8-sig")
    except (EOFError, gzip.BadGzipFile, zlib.error):
        raise TraceError(f"trace {path}: the gzip data is cut off or damaged") from None
    except OSError as error:
        raise TraceError(f"trace {path}: {error.strerror or error}; check the path") from None
    except UnicodeDecodeError as error:
        raise TraceError(f"trace {path}: not UTF-8 text at byte {error.start}") from None


def _recognise(name: str, header: list[str], format: str) -> str:
    if len(set(header)) != len(header):
        twice = next(column for column in header if header.count(column) > 1)
        raise TraceError(f"{name}, line 1: column {twice!r} stands there twice")
    if format == "auto":
        for known, needed in FORMATS.items():
            if set(needed) <= set(header):
                return known
        # The likelier format is the one of which more columns are there.
        format = max(FORMATS, key=lambda known: len(set(FORMATS[known]) & set(header)))
    missing = [column for column in FORMATS[format] if column not in header]
    if missing:
        close = get_close_matches(missing[0], header, n=1)
        hint = f" (is it the one called {close[0]!r}?)" if close else ""
        raise TraceError(
            f"{name}, line 1: column {missing[0]!r} is missing{hint}; "
            f"a {format} trace has {','.join(FORMATS[format])}"
        )
    return format


def _specs(
    name: str, format: str, header: list[str], rows: Iterator[list[str]]
) -> Iterator[JobSpec]:
    check = RowChecker(name)
    at = {column: index for index, column in enumerate(header)}
    job_id, submit, duration, gpus = (
        at[column]
        for column in (
            REQUIRED if format == "rota" else ("job_id", "submit_time", "duration", "num_gpu")
        )
    )
    extra = {c: at[c] for c in COLUMNS if c in at and c not in REQUIRED}
    if format == "tiresias" and "model_name" in at:
        extra = {"model": at["model_name"]}
    for line, row in enumerate(rows, start=2):
        if not row:
            continue
        if len(row) != len(header):
            raise TraceError(
                f"{name}, line {line}: {len(row)} fields where the header names {len(header)}"
            )
        numbers = (row[submit], row[duration], row[gpus])
        yield check.spec(
            line, row[job_id].strip(), numbers, **{c: row[i].strip() for c, i in extra.items()}
        )
