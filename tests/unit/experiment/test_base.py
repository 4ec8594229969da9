from inspect import signature
from pathlib import Path

import pytest

from rota.errors import InputError
from rota.experiment import base
from rota.experiment.base import (
    Figure,
    Outcome,
    for_each_seed,
    load,
    names,
    over_seeds,
    summary,
)


def figure(ours):
    return Figure("share", "GPUs", 1.0, None, ours, 0.9, 1.1)


@pytest.mark.parametrize(
    ("ours", "ok"), [(0.9, True), (1.1, True), (0.89, False), (1.11, False), (float("nan"), False)]
)
def test_a_figure_is_ok_within_its_bounds_and_on_them(ours, ok):
    assert figure(ours).ok is ok


def reported():
    return Figure("queue", "s", None, None, 1e9)


@pytest.mark.parametrize(
    ("figures", "holds"),
    [
        ([figure(1.0)], True),
        ([figure(1.0), figure(2.0)], False),
        ([figure(1.0), reported()], True),
        ([reported()], False),
        ([], False),
    ],
    ids=["all within", "one out", "one not judged", "none judged", "none at all"],
)
def test_an_experiment_holds_if_all_figures_do(figures, holds):
    assert Outcome("x", [], {}, figures).holds is holds


def test_a_figure_of_many_seeds_is_their_median_with_the_extremes():
    made = over_seeds("share", "GPUs", [3.0, 1.0, 2.0, 8.0], baseline=[4.0, 6.0], bounds=(2.0, 3.0))
    assert (made.ours, made.least, made.most) == (2.5, 1.0, 8.0)
    assert made.baseline == 5.0
    assert made.ok
    assert made.judged
    assert not over_seeds("share", "GPUs", [1.0]).judged


@pytest.mark.parametrize(
    ("values", "ok"),
    [([2.0, 2.5, 3.0], True), ([2.0, 2.5, 3.1], False), ([1.9, 2.5, 3.0], False)],
    ids=["all within", "the most is out", "the least is out"],
)
def test_bounds_for_every_seed_are_for_the_worst_one_too(values, ok):
    assert over_seeds("share", "GPUs", values, bounds=(2.0, 3.0)).ok
    assert over_seeds("share", "GPUs", values, bounds=(2.0, 3.0), every=True).ok is ok
    assert not over_seeds("share", "GPUs", values, every=True).every  # there are no bounds


@pytest.mark.parametrize("name", names())
def test_every_experiment_says_what_it_reproduces_and_can_be_run(name):
    assert summary(name)
    assert callable(load(name).run)


@pytest.mark.parametrize("name", names())
def test_what_an_experiment_has_no_use_for_is_refused(name):
    takes = signature(load(name).run).parameters
    if "live" not in takes:
        with pytest.raises(InputError, match=f"{name} has no separate part on real jobs"):
            base.run(name, live=True)
    if "data" not in takes:
        with pytest.raises(InputError, match=f"{name} needs no data; leave out --data"):
            base.run(name, Path("data"))
    if "partition" not in takes:
        with pytest.raises(InputError, match=f"{name} asks no Slurm; leave out --partition"):
            base.run(name, partition="gpu")


def test_an_experiment_is_told_what_it_takes(monkeypatch):
    class Live:
        @staticmethod
        def run(*, live):
            return Outcome("x", [], {"live": live}, [])

    monkeypatch.setattr(base, "load", lambda name: Live)
    assert base.run("x", live=True).settings == {"live": True}
    with pytest.raises(InputError, match="needs no data"):
        base.run("x", Path("data"))


def times(subject, seed):
    return subject * seed


@pytest.mark.parametrize(
    "num_jobs",
    [1, pytest.param(10_000, marks=pytest.mark.process)],
    ids=["in one process", "in several"],
)
def test_every_subject_is_measured_with_every_seed(num_jobs):
    found = for_each_seed(times, {"two": 2, "three": 3}, [5, 7], num_jobs=num_jobs)
    assert found == {"two": [10, 14], "three": [15, 21]}
