from shutil import copy, copytree

import pytest

from rota.errors import DataMissingError
from rota.experiment import pollux_jct
from rota.experiment.pollux_jct import BOUNDS_S, VARIANTS, by_workload, figures_of, run
from rota.experiment.runs.pollux import (
    JITTER_S,
    Run,
    Variant,
    jittered,
    misdeclared,
    p99_jct_s,
    restarts_per_job,
    run_one,
)
from rota.testing.builders import job, trace


def runs(average_s, *, restarts=0):
    """Four workloads of two jobs each, by seed: one."""
    return [[Run([average_s - 1, average_s + 1], 5000.0, restarts, 0.5)] * 4]


def everybody(average_s, **more):
    return dict.fromkeys(VARIANTS, runs(average_s, **more))


def test_every_variant_runs_on_every_workload(pollux_data, monkeypatch):
    monkeypatch.setattr(pollux_jct, "SEEDS", [0, 1])
    outcome = run(pollux_data)
    names = [figure.name for figure in outcome.figures]
    for label in VARIANTS:
        assert f"average JCT, {label}" in names
        assert f"workload 4: average JCT, {label}" in names
    assert len(names) == len(set(names))
    assert len([figure for figure in outcome.figures if figure.judged]) == 3 * len(BOUNDS_S)
    assert outcome.seeds == [0, 1]


def test_each_variant_stands_with_what_it_is_told(pollux_data, monkeypatch):
    monkeypatch.setattr(pollux_jct, "SEEDS", [0])
    told = {label: each[3] for label, each in run(pollux_data).settings["variants"].items()}
    assert told["Tiresias"] == told["Pollux as published"] == told["A, ticks"] == "none"
    assert told["A + label"] == told["A + label, ticks"] == "label"
    assert told["Optimus+Oracle"] == "oracle"
    assert told["B + label"] == "declared, label"
    assert "sigma 0.5" in told["B + label, lengths wrong"]


@pytest.mark.parametrize(
    ("found", "failing"),
    [
        (everybody(2000.0), set()),
        (everybody(2200.0), {"average JCT, B + label"}),
        (everybody(2400.0), {f"average JCT, {label}" for label in BOUNDS_S if "A," not in label}),
        (everybody(2000.0, restarts=7), {f"restarts a job, {label}" for label in BOUNDS_S}),
    ],
    ids=["within", "too slow for B", "too slow for all but the ticks", "restless"],
)  # fmt: skip
def test_what_is_slower_or_more_restless_than_its_bound_fails(found, failing):
    figures = [figure for label in VARIANTS for figure in figures_of(label, found)]
    assert {figure.name for figure in figures if not figure.ok} == failing


def test_workloads_that_are_there_besides_are_reported(pollux_data, tmp_path, monkeypatch):
    monkeypatch.setattr(pollux_jct, "SEEDS", [0])
    monkeypatch.setattr(pollux_jct, "VARIANTS", dict(list(VARIANTS.items())[:3]))
    copytree(pollux_data, tmp_path / "data")
    workloads = tmp_path / "data" / "pollux" / "workloads"
    copy(workloads / "workload-1.csv", workloads / "workload-6.csv")
    outcome = run(tmp_path / "data")
    found = {figure.name: figure for figure in outcome.figures}
    sixth, first = found["workloads 6: average JCT, Tiresias"], "workload 1: average JCT, Tiresias"
    assert (sixth.published, sixth.ours) == (2446.0, found[first].ours)
    assert not sixth.judged
    assert outcome.settings["other workloads"] == [6]


def test_published_figures_stand_beside_their_own_variant():
    found = everybody(2000.0)
    published = {figure.name: figure.published for figure in by_workload("Tiresias", found)}
    assert published["workload 1: average JCT, Tiresias"] == 2473.65
    (ours, *_) = by_workload("A + label", found)
    assert (ours.published, ours.baseline) == (2089.0, 2000.0)


def test_percentile_and_restarts_are_over_the_jobs_of_all_workloads():
    found = [Run([1.0] * 98, 0.0, 49, 0.0), Run([5.0, 9.0], 0.0, 1, 0.0)]
    assert p99_jct_s(found) == 5.0
    assert restarts_per_job(found) == 0.5


def test_seeds_move_arrivals_a_little_and_seed_0_not_at_all():
    jobs = trace(*(job(i, at=100.0 * i) for i in range(20)))
    assert jittered(jobs, 0) is jobs
    moved = jittered(jobs, 1)
    gaps = [one.submit_s - other.submit_s for one, other in zip(moved, jobs, strict=True)]
    assert any(gaps)
    assert all(abs(gap) <= JITTER_S for gap in gaps)
    assert [spec.submit_s for spec in jittered(jobs, 1)] == [spec.submit_s for spec in moved]


def test_wrong_lengths_are_wrong_in_what_is_declared_alone():
    jobs = trace(*(job(i)._replace(epochs=10.0) for i in range(200)))
    wrong = misdeclared(jobs, 0.5, 3)
    assert [spec._replace(epochs=10.0) for spec in wrong] == list(jobs)
    longer = [spec for spec in wrong if spec.epochs > 10.0]
    assert 70 < len(longer) < 130  # the median of the factor is 1
    assert misdeclared(jobs, 0.0, 3) is jobs


def test_a_run_is_the_same_twice(pollux_data):
    subject = Variant("pollux", {"objective": "length"}, length_error=0.5), 1
    first, second = (run_one(subject, 1, pollux_data, 1.5) for _ in range(2))
    assert first._replace(cpu_s=0.0) == second._replace(cpu_s=0.0)
    assert run_one((Variant("fifo"), 1), 1, pollux_data, 1.0).restarts == 0


def test_absent_data_is_told(tmp_path):
    with pytest.raises(DataMissingError, match="--data"):
        run()
    with pytest.raises(DataMissingError, match="pollux/profiles"):
        run(tmp_path)
