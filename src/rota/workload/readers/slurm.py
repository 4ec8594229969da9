"""Slurm's accounting: what ``sacct --parsable2`` prints, with the columns in any order.

For example: sacct -aXD --parsable2 -o JobID,User,State,Submit,Start,Elapsed,Timelimit,AllocTRES
"""

import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from math import inf
from typing import NamedTuple

from rota.errors import TraceError
from rota.model.job import JobSpec
from rota.workload.readers.base import (
    SHOWN,
    Report,
    Source,
    Table,
    from_first,
    job_id,
    jobs,
    moment,
    number,
    table,
    whole,
    wrong,
)

NEEDED = ("JobID", "Submit", "Elapsed")
GPU_COLUMNS = ("AllocTRES", "ReqTRES")
ELAPSED = re.compile(r"(?:(\d{1,6})-)?(?:(\d{1,6}):)?([0-5]?\d):([0-5]\d(?:\.\d{1,6})?)", re.ASCII)
WAITING = ("PENDING", "CONFIGURING", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD")
RUNNING = ("RUNNING", "SUSPENDED", "COMPLETING", "STOPPED", "SIGNALING", "STAGE_OUT")
RESIZED = "RESIZING"  # of a run up to the change; what follows is a row of its own
NO_TIME = ("Unknown", "None")
NEVER_STARTED, NOT_ENDED = "jobs left out that never started", "jobs left out that had not ended"


class SacctRow(NamedTuple):
    """A row: one run of a job, or the state of a job that has not run since."""

    line: int
    spec: JobSpec  # as if the job had this run alone; without GPUs it is num_gpus 0
    state: str
    start_s: float | None

    @property
    def has_run(self) -> bool:
        """True if it held its GPUs, however it ended."""
        return self.state not in (*WAITING, *RUNNING, NEVER_STARTED)

    def follows(self, other: "SacctRow") -> bool:
        """True if it may be another run of the same job: ids may have been reset between."""
        return (self.spec.user, self.spec.name) == (other.spec.user, other.spec.name)


def read(source: Source, report: Report) -> Iterable[JobSpec]:
    """The GPU jobs that have ended, whatever their end. Raises TraceError.

    GPUs are those of AllocTRES, or of ReqTRES where that is empty; the queue is the partition. The
    runs of a job that was requeued or resized (``sacct -D`` has a row for each) are one job.
    """
    rows = table(source, report, NEEDED, "|", quoted=False)
    if not set(GPU_COLUMNS) & set(rows.at):
        raise TraceError(
            f"{source.name}, line 1: neither AllocTRES nor ReqTRES is there to tell the GPUs; "
            "add them to sacct's --format"
        )
    make = _maker(rows)
    runs_of: dict[str, list[SacctRow]] = {}
    for line, row in rows.rows:
        try:
            run = make(line, row)
        except TraceError as error:
            report.reject(line, str(error))
            continue
        if run is None:
            report.count("job steps left out")
            continue
        runs = runs_of.setdefault(run.spec.job_id, [])
        if runs and not run.follows(runs[0]):
            report.reject(
                line,
                f"job_id is {run.spec.job_id[:SHOWN]!r}; line {runs[0].line} has the same, of "
                "another user or name; ids must be unique",
            )
            continue
        runs.append(run)
    groups = ((runs[0].line, runs) for runs in runs_of.values())
    return from_first(jobs(groups, lambda runs: _job(runs, report), report), report)


def _maker(rows: Table) -> Callable[[int, Sequence[str]], SacctRow | None]:
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
        spec = JobSpec(job_id(name), 0, inf, name=get_name(row), user=get_user(row))
        with suppress(TraceError):  # it is looked at again in a run
            spec = spec._replace(submit_s=moment("Submit", get_submit(row)))
        if start in NO_TIME and state not in (*WAITING, *RUNNING):
            state = NEVER_STARTED
        if not SacctRow(line, spec, state, None).has_run:
            return SacctRow(line, spec, state, None)
        given = next((column(row) for column in get_tres if column(row)), "")
        gpus = gpus_of(given)
        if not gpus:
            return SacctRow(line, spec, state, None)
        spec = spec._replace(
            num_gpus=gpus,
            submit_s=moment("Submit", get_submit(row)),
            duration_s=elapsed_s(get_elapsed(row)),
            vc=get_vc(row),
            time_limit_s=limit_s(get_limit(row) or get_raw_limit(row)),
        )
        start_s = None
        with suppress(TraceError):  # the job is as good without it
            start_s = moment("Start", start)
        return SacctRow(line, spec, state, start_s)

    return make


def _job(runs: list[SacctRow], report: Report) -> JobSpec | None:
    """The job that has had these runs; None if it is left out, which is counted."""
    last = max(
        runs, key=lambda run: (run.spec.submit_s, inf if run.start_s is None else run.start_s)
    )
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
