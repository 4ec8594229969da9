"""Common parts of all readers: the file, the report of rejected rows, tables, fields.

A reader is a module of this package with one function:

    def read(source: Source, report: Report) -> Iterable[JobSpec]

It yields the jobs of the file. A row that it can't read goes to ``report.reject(line, reason)``, a
row that is no job of ours (a CPU job, a job step) to ``report.count(what)``, and anything else
that the reader of a result should know to ``report.note(sentence)``. A file that is not of the
format at all is a TraceError. `jobs` does the first for a whole file: it calls a function that
makes the job of one row, and takes its TraceErrors and duplicate ids for rejected rows.

A format that is told by the columns of its header names them in `rota.workload.readers.FORMATS`,
and `rota.workload.readers` tells those without a header by their first line.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime, tzinfo
from functools import cached_property
from math import inf
from pathlib import PurePath
from typing import Any, NamedTuple, NoReturn, TypeVar

from rota.errors import TraceError, closest
from rota.model.job import JobSpec
from rota.workload.readers.lines import records, split
from rota.workload.trace import MAX_GPUS, MAX_ID, MAX_S, SPEEDS, Trace

KEPT = 1000  # rejected rows whose reasons are kept
UNWRITABLE = re.compile("[\0\n\r\ud800-\udfff]")  # no field of a CSV file in UTF-8 has these
SHOWN = 80  # characters of a wrong value that a message shows
Row = TypeVar("Row")


class Source:
    """A trace file: its path as messages tell it and, once unpacked, its bytes."""

    def __init__(self, name: str, data: bytes) -> None:
        self.name = name
        self.data = data

    @property
    def is_parquet(self) -> bool:
        """True if it is a Parquet file."""
        return self.data[:4] == b"PAR1"

    @cached_property
    def text(self) -> str:
        """The bytes as text. A byte that is no UTF-8 is a surrogate, which spoils its row.

        Raises TraceError if the first line has such a byte.
        """
        try:
            return self.data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            if not re.search(rb"[\r\n]", self.data[: error.start]):
                raise TraceError(
                    f"trace {self.name}: not UTF-8 text at byte {error.start}; save it as UTF-8"
                ) from None
            return self.data.decode("utf-8-sig", "surrogateescape")

    @cached_property
    def lines(self) -> list[str]:
        """The text by lines, without their ends (LF, CR LF, or CR alone)."""
        text = self.text
        if "\r" in text:
            text = text.replace("\r\n", "\n").replace("\r", "\n")
        return text.split("\n")

    @cached_property
    def header(self) -> list[str]:
        """The fields of the first line (for Parquet, of the schema), without blanks around them."""
        if self.is_parquet:
            from rota.workload.readers import parquet

            return parquet.header(self.name, self.data)
        first = self.lines[0]
        mark = max(("|", "\t", ","), key=first.count)
        try:
            return [field.strip() for field in split(first, mark)]
        except TraceError:
            return [first[:SHOWN]]


class Report:
    """The rows that a reader left out, and why. ``name`` is the file's path for messages.

    ``num_rejected`` is exact; ``rejected`` keeps (line, reason) of the first thousand. With
    ``strict`` the first rejected row is a TraceError.
    """

    def __init__(self, name: str, strict: bool = False, zone: tzinfo = UTC) -> None:
        self.name = name
        self.strict = strict
        self.zone = zone  # of times that tell none
        self.num_rejected = 0
        self.rejected: list[tuple[int, str]] = []
        self.waited_s: dict[str, float] = {}
        self._counts: dict[str, int] = {}
        self._notes: list[str] = []

    def reject(self, line: int, reason: str) -> None:
        """Count a row that can't be read. Raises TraceError if reading is strict."""
        if self.strict:
            raise TraceError(f"{self.name}, line {line}: {reason}")
        self.num_rejected += 1
        if len(self.rejected) < KEPT:
            self.rejected.append((line, reason))

    def count(self, what: str) -> None:
        """Count one more of what the notes then give the number of: "CPU jobs left out"."""
        self._counts[what] = self._counts.get(what, 0) + 1

    def started(self, job_id: str, submit_s: float, start: str | float) -> None:
        """Keep how long a job waited before it started; a start before its arrival is no wait.

        A start that is no time is passed over: the job is as good without it.
        """
        with suppress(TraceError):
            start_s = self.moment("start", start, submit_s) if isinstance(start, str) else start
            self.waited(job_id, start_s - submit_s)

    def waited(self, job_id: str, seconds: float) -> None:
        """Keep how long a job waited in all; less than nothing is no wait."""
        self.waited_s[job_id] = max(0.0, seconds)

    def moment(self, column: str, text: str, after_s: float = -inf) -> float:
        """A date and time, such as 2020-04-01 00:04:03, as seconds since 1970. Raises TraceError.

        A time without a zone is of the report's; a number is seconds since 1970 already. A time
        that the clocks showed twice is the first, unless that lies before ``after_s``.
        """
        if text.isascii() and text.isdigit():
            return number(column, text, "seconds since 1970")
        try:
            if len(text) < 19 or text[4] != "-" or text[10] not in " T":
                raise ValueError
            when = datetime.fromisoformat(text)
            if when.tzinfo is None:
                when = when.replace(tzinfo=self.zone)
                if when.timestamp() < after_s:
                    when = when.replace(fold=1)
            value = when.timestamp()
            if not 0 <= value <= MAX_S:
                raise ValueError
            return value
        except (ValueError, OverflowError):
            wrong(column, text, "it must be a date and time such as 2020-04-01 00:04:03")

    def note(self, sentence: str) -> None:
        """Add a sentence to the notes, once."""
        if sentence not in self._notes:
            self._notes.append(sentence)

    @property
    def notes(self) -> list[str]:
        """The sentences, and what was counted, as in "CPU jobs left out: 12"."""
        return [*self._notes, *(f"{what}: {number:,}" for what, number in self._counts.items())]

    def trace(self, jobs: Iterable[JobSpec], *, is_log: bool = False) -> Trace:
        """The trace of the jobs that were read, with what is said here of the others."""
        return Trace(
            jobs,
            PurePath(self.name).name,
            num_rejected=self.num_rejected,
            rejected=self.rejected,
            notes=self.notes,
            waited_s=self.waited_s,
            is_log=is_log,
        )


def jobs(
    rows: Iterable[tuple[int, Row]], make: Callable[[Row], JobSpec | None], report: Report
) -> Iterator[JobSpec]:
    """The jobs that ``make`` makes of the rows; None for a row that is no job of ours.

    A TraceError of ``make`` and an id that was there before reject the row.
    """
    first_line: dict[str, int] = {}
    for line, row in rows:
        try:
            spec = make(row)
            if spec is None:
                continue
            _check(spec)
        except TraceError as error:
            report.reject(line, str(error))
            continue
        first = first_line.setdefault(spec.job_id, line)
        if first == line:
            yield spec
        else:
            shown = repr(spec.job_id[:SHOWN])
            report.reject(line, f"job_id is {shown}; line {first} has the same; ids must be unique")


def _check(spec: JobSpec) -> None:
    """Raise TraceError for what no single field shows to be out of range."""
    if spec.duration_s is not None and spec.duration_s > MAX_S:
        wrong("duration_s", f"{spec.duration_s:g}", f"it must be at most {MAX_S:,.0f}")
    for kind, speed in spec.speeds:
        if speed and not SPEEDS[0] <= speed <= SPEEDS[1]:
            wrong("speeds", f"{kind}={speed:g}", f"it must be 0, or from {SPEEDS[0]} to 1,000")
    texts = (spec.job_id, spec.name, spec.user, spec.vc, spec.model, *dict(spec.speeds))
    if not "".join(texts).isprintable():
        for text in texts:
            if UNWRITABLE.search(text):
                raise TraceError(
                    f"{text[:SHOWN]!r} holds a line end, a NUL or what is no UTF-8, which no field "
                    "may; rename it"
                )


def from_first(specs: Iterable[JobSpec], report: Report, calendar: bool = True) -> list[JobSpec]:
    """The jobs with their submission counted from the first job's.

    With ``calendar`` it is in seconds since 1970 before, and a note keeps the date.
    """
    listed = list(specs)
    zero_s = min((spec.submit_s for spec in listed), default=0.0)
    if calendar and listed:
        first, zone = datetime.fromtimestamp(zero_s, report.zone), report.zone
        where = "" if zone is UTC else f" {zone}"
        report.note(f"submission is counted from {first:%Y-%m-%d %H:%M:%S}{where}")
    return [spec._replace(submit_s=spec.submit_s - zero_s) for spec in listed]


# -- tables ----------------------------------------------------------------------------------------


class Table(NamedTuple):
    """A file with a header: where each column stands, and the rows with their lines."""

    at: dict[str, int]
    rows: Iterator[tuple[int, Sequence[str]]]

    def getter(self, column: str) -> Callable[[Sequence[str]], str]:
        """A function that takes a row to its field of that column; "" where there is none."""
        index = self.at.get(column)
        if index is None:
            return lambda row: ""
        return lambda row: row[index].strip()


def table(
    source: Source,
    report: Report,
    needed: Sequence[str],
    delimiter: str = ",",
    quoted: bool = True,
    first: int = 0,
    end: int | None = None,
) -> Table:
    """The file as a table that has the ``needed`` columns, in any order, among any others.

    No field holds a line end, and rows of another length than the header are rejected. Without
    ``quoted``, quotation marks are characters like any other. The header is the line of index
    ``first``, and the rows are those before ``end``. Raises TraceError.
    """
    if source.is_parquet:
        from rota.workload.readers import parquet

        check_header(source.name, source.header, needed)
        return Table(_places(source.header), parquet.rows(source.name, source.data))
    header = header_of(source, delimiter, quoted, first)
    check_header(source.name, header, needed)
    rows = records(source.lines[:end], first + 1, len(header), delimiter, quoted)
    return Table(_places(header), _rows(rows, report))


def header_of(
    source: Source, delimiter: str = ",", quoted: bool = True, first: int = 0
) -> list[str]:
    """The names of the columns. Raises TraceError."""
    try:
        return [field.strip() for field in split(source.lines[first], delimiter, quoted)]
    except TraceError as error:
        raise TraceError(f"{source.name}, line {first + 1}: {error}") from None


def _places(header: list[str]) -> dict[str, int]:
    return {column: index for index, column in enumerate(header)}


def _rows(
    found: Iterable[tuple[int, str, list[str] | TraceError]], report: Report
) -> Iterator[tuple[int, list[str]]]:
    for line, _, row in found:
        if isinstance(row, TraceError):
            report.reject(line, str(row))
        else:
            yield line, row


def check_header(name: str, header: Sequence[str], needed: Sequence[str]) -> None:
    """Raise TraceError if the header lacks a needed column, or has one twice."""
    if not any(header):
        raise TraceError(f"{name} is empty; its first line must name the columns")
    missing = [column for column in needed if column not in header]
    if missing:
        close = closest(missing[0], header)
        hint = f" (is it the one called {close[:SHOWN]!r}?)" if close else ""
        raise TraceError(
            f"{name}, line 1: column {missing[0]!r} is missing{hint}; "
            f"this format has {','.join(needed)}"
        )
    if len(set(header)) != len(header):
        twice = next(column for column in header if header.count(column) > 1)
        raise TraceError(f"{name}, line 1: column {twice[:SHOWN]!r} stands there twice")


# -- fields ----------------------------------------------------------------------------------------


def job_id(text: str) -> str:
    """``text`` if it may name a job. Raises TraceError."""
    if not 0 < len(text) <= MAX_ID:
        wrong("job_id", text, f"give every job an id of 1 to {MAX_ID} characters")
    return text


def as_number(text: str) -> float:
    """``text`` as a number written with digits, point and exponent. Raises ValueError."""
    if "_" in text or not text.isascii():
        raise ValueError(f"{text!r} is no number")
    return float(text)


def number(
    column: str,
    text: str,
    want: str = "zero or more seconds",
    low: float = 0.0,
    high: float = MAX_S,
) -> float:
    """``text`` as a number from ``low`` to ``high``. Raises TraceError."""
    try:
        value = as_number(text)
    except ValueError:
        value = inf
    if not low <= value < inf:
        wrong(column, text, f"it must be {want}")
    if value > high:
        wrong(column, text, f"it must be at most {high:,.0f}")
    return value


def whole(column: str, text: str, high: int = MAX_GPUS) -> int:
    """``text`` as a whole number from 1 to ``high``. Raises TraceError."""
    want = f"a whole number from 1 to {high}"
    value = number(column, text, want, 1.0, inf)
    if value != int(value) or value > high:
        wrong(column, text, f"it must be {want}")
    return int(value)


def elapsed(column: str, start_s: float, end_s: float) -> float:
    """The seconds from start to end. Raises TraceError if the end comes first."""
    if end_s < start_s:
        wrong(column, f"{end_s - start_s:g} s after the start", "a job can't end before it starts")
    return end_s - start_s


def wrong(column: str, value: Any, fix: str) -> NoReturn:
    """Raise the TraceError for one field."""
    raise TraceError(f"{column} is {str(value)[:SHOWN]!r}; {fix}")
