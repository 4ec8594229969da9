"""The task table of Alibaba's PAI (2020; Weng et al., NSDI 2022), with or without a header."""

from collections.abc import Iterable, Sequence
from math import ceil

from rota.errors import TraceError
from rota.model.job import JobSpec
from rota.workload.readers.base import (
    Report,
    Source,
    check_header,
    elapsed,
    from_first,
    header_of,
    job_id,
    jobs,
    number,
    wrong,
)
from rota.workload.readers.lines import records, split
from rota.workload.trace import MAX_GPUS

# The published file has no header; this is its order.
COLUMNS = (
    *("job_name", "task_name", "inst_num", "status", "start_time", "end_time"),
    *("plan_cpu", "plan_mem", "plan_gpu", "gpu_type"),
)
NEEDED = ("job_name", "inst_num", "start_time", "end_time", "plan_gpu")
STATUSES = {"Terminated", "Failed", "Running", "Waiting", "Ready", "Interrupted", "Cancelled"}


class Gathered:
    """A job's totals over its tasks."""

    __slots__ = ("end_s", "gpus", "ran", "spoiled", "start_s")

    def __init__(self) -> None:
        self.gpus = 0.0
        self.start_s = float("inf")
        self.end_s = 0.0
        self.ran = True
        self.spoiled = False


def matches(source: Source) -> bool:
    """True if the first line looks like one of the published file."""
    try:
        first = split(source.lines[0], ",")
    except TraceError:
        return False
    return len(first) == len(COLUMNS) and first[3].strip() in STATUSES


def read(source: Source, report: Report) -> Iterable[JobSpec]:
    """The GPU jobs: all tasks of one name, at once, from the first start to the last end.

    ``plan_gpu`` is hundredths of a GPU for each of ``inst_num`` instances; their sum is rounded up.
    When a job was submitted is not in the table: its start stands for it. A row that can't be read
    takes its whole job with it.
    """
    header, first = list(COLUMNS), 0
    if not matches(source):
        header, first = header_of(source), 1
        check_header(source.name, header, NEEDED)
    found: dict[str, tuple[int, Gathered]] = {}
    for line, text, row in records(source.lines, first, len(header)):
        _gather(line, text, row, header, found, report)
    report.note("jobs are submitted when they start: the table does not say when they were")

    def make(row: tuple[str, Gathered]) -> JobSpec | None:
        name, job = row
        if job.spoiled:
            report.count("jobs left out of which a row could not be read")
            return None
        if not job.ran:
            report.count("jobs left out that had not ended")
            return None
        if job.gpus == 0:
            report.count("CPU jobs left out")
            return None
        if job.gpus > MAX_GPUS:
            wrong("plan_gpu", f"{job.gpus:g} GPUs in all", f"it must be at most {MAX_GPUS}")
        if job.gpus % 1:
            report.count("jobs that ask for fractions of GPUs, rounded up to whole GPUs")
        duration_s = elapsed("end_time", job.start_s, job.end_s)
        return JobSpec(job_id(name), ceil(job.gpus), job.start_s, duration_s)

    rows = ((line, (name, job)) for name, (line, job) in found.items())
    return from_first(jobs(rows, make, report), report, calendar=False)


def _gather(
    line: int,
    text: str,
    row: list[str] | TraceError,
    header: Sequence[str],
    found: dict[str, tuple[int, Gathered]],
    report: Report,
) -> None:
    """Add one task to its job."""
    name = text.split(",", 1)[0].strip() if header[0] == "job_name" else ""
    try:
        if isinstance(row, TraceError):
            raise row
        task = dict(zip(header, map(str.strip, row), strict=True))
        name = task["job_name"]
        _, job = found.setdefault(name, (line, Gathered()))
        instances = number("inst_num", task["inst_num"] or "1", "a number of instances")
        per_instance = number("plan_gpu", task["plan_gpu"] or "0", "hundredths of a GPU")
        job.gpus += instances * per_instance / 100
        if not task["start_time"] or not task["end_time"]:
            job.ran = False
            return
        start_s = number("start_time", task["start_time"])
        end_s = number("end_time", task["end_time"])
        elapsed("end_time", start_s, end_s)
        job.start_s, job.end_s = min(job.start_s, start_s), max(job.end_s, end_s)
    except TraceError as error:
        report.reject(line, str(error))
        if name:
            found.setdefault(name, (line, Gathered()))[1].spoiled = True
