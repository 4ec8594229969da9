"""Slurm's accounting: what ``sacct --parsable2`` prints, with the columns in any order.

For example: sacct -aX --parsable2 -o JobID,User,State,Submit,Start,Elapsed,Timelimit,AllocTRES
"""

import re
from collections.abc import Iterable, Sequence

from rota.errors import TraceError
from rota.model.job import JobSpec
from rota.workload.readers.base import (
    Report,
    Source,
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
WAITING = ("PENDING", "REQUEUED", "CONFIGURING")
RUNNING = ("RUNNING", "SUSPENDED", "COMPLETING", "RESIZING", "STOPPED")


def read(source: Source, report: Report) -> Iterable[JobSpec]:
    """The GPU jobs that have ended, whatever their end. Raises TraceError.

    GPUs are those of AllocTRES, or of ReqTRES where that is empty; the queue is the partition.
    """
    rows = table(source, report, NEEDED, "|", quoted=False)
    if not set(GPU_COLUMNS) & set(rows.at):
        raise TraceError(
            f"{source.name}, line 1: neither AllocTRES nor ReqTRES is there to tell the GPUs; "
            "add them to sacct's --format"
        )
    get_id, get_submit, get_elapsed = map(rows.getter, NEEDED)
    get_tres = [rows.getter(column) for column in GPU_COLUMNS]
    get_limit, get_raw_limit = map(rows.getter, ("Timelimit", "TimelimitRaw"))
    get_state, get_start, get_user, get_vc, get_name = map(
        rows.getter, ("State", "Start", "User", "Partition", "JobName")
    )

    def make(row: Sequence[str]) -> JobSpec | None:
        name, state = get_id(row), get_state(row).partition(" ")[0]
        if "." in name:
            report.count("job steps left out")
            return None
        if state in WAITING or get_start(row) in ("Unknown", "None"):
            report.count("jobs left out that never started")
            return None
        if state in RUNNING:
            report.count("jobs left out that had not ended")
            return None
        given = next((column(row) for column in get_tres if column(row)), "")
        gpus = gpus_of(given)
        if not gpus:
            report.count("CPU jobs left out")
            return None
        submit_s = moment("Submit", get_submit(row))
        report.started(job_id(name), submit_s, get_start(row))
        return JobSpec(
            job_id=job_id(name),
            num_gpus=gpus,
            submit_s=submit_s,
            duration_s=elapsed_s(get_elapsed(row)),
            name=get_name(row),
            user=get_user(row),
            vc=get_vc(row),
            time_limit_s=limit_s(get_limit(row) or get_raw_limit(row)),
        )

    return from_first(jobs(rows.rows, make, report), report)


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
