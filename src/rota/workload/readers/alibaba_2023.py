"""The pod lists of Alibaba's openb cluster (2023; Weng et al., USENIX ATC 2023)."""

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

NEEDED = ("name", "num_gpu", "creation_time", "deletion_time", "scheduled_time")


def read(source: Source, report: Report) -> Iterable[JobSpec]:
    """The GPU pods that ran: from creation, for as long as from scheduling to deletion."""
    rows = table(source, report, NEEDED)
    get_name, get_gpus, get_created, get_deleted, get_scheduled = map(rows.getter, NEEDED)
    get_milli, get_qos = rows.getter("gpu_milli"), rows.getter("qos")

    def make(row: Sequence[str]) -> JobSpec | None:
        if number("num_gpu", get_gpus(row), "a number of GPUs") == 0:
            report.count("CPU pods left out")
            return None
        if not get_scheduled(row):
            report.count("pods left out that were never scheduled")
            return None
        if not get_deleted(row):
            report.count("pods left out that had not ended")
            return None
        start_s = number("scheduled_time", get_scheduled(row))
        end_s = number("deletion_time", get_deleted(row))
        milli = get_milli(row)
        spec = JobSpec(
            job_id=job_id(get_name(row)),
            num_gpus=whole("num_gpu", get_gpus(row)),
            submit_s=number("creation_time", get_created(row)),
            duration_s=elapsed("deletion_time", start_s, end_s),
            vc=get_qos(row),
        )
        report.started(spec.job_id, spec.submit_s, start_s)
        if milli and number("gpu_milli", milli, "thousandths of a GPU") < 1000:
            report.count("jobs that ask for a fraction of a GPU, each counted as 1 GPU")
        return spec

    return from_first(jobs(rows.rows, make, report), report, calendar=False)
