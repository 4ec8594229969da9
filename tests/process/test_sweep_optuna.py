"""Optuna studies whose trials run as jobs on a real cluster, and searches from Python."""

import functools
import math
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor, wait

import optuna
import pytest
from optuna.trial import TrialState

import rota.sweep
from rota.client.client import Client
from rota.errors import JobFileError, SweepError, TransitionError

from .conftest import SCRIPTS, until

REPORTS = f"python {SCRIPTS / 'reports.py'} {{words}}"
GOOD, BETTER, ENDLESS = "0.1 0.5 0.4", "0.2 0.8 0.7", "0.1 wait"


@pytest.fixture(autouse=True)
def quiet():
    optuna.logging.set_verbosity(optuna.logging.ERROR)


@pytest.fixture
def objective(shared_cluster, base, monkeypatch):
    """Make an objective whose trial number n reports what the n-th text says."""
    monkeypatch.chdir(base)

    def make(*words, cluster=shared_cluster, run=REPORTS, **more):
        connect = functools.partial(Client, folder=cluster.folder)
        suggest = None if not words else (lambda trial: {"words": words[trial.number]})
        return rota.sweep.Objective(run, suggest, metric="score", connect=connect, **more)

    return make


def study_of(name, **more):
    return optuna.create_study(direction="maximize", study_name=name, **more)


def sweep_of(cluster, study):
    return cluster.client.sweep(study.user_attrs["rota_sweep"])


def states(study):
    return [trial.state for trial in study.trials]


def test_trials_in_threads_are_jobs_of_one_search_and_tell_the_study_their_curves(
    shared_cluster, objective
):
    study = study_of("in threads")
    with objective(GOOD, BETTER, "0.3", "0.4", env={"SEED": "3"}) as each:
        study.optimize(each, n_trials=4, n_jobs=2)
    assert [trial.value for trial in study.trials] == [0.5, 0.8, 0.3, 0.4]
    assert study.trials[1].intermediate_values == {0: 0.2, 1: 0.8, 2: 0.7}
    sweep = sweep_of(shared_cluster, study)
    assert (sweep["name"], sweep["state"], sweep["outcome"]) == ("in-threads", "ENDED", "DONE")
    assert sweep["request"]["sweep"]["goal"] == "maximize"
    assert (sweep["best"]["number"], sweep["best"]["value"]) == (1, 0.8)
    assert [trial["number"] for trial in sweep["trials"]] == [0, 1, 2, 3]
    for trial, told in zip(study.trials, sweep["trials"], strict=True):
        job = shared_cluster.show(trial.user_attrs["rota_job"])
        assert (job["id"], job["state"], job["attempt"]) == (told["job_id"], "SUCCEEDED", 1)
        assert job["name"] == f"in-threads.{trial.number}"
        assert "SEED" in job["env"]


def test_a_trial_that_the_pruner_ends_is_stopped_and_says_so(shared_cluster, objective):
    pruner = optuna.pruners.MedianPruner(n_startup_trials=1, n_warmup_steps=0)
    study = study_of("pruned", pruner=pruner)
    with objective(BETTER, ENDLESS) as each:
        study.optimize(each, n_trials=2)
    assert states(study) == [TrialState.COMPLETE, TrialState.PRUNED]
    job = study.trials[1].user_attrs["rota_job"]
    shared_cluster.ends(job, "CANCELLED")
    told = sweep_of(shared_cluster, study)["trials"][1]
    assert told["why"] == "the study's pruner ended it after score 0.1, report 0"


def test_a_job_that_fails_is_an_error_that_names_it_and_a_study_may_go_on(
    shared_cluster, objective
):
    study = study_of("failing")
    with objective("0.1 fail", "0.1 fail", GOOD) as each:
        with pytest.raises(SweepError) as caught:
            study.optimize(each, n_trials=1)
        study.optimize(each, n_trials=2, catch=(SweepError,))
    job = study.trials[0].user_attrs["rota_job"]
    assert str(caught.value) == f"trial 0 (job {job}) is FAILED; see: rota logs {job}"
    assert "told to fail" in "".join(shared_cluster.client.logs(job))
    assert states(study) == [TrialState.FAIL, TrialState.FAIL, TrialState.COMPLETE]
    assert study.best_value == 0.5


def test_a_trial_that_reports_nan_fails_and_is_stopped(shared_cluster, objective):
    study = study_of("not-a-number")
    with objective("0.3 nan wait", GOOD) as each:
        study.optimize(each, n_trials=2)
    assert states(study) == [TrialState.FAIL, TrialState.COMPLETE]
    assert study.trials[0].intermediate_values == {0: 0.3}
    shared_cluster.ends(study.trials[0].user_attrs["rota_job"], "CANCELLED")


def test_a_trial_that_never_reports_says_which_call_is_missing(objective):
    study = study_of("silent")
    with (
        objective(run="true") as each,
        pytest.raises(SweepError, match=r"never reported score.*s\.report\(score=\.\.\.\)"),
    ):
        study.optimize(each, n_trials=1)


def test_ask_and_tell_with_several_trials_at_once(shared_cluster, objective):
    study = study_of("asked")
    space = {"words": optuna.distributions.CategoricalDistribution([GOOD])}
    with objective(run=REPORTS.removesuffix(" {words}")) as each:
        runs = [each.start(study.ask(space)) for _ in range(3)]
        assert [run.number for run in runs] == [0, 1, 2]
        until(runs[2].poll, "the last one has ended")
        runs[0].stop("enough of it")
        with pytest.raises(SweepError, match=r"trial 0 .* was ended without a value"):
            runs[0].wait()
        study.tell(runs[0].trial, state=TrialState.PRUNED)
        for run in runs[1:]:
            assert run.wait() == run.value == 0.5
            study.tell(run.trial, run.wait())
    assert states(study) == [TrialState.PRUNED, TrialState.COMPLETE, TrialState.COMPLETE]


def test_a_search_that_is_cancelled_takes_its_study_with_it(shared_cluster, objective):
    study = study_of("cancelled")
    each = objective(ENDLESS, GOOD)
    run = each.start(study.ask())
    shared_cluster.client.cancel_sweep(run.sweep)
    with pytest.raises(SweepError, match=r"trial 0 .* is CANCELLED: the search is over"):
        run.wait()
    with pytest.raises(TransitionError, match="CANCELLED"):
        each.start(study.ask())
    with objective(GOOD, GOOD, GOOD) as anew:
        study.optimize(anew, n_trials=1)
    sweep = sweep_of(shared_cluster, study)
    assert (sweep["name"], [t["number"] for t in sweep["trials"]]) == ("cancelled-2", [2])


def test_programs_that_share_a_study_share_its_search(shared_cluster, objective, base):
    storage = f"sqlite:///{base / 'study.db'}"
    first = study_of("shared", storage=storage)
    run = objective(GOOD, GOOD).start(first.ask())
    second = optuna.load_study(study_name="shared", storage=storage)
    with objective(GOOD, GOOD) as other:
        assert other.start(second.ask()).sweep == run.sweep == "shared"
        with objective(GOOD, GOOD, GOOD, env={"SEED": "3"}) as changed:
            assert changed.start(second.ask()).sweep == "shared-2", "it runs another job"
        assert run.wait() == 0.5
    assert [each["number"] for each in shared_cluster.client.sweep("shared")["trials"]] == [0, 1]


def test_a_study_outlives_the_controller(make_cluster, objective, base):
    cluster = make_cluster()
    study = study_of("outlives")
    with objective("0.1 gate 0.9", GOOD, cluster=cluster) as each, ThreadPoolExecutor() as pool:
        ended = pool.submit(study.optimize, each, n_trials=1)
        until(lambda: study.trials and study.trials[0].intermediate_values, "it has reported")
        cluster.kill_controller()
        cluster.folder.server.unlink()  # as one that ends by itself leaves its folder
        another = pool.submit(each.start, study.ask())
        wait([another], timeout=1)
        cluster.up()
        (base / "go").touch()
        ended.result()
        assert another.result().wait() == 0.5
    assert study.best_value == 0.9
    told = sweep_of(cluster, study)["trials"]
    assert [value for _, _, value in told[0]["curve"]] == [0.1, 0.9]
    assert [cluster.show(trial["job_id"])["attempt"] for trial in told] == [1, 1]


STUDY = """
import sys
import optuna
import rota.sweep

study = optuna.create_study(study_name="interrupted")
with rota.sweep.Objective(sys.argv[1], lambda trial: {"words": "wait"}, metric="score") as each:
    study.optimize(each, n_trials=9, n_jobs=2)
"""
SEARCH = """
import sys
import rota.sweep

space = {"words": {"choice": ["wait", "wait on"]}}
more = {"algorithm": "grid", "name": "interrupted"}
rota.sweep.search(sys.argv[1], space=space, metric="score", goal="minimize", **more)
"""


@pytest.mark.parametrize("program", [STUDY, SEARCH], ids=["study", "search"])
def test_an_interrupt_ends_the_search_and_the_trials_of_all_threads(program, shared_cluster, base):
    running = subprocess.Popen(
        [sys.executable, "-c", program, REPORTS],
        cwd=base,
        env=os.environ | {"ROTA_HOME": str(shared_cluster.folder.path)},
        stderr=subprocess.PIPE,
        text=True,
    )

    def name_of_both():
        for sweep in shared_cluster.client.sweeps():
            told = sweep["trials"]
            if sweep["state"] == "RUNNING" and told["running"] + told["waiting"] == 2:
                return sweep["name"]
        return None

    try:
        name = until(name_of_both, "both trials are there")
        running.send_signal(signal.SIGINT)
        _, errors = running.communicate(timeout=60)
    finally:
        running.kill()
    assert "KeyboardInterrupt" in errors
    sweep = shared_cluster.client.sweep(name)
    assert (sweep["outcome"], len(sweep["trials"])) == ("CANCELLED", 2)
    for trial in sweep["trials"]:
        shared_cluster.ends(trial["job_id"], "CANCELLED")


def test_a_search_from_python_waits_and_has_the_best(shared_cluster, base, monkeypatch):
    monkeypatch.chdir(base)
    result = rota.sweep.search(
        REPORTS,
        space={"words": {"choice": [GOOD, BETTER]}},
        metric="score",
        goal="maximize",
        algorithm="grid",
        name="from-python",
        client=shared_cluster.client,
    )
    assert (result.name, result.outcome, len(result.trials)) == ("from-python", "DONE", 2)
    assert result.best in result.trials
    assert (result.best.value, result.best.params) == (0.8, {"words": BETTER})
    assert [value for _, value in result.best.curve] == [0.2, 0.8, 0.7]
    assert math.isclose(result.gpu_s, sum(trial.gpu_s for trial in result.trials))


def test_a_search_from_python_that_comes_to_nothing_is_an_error(shared_cluster, base, monkeypatch):
    monkeypatch.chdir(base)
    space = {"words": {"choice": ["fail", "0.1 fail"]}}
    with pytest.raises(SweepError, match=r"search to-nothing failed: .*rota sweep show to-nothing"):
        rota.sweep.search(
            REPORTS,
            space=space,
            metric="score",
            goal="maximize",
            algorithm="grid",
            max_failures=0,
            name="to-nothing",
            client=shared_cluster.client,
        )
    with pytest.raises(JobFileError, match="max_trials"):
        rota.sweep.search(REPORTS, space=space, metric="score", goal="minimize")
