"""Traces of the simulator of Tiresias (NSDI 2019), and Muri's, which has the same columns."""

from collections.abc import Iterable, Sequence

from rota.model.job import JobSpec
from rota.workload.readers.base import Report, Source, job_id, jobs, number, table, whole


def read(source: Source, report: Report) -> Iterable[JobSpec]:
    """The jobs of the file; ``iterations`` and ``interval`` are not used, as there."""
    rows = table(source, report, ("job_id", "num_gpu", "submit_time", "duration"))
    get_id, get_gpus, get_submit, get_duration, get_model = map(
        rows.getter, ("job_id", "num_gpu", "submit_time", "duration", "model_name")
    )

    def make(row: Sequence[str]) -> JobSpec:
        return JobSpec(
            job_id=job_id(get_id(row)),
            num_gpus=whole("num_gpu", get_gpus(row)),
            submit_s=number("submit_time", get_submit(row)),
            duration_s=number("duration", get_duration(row)),
            model=get_model(row),
        )

    return jobs(rows.rows, make, report)
