import pytest
from pytest import approx

from rota.experiment import elasticity_autoscaling as experiment
from rota.experiment.elasticity_autoscaling import (
    DEADLINE,
    FIT,
    PROBE,
    SIZES,
    THRESHOLD,
    deadline,
    deadline_s,
    elastic,
    jobs,
    measure,
    net_value,
    run,
    static,
    worth_by_size,
)
from rota.policy.scaling import ThroughputScaling
from rota.workload.catalog import find

BERT = ("bert", "t4")


@pytest.fixture
def small(monkeypatch):
    some = {key: jobs()[key] for key in (BERT, ("resnet50", "v100"))}
    monkeypatch.setattr(experiment, "jobs", lambda: some)
    monkeypatch.setattr(experiment, "STEPS", 2500)
    monkeypatch.setattr(experiment, "SEEDS", [0, 1])
    monkeypatch.setattr(experiment, "AS_JOBS", 1)


def test_every_figure_is_there_with_the_published_ones_beside(small):
    outcome = run()
    assert (outcome.experiment, outcome.seeds) == ("elasticity-autoscaling", [0, 1])
    names = [figure.name for figure in outcome.figures]
    assert len(names) == len(set(names))
    for size in SIZES:
        assert {f"JCT over {size} GPUs", f"GPU-time over {size} GPUs"} <= set(names)
    assert sorted(f.published for f in outcome.figures if f.published) == [45.0, 85.1]
    walks = [figure for figure in outcome.figures if figure.name.startswith("closed form")]
    assert [figure.ours for figure in walks] == [46, approx(3, abs=1), 0, 13, approx(3, abs=1), 0]
    assert run() == outcome, "the same each time"


def test_the_bounds_would_catch_a_scaler_that_never_grows(small, monkeypatch):
    class Stay:
        def __init__(self, *_, **__):
            pass

        def choose(self, job, memory=None):
            return experiment.ProbeScaler((job.workers,)).choose(job, memory)

    monkeypatch.setattr(experiment, "FitScaler", Stay)
    assert not run().holds


def test_the_jobs_are_those_with_a_restart_cost_and_every_term():
    assert {name for name, _ in jobs()} >= {"resnet50", "cifar10", "bert", "yolov3", "ncf"}
    assert all(job.restart_s > 0 for job in jobs().values())


def test_a_part_that_is_too_large_for_one_gpu_is_taken_in_micro_steps():
    job, step = jobs()[BERT], find("bert").step_times["t4"]
    most = find("bert").batch
    assert job.batch == 16 * most
    seconds = 3 * step.compute_s(most) + step.step_s(4, 1, most)
    assert job.rate(4) == approx(job.batch / seconds)
    assert job.rate(32) == approx(job.batch / step.step_s(32, 8, most / 2))


def test_a_resize_by_restart_stops_the_job_for_the_catalogues_cost(monkeypatch):
    monkeypatch.setattr(experiment, "NOISE", 0.0)
    job = jobs()[BERT]
    live, restarts = (
        elastic(job, PROBE, ThroughputScaling(THRESHOLD), 0, restarts=r) for r in (False, True)
    )
    assert live.sizes[-1] == restarts.sizes[-1]
    assert restarts.jct_s > live.jct_s + 0.5 * job.restart_s * live.resizes


def test_both_scalers_come_near_the_best_static_size():
    worths = worth_by_size(jobs()[BERT])
    for scaler in (FIT, PROBE):
        found = measure((BERT, scaler), 0)
        assert worths[found.live.sizes[-1]] > max(worths.values()) - 0.05


def test_the_deadline_is_worth_keeping():
    job = jobs()[BERT]
    goal = deadline(job)
    fastest = min((static(job, size) for size in SIZES), key=lambda end: end.jct_s)
    assert deadline_s(job) == approx(DEADLINE * fastest.jct_s)
    assert max(net_value(goal, static(job, size)) for size in SIZES) > 0
    assert net_value(goal, static(job, SIZES[-1])) < net_value(goal, fastest)
