"""Sweep files: what the block ``sweep`` takes, what it refuses, and the jobs of its trials."""

import json
import shlex
import subprocess

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from rota.errors import JobFileError
from rota.model.sweep import Sweep
from rota.request.array import INDEX_ENV
from rota.request.jobfile import parse_job
from rota.request.searchspace import Choice, Numbers
from rota.request.sweepfile import ENV, FIELDS, Rungs, is_sweep, parse_sweep, trial_job

FILE = """
name: digits
run: python train.py --lr {lr} --width {width}
resources: {gpus: 1}
sweep:
  metric: val_acc
  goal: maximize
  target: 0.95
  space:
    lr: {log: [1.0e-4, 1.0e-1]}
    momentum: {range: [0.0, 0.99]}
    width: {int: [16, 128], step: 16}
    optimizer: {choice: [sgd, adam]}
  algorithm: {name: tpe, seed: 3}
  max_trials: 40
  parallel: auto
  rungs: {eta: 3, first: 1}
  reports: 30
  gpu_hours: 8
  max_failures: 5
"""
LEAST = {
    "metric": "loss",
    "goal": "minimize",
    "space": {"lr": {"log": [1e-4, 1e-1]}},
    "max_trials": 10,
}


def parse(job=None, **block):
    fields = {"run": "python train.py"} | (job or {}) | {"sweep": LEAST | block}
    return parse_sweep(fields, workdir="/base")


def without(name):
    block = {key: LEAST[key] for key in LEAST if key != name}
    return parse_sweep({"run": "python train.py", "sweep": block}, workdir="/base")


def comes_back(request):
    return parse_sweep(json.loads(json.dumps(request.to_fields())), workdir="") == request


def test_every_field():
    request = parse_sweep(yaml.safe_load(FILE), workdir="/base")
    assert (request.job.name, request.job.workdir, request.job.num_gpus) == ("digits", "/base", 1)
    assert request._replace(job=None) == (
        None,
        "val_acc",
        True,
        (
            ("lr", Numbers(1e-4, 1e-1, log=True)),
            ("momentum", Numbers(0.0, 0.99)),
            ("width", Numbers(16, 128, 16, whole=True)),
            ("optimizer", Choice(("sgd", "adam"))),
        ),
        "tpe",
        3,
        40,
        None,
        Rungs(3, 1),
        0.95,
        30,
        8.0,
        5,
    )
    assert comes_back(request)
    assert request.sweep("digits-2") == Sweep("digits-2", "val_acc", True, 0.95, 30)


def test_the_trials_of_a_search_begin_anew():
    with pytest.raises(JobFileError, match=r"resume_from: '3' can't be used; the trials of a"):
        parse(job={"resume_from": 3})


def test_what_is_left_out():
    request = parse()
    assert (request.algorithm, request.seed, request.parallel) == ("tpe", 0, None)
    assert (request.rungs, request.target, request.reports) == (None, None, None)
    assert (request.gpu_hours, request.max_failures, request.maximize) == (None, 5, False)
    assert request.job.name == "train"
    assert comes_back(request)


def test_what_yaml_makes_of_off_and_of_powers_of_ten():
    block = "{metric: x, goal: maximize, max_trials: 3, target: 1e-3, rungs: off, parallel: 2,"
    fields = yaml.safe_load(f"run: x\nsweep: {block} space: {{lr: {{log: [1e-4, 1e-1]}}}}}}")
    request = parse_sweep(fields, workdir="/w")
    assert (request.rungs, request.target, request.parallel) == (None, 1e-3, 2)
    assert parse(rungs=True).rungs == parse(rungs="on").rungs == Rungs(3, 3)
    assert parse(rungs={"eta": 2}).rungs == Rungs(2, 2)
    assert parse(rungs="on", reports=2).rungs == Rungs(3, 2)
    assert parse(rungs={"first": 1}).rungs == Rungs(3, 1)
    assert parse(rungs="on", reports=1).rungs == Rungs(3, 1)


def test_a_job_file_with_a_block_is_a_sweep():
    assert is_sweep({"sweep": None}) and not is_sweep({"run": "x"}) and not is_sweep([])
    with pytest.raises(JobFileError, match="sweep: it is missing"):
        parse_sweep({"run": "x"}, workdir="/w")


def test_a_search_is_no_job_and_may_be_misspelt():
    with pytest.raises(JobFileError, match=r"sweep: it makes this a search.*rota submit"):
        parse_job({"run": "x", "sweep": LEAST}, workdir="/w")
    with pytest.raises(JobFileError, match=r"no field 'sweeps'; did you mean sweep\?"):
        parse_job({"run": "x", "sweeps": LEAST}, workdir="/w")


def test_commands_that_report_nothing_need_no_metric():
    request = parse_sweep(
        {"run": "sh x {n}", "sweep": {"space": {"n": {"int": [1, 3]}}}}, workdir="/"
    )
    assert (request.metric, request.algorithm, request.max_trials) == ("", "grid", 3)
    assert comes_back(request)
    env = dict(trial_job(request, "s", 0, {"n": 1}).env)
    assert env == {"ROTA_SWEEP": "s", "ROTA_TRIAL": "0", "ROTA_PARAMS": '{"n": 1}'}


@pytest.mark.parametrize(
    ("block", "words"),
    [
        ({"goal": "maximize"}, ["sweep.metric", "sweep.goal needs it"]),
        ({"rungs": "on"}, ["sweep.metric", "sweep.rungs needs it"]),
        ({"target": 1}, ["sweep.metric", "sweep.target needs it"]),
        ({"algorithm": "tpe", "max_trials": 2}, ["sweep.algorithm", "'tpe'", "algorithm: grid"]),
    ],
)
def test_what_needs_a_metric_says_so(block, words):
    fields = {"run": "x", "sweep": {"space": {"n": {"int": [1, 3]}}} | block}
    with pytest.raises(JobFileError) as error:
        parse_sweep(fields, workdir="/")
    assert all(word in str(error.value) for word in words), error.value


@pytest.mark.parametrize("missing", ["metric", "goal", "space", "max_trials"])
def test_what_can_t_be_left_out(missing):
    with pytest.raises(JobFileError, match=rf"sweep\.{missing}: .*write|for example"):
        without(missing)


@pytest.mark.parametrize(
    ("block", "words"),
    [
        ({"metrc": "x"}, ["sweep", "'metrc'", "did you mean sweep.metric?"]),
        ({"metric": 3}, ["sweep.metric", "3", "write text"]),
        ({"metric": " "}, ["sweep.metric"]),
        ({"metric": "a\nb"}, ["sweep.metric"]),
        ({"metric": "x" * 200}, ["sweep.metric", "at most 100"]),
        ({"goal": "max"}, ["sweep.goal", "'max'", "maximize, minimize"]),
        ({"goal": ["maximize"]}, ["sweep.goal"]),
        ({"target": "high"}, ["sweep.target", "'high'", "write a number"]),
        ({"target": float("nan")}, ["sweep.target", "nan"]),
        ({"target": True}, ["sweep.target", "True"]),
        ({"space": {}}, ["sweep.space", "no parameter to search"]),
        ({"space": {"lr": {"log": [1, 0.1]}}}, ["sweep.space.lr.log", "smaller number first"]),
        (
            {"algorithm": "bayes"},
            ["sweep.algorithm", "'bayes'", "tpe, random, grid, in_order, manual"],
        ),
        ({"algorithm": "TPE"}, ["'TPE'", "did you mean 'tpe'?"]),
        ({"algorithm": {"nam": "tpe"}}, ["did you mean sweep.algorithm.name?"]),
        ({"algorithm": {"seed": -1}}, ["sweep.algorithm.seed", "-1"]),
        ({"algorithm": {"seed": 2**40}}, ["sweep.algorithm.seed"]),
        ({"algorithm": {"seed": 0.5}}, ["sweep.algorithm.seed", "0.5"]),
        ({"algorithm": ["tpe"]}, ["sweep.algorithm"]),
        ({"algorithm": "grid"}, ["sweep.space.lr", "a grid needs steps"]),
        (
            {"algorithm": "grid", "space": {name: {"int": [1, 101]} for name in "abc"}},
            ["sweep.space", "1030301 points", "at most 10000"],
        ),
        (
            {
                "algorithm": "grid",
                "space": {f"x{n}": {"int": [1, 2**50]} for n in range(100)},
            },
            ["sweep.space", "over a trillion points"],
        ),
        ({"max_trials": 0}, ["sweep.max_trials", "0"]),
        ({"max_trials": 10**6}, ["sweep.max_trials", "to 10000"]),
        ({"max_trials": 1.5}, ["sweep.max_trials", "1.5"]),
        ({"parallel": 0}, ["sweep.parallel", "0", "auto"]),
        ({"parallel": "all"}, ["sweep.parallel", "'all'"]),
        ({"rungs": 3}, ["sweep.rungs", "{eta: 3, first: 3}"]),
        ({"rungs": {"eta": 1}}, ["sweep.rungs.eta", "from 2"]),
        ({"rungs": {"eta": 2.5}}, ["sweep.rungs.eta", "2.5"]),
        ({"rungs": {"first": 0}}, ["sweep.rungs.first", "0"]),
        ({"rungs": {"first": 6}, "reports": 5}, ["sweep.rungs.first: 6", "5 times in all"]),
        ({"rungs": {"etta": 3}}, ["did you mean sweep.rungs.eta?"]),
        ({"reports": 0}, ["sweep.reports", "0"]),
        ({"reports": 10**9}, ["sweep.reports"]),
        ({"gpu_hours": 0}, ["sweep.gpu_hours", "above 0"]),
        ({"gpu_hours": -1}, ["sweep.gpu_hours", "above 0"]),
        ({"gpu_hours": float("inf")}, ["sweep.gpu_hours", "inf"]),
        ({"gpu_hours": "8h"}, ["sweep.gpu_hours", "'8h'"]),
        ({"max_failures": -1}, ["sweep.max_failures", "-1"]),
        ({"max_failures": "few"}, ["sweep.max_failures", "'few'"]),
    ],
)
def test_wrong_fields_are_named(block, words):
    with pytest.raises(JobFileError) as caught:
        parse(**block)
    for word in words:
        assert word in str(caught.value)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize("block", [None, "x", [], 3])
def test_a_block_has_fields(block):
    with pytest.raises(JobFileError, match=r"sweep: .*write fields"):
        parse_sweep({"run": "x", "sweep": block}, workdir="/w")


@pytest.mark.parametrize(
    ("job", "words"),
    [
        ({"nmae": "x"}, ["did you mean name?"]),
        ({"name": "x" * 49}, ["name", "at most 48"]),
        ({"env": {"ROTA_TRIAL": "3"}}, ["env.ROTA_TRIAL", "Rota sets it"]),
        ({"run": "python train.py --lr {lrr}"}, ["'{lrr}'", "did you mean 'lr'?", "{{lrr}}"]),
        ({"run": "awk '{print}'"}, ["no parameter print", "{{print}}"]),
        ({"resources": {"gpus": 0}}, ["resources.gpus"]),
    ],
)
def test_the_job_of_a_sweep_is_checked_as_a_job(job, words):
    with pytest.raises(JobFileError) as caught:
        parse(job)
    for word in words:
        assert word in str(caught.value)


def test_a_name_made_from_a_command_is_short_enough_for_trials():
    request = parse({"run": f"python {'x' * 100}.py"})
    assert trial_job(request, f"{request.job.name}-9999", 9999, {"lr": 0.1}).name.endswith(".9999")


def test_a_grid_ends_at_its_size():
    space = {"a": {"choice": [1, 2, 3]}, "b": {"range": [0, 1], "step": 0.5}}
    grid = {"space": space, "algorithm": "grid"}
    assert parse(**grid, max_trials=None).max_trials == 9
    assert parse(**grid, max_trials=4).max_trials == 4
    assert parse(**grid, max_trials=40).max_trials == 9


def test_a_program_that_proposes_trials_needs_no_space_and_no_end():
    request = parse({"run": "train --lr {lr}"}, algorithm="manual", space=None, max_trials=None)
    assert (request.space, request.max_trials, request.max_failures) == ((), None, 10_000)
    assert comes_back(request)
    assert trial_job(request, "s", 0, {"lr": 0.5}).run == "train --lr 0.5"
    with pytest.raises(JobFileError, match=r"lr is missing, which run has as \{lr\}"):
        trial_job(request, "s", 0, {"rate": 0.5})


def test_the_template_may_be_elastic_or_adaptive():
    job = {"resources": {"gpus": "1..4"}, "batch": {"mode": "adapt", "max_global": 64}}
    request = parse(job)
    assert request.job.elastic.sizes == (1, 2, 3, 4) and request.job.adapt.most == 64
    assert comes_back(request)
    assert trial_job(request, "s", 1, {"lr": 0.1}).adapt == request.job.adapt


def test_the_job_of_a_trial():
    request = parse_sweep(yaml.safe_load(FILE) | {"env": {"A": "b"}}, workdir="/base")
    params = {"optimizer": "adam", "lr": 1e-3, "momentum": 0.5, "width": 32}
    job = trial_job(request, "digits-2", 7, params)
    assert job.name == "digits-2.7"
    assert job.run == "python train.py --lr 0.001 --width 32"
    assert dict(job.env) == {
        "A": "b",
        "ROTA_SWEEP": "digits-2",
        "ROTA_TRIAL": "7",
        "ROTA_PARAMS": '{"lr": 0.001, "momentum": 0.5, "width": 32, "optimizer": "adam"}',
        "ROTA_SWEEP_METRIC": "val_acc",
    }
    assert set(ENV) - {INDEX_ENV} < set(dict(job.env))
    assert job._replace(name="digits", run=request.job.run, env=(("A", "b"),)) == request.job
    assert parse_job(job.to_fields(), workdir="") == job


@pytest.mark.parametrize(
    ("run", "filled"),
    [
        ("t {lr}", "t 0.01"),
        ("t {lr} {lr}", "t 0.01 0.01"),
        ("t {{lr}}", "t {lr}"),
        ("t ${lr}", "t ${lr}"),
        ("t {} {a,b} {1..3} { lr }", "t {} {a,b} {1..3} { lr }"),
        ("awk '{{print}}'", "awk '{print}'"),
        ("t '{\"lr\":{lr}}'", "t '{\"lr\":0.01}'"),
    ],
)
def test_braces_in_a_command(run, filled):
    assert trial_job(parse({"run": run}), "s", 0, {"lr": 0.01}).run == filled


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=50))
def test_any_text_is_one_word_of_the_shell(value):
    request = parse({"run": "t {x} end"}, algorithm="manual", space={}, max_trials=None)
    words = shlex.split(trial_job(request, "s", 0, {"x": value}).run)
    assert words[0] == "t" and words[-1] == "end" and len(words) == 3


def test_a_shell_gets_values_as_they_are():
    values = ["a b", "$(touch x)", "it's", "", "*", "-x;y", "é\n"]
    request = parse({"run": "printf '<%s>' {x}"}, space={"x": {"choice": values}})
    for value in values:
        run = trial_job(request, "s", 0, {"x": value}).run
        assert subprocess.check_output(["bash", "-c", run], text=True) == f"<{value}>"


def test_flags_are_written_as_in_the_file():
    request = parse({"run": "t {x}"}, space={"x": {"choice": [True, False, "yes"]}})
    runs = [trial_job(request, "s", 0, {"x": value}).run for value in (True, False, "yes")]
    assert runs == ["t true", "t false", "t yes"]


def test_params_outside_of_the_space_make_no_job():
    for params in ({"lr": 3}, {}, {"lr": 0.1, "x": 1}, None):
        with pytest.raises(JobFileError, match="params"):
            trial_job(parse(), "s", 0, params)


def test_a_command_that_gets_too_long_is_refused():
    request = parse({"run": "{x} " * 1000}, algorithm="manual", space={}, max_trials=None)
    with pytest.raises(JobFileError, match=r"run: .*at most 100000"):
        trial_job(request, "s", 0, {"x": "y" * 400})


hostile = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=6,
)
keys = st.sampled_from([*FIELDS, "name", "eta", "first", "lr", "log"]) | st.text(max_size=3)


@settings(max_examples=50)
@given(st.dictionaries(keys, hostile | st.dictionaries(keys, hostile)))
def test_anything_is_a_request_or_a_job_file_error(block):
    try:
        request = parse(**{key: value for key, value in block.items() if isinstance(key, str)})
    except JobFileError as error:
        assert not any(ord(char) < 32 for char in str(error))
        assert len(str(error)) < 1000
    else:
        assert comes_back(request)
