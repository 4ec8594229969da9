import pytest

from rota.experiment import sad_cluster
from rota.experiment.sad_cluster import (
    GAPS_S,
    HUNGRY,
    MIXES,
    SETTINGS,
    Setting,
    measure,
    peak,
    run,
    workload,
)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(sad_cluster, "NUM_JOBS", 60)
    monkeypatch.setattr(sad_cluster, "SEEDS", [0, 1])


def test_sad_is_compared_with_both_baselines_in_every_setting(monkeypatch):
    few = [each for each in SETTINGS if each.policy == "fifo" and each.mix == HUNGRY]
    monkeypatch.setattr(sad_cluster, "SETTINGS", few)
    outcome = run()
    assert outcome.experiment == "sad-cluster"
    assert len(outcome.figures) == 2 * 3 * len(GAPS_S)  # baselines, figures of each, loads
    saturated = next(figure for figure in outcome.figures if figure.published == -34.0)
    assert saturated.name == f"JCT, fifo, {HUNGRY}, saturated, over static share"
    assert saturated.ours < -20.0, "fewer jobs than in earnest wait for each other less"
    assert run() == outcome, "the same each time"


@pytest.mark.parametrize("policy", ["fifo", "gandiva", "tiresias", "pollux"])
def test_jobs_end_sooner_than_with_a_static_share(policy):
    ours, share = (
        measure(Setting(policy, HUNGRY, "saturated", way), 0) for way in ("SAD", "static share")
    )
    assert ours.jct_s < 0.8 * share.jct_s
    assert 0 < share.computing < share.busy <= 1
    assert ours.computing > share.computing


def test_jobs_without_a_use_for_more_cores_gain_nothing(monkeypatch):
    monkeypatch.setitem(MIXES, "language", ("gnmt", "transformer", "lm"))
    ours, share = (
        measure(Setting("fifo", "language", "saturated", way), 0) for way in ("SAD", "static share")
    )
    assert ours == share


def test_a_peak_is_the_speed_with_all_cores_that_a_model_can_use():
    assert peak("alexnet") == 2.0
    assert peak("resnet18_imagenet") == 2.4
    assert peak("gnmt") == 1.0


def test_jobs_arrive_at_the_gap_that_is_asked_for(monkeypatch):
    monkeypatch.setattr(sad_cluster, "NUM_JOBS", 4000)
    for load, gap_s in GAPS_S.items():
        jobs = workload(HUNGRY, load, 0).jobs
        assert jobs[-1].submit_s / len(jobs) == pytest.approx(gap_s, rel=0.05)
        assert {job.model for job in jobs} == set(MIXES[HUNGRY])
