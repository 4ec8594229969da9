"""The experiment on other mixes of jobs, on invented data and on invented runs."""

from collections import Counter
from random import Random

import pytest

from rota.errors import DataMissingError
from rota.experiment import pollux_mixes
from rota.experiment.pollux_mixes import (
    AS_PROFILED,
    JUDGED,
    PUBLISHED,
    SWEEP_JOBS,
    SWEEP_S,
    VARIANTS,
    Mix,
    arrivals,
    asked_per_s,
    by_application,
    drawn,
    figures_of,
    gpu_s,
    run,
)
from rota.experiment.runs.pollux import Run
from rota.experiment.runs.pollux_jobs import WORKLOADS, jobs_of
from rota.workload.profiles import MODELS
from rota.workload.synthetic import generate


@pytest.fixture
def data(tmp_path, write_profile):
    """Two applications, of which one comes once in each workload."""
    for name in ("cifar10", "ncf"):
        write_profile(tmp_path / "pollux" / "profiles" / name)
    workloads = tmp_path / "pollux" / "workloads"
    workloads.mkdir()
    for number in WORKLOADS:
        rows = [
            "name,time,application,num_replicas,batch_size",
            "a,0,cifar10,2,256",
            "b,5,cifar10,1,256",
            "c,9,ncf,1,256",
        ]
        (workloads / f"workload-{number}.csv").write_text("\n".join(rows) + "\n")
    return tmp_path


def test_applications_come_as_often_as_their_weights_say(data):
    jobs = drawn(1, data, Mix({"cifar10": 1, "ncf": 3}, 400))
    assert len(jobs) == 400
    counts = Counter(spec.model for spec in jobs)
    assert 260 < counts["ncf"] < 340
    assert {(spec.model, spec.num_gpus, spec.batch) for spec in jobs} == {
        (spec.model, spec.num_gpus, spec.batch) for spec in jobs_of(data, 1)
    }


@pytest.mark.parametrize("sweeps", [False, True])
def test_users_ask_for_as_much_an_hour_as_in_the_published_workloads(data, sweeps):
    jobs = drawn(1, data, Mix({"ncf": 1}, 400, sweeps))
    span_s = gpu_s(list(jobs)) / asked_per_s(data)
    assert 0.9 * span_s < max(spec.submit_s for spec in jobs) < 1.1 * span_s
    published = [spec for each in by_application(data).values() for spec in each]
    assert len(published) == 12
    assert asked_per_s(data) == pytest.approx(gpu_s(published) / (4 * 8 * 3600))


def test_a_synthetic_trace_tells_which_applications_come_when():
    applications = {AS_PROFILED.get(name, name) for _, names in MODELS for name in names}
    assert applications == PUBLISHED.keys()
    mix = Mix("philly", 50)
    found = list(arrivals(mix, 3, Random(1)))
    made = generate("philly", num_jobs=50, num_gpus=64, seed=3)
    assert [name for name, _ in found] == [AS_PROFILED.get(spec.model, spec.model) for spec in made]
    assert max(part for _, part in found) == 1.0
    assert [part for _, part in found] == sorted(part for _, part in found)


def test_jobs_of_a_sweep_are_alike_and_come_within_a_minute(data):
    jobs = list(drawn(2, data, Mix({"cifar10": 1, "ncf": 1}, 100, sweeps=True)))
    by_number = sorted(jobs, key=lambda spec: int(spec.job_id))
    sweeps = [[by_number[0]]]
    for spec in by_number[1:]:
        last = sweeps[-1][0]
        alike = (spec.model, spec.num_gpus) == (last.model, last.num_gpus)
        if alike and abs(spec.submit_s - last.submit_s) <= SWEEP_S:
            sweeps[-1].append(spec)
        else:
            sweeps.append([spec])
    assert all(len(sweep) >= SWEEP_JOBS[0] for sweep in sweeps[:-1])
    assert len(sweeps) > 2


def test_a_seed_draws_the_same_jobs_again_and_another_seed_others(data):
    mix = Mix({"cifar10": 1, "ncf": 1}, 50)
    assert list(drawn(1, data, mix)) == list(drawn(1, data, mix))
    assert list(drawn(1, data, mix)) != list(drawn(2, data, mix))


def test_one_seed_with_which_a_policy_is_slower_than_the_published_one_fails():
    runs = {label: [[Run([100.0], 1.0, 0, 0.0)]] * 3 for label in VARIANTS}
    assert all(figure.ok for figure in figures_of("mix", runs))
    slow = [[Run([each_s], 1.0, 0, 0.0)] for each_s in (90.0, 90.0, 101.0)]
    found = runs | {"A + label": slow, "Tiresias": slow}
    failed = [figure.name for figure in figures_of("mix", found) if not figure.ok]
    assert failed == ["mix: average JCT over Pollux as published, A + label"]


def test_every_variant_runs_on_every_mix(data, monkeypatch):
    mixes = {"one": Mix({"cifar10": 1}, 4), "both": Mix({"cifar10": 1, "ncf": 1}, 4, sweeps=True)}
    monkeypatch.setattr(pollux_mixes, "MIXES", mixes)
    monkeypatch.setattr(pollux_mixes, "SEEDS", [1, 2])
    outcome = run(data)
    names = {figure.name for figure in outcome.figures}
    for name in mixes:
        for label in VARIANTS:
            assert f"{name}: average JCT, {label}" in names
    assert sum(figure.judged for figure in outcome.figures) == len(mixes) * len(JUDGED)


def test_without_data_it_says_which_is_needed(tmp_path):
    with pytest.raises(DataMissingError, match=r"there is no .*profiles; give the folder"):
        run(tmp_path)
