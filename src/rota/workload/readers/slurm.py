"""Slurm's accounting: what ``sacct --parsable2`` prints, with the columns in any order.

For example: sacct -aXD --parsable2 -o JobID,User,State,Submit,Start,Elapsed,Timelimit,AllocTRES
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from math import inf
from typing import NamedTuple

from rota.errors import TraceError, closest
from rota.model.job import JobSpec
from rota.workload.readers.base import (
    Report,
    Source,
    Table,
    from_first,
    job_id,
    jobs,
    number,
    table,
    whole,
    wrong,
)

NEEDED = ("JobID", "Submit", "Elapsed")
GPU_COLUMNS = ("AllocTRES", "ReqTRES")
COMMAND = (
    "sacct -aXD --parsable2 -o JobID,User,Partition,State,Submit,Start,Elapsed,Timelimit,"
    "AllocTRES,ReqTRES > slurm.txt"
)
ELAPSED = re.compile(r"(?:(\d{1,6})-)?(?:(\d{1,6}):)?([0-5]?\d):([0-5]\d(?:\.\d{1,6})?)", re.ASCII)
WAITING = ("PENDING", "CONFIGURING", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD")
RUNNING = ("RUNNING", "SUSPENDED", "COMPLETING", "STOPPED", "SIGNALING", "STAGE_OUT")
RESIZED = "RESIZING"  # of a run up to the change; what follows is a row of its own
GOES_ON = (*WAITING, *RUNNING, RESIZED, "REQUEUED", "PREEMPTED", "NODE_FAIL")
NO_TIME = ("Unknown", "None")
NEVER_STARTED, NOT_ENDED = "jobs left out that never started", "jobs left out that had not ended"
# A job that has ended can be requeued for as long as Slurm remembers it: MinJobAge, 5 min usually.
REMEMBERED_S = 3600.0
LOOKED_AT = 65_536  # characters that tell what a file is
ID = re.compile(r"\d+(?:[_+]\d+)?(?:\.\w+)?", re.ASCII)
MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", re.ASCII)


class SacctRow(NamedTuple):
    """A row: one run of a job, or the state of a job that has not run since."""

    line: int
    spec: JobSpec  # as if the job had this run alone; without GPUs it is num_gpus 0
    state: str
    start_s: float | None
    goes_on: bool  # another run of the same job may follow at any time

    @property
    def has_run(self) -> bool:
        """True if it held its GPUs, however it ended."""
        return self.state not in (*WAITING, *RUNNING, NEVER_STARTED)

    @property
    def is_open(self) -> bool:
        """True if the job waited or ran as the row was printed."""
        return self.state in (*WAITING, *RUNNING)

    @property
    def at_s(self) -> tuple[float, float]:
        """The submission, and the start: infinity where there was none."""
        return self.spec.submit_s, inf if self.start_s is None else self.start_s

    @property
    def end_s(self) -> float:
        """The end of the run; of a job that has not run, its submission."""
        start_s = self.spec.submit_s if self.start_s is None else self.start_s
        return start_s + (self.spec.duration_s or 0.0) * self.has_run


def read(source: Source, report: Report) -> Iterable[JobSpec]:
    """The GPU jobs that have ended, whatever their end. Raises TraceError.

    GPUs are those of AllocTRES, or of ReqTRES where that is empty; the queue is the partition. The
    runs of a job that was requeued or resized (``sacct -D`` has a row for each) are one job. The
    file may be several outputs, one after the other, each with its header.
    """
    if said := refusal(source):
        raise TraceError(said)
    runs_of: dict[str, list[SacctRow]] = {}
    for rows in _tables(source, report):
        if not set(GPU_COLUMNS) & set(rows.at):
            raise TraceError(
                f"{source.name}, line 1: neither AllocTRES nor ReqTRES is there to tell the GPUs; "
                f"add them to sacct's --format: {COMMAND}"
            )
        make = _maker(rows, report)
        for line, row in rows.rows:
            try:
                run = make(line, row)
            except TraceError as error:
                report.reject(line, str(error))
                continue
            if run is None:
                report.count("job steps left out")
            else:
                runs_of.setdefault(run.spec.job_id, []).append(run)
    groups = ((runs[0].line, runs) for same in runs_of.values() for runs in _apart(same, report))
    return from_first(jobs(groups, lambda runs: _job(runs, report), report), report)


def refusal(source: Source) -> str:
    """Why a file is no table of sacct that can be read, and the command for one; "" if it may be.

    That is of what sacct prints otherwise: JSON, YAML, a table for people, or one without header.
    """
    if source.is_parquet:
        return ""
    start, header = source.text[:LOOKED_AT].lstrip(), set(source.header)
    lines = [text for text in source.lines[:20] if text.strip()]
    told = ""
    if start.startswith("{") and re.search(r'"(?:jobs|job_id|sacct)"', start):
        told = "this is JSON, as sacct --json prints"
    elif re.match(r"(?:---\s+)?(?:jobs|meta):\s", start):
        told = "this is YAML, as sacct --yaml prints"
    elif len(lines) > 1 and re.fullmatch(r"-+(?: +-+)+ *", lines[1]):
        told = "this is a table for people, whose columns are cut off"
    elif header & {"JobID", "JobIDRaw"} and not header.issuperset(NEEDED):
        missing = next(column for column in NEEDED if column not in header)
        close = closest(missing, source.header)
        hint = f" (is it the one called {close!r}?)" if close else ""
        told = f"line 1: column {missing!r} is missing{hint}"
    elif any(map(ID.fullmatch, header)) and any(map(MOMENT.fullmatch, header)):
        told = "its first line names no columns; leave --noheader out"
    elif header.issuperset(NEEDED) and '"' not in start and "|" not in lines[0]:
        commas = lines[0].count(",")
        parts = commas and any(text.count(",") > commas for text in lines[1:])
        told = "commas part its fields, and stand within AllocTRES" if parts else ""
    return f"{source.name}: {told}; print what can be read by: {COMMAND}" if told else ""


def _tables(source: Source, report: Report) -> Iterator[Table]:
    """Each output of sacct in the file; headers that come again are counted."""
    lines = source.lines
    marks = {}  # by the index of a header, what parts its fields
    for index, text in enumerate(lines):
        if index == 0 or all(column in text for column in NEEDED):
            mark = max(("|", "\t", ","), key=text.count)
            if index == 0 or {field.strip() for field in text.split(mark)}.issuperset(NEEDED):
                marks[index] = mark
    firsts = [*marks, len(lines)]
    for first, end in pairwise(firsts):
        if first:
            report.count("headers that came again, as of outputs that were joined")
        mark = marks[first]
        yield table(source, report, NEEDED, mark, mark == ",", first, end)


def _maker(rows: Table, report: Report) -> Callable[[int, Sequence[str]], SacctRow | None]:
    """A function that takes a row to its run; None of a job step. It raises TraceError."""
    get_id, get_submit, get_elapsed = map(rows.getter, NEEDED)
    get_tres = [rows.getter(column) for column in GPU_COLUMNS]
    get_limit, get_raw_limit = map(rows.getter, ("Timelimit", "TimelimitRaw"))
    get_state, get_start, get_user, get_vc, get_name = map(
        rows.getter, ("State", "Start", "User", "Partition", "JobName")
    )

    def make(line: int, row: Sequence[str]) -> SacctRow | None:
        name, state, start = get_id(row), get_state(row).partition(" ")[0], get_start(row)
        if "." in name:
            return None
        goes_on = state in GOES_ON
        spec = JobSpec(job_id(name), 0, inf, name=get_name(row), user=get_user(row))
        start_s = None
        with suppress(TraceError):  # it is looked at again in a run
            spec = spec._replace(submit_s=report.moment("Submit", get_submit(row)))
            # The job is as good without it.
            start_s = report.moment("Start", start, spec.submit_s)
        if start in NO_TIME and state not in (*WAITING, *RUNNING):
            state = NEVER_STARTED
        run = SacctRow(line, spec, state, start_s, goes_on)
        given = next((column(row) for column in get_tres if column(row)), "")
        if not run.has_run or not (gpus := gpus_of(given)):
            return run
        spec = spec._replace(
            num_gpus=gpus,
            submit_s=report.moment("Submit", get_submit(row)),
            duration_s=elapsed_s(get_elapsed(row)),
            vc=get_vc(row),
            time_limit_s=limit_s(get_limit(row) or get_raw_limit(row)),
        )
        return run._replace(spec=spec)

    return make


def _apart(rows: list[SacctRow], report: Report) -> Iterator[list[SacctRow]]:
    """The rows of an id by jobs: ids are used again once Slurm's counter has begun anew.

    Another user's row, or one of another name, is of another job, and so is one that was submitted
    when the job before had long ended. All but the first get an id of their own.
    """
    found: list[list[SacctRow]] = []
    latest: dict[tuple[str, str], list[SacctRow]] = {}  # by user and name, its last job
    for row in sorted(rows, key=lambda row: row.at_s):
        whose = (row.spec.user, row.spec.name)
        before = latest.get(whose)
        if before is not None:
            runs = _without_stale(before)
            over_s, goes_on = max(run.end_s for run in runs), runs[-1].goes_on
            if goes_on or row.spec.submit_s <= over_s + REMEMBERED_S:
                before.append(row)
                continue
        latest[whose] = [row]
        found.append(latest[whose])
    for number_, runs in enumerate(found, start=1):
        if number_ > 1:
            report.count("jobs with the id of an earlier one, told apart as ID#2 and so on")
            runs = [
                run._replace(spec=run.spec._replace(job_id=f"{run.spec.job_id}#{number_}"))
                for run in runs
            ]
        yield runs


def _without_stale(runs: list[SacctRow]) -> list[SacctRow]:
    """The rows without those of an earlier output that say what the job did then.

    A later output has the same run as it ended, or a later run.
    """
    done = [run for run in runs if not run.is_open]

    def is_stale(run: SacctRow) -> bool:
        submit_s, start_s = run.at_s
        return any(
            other.spec.submit_s > submit_s
            or (other.spec.submit_s == submit_s and start_s in (inf, other.at_s[1]))
            for other in done
        )

    return [run for run in runs if not (run.is_open and is_stale(run))]


def _job(runs: list[SacctRow], report: Report) -> JobSpec | None:
    """The job that has had these runs; None if it is left out, which is counted."""
    runs = _without_stale(runs)
    last = max(runs, key=lambda run: run.at_s)
    had = [run for run in runs if run.has_run]
    left_out = ""
    if last.state in (*RUNNING, RESIZED) or (last.state in WAITING and had):
        left_out = NOT_ENDED
    elif not had:
        left_out = NEVER_STARTED
    elif not any(run.spec.num_gpus for run in had):
        left_out = "CPU jobs left out"
    if left_out:
        report.count(left_out)
        return None
    had = [run for run in had if run.spec.num_gpus]
    told = _once(had, report)
    spec = told[-1].spec
    if len(told) > 1:
        spec = _together([run.spec for run in told], report)
    if told[-1].start_s is not None:
        took_s = told[-1].start_s + (told[-1].spec.duration_s or 0.0) - spec.submit_s
        report.waited(spec.job_id, took_s - (spec.duration_s or 0.0))
    return spec


def _once(runs: list[SacctRow], report: Report) -> list[SacctRow]:
    """The runs in order of time, each once: of two rows that tell of one run, the longer."""
    found: dict[tuple[float, float], SacctRow] = {}
    for run in runs:
        key = (run.spec.submit_s if run.start_s is None else run.start_s, run.spec.submit_s)
        if key in found:
            report.count("rows left out that tell of a run again")
            run = max(found[key], run, key=lambda run: run.spec.duration_s or 0.0)
        found[key] = run
    return [found[key] for key in sorted(found)]


def _together(specs: list[JobSpec], report: Report) -> JobSpec:
    """The job that has had several runs: all of their time, from the first submission.

    Its limit is that of all runs, as each began with a new one. It has the GPUs of its last run;
    where earlier ones had others, its time is such that the GPU time is theirs.
    """
    report.count("jobs that were requeued or resized, with the time of all their runs")
    last = specs[-1]
    limits = [spec.time_limit_s for spec in specs]
    gpu_s = sum(spec.num_gpus * (spec.duration_s or 0.0) for spec in specs)
    if any(spec.num_gpus != last.num_gpus for spec in specs):
        report.count("of these jobs, with several numbers of GPUs: the last, for the same GPU time")
    return last._replace(
        submit_s=min(spec.submit_s for spec in specs),
        duration_s=gpu_s / last.num_gpus,
        time_limit_s=None if None in limits else sum(limit or 0.0 for limit in limits),
    )


def elapsed_s(text: str) -> float:
    """``[D-]HH:MM:SS[.f]`` or ``MM:SS[.f]`` in seconds. Raises TraceError."""
    seconds = _seconds(text)
    return (
        wrong("Elapsed", text, "it must be days-hours:minutes:seconds")
        if seconds is None
        else seconds
    )


def limit_s(text: str) -> float | None:
    """``[D-]HH:MM:SS``, or a number of minutes, in seconds; None of a word such as UNLIMITED."""
    if text.isascii() and text.isdigit():
        return number("TimelimitRaw", text, "a number of minutes") * 60 or None
    return _seconds(text) or None


def _seconds(text: str) -> float | None:
    match = ELAPSED.fullmatch(text)
    if match is None:
        return None
    days, hours, minutes, seconds = (float(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def gpus_of(tres: str) -> int:
    """The GPUs in ``billing=8,cpu=8,gres/gpu=4,gres/gpu:a100=4``; 0 if none. Raises TraceError.

    Counts by type are added up where the total is not there.
    """
    total, by_type = "", 0
    for part in tres.split(","):
        key, equals, value = part.strip().partition("=")
        if not (key == "gres/gpu" or key.startswith("gres/gpu:")):
            continue
        if not equals or number("gres/gpu", value, "a number of GPUs") == 0:
            continue
        if key == "gres/gpu":
            total = value
        else:
            by_type += whole("gres/gpu", value)
    return whole("gres/gpu", total or str(by_type)) if total or by_type else 0
