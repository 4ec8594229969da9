"""Parameters from Optuna: the same for the same knowledge, and better as more is known."""

import logging
import math
import subprocess
import sys

import pytest

from rota.errors import JobFileError
from rota.model.sweep import Report
from rota.model.trial_standing import Standing
from rota.request.searchspace import check_params, grid_size
from rota.sweep import propose
from rota.sweep.propose import Proposals, import_optuna
from rota.sweep.trial import Trial

from .told import search, sweep, trial, trials_of

SPACE = {
    "lr": {"log": [1e-4, 1e-1]},
    "momentum": {"range": [0.1, 0.95], "step": 0.2},
    "width": {"int": [16, 120], "step": 16},
    "depth": {"int": [1, 64], "log": True},
    "dropout": {"range": [0, 1]},
    "optimizer": {"choice": ["sgd", 1, 1.5, True, False, "True"]},
}


def done(number, params, value, standing=Standing.DONE):
    reports = [Report(step, float(step), value * step / 3) for step in (1, 2, 3)]
    return Trial(number, params, standing, reports, ended=standing is not Standing.OPEN)


def proposed(request, count, objective=None):
    """So many trials one after another, each told before the next is proposed."""
    trials = []
    for number in range(count):
        params = Proposals(request, trials).next(number)
        trials.append(done(number, params, objective(params) if objective else 0.5))
    return trials


@pytest.mark.parametrize("algorithm", ["tpe", "random"])
def test_proposals_lie_in_the_space_and_are_as_it_has_them(algorithm):
    request = search(space=SPACE, algorithm=algorithm, max_trials=40)
    for each in proposed(request, 25):
        checked = dict(check_params(request.space, each.params))
        assert list(checked.items()) == list(each.params.items())
        assert list(map(type, checked.values())) == list(map(type, each.params.values()))


def test_values_that_python_takes_for_the_same_are_told_apart():
    request = search(space={"x": {"choice": [1, True, "1"]}}, algorithm="random", max_trials=40)
    found = {(type(each.params["x"]), each.params["x"]) for each in proposed(request, 20)}
    assert found == {(int, 1), (bool, True), (str, "1")}


@pytest.mark.parametrize("algorithm", ["tpe", "random"])
def test_the_same_knowledge_gives_the_same_proposal(algorithm):
    request = search(space=SPACE, algorithm={"name": algorithm, "seed": 3}, max_trials=40)
    trials = proposed(request, 12)
    again = Proposals(request, trials).next(12)
    assert Proposals(request, trials).next(12) == again
    assert Proposals(request, trials).next(13) != again
    assert Proposals(request._replace(seed=4), trials).next(12) != again


def test_several_at_once_are_as_one_after_another_that_are_still_open():
    request = search(space=SPACE, max_trials=40)
    trials = proposed(request, 12)
    at_once = Proposals(request, trials)
    first, second = at_once.next(12), at_once.next(13)
    assert Proposals(request, trials).next(12) == first
    known = [*trials, Trial(12, first, Standing.OPEN)]
    assert Proposals(request, known).next(13) == second


def test_tpe_finds_what_is_good():
    def objective(params):
        return -abs(math.log10(params["lr"]) + 2)  # the best is 1e-2

    request = search(max_trials=60)
    trials = proposed(request, 40, objective)
    late = sorted(objective(each.params) for each in trials[20:])[10]
    chance = sorted(objective(each.params) for each in proposed(search(algorithm="random"), 20))[10]
    assert late > chance / 2, "the median of the last twenty is far closer than by chance"


def test_it_knows_whether_less_is_better():
    def objective(params):
        return abs(math.log10(params["lr"]) + 2)

    request = search(goal="minimize", max_trials=60)
    trials = proposed(request, 40, objective)
    late = sorted(objective(each.params) for each in trials[20:])[10]
    assert late < 0.4


@pytest.mark.parametrize(
    ("told", "state", "value", "reports"),
    [
        (trial(0, 0.5), "RUNNING", None, {1: 0.5}),
        (trial(0, 0.1, 0.5, 0.2, state="SUCCEEDED"), "COMPLETE", 0.5, {3: 0.2}),
        (trial(0, None, 0.5, state="SUCCEEDED"), "COMPLETE", 0.5, {2: 0.5}),
        (trial(0, 0.5, state="CANCELLED", why="behind"), "PRUNED", 0.5, {1: 0.5}),
        (trial(0, state="CANCELLED", why="its program's"), "PRUNED", None, {}),
        (trial(0, 0.5, state="CANCELLED"), "PRUNED", None, {1: 0.5}),
        (trial(0, state="CANCELLED"), "FAIL", None, {}),
        (trial(0, 0.5, state="FAILED"), "FAIL", None, {1: 0.5}),
        (trial(0, 0.5, None, state="CANCELLED", why="no number"), "FAIL", None, {1: 0.5}),
        (trial(0, state="SUCCEEDED"), "FAIL", None, {}),
    ],
)
def test_what_optuna_is_told(told, state, value, reports):
    request = search()
    frozen = propose._frozen(request, *trials_of(request, sweep(told)))
    assert (frozen.state.name, frozen.value) == (state, value)
    assert frozen.intermediate_values == reports


def test_any_trials_can_be_told():
    request = search(space=SPACE, max_trials=40)
    params = Proposals(request, []).next(0)
    kinds = [
        trial(number, *values, state=state, why=why, params=params)
        for number, (values, state, why) in enumerate(
            [
                ((), "RUNNING", None),
                ((0.5,), "RUNNING", None),
                ((None,), "RUNNING", None),
                ((0.5, None), "CANCELLED", "no number"),
                ((), "CANCELLED", "behind"),
                ((1e300, -1e300), "SUCCEEDED", None),
                ((0.5,), "LOST", None),
            ]
            * 3
        )
    ]
    told = trials_of(request, sweep(*kinds))
    assert check_params(request.space, Proposals(request, told).next(99))


def test_parameters_that_were_tried_are_not_proposed_again_while_there_are_others():
    request = search(space={"x": {"int": [1, 8]}}, algorithm="random", max_trials=40)
    found = [each.params["x"] for each in proposed(request, 6)]
    assert len(set(found)) == 6
    assert Proposals(request, [done(n, {"x": n + 1}, 0.5) for n in range(8)]).next(8)["x"]


@pytest.mark.parametrize("seed", [0, 1])
def test_a_grid_is_gone_through_once_in_an_order_of_its_seed(seed):
    space = {"x": {"int": [1, 4]}, "y": {"choice": ["a", "b"]}}
    request = search(space=space, algorithm={"name": "grid", "seed": seed}, max_trials=None)
    size = grid_size(request.space)
    points = [tuple(Proposals(request, []).next(n).values()) for n in range(size)]
    assert len(set(points)) == size == 8
    other = request._replace(seed=2)
    assert points != [tuple(Proposals(other, []).next(n).values()) for n in range(size)]


def test_a_step_that_does_not_end_at_the_end_of_its_range():
    request = search(space={"x": {"range": [0, 1], "step": 0.3}}, algorithm="random")
    assert {each.params["x"] for each in proposed(request, 12)} == {0.0, 0.3, 0.6, 0.9}


def test_a_value_beside_its_step_is_told_as_the_step():
    request = search(space={"x": {"range": [0, 1], "step": 0.1}})
    trials = [done(0, {"x": 0.30000000001}, 0.5)]
    assert Proposals(request, trials).next(1)


EXTREMES = {
    "as wide as numbers are": {"range": [-1e300, 1e300]},
    "all orders of magnitude": {"log": [1e-300, 1e300]},
    "the two smallest numbers": {"range": [0, 5e-324]},
    "neighbours": {"range": [1.0, 1.0000000000000002]},
    "neighbours by orders of magnitude": {"log": [1.0, 1.0000000000000002]},
    "all ints": {"int": [-(2**53), 2**53]},
    "all ints by orders of magnitude": {"int": [1, 2**53], "log": True},
    "a billion steps": {"range": [0, 1e9], "step": 1.0},
    "steps that no float hits": {"range": [0, 1e-9], "step": 3e-18},
    "steps of ints that don't end at the end": {"int": [-(2**53), 2**53], "step": 2**50 + 1},
    "below zero": {"range": [-5, -1], "step": 0.7},
    "many choices": {"choice": list(range(1000))},
    "one choice": {"choice": ["a"]},
}


@pytest.mark.parametrize("algorithm", ["tpe", "random"])
@pytest.mark.parametrize("dimension", EXTREMES.values(), ids=EXTREMES)
def test_whatever_space_a_search_has_it_goes_on(dimension, algorithm):
    request = search(space={"x": dimension}, algorithm=algorithm)
    values = [1e300, -1e300, 0.5, 5e-324, 0.0]
    trials = []
    for number in range(14):
        params = Proposals(request, trials).next(number)
        assert check_params(request.space, params) == tuple(params.items())
        value = values[number % len(values)]
        reports = [Report(1, 1.0, None), Report(2, 2.0, value)]
        standing = list(Standing)[number % len(Standing)]
        trials.append(Trial(number, params, standing, reports, ended=True))


def test_optuna_says_nothing(capfd, caplog):
    with caplog.at_level(logging.DEBUG):
        proposed(search(space=SPACE, max_trials=40), 3)
    assert capfd.readouterr() == ("", "")
    assert not [record for record in caplog.records if record.name.startswith("optuna")]


def test_without_optuna_it_is_said_how_to_get_it():
    script = """
import sys
sys.modules["optuna"] = None
from rota.request.sweepfile import parse_sweep
from rota.sweep.propose import Proposals
block = {"metric": "x", "goal": "maximize", "max_trials": 3, "space": {"x": {"int": [1, 3]}}}
for algorithm in ("grid", "tpe"):
    fields = {"run": "x", "sweep": block | {"algorithm": algorithm}}
    try:
        print(Proposals(parse_sweep(fields, workdir="/w"), []).next(0))
    except Exception as error:
        print(type(error).__name__, error)
"""
    out = subprocess.check_output([sys.executable, "-c", script], text=True).splitlines()
    assert out[0].startswith("{'x': ")
    assert out[1].startswith("JobFileError sweep.algorithm: ")
    assert out[1].endswith("pip install --force-reinstall optuna")


def test_an_optuna_that_is_broken_is_no_trouble_that_passes(tmp_path, monkeypatch):
    broken = tmp_path / "optuna"
    broken.mkdir()
    broken.joinpath("__init__.py").write_text("raise OSError('libfoo.so is missing')")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in [name for name in sys.modules if name.partition(".")[0] == "optuna"]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(
        JobFileError, match=r"can't be imported \(OSError\('libfoo.so is missing'\)\)"
    ):
        import_optuna()
