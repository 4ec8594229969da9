"""Searches in the terminal, against a real controller that runs nothing."""

import json
import re
import signal
import subprocess
import sys
from functools import partial
from getpass import getuser

import pytest
import yaml

from rota.client.client import Client
from rota.folder import Folder
from rota.model.events import JobFinished, JobLaunched, MetricReported
from rota.model.job import JobState
from rota.model.sweep import Report
from support.served import controller_without_agents, served

FIELDS = {
    "name": "digits",
    "run": "python train.py --lr {lr}",
    "sweep": {
        "metric": "val_acc",
        "goal": "maximize",
        "target": 0.95,
        "space": {"lr": {"log": [0.001, 0.1]}},
        "algorithm": "random",
        "max_trials": 40,
    },
}
MANUAL = {"metric": "loss", "goal": "minimize", "algorithm": "manual"}
FOLLOW = """
from rota.cli.main import main

main(["submit", "--wait", "sweep.yaml"])
"""


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    for name in ("ROTA_SERVER", "ROTA_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ROTA_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    folder = Folder().create()
    with served(folder, controller_without_agents(folder)) as it:
        yield it


@pytest.fixture
def client(cluster):
    with Client(folder=cluster.folder) as it:
        yield it


@pytest.fixture
def rota(cluster, rota):
    """The program, with a cluster to talk to."""
    return rota


@pytest.fixture
def sweep_file(tmp_path):
    """Write a sweep file; its path."""

    def write(**fields):
        (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(FIELDS | fields))
        return "sweep.yaml"

    return write


def reports(cluster, row, *values):
    """Let the trial's job report these values."""
    controller = cluster.controller
    now_s = controller.now_s()
    told = tuple(Report(step, now_s, value, step == 1) for step, value in enumerate(values, 1))
    cluster.do(controller.turn)
    if controller.state.attempt[row] and controller.state.first_start_s[row] < 0:
        cluster.do(partial(controller.journal.note, JobLaunched(now_s, row, 1)))
    cluster.do(partial(controller.journal.note, MetricReported(now_s, row, told)))


class TestSubmit:
    def test_it_prints_the_name_and_one_line_of_truth(self, rota, sweep_file, client, tmp_path):
        code, out, err = rota("submit", sweep_file())
        assert (code, out) == (0, "digits\n")
        assert err == (
            "sweep digits: up to 40 trials, proposed by random, for the highest val_acc, "
            "until it is 0.95; `rota sweep show digits` tells how it stands\n"
        )
        assert client.sweep("digits")["request"]["workdir"] == str(tmp_path)

    def test_a_name_that_was_taken_is_told_of(self, rota, sweep_file):
        rota("submit", sweep_file())
        _, out, err = rota("submit", sweep_file(sweep=MANUAL))
        assert out == "digits-2\n"
        assert "sweep digits-2 ('digits' was taken): trials that your own program" in err
        assert "for the lowest loss; `rota sweep show digits-2`" in err

    def test_as_json(self, rota, sweep_file, client):
        _, out, _ = rota("submit", "--json", sweep_file())
        assert json.loads(out) == client.sweep("digits", brief=True) | {"warnings": []}

    def test_a_dry_run_shows_a_trial(self, rota, sweep_file, client):
        code, out, err = rota("submit", "--dry-run", sweep_file())
        assert (code, err) == (0, "")
        assert out.splitlines() == [
            "digits: it can be taken; each trial needs 1 GPU; 2 are free",
            "a trial, for example: python train.py --lr 0.001",
        ]
        _, out, _ = rota("submit", "--dry-run", "--json", sweep_file())
        assert json.loads(out)["trial"]["params"] == {"lr": 0.001}
        assert client.sweeps() == []

    def test_an_array_has_tasks_in_every_word(self, rota, client):
        _, out, err = rota("run", "--array", "0-3", "--name", "many", "--", "echo {index}")
        assert (out, err.splitlines()[0]) == (
            "many\n",
            "array many: 4 tasks; `rota sweep show many` tells how it stands",
        )
        for number in range(4):
            client.submit_trial("many", {"index": number}, number=number)
        assert "array many: 2 waiting; --trials lists its tasks" in rota("ps")[1]
        assert "sweep        task 3 of array many: index 3" in rota("show", "many.3")[1]
        shown = rota("sweep", "show", "many")[1].splitlines()
        assert shown[0] == "array many"
        assert any(line.startswith("  tasks    4 of 4") for line in shown)
        assert any(line.startswith("TASK ") for line in shown)
        assert not any("trial" in line or "search" in line for line in shown)
        rota("cancel", "many")
        assert "the array is over (CANCELLED)" in rota("show", "many.3")[1]

    def test_a_dry_run_of_an_array_speaks_of_tasks(self, rota, client):
        words = ("--array", "0-2", "--name", "many", "--", "echo {index}")
        code, out, _ = rota("run", "--dry-run", *words)
        assert (code, out.splitlines()) == (
            0,
            [
                "many: it can be taken; each task needs 1 GPU; 2 are free",
                "a task, for example: echo 0",
            ],
        )
        assert client.sweeps() == []

    @pytest.mark.parametrize(("option", "expected"), [(None, 2), ("--wait", 3), ("--dry-run", 3)])
    def test_trials_that_never_fit(self, rota, sweep_file, option, expected):
        options = [option] if option else []
        code, _, err = rota("submit", *options, sweep_file(resources={"gpus": 3}))
        assert code == expected
        assert "NEVER_FITS" in err

    def test_a_mistake_names_the_field(self, rota, sweep_file):
        code, out, err = rota("submit", sweep_file(sweep=FIELDS["sweep"] | {"gaol": "maximize"}))
        assert (code, out) == (2, "")
        assert err.count("\n") == 1
        assert re.search(r"sweep\.yaml: .*'gaol'; did you mean sweep\.goal\?", err)

    def test_waiting_tells_each_new_best_and_the_end(
        self, rota, sweep_file, cluster, client, monkeypatch
    ):
        from rota.client import client as module

        def step_1():
            client.submit_trial("digits", {"lr": 0.01}, number=0)
            reports(cluster, 0, 0.5, None)
            cluster.driver.error = "the driver ended\x1b[31m"

        def step_2():
            client.submit_trial("digits", {"lr": 0.0321234}, number=1)
            reports(cluster, 1, 0.25)

        def step_3():
            reports(cluster, 1, 0.25, 0.987654321)

        def step_4():
            client.end_sweep("digits", "TARGET", "trial 1 reached 0.95")

        steps = iter([step_1, step_2, step_3, step_4])
        monkeypatch.setattr(module.time, "sleep", lambda seconds: next(steps)())
        code, out, err = rota("submit", "--wait", sweep_file())
        assert (code, out) == (0, "digits\n")
        assert err.splitlines()[1:] == [
            "sweep digits: trial 0 has val_acc 0.5 (lr=0.01)",
            "sweep digits: the driver ended\\x1b[31m",
            "sweep digits: trial 1 has val_acc 0.98765 (lr=0.032123)",
            "sweep digits TARGET: trial 1 reached 0.95",
        ]

    @pytest.mark.parametrize(
        ("outcome", "found", "expected"),
        [("DONE", True, 0), ("BUDGET", True, 0), ("DONE", False, 4), ("FAILED", True, 4)],
    )
    def test_what_it_has_come_to_is_the_exit_code(
        self, rota, sweep_file, cluster, client, monkeypatch, outcome, found, expected
    ):
        from rota.client import client as module

        def end(_):
            client.submit_trial("digits", {"lr": 0.01}, number=0)
            if found:
                reports(cluster, 0, 0.5)
            client.end_sweep("digits", outcome, "so it is")

        monkeypatch.setattr(module.time, "sleep", end)
        assert rota("submit", "-f", sweep_file())[0] == expected

    @pytest.mark.process
    def test_ctrl_c_leaves_it_running_and_says_so(self, cluster, sweep_file, client):
        sweep_file()
        command = [sys.executable, "-c", FOLLOW]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with subprocess.Popen(command, text=True, **pipes) as process:
            assert process.stdout.readline() == "digits\n"
            assert "up to 40 trials" in process.stderr.readline()
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=60)
        assert process.returncode == 130
        assert "`rota sweep cancel digits` ends it" in err
        assert client.sweep("digits")["state"] == "RUNNING"


class TestList:
    def test_a_line_for_each(self, rota, sweep_file, cluster, client):
        assert rota("sweep", "list")[1].split() == [
            *("NAME", "STATE", "DONE", "RUNNING", "WAITING", "FAILED", "STOPPED"),
            *("BEST", "METRIC", "GPU_H", "AGE"),
        ]
        rota("submit", sweep_file())
        rota("submit", sweep_file(sweep=MANUAL))
        for number in range(3):
            client.submit_trial("digits", {"lr": 0.01}, number=number)
        reports(cluster, 0, 0.123456789)
        client.cancel_sweep("digits-2")
        csv_lines = rota("sweep", "list", "-o", "csv")[1].splitlines()
        assert csv_lines[0].startswith("NAME,STATE,DONE")
        assert csv_lines[1].startswith("digits,RUNNING,0,2,1,0,0,0.12346,val_acc")
        _, out, err = rota("sweep", "list")
        first, second = (line.split() for line in out.splitlines()[1:])
        assert first[:9] == ["digits", "RUNNING", "0", "2", "1", "0", "0", "0.12346", "val_acc"]
        assert second[:9] == ["digits-2", "CANCELLED", "0", "0", "0", "0", "0", "-", "loss"]
        assert err == ""

    def test_a_driver_that_fails_is_told_of(self, rota, sweep_file, cluster):
        rota("submit", sweep_file())
        assert rota("sweep", "list")[2] == ""  # and by now the driver has looked
        cluster.driver.error = "the driver ended\x1b[31m"
        assert rota("sweep", "list")[2] == "digits: the driver ended\\x1b[31m\n"

    def test_as_json(self, rota, sweep_file, client):
        rota("submit", sweep_file())
        assert json.loads(rota("sweep", "list", "--json")[1]) == client.sweeps()

    def test_it_fits_a_narrow_terminal(self, rota, sweep_file, monkeypatch):
        rota("submit", sweep_file(name="a" * 48))
        monkeypatch.setenv("COLUMNS", "80")
        out = rota("sweep", "list")[1]
        assert max(map(len, out.splitlines())) <= 80
        assert all(word in out for word in ("STOPPED", "METRIC", "AGE", "a" * 48))


class TestCancel:
    def test_twice_does_no_harm(self, rota, sweep_file, client):
        rota("submit", sweep_file())
        assert rota("sweep", "cancel", "@last") == (0, "sweep digits: CANCELLED\n", "")
        again = rota("sweep", "cancel", "digits")
        assert again == (0, "sweep digits: CANCELLED; it had ended before\n", "")
        assert client.sweep("digits")["outcome"] == "CANCELLED"

    def test_one_that_is_not_there_is_an_error_and_the_others_are_cancelled(
        self, rota, sweep_file, client
    ):
        rota("submit", sweep_file())
        code, out, err = rota("sweep", "cancel", "digit", "\x1b[31m", "digits")
        assert (code, out) == (1, "sweep digits: CANCELLED\n")
        assert "did you mean 'digits'?" in err.splitlines()[0]
        assert "\x1b" not in err


class TestWait:
    def test_it_tells_each_best_and_the_end(self, rota, sweep_file, cluster, client, monkeypatch):
        from rota.client import client as module

        rota("submit", sweep_file())
        client.submit_trial("digits", {"lr": 0.01}, number=0)
        reports(cluster, 0, 0.5)
        monkeypatch.setattr(
            module.time, "sleep", lambda seconds: client.end_sweep("digits", "DONE", "that was it")
        )
        for _ in range(2):  # waiting for one that has ended tells the same
            assert rota("sweep", "wait", "@last") == (
                0,
                "",
                "sweep digits: trial 0 has val_acc 0.5 (lr=0.01)\nsweep digits DONE: that was it\n",
            )

    def test_it_is_given_up_in_time(self, rota, sweep_file):
        rota("submit", sweep_file())
        code, _, err = rota("sweep", "wait", "--timeout", "0", "digits")
        assert (code, err) == (1, "error: sweep digits has not ended after 0.0 s\n")

    def test_one_that_found_nothing(self, rota, sweep_file, client):
        rota("submit", sweep_file())
        client.cancel_sweep("digits")
        assert rota("sweep", "wait", "digits") == (
            4,
            "",
            f"sweep digits CANCELLED: {getuser()} cancelled it\n",
        )


def test_a_sweep_is_no_job_and_it_says_so(rota, sweep_file):
    rota("submit", sweep_file())
    code, out, err = rota("suspend", "digits")
    assert (code, out) == (1, "")
    assert "digits is a sweep, and no job; `rota sweep show digits`" in err
    assert "`rota sweep cancel digits` ends it" in err


def test_ps_lists_the_trials_of_one_search(client, rota):
    manual = FIELDS | {"workdir": "/", "sweep": FIELDS["sweep"] | {"algorithm": "manual"}}
    for name in ("digits", "letters"):
        client.submit_sweep(manual | {"name": name})
    trials = [client.submit_trial("digits", {"lr": lr})["name"] for lr in (0.01, 0.02)]
    client.submit_trial("letters", {"lr": 0.01})
    client.submit({"run": "true", "workdir": "/"})

    def names(sweep):
        told = json.loads(rota("ps", "-o", "json", "--filter", f"sweep={sweep}")[1])
        return [job["name"] for job in told]

    assert names("digits") == trials
    assert names("letters") == ["letters.0"]
    assert names("other") == []


def test_a_verb_that_is_none_names_the_closest(rota):
    code, _, err = rota("sweep", "cancle", "x")
    assert code == 2
    assert "did you mean 'cancel'?" in err


def test_show_and_why_of_a_trial_tell_of_its_search_and_why_that_stopped_it(client, rota):
    client.submit_sweep(
        FIELDS | {"workdir": "/", "sweep": FIELDS["sweep"] | {"algorithm": "manual"}}
    )
    job = client.submit_trial("digits", {"lr": 0.01}, number=3)["id"]
    plain = client.submit({"run": "true", "workdir": "/"})["id"]
    assert "sweep        trial 3 of digits: lr 0.01\n" in rota("show", job)[1]
    assert json.loads(rota("show", job, "--json")[1])["sweep"]["params"] == {"lr": 0.01}
    assert "\n  sweep" not in rota("show", plain)[1]
    assert json.loads(rota("show", plain, "--json")[1])["sweep"] is None
    client.stop_trial("digits", 3, "2 others were better at report 3")
    why = "it is needed no longer: 2 others were better at report 3"
    for verb in ("show", "why"):
        assert why in " ".join(rota(verb, job)[1].split())


class TestJobs:
    """Trials among the jobs of `rota ps`."""

    @pytest.fixture(autouse=True)
    def _five_trials(self, cluster, client, rota, tmp_path):
        """Two have GPUs, two wait, one has ended; beside them a job that waits."""
        controller, folder = cluster.controller, str(tmp_path)
        fields = {"name": "s", "run": "x", "workdir": folder, "sweep": MANUAL}
        client.submit_sweep(fields)
        for number in range(5):
            client.submit_trial("s", {"lr": 0.1}, number=number)
        rota("run", "--name", "mine", "--", "x")
        cluster.do(controller.turn)
        now_s = controller.now_s()
        for event in (
            JobLaunched(now_s, 0, 1),
            JobLaunched(now_s, 1, 1),
            JobFinished(now_s, 1, JobState.FAILED),
        ):
            cluster.do(partial(controller.journal.note, event))
        cluster.do(controller.turn)

    def names(self, text):
        return [line.split()[1] for line in text.splitlines()[1:] if line[0].isdigit()]

    @pytest.mark.parametrize("output", ["table", "wide"])
    def test_those_without_gpus_are_a_line(self, rota, output):
        code, out, _ = rota("ps", "-o", output)
        assert code == 0
        assert self.names(out) == ["s.0", "s.2", "mine"]
        assert out.splitlines()[-1] == "search s: 2 waiting, 1 ended; --trials lists its trials"

    @pytest.mark.parametrize("option", [["--trials"], ["--filter", "user=%"]])
    def test_all_are_listed_on_demand(self, rota, option):
        user = json.loads(rota("ps", "-o", "json")[1])[0]["user"]
        out = rota("ps", *(word.replace("%", user) for word in option))[1]
        assert self.names(out) == ["s.0", "s.1", "s.2", "s.3", "s.4", "mine"]
        assert "search s" not in out

    @pytest.mark.parametrize("output", ["json", "yaml", "csv"])
    def test_programs_get_all(self, rota, output):
        out = rota("ps", "-o", output)[1]
        assert out.count("s.") == 5
        assert "search s" not in out

    def test_a_job_tells_which_trial_it_is(self, rota):
        jobs = json.loads(rota("ps", "-o", "json")[1])
        trial = {"name": "s", "number": 3, "params": {"lr": 0.1}, "array": False}
        assert jobs[3]["sweep"] == trial
        assert jobs[5]["sweep"] is None
