from collections import Counter
from math import sqrt

import pytest

from rota.experiment import gandiva_cluster
from rota.experiment.gandiva_cluster import (
    ARRIVE_WITHIN_S,
    LONGEST_S,
    SHORTEST_S,
    Case,
    Result,
    judged,
    measure,
    pair_speeds,
    run,
    workload,
)
from rota.experiment.gandiva_packing import RESNET, SUPER_RESOLUTION, VAE


@pytest.fixture
def small(monkeypatch):
    for name, value in {
        "CLUSTER": "2x4",
        "NUM_JOBS": 16,
        "SEEDS": [0, 1],
        "SWEPT": (0.0, 0.4),
        "WORK_OF_A_RUN": 1,
        "ARRIVE_WITHIN_S": 3600.0,
        "HORIZON_S": 7200.0,
    }.items():
        monkeypatch.setattr(gandiva_cluster, name, value)


def test_the_mix_is_the_one_that_was_fixed(monkeypatch):
    monkeypatch.setattr(gandiva_cluster, "NUM_JOBS", 20_000)
    jobs = workload(0.4, 0).jobs
    sizes = Counter(job.num_gpus for job in jobs)
    assert {size: sizes[size] / len(jobs) for size in sizes} == pytest.approx(
        {1: 0.65, 2: 0.1, 4: 0.2, 8: 0.05}, abs=0.01
    )
    models = Counter(job.model for job in jobs)
    assert models[VAE.model] / len(jobs) == pytest.approx(0.2, abs=0.01)
    assert models[SUPER_RESOLUTION.model] / len(jobs) == pytest.approx(0.2, abs=0.01)
    assert {job.num_gpus for job in jobs if job.model != RESNET.model} == {1}
    assert all(SHORTEST_S - 1 <= job.duration_s <= LONGEST_S + 1 for job in jobs)
    assert 0 <= jobs[0].submit_s <= jobs[-1].submit_s <= ARRIVE_WITHIN_S


def test_more_packable_jobs_than_there_are_single_ones_leave_fewer_gangs(monkeypatch):
    monkeypatch.setattr(gandiva_cluster, "NUM_JOBS", 20_000)
    jobs = workload(0.8, 0).jobs
    assert sum(job.model != RESNET.model for job in jobs) / len(jobs) == pytest.approx(
        0.8, abs=0.01
    )
    assert sum(job.num_gpus == 4 for job in jobs) / len(jobs) == pytest.approx(0.8 / 7, abs=0.01)


def test_only_packable_jobs_do_more_work_together():
    speeds = pair_speeds()
    mixed = (VAE.model, SUPER_RESOLUTION.model)
    assert speeds[mixed][0] == pytest.approx(sqrt(VAE.speed * SUPER_RESOLUTION.speed))
    with_resnets = {pair: speed for pair, speed in speeds.items() if RESNET.model in pair}
    assert len(with_resnets) == 3
    assert all(sum(speed) == pytest.approx(0.9) for speed in with_resnets.values())


def test_it_is_run_beside_fifo_and_swept(small):
    outcome = run()
    names = [figure.name for figure in outcome.figures]
    assert outcome.seeds == [0, 1]
    assert sum("no packing" in name for name in names) == 4
    assert sum(figure.judged for figure in outcome.figures) == 2
    assert all(figure.ours > 0 for figure in outcome.figures)


def test_slicing_brings_the_first_mini_batches_sooner_and_packing_more_work(small):
    fifo = measure(Case("fifo", (), 0.6), 0)
    sliced = measure(Case("gandiva", (("pack", "off"),), 0.6), 0)
    packed = measure(Case("gandiva", (), 0.6), 0)
    assert packed.first_s < fifo.first_s
    assert packed.work_gpu_h > sliced.work_gpu_h


@pytest.mark.parametrize(
    ("work", "first_s", "ok"),
    [(1260.0, 100.0, [True, True]), (1100.0, 100.0, [False, True]), (1260.0, 250.0, [True, False])],
)
def test_the_verdict_is_from_the_gain_and_the_first_mini_batches(work, first_s, ok):
    figures = judged([Result(1000.0, 1e6, 1000.0)] * 2, [Result(work, 1e6, first_s)] * 2)
    assert [figure.ok for figure in figures if figure.judged] == ok
