"""Rota's own traces: CSV or Parquet with the columns of `rota.workload.trace.COLUMNS`."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from math import inf
from sys import intern
from typing import Any

from rota.model.job import (
    BACKGROUND,
    FOREGROUND,
    MET_BY,
    WEIGHTS,
    Dependency,
    Elastic,
    JobSpec,
    Share,
)
from rota.workload.readers.base import (
    SHOWN,
    Report,
    Source,
    Table,
    job_id,
    jobs,
    number,
    table,
    whole,
    wrong,
)
from rota.workload.readers.lines import NO_UTF_8
from rota.workload.trace import (
    COLUMNS,
    MAX_BATCH,
    MAX_GPUS,
    MAX_ID,
    MAX_S,
    REQUIRED,
    SUSPENSIONS,
    Trace,
)

TEXTS = ("vc", "user", "model")
NOT_PLAIN = set(COLUMNS) - {*REQUIRED, *TEXTS}
_DEFAULTS = JobSpec("", 1, 0.0)._asdict()


def read(source: Source, report: Report) -> Iterable[JobSpec]:
    """The jobs of the file. Raises TraceError."""
    if not source.is_parquet and (quick := _quick(source)) is not None:
        return quick
    return rows_to_jobs(table(source, report, REQUIRED), report)


def rows_to_jobs(rows: Table, report: Report) -> Iterable[JobSpec]:
    """The jobs of a table with our columns."""
    get_id, get_submit, get_duration, get_gpus = map(rows.getter, REQUIRED)
    extras = [(c, rows.getter(c)) for c in COLUMNS if c in rows.at and c not in REQUIRED]

    def make(row: Sequence[str]) -> JobSpec:
        spec = JobSpec(
            job_id=job_id(get_id(row)),
            num_gpus=whole("num_gpus", get_gpus(row)),
            submit_s=number("submit_s", get_submit(row)),
            duration_s=number("duration_s", get_duration(row)),
        )
        given = {column: _value(column, get(row)) for column, get in extras if get(row)}
        sizes = given.get("elastic")
        if sizes is not None and sizes.sizes[0] != spec.num_gpus:
            wrong("elastic", sizes.sizes[0], f"its first size must be num_gpus, {spec.num_gpus}")
        if weight := given.pop("flow_weight", None):
            given["share"] = given.get("share", Share(FOREGROUND))._replace(weight=weight)
        return spec._replace(**given) if given else spec

    if "depends_on" not in rows.at:
        return jobs(rows.rows, make, report)
    line_of: dict[str, int] = {}

    def numbered() -> Iterator[tuple[int, Sequence[str]]]:
        for line, row in rows.rows:
            line_of.setdefault(get_id(row), line)
            yield line, row

    return _in_order(list(jobs(numbered(), make, report)), line_of, report)


def _in_order(
    specs: Iterable[JobSpec], line_of: Mapping[str, int], report: Report
) -> Iterator[JobSpec]:
    """The jobs that depend on jobs before them alone; others are rejected."""
    in_order = Trace(specs).jobs
    place = {spec.job_id: at for at, spec in enumerate(in_order)}
    kept = set()
    for at, spec in enumerate(in_order):
        for other, _ in spec.depends_on:
            if other in kept:
                continue
            line = line_of.get(other)
            if line is None:
                why = "no job of this file has that id"
            elif place.get(other, -1) < at:
                why = f"that job is left out: see line {line}"
            else:
                at_s = in_order[place[other]].submit_s
                why = (
                    f"that job, of line {line}, arrives at {at_s:g} s, not before this one; give "
                    "this one a later submit_s"
                )
            report.reject(line_of[spec.job_id], f"depends_on is {other[:SHOWN]!r}; {why}")
            break
        else:
            kept.add(spec.job_id)
            yield spec


def _value(column: str, text: str) -> Any:
    if column == "priority":
        return whole("priority", text, 100)
    if column in ("skew", "gpu_util"):
        return number(column, text, "from 0 to 1", high=1.0)
    if column == "memory_gb":
        return number(column, text, "zero or more GB")
    if column == "time_limit_s":
        limit_s = number(column, text)
        return limit_s if limit_s else wrong(column, text, "it must be above zero; empty: none")
    if column == "batch":
        return whole("batch", text, MAX_BATCH)
    if column == "elastic":
        return parse_sizes(text)
    if column == "depends_on":
        return parse_dependencies(text)
    if column == "share":
        return parse_share(text)
    if column == "flow_weight":
        return number(column, text, "from {} to {:,.0f}".format(*WEIGHTS), *WEIGHTS)
    if column == "suspension":
        if text not in SUSPENSIONS:
            wrong(column, text, f"it must be {', '.join(SUSPENSIONS)} or empty")
        return SUSPENSIONS[text]
    return parse_speeds(text) if column == "speeds" else intern(text)


def parse_sizes(text: str) -> Elastic:
    """``1;2;4`` as the sizes that a job may have. Raises TraceError."""
    from rota.request.jobfile import MAX_SIZES  # here: few traces have sizes

    sizes = tuple(whole("elastic", part) for part in text.split(";"))
    if len(sizes) < 2 or list(sizes) != sorted(set(sizes)) or len(sizes) > MAX_SIZES:
        wrong("elastic", text, f"it must be 2 to {MAX_SIZES} rising numbers of GPUs: 1;2;4")
    return Elastic(sizes)


def parse_dependencies(text: str) -> tuple[Dependency, ...]:
    """``3;5=ended`` as the jobs that a job waits for, by id. Raises TraceError."""
    found = []
    for part in text.split(";"):
        name, equals, when = part.partition("=")
        if equals and when.strip() not in MET_BY:
            wrong("depends_on", text, f"after = there is one of {', '.join(MET_BY)}")
        found.append(Dependency(job_id(name), when.strip() or "succeeded"))
    return tuple(found)


def parse_share(text: str) -> Share:
    """``background``, ``foreground`` or ``foreground=1.05`` as a job's layer. Raises TraceError."""
    role, equals, value = (part.strip() for part in text.partition("="))
    if role == BACKGROUND and not equals:
        return Share(BACKGROUND)
    if role != FOREGROUND:
        wrong("share", text, f"it must be {BACKGROUND}, {FOREGROUND} or {FOREGROUND}=SLOWDOWN")
    if not equals:
        return Share(FOREGROUND)
    slowdown = number("share", value, f"{FOREGROUND}= and a factor from 1.0")
    if slowdown < 1.0:
        wrong("share", text, "a factor below 1.0 can't be kept: write 1.0 for no slowdown at all")
    return Share(FOREGROUND, slowdown)


def parse_speeds(text: str) -> tuple[tuple[str, float], ...]:
    """``v100=1;k80=0.3`` as (GPU type, speed) pairs; 0 where it can't run. Raises TraceError."""
    pairs: list[tuple[str, float]] = []
    for part in text.split(";"):
        name, equals, value = part.partition("=")
        if not equals or not name.strip():
            wrong("speeds", text, "it must be TYPE=SPEED;TYPE=SPEED")
        if name.strip().lower() in (kind.lower() for kind, _ in pairs):
            wrong("speeds", text, f"{name.strip()} stands there twice; keep one")
        pairs.append((name.strip(), number("speeds", value, "TYPE=SPEED with 0 or more")))
    if not any(speed for _, speed in pairs):
        wrong("speeds", text, "it must have a speed above 0")
    return tuple(pairs)


def _quick(source: Source) -> list[JobSpec] | None:
    """The jobs column by column, if nothing in the file is out of the ordinary; else None.

    Twice as fast as row by row. Whatever looks odd, errors included, is left to the slow way.
    """
    text = source.text
    if '"' in text or "\0" in text or not (text.isascii() or NO_UTF_8.search(text) is None):
        return None
    header = [field.strip() for field in source.lines[0].split(",")]
    plain = set(REQUIRED).issubset(header) and len(set(header)) == len(header)
    if not plain or NOT_PLAIN & set(header):
        return None
    lines = source.lines[1:]
    while lines and not lines[-1]:
        lines.pop()
    width = len(header)
    if not lines or set(map(str.count, lines, repeat(","))) != {width - 1}:
        return None
    fields = ",".join(lines).split(",")
    columns = {column: fields[place::width] for place, column in enumerate(header)}
    ids = list(map(str.strip, columns["job_id"]))
    numbers = [_numbers(columns[column]) for column in REQUIRED[1:]]
    if len(set(ids)) != len(ids) or not all(ids) or len(max(ids, key=len)) > MAX_ID:
        return None
    submit_s, duration_s, gpus = numbers
    if submit_s is None or duration_s is None or gpus is None:
        return None
    if min(gpus) < 1 or max(gpus) > MAX_GPUS or not all(map(float.is_integer, gpus)):
        return None
    texts = {
        column: map(intern, map(str.strip, columns[column]))
        for column in TEXTS
        if column in columns
    }
    in_order = (ids, map(int, gpus), submit_s, duration_s)
    given = dict(zip(JobSpec._fields, in_order, strict=False)) | texts
    # By the fields of JobSpec, what no column gives being its default.
    values = (given.get(field, repeat(default)) for field, default in _DEFAULTS.items())
    # The tuple's own constructor: half the time of JobSpec's.
    return list(map(tuple.__new__, repeat(JobSpec), zip(*values, strict=False)))


def _numbers(texts: Sequence[str]) -> list[float] | None:
    """The texts as numbers from zero to MAX_S; None if one is not."""
    joined = "".join(texts)
    if "_" in joined or not joined.isascii():
        return None
    try:
        values = list(map(float, texts))
    except ValueError:
        return None
    # A NaN hides from min and max, not from their sum.
    return values if min(values) >= 0 and max(values) <= MAX_S and sum(values) < inf else None
