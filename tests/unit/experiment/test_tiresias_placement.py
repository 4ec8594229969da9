import pytest

from rota.experiment import tiresias_placement
from rota.experiment.tiresias_placement import GPUS, LOADS, OTHERS, SKEW, run, simulated, workload


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(tiresias_placement, "NUM_JOBS", 40)
    monkeypatch.setattr(tiresias_placement, "SEEDS", [0, 1])


def test_each_placement_is_compared_with_the_papers_rule_at_each_load():
    outcome = run()
    assert outcome.experiment == "tiresias-placement"
    assert len(outcome.figures) == len(OTHERS) * len(LOADS)
    assert all(figure.ours > 0 for figure in outcome.figures)
    means = outcome.settings["means"]
    assert {load: set(of) for load, of in means.items()} == {
        load: {SKEW, *OTHERS} for load in LOADS
    }
    assert run() == outcome, "the same each time"


def test_consolidating_keeps_jobs_at_full_speed_and_spreading_does_not():
    always, never = (simulated(name, 0, "moderate") for name in ("consolidate-strict", "spread"))
    assert always.slowdown == pytest.approx(1.0, abs=1e-9)
    assert never.slowdown > 1.02


def test_the_rule_slows_jobs_less_than_never_consolidating():
    rule, never = (simulated(name, 0, "moderate") for name in (SKEW, "spread"))
    assert 1.0 < rule.slowdown < never.slowdown


def test_the_load_is_what_is_asked_for(monkeypatch):
    monkeypatch.setattr(tiresias_placement, "NUM_JOBS", 4000)
    for load, asked in LOADS.items():
        jobs = workload(load, 0).jobs
        gpu_s = sum(job.num_gpus * job.duration_s for job in jobs)
        assert gpu_s / (GPUS * jobs[-1].submit_s) == pytest.approx(asked, rel=0.1)


def test_loads_differ_in_arrivals_only():
    moderate, heavy = (workload(load, 0).jobs for load in LOADS)
    assert [job._replace(submit_s=0.0) for job in moderate] == [
        job._replace(submit_s=0.0) for job in heavy
    ]
    assert moderate[-1].submit_s > heavy[-1].submit_s
