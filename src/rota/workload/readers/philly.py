"""Microsoft's Philly log (Jeon et al., USENIX ATC 2019): the original JSON, and tables of it."""

import re
from collections.abc import Iterable, Iterator, Sequence
from math import inf
from typing import Any

from rota.errors import TraceError
from rota.model.job import JobSpec
from rota.workload.readers import rota
from rota.workload.readers.base import (
    SHOWN,
    Report,
    Source,
    elapsed,
    from_first,
    job_id,
    jobs,
    number,
    table,
    whole,
    wrong,
)
from rota.workload.trace import REQUIRED

MOST_DAMAGED = 1000  # records; a log with more of them is not worth reading on


def matches(source: Source) -> bool:
    """True if it is the JSON log: a list of records with ``attempts``."""
    start = source.text[:4096].lstrip()
    return start.startswith("[") and '"' in start


def read(source: Source, report: Report) -> Iterable[JobSpec]:
    """The GPU jobs of the log, or of a table with our columns or timestamp,duration,num_gpus."""
    if not source.is_parquet and matches(source):
        return from_first(jobs(_records(source, report), _maker(report), report), report)
    if set(REQUIRED) <= set(source.header):
        return rota.read(source, report)
    return _table(source, report)


def _table(source: Source, report: Report) -> Iterable[JobSpec]:
    """Rows of ``timestamp,duration,num_gpus`` and ``cluster``: a job's name is its row's number."""
    rows = table(source, report, ("timestamp", "duration", "num_gpus"))
    get_submit, get_duration, get_gpus, get_vc = map(
        rows.getter, ("timestamp", "duration", "num_gpus", "cluster")
    )

    def make(row: tuple[int, Sequence[str]]) -> JobSpec:
        line, fields = row
        return JobSpec(
            job_id=str(line - 2),
            num_gpus=whole("num_gpus", get_gpus(fields)),
            submit_s=report.moment("timestamp", get_submit(fields)),
            duration_s=number("duration", get_duration(fields)),
            vc=get_vc(fields),
        )

    numbered = ((line, (line, row)) for line, row in rows.rows)
    return from_first(jobs(numbered, make, report), report)


# -- the JSON log ----------------------------------------------------------------------------------


def _records(source: Source, report: Report) -> Iterator[tuple[int, Any]]:
    """Each record of the list with the line where it begins.

    After a damaged one, reading goes on at the next line that begins as that one did.
    """
    from json import JSONDecoder

    text, flaws = source.text, Flaws()
    decode = JSONDecoder(object_pairs_hook=flaws.mapping).raw_decode
    gap = re.compile(r"[\s,]*")
    at, line, counted, damaged, commas = text.index("[") + 1, 1, 0, 0, 0
    while True:
        end = gap.match(text, at).end()  # type: ignore[union-attr]
        if text.count(",", at, end) != commas:
            flaws.found.append("one comma must part it from the record before")
        start = at = end
        line, counted = line + text.count("\n", counted, at), at
        if at >= len(text):
            report.reject(line, "the list has no end; is the file whole?")
            return
        if text[at] == "]":
            _check_end(text, at + 1, line, report)
            return
        try:
            record, at = decode(text, at)
            commas = 1
        except (ValueError, RecursionError) as error:
            damaged += 1
            indent = text[text.rfind("\n", 0, start) + 1 : start]
            go_on = damaged < MOST_DAMAGED and not indent.strip()
            at = text.find(f"\n{indent}{{", start) if go_on else -1
            rest = "" if at >= 0 else "; the rest of the file is not read"
            report.reject(line, f"not JSON: {str(error)[:80]}{rest}")
            if at < 0:
                return
            commas = 0
            flaws.found.clear()
            continue
        if flaws.found:
            report.reject(line, f"not JSON: {flaws.found[0]}")
            flaws.found.clear()
        else:
            yield line, record


class Flaws:
    """Faults of a record that could be decoded nevertheless."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def mapping(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        """The JSON object of these pairs; a key that is there twice is a flaw."""
        whole = dict(pairs)
        if len(whole) < len(pairs):
            keys = [key for key, _ in pairs]
            twice = next(key for key in keys if keys.count(key) > 1)
            self.found.append(f"{twice[:SHOWN]!r} stands there twice")
        return whole


def _check_end(text: str, at: int, line: int, report: Report) -> None:
    """Reject what comes after the list, which nobody reads."""
    rest = text[at:]
    if rest.strip():
        line += rest[: len(rest) - len(rest.lstrip())].count("\n")
        report.reject(line, "the list has ended; what follows is not read: is it another log?")


def _maker(report: Report) -> Any:
    def make(record: Any) -> JobSpec | None:
        if not isinstance(record, dict):
            raise TraceError("it is no record with jobid, submitted_time and attempts")
        name = job_id(_text(record, "jobid"))
        gpus, duration_s, first_s = 0, 0.0, inf
        attempts = _list(record, "attempts")
        if not attempts:
            report.count("jobs left out that never started")
            return None
        for attempt in attempts:
            if not isinstance(attempt, dict):
                wrong("attempts", attempt, "it must hold records with start_time and end_time")
            start, end = attempt.get("start_time"), attempt.get("end_time")
            if start in (None, "None", "") or end in (None, "None", ""):
                report.count("jobs left out of which an attempt has no start or no end")
                return None
            start_s = report.moment("start_time", str(start))
            first_s = min(first_s, start_s)
            duration_s += elapsed("end_time", start_s, report.moment("end_time", str(end)))
            gpus = max(gpus, sum(len(_list(host, "gpus")) for host in _list(attempt, "detail")))
        if gpus == 0:
            report.count("CPU jobs left out")
            return None
        if len(attempts) > 1:
            report.count("jobs that were tried more than once, their attempts added up")
        submit_s = report.moment("submitted_time", _text(record, "submitted_time"))
        report.started(name, submit_s, first_s)
        return JobSpec(
            job_id=name,
            num_gpus=whole("gpus", str(gpus)),
            submit_s=submit_s,
            duration_s=duration_s,
            user=_text(record, "user", ""),
            vc=_text(record, "vc", ""),
        )

    return make


def _text(record: dict[str, Any], field: str, default: str | None = None) -> str:
    value = record.get(field, default)
    if value is None and default is not None:
        return default
    return value if isinstance(value, str) else wrong(field, value, "it must be text")


def _list(record: Any, field: str) -> list[Any]:
    value = record.get(field) if isinstance(record, dict) else None
    return value if isinstance(value, list) else wrong(field, value, "it must be a list")
