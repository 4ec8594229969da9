import pytest

from rota.experiment import pollux_load
from rota.experiment.pollux_load import BASELINE, JUDGED, LOADS, VARIANTS, at_load, figures_at, run
from rota.experiment.runs.pollux import Run
from rota.experiment.runs.pollux_jobs import JITTER_S, jobs_of


def test_every_variant_runs_at_every_load(pollux_data, monkeypatch):
    monkeypatch.setattr(pollux_load, "SEEDS", [1])
    outcome = run(pollux_data)
    names = [figure.name for figure in outcome.figures]
    for load in LOADS:
        for label in VARIANTS:
            assert f"load {load:g}: average JCT, {label}" in names
    judged = [figure for figure in outcome.figures if figure.judged]
    assert len(judged) == 2 * len(JUDGED) * len(LOADS)
    published = {figure.name: figure.published for figure in outcome.figures}
    assert published["load 2: average JCT, Tiresias"] == 10_040
    assert published["load 0.5: average JCT, B + label"] == 1534


@pytest.mark.parametrize(("load", "jobs"), [(0.5, 2), (1.0, 4), (1.5, 6), (2.0, 8)])
def test_a_load_is_so_many_jobs_in_the_same_hours(pollux_data, load, jobs):
    drawn = at_load(1, pollux_data, 4, load)
    assert len({spec.job_id for spec in drawn}) == len(drawn) == jobs
    latest_s = max(spec.submit_s for spec in jobs_of(pollux_data, 4)) + JITTER_S
    assert max(spec.submit_s for spec in drawn) <= latest_s
    assert list(at_load(1, pollux_data, 4, load)) == list(drawn)


def test_a_policy_that_is_slower_than_the_published_one_fails():
    runs = {label: [[Run([100.0], 1.0, 0, 0.0)]] for label in VARIANTS}
    published = dict.fromkeys((*VARIANTS,), 1.0)
    assert all(figure.ok for figure in figures_at(1.0, runs, published))
    slower = runs | {"A + label": [[Run([101.0], 1.0, 0, 0.0)]]}
    failed = [figure.name for figure in figures_at(1.0, slower, published) if not figure.ok]
    assert failed == [f"load 1: average JCT over {BASELINE}, A + label"]


def test_a_policy_that_restarts_jobs_too_often_with_one_seed_fails():
    runs = {label: [[Run([100.0], 1.0, 0, 0.0)]] * 3 for label in VARIANTS}
    restless = [[Run([100.0], 1.0, restarts, 0.0)] for restarts in (0, 0, 4)]
    found = runs | {"B + label": restless, BASELINE: restless}
    figures = figures_at(1.0, found, dict.fromkeys(VARIANTS, 1.0))
    failed = [figure.name for figure in figures if not figure.ok]
    assert failed == ["load 1: restarts a job, B + label"]
