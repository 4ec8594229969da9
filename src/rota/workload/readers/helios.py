"""The job logs of SenseTime's Helios (SC 2021), and of Acme (NSDI 2024), which has its columns."""

from collections.abc import Iterable, Sequence

from rota.model.job import JobSpec
from rota.workload.readers.base import (
    Report,
    Source,
    elapsed,
    from_first,
    job_id,
    jobs,
    number,
    table,
    whole,
)


def read(source: Source, report: Report) -> Iterable[JobSpec]:
    """The GPU jobs of the log, whatever their end: a cancelled job used its GPUs too."""
    rows = table(source, report, ("job_id", "gpu_num", "submit_time", "duration"))
    get_id, get_gpus, get_submit, get_duration, get_start, get_end = map(
        rows.getter, ("job_id", "gpu_num", "submit_time", "duration", "start_time", "end_time")
    )
    get_user = rows.getter("user")
    get_vc = rows.getter("vc" if "vc" in rows.at else "type")

    def make(row: Sequence[str]) -> JobSpec | None:
        if number("gpu_num", get_gpus(row), "a number of GPUs") == 0:
            report.count("CPU jobs left out")
            return None
        if get_duration(row):
            duration_s = number("duration", get_duration(row))
        else:
            start_s = report.moment("start_time", get_start(row))
            duration_s = elapsed("end_time", start_s, report.moment("end_time", get_end(row)))
        submit_s = report.moment("submit_time", get_submit(row))
        report.started(job_id(get_id(row)), submit_s, get_start(row))
        return JobSpec(
            job_id=job_id(get_id(row)),
            num_gpus=whole("gpu_num", get_gpus(row)),
            submit_s=submit_s,
            duration_s=duration_s,
            user=get_user(row),
            vc=get_vc(row),
        )

    return from_first(jobs(rows.rows, make, report), report)
