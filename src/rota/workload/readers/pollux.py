"""The workloads of Pollux (Qiao et al., OSDI 2021): jobs by application, GPUs and batch size."""

from collections.abc import Iterable, Sequence
from math import ceil
from typing import NamedTuple

from rota.model.job import JobSpec
from rota.workload.catalog import find
from rota.workload.readers.base import (
    SHOWN,
    Report,
    Source,
    job_id,
    jobs,
    number,
    table,
    whole,
    wrong,
)
from rota.workload.trace import MAX_BATCH

NEEDED = ("name", "time", "application", "num_replicas", "batch_size")
GPUS_PER_NODE = 4


class Training(NamedTuple):
    """An application's training: measured steps to its last epoch, by batch size.

    ``most_per_gpu`` is the most samples that fit a GPU; larger batches are accumulated.
    """

    most_per_gpu: int
    steps: dict[int, int]


# From the validation runs of AdaptDL's branch osdi21-artifact: steps at the end of the last epoch.
TRAININGS = {
    "bert": Training(12, {12: 14774, 24: 7427, 48: 3732, 96: 1885, 192: 940, 384: 480}),
    "cifar10": Training(
        1024, {128: 39062, 256: 20377, 512: 10615, 1024: 5722, 2048: 3178, 4096: 2011}
    ),
    "deepspeech2": Training(80, {20: 28536, 40: 14711, 80: 7683, 160: 4041, 320: 2264, 640: 1423}),
    "imagenet": Training(
        200,
        {
            200: 576525,
            400: 292995,
            800: 150231,
            1600: 78453,
            3200: 42123,
            6400: 23972,
            12800: 14461,
        },
    ),
    "ncf": Training(
        32768,
        {
            256: 194174,
            512: 97094,
            1024: 48625,
            2048: 24308,
            4096: 12172,
            8192: 6122,
            16384: 3069,
            32768: 1548,
        },
    ),
    "yolov3": Training(
        8, {8: 103444, 16: 52905, 32: 27430, 64: 14577, 128: 8075, 256: 4809, 512: 3143}
    ),
}


def read(source: Source, report: Report) -> Iterable[JobSpec]:
    """The jobs, each as long as its training takes on T4 GPUs, four to a node.

    The file has no durations: they are the measured number of steps at that batch size, times the
    catalogue's step time.
    """
    rows = table(source, report, NEEDED)
    get_name, get_time, get_application, get_gpus, get_batch = map(rows.getter, NEEDED)
    report.note("durations are steps to the last epoch times the step time on T4 GPUs, 4 to a node")

    def make(row: Sequence[str]) -> JobSpec:
        application, gpus = get_application(row), whole("num_replicas", get_gpus(row))
        batch = whole("batch_size", get_batch(row), MAX_BATCH)
        return JobSpec(
            job_id=job_id(get_name(row)),
            num_gpus=gpus,
            submit_s=number("time", get_time(row)),
            duration_s=training_s(application, gpus, batch),
            model=application,
            batch=batch,
        )

    return jobs(rows.rows, make, report)


def training_s(application: str, gpus: int, batch: int) -> float:
    """Seconds to train ``application`` with ``batch`` samples a step over ``gpus``. TraceError."""
    training = TRAININGS.get(application)
    if training is None:
        wrong("application", application, f"there are {', '.join(TRAININGS)}")
    steps = training.steps.get(batch)
    if steps is None:
        measured = ", ".join(map(str, training.steps))
        wrong("batch_size", batch, f"{application[:SHOWN]} was measured at {measured}")
    timing = find(application).step_times["t4"]
    rounds = ceil(batch / gpus / training.most_per_gpu)
    per_round = batch / gpus / rounds
    last_s = timing.step_s(gpus, ceil(gpus / GPUS_PER_NODE), per_round)
    return steps * ((rounds - 1) * timing.compute_s(per_round) + last_s)
