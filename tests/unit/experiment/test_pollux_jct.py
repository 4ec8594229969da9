from shutil import copy, copytree

import pytest

from rota.errors import DataMissingError
from rota.experiment import pollux_jct
from rota.experiment.pollux_jct import BOUNDS_S, VARIANTS, by_workload, figures_of, run
from rota.experiment.runs.pollux import Run


def runs(average_s, *, restarts=0, cpu_s=0.5):
    """Four workloads of two jobs each, by seed: one."""
    return [[Run([average_s - 1, average_s + 1], 5000.0, restarts, cpu_s)] * 4]


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
    assert len([figure for figure in outcome.figures if figure.judged]) == 4 * len(BOUNDS_S)
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
        (everybody(2000.0, cpu_s=4), {f"CPU time of a simulation, {label}" for label in BOUNDS_S}),
    ],
    ids=["within", "too slow for B", "too slow for all but the ticks", "restless", "dear"],
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


def test_one_bad_seed_fails_where_the_median_is_good():
    bad = runs(2000.0, restarts=7)[0]
    found = everybody(2000.0) | {"A + label": [*runs(2000.0) * 3, bad]}
    failed = [figure.name for figure in figures_of("A + label", found) if not figure.ok]
    assert failed == ["restarts a job, A + label"]


def test_the_tail_of_no_seed_may_be_longer_than_the_published_one():
    tail = [Run([10.0] * 90 + [50_000.0], 60_000.0, 0, 0.5)] * 4
    found = everybody(2000.0) | {"A + label": [*runs(2000.0) * 3, tail]}
    failed = [figure.name for figure in figures_of("A + label", found) if not figure.ok]
    assert failed == ["p99 of JCT, A + label"]


def test_absent_data_is_told(tmp_path):
    with pytest.raises(DataMissingError, match="--data"):
        run()
    with pytest.raises(DataMissingError, match="pollux/profiles"):
        run(tmp_path)
