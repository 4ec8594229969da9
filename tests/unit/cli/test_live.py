"""The everyday verbs, through the program's own entry, against a real server."""

import csv
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import closing
from getpass import getuser
from pathlib import Path

import pytest
import yaml

from rota.cli import up
from rota.cli.jobsource import _load_yaml
from rota.cli.main import main
from rota.cli.present import nodes_text
from rota.cli.text import stamp
from rota.cli.verdict import why_text
from rota.folder import Folder, hold_lock
from rota.model.events import (
    AttemptLost,
    JobFinished,
    JobSubmitted,
    ModelReported,
    RetryDue,
    SuspendRequested,
    WorkerRegistered,
)
from rota.model.fallback import IN_ORDER, Fallback
from rota.model.job import Dependency, JobState, Retries, Suspension
from rota.store.events import EventStore
from rota.testing.builders import job
from support.served import served

FIELDS = ["ID", "NAME", "STATE", "REASON", "PRIO", "GPUS", "NODE", "SHARE"]
FIELDS += ["AGE", "RUN", "PROGRESS", "ETA"]
HEADER = ["ID", "NAME", "USER", "STATE", "REASON", "PRIO", "GPUS", "NODE", "SHARE"]
HEADER += ["AGE", "RUN", "PROGRESS", "ETA", "EXIT"]
FOLLOW = """
from rota.cli.main import main

main(["logs", "-f", "1"])
"""


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    for name in ("ROTA_SERVER", "ROTA_TOKEN", "VIRTUAL_ENV", "CONDA_PREFIX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ROTA_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    with served(Folder().create()) as it:
        yield it


@pytest.fixture
def rota(cluster, rota):
    """The program, with a cluster to talk to."""
    return rota


def finish(cluster, row=0, outcome=JobState.SUCCEEDED, code=0, message=""):
    cluster.apply(JobFinished(cluster.controller.now_s(), row, outcome, code, message))


class TestRun:
    def test_it_prints_the_id_and_one_line_of_truth(self, rota, cluster, tmp_path):
        code, out, err = rota("run", "--gpus", "2", "--", "python", "a b.py", "--lr", "1", "; rm *")
        assert (code, out) == (0, "1\n")
        assert err.count("\n") == 3
        assert "`rota why 1`" in err
        missing = f"warning: there is no {tmp_path}/a b.py here; the job fails unless it is there"
        assert missing in err
        assert f"python: {Path(sys.executable).parent}/python, that `rota up` runs in" in err
        program = cluster.controller.state.spec[0].program
        assert program.run == "python 'a b.py' --lr 1 '; rm *'"
        assert program.workdir == str(tmp_path)

    def test_it_says_which_python_runs_the_job(self, rota, cluster, monkeypatch, tmp_path):
        own = tmp_path / "venv" / "bin" / "python"
        own.parent.mkdir(parents=True)
        own.symlink_to(sys.executable)
        monkeypatch.setenv("VIRTUAL_ENV", str(own.parent.parent))
        monkeypatch.setenv("PATH", f"{own.parent}:/usr/bin")
        line = f"python: {own}, of its own environment\n"
        assert line in rota("run", "--", "python", "train.py")[2]
        (tmp_path / "job.yaml").write_text("run: python train.py\nenv: {A: 1}\n")
        assert line in rota("submit", "job.yaml")[2]
        assert line in rota("submit", "--dry-run", "job.yaml")[2]
        ran, submitted = (spec.program.env for spec in cluster.controller.state.spec)
        assert submitted == (*ran, ("A", "1"))
        (tmp_path / "job.yaml").write_text("run: python train.py\nenv: {PATH: /bin}\n")
        assert str(own) not in rota("submit", "job.yaml")[2]
        assert "python:" not in rota("run", "--", "echo", "1")[2]

    def test_variables_are_passed_on_by_name(self, rota, cluster, monkeypatch, tmp_path):
        monkeypatch.setenv("WANDB_API_KEY", "secret")
        job = "run: 'true'\nenv: {inherit: [WANDB_API_KEY], A: 1}\n"
        (tmp_path / "job.yaml").write_text(job)
        assert rota("submit", "job.yaml")[0] == 0
        assert cluster.controller.state.spec[0].program.env == (
            ("WANDB_API_KEY", "secret"),
            ("A", "1"),
        )
        assert "secret" not in rota("show", "1")[1]
        monkeypatch.delenv("WANDB_API_KEY")
        code, _, err = rota("submit", "job.yaml")
        assert (code, err.count("\n")) == (2, 1)
        assert all(word in err for word in ("env.inherit", "WANDB_API_KEY", "export it")), err

    def test_a_launcher_is_told_of(self, rota, cluster):
        err = rota("run", "--gpus", "2", "--", "torchrun", "train.py")[2]
        assert "note: torchrun starts the processes: it is started once, with 2 GPUs\n" in err
        assert cluster.controller.state.spec[0].program.processes == "node"

    def test_options_after_the_command_are_the_commands(self, rota, cluster):
        assert rota("run", "train", "--gpus", "7", "--json")[0] == 0
        assert cluster.controller.state.spec[0].program.run == "train --gpus 7 --json"
        assert cluster.controller.state.spec[0].num_gpus == 1

    def test_every_option(self, rota, cluster, monkeypatch):
        monkeypatch.setenv("FROM_HERE", "yes")
        options = "--gpus 2 --name n-1 --priority high --processes node --time-limit 1h"
        options += " --suspend restart --grace 30s --resume-from 7 --retries 3 --tag a --tag b"
        options += " --cpus 1 --memory 1MB --gpu-memory 2GB --setup ./prepare"
        code, out, _ = rota(
            "run", *options.split(), "--env", "A=b=c", "--env", "FROM_HERE", "--json", "--", "true"
        )
        assert (code, json.loads(out)["name"]) == (0, "n-1")
        spec = cluster.controller.state.spec[0]
        assert (spec.num_gpus, spec.priority, spec.time_limit_s) == (2, 90, 3600)
        assert spec.program.env == (("A", "b=c"), ("FROM_HERE", "yes"))
        assert spec.program.processes == "node"
        assert (spec.program.suspend, spec.program.grace_s) == ("restart", 30.0)
        assert spec.program.resume_from == "7"
        assert (spec.retries, spec.tags, spec.memory_gb) == (Retries(3), ("a", "b"), 2.0)
        assert (spec.program.cpus, spec.program.host_memory_gb) == (1, 0.001)
        assert spec.program.setup == "./prepare"

    def test_a_flow_job(self, rota, cluster):
        options = "--flow --weight 4 --idle 10m --gpus 2 --json --"
        assert rota("run", *options.split(), "python", "drive.py")[0] == 0
        spec = cluster.controller.state.spec[0]
        assert (spec.is_flow, spec.weight, spec.program.idle_s) == (True, 4.0, 600.0)
        code, _, err = rota("run", "--flow", "--processes", "node", "true")
        assert code == 2
        assert "--processes: 'node' can't be used; --flow says" in err

    def test_a_job_waits_for_others(self, rota, cluster, tmp_path):
        for name in ("one", "two"):
            assert rota("run", "--name", name, "--", "true")[0] == 0
        assert rota("run", "--after", "1", "--after", "2:ended", "--", "true")[0] == 0
        assert cluster.controller.state.spec[2].depends_on == (
            Dependency("1", "succeeded"),
            Dependency("2", "ended"),
        )
        (tmp_path / "job.yaml").write_text("run: 'true'\ndepends_on: [1]\n")
        assert rota("submit", "--after", "2:failed", "job.yaml")[0] == 0
        assert [each.job_id for each in cluster.controller.state.spec[3].depends_on] == ["1", "2"]
        code, _, err = rota("run", "--after", "1:gone", "--", "true")
        assert (code, err.count("\n")) == (2, 1)
        assert "depends_on.when: 'gone'" in err
        assert "depends on" in rota("show", "3")[1]

    def test_jobs_are_cancelled_by_a_range_of_ids(self, rota, cluster):
        for _ in range(3):
            rota("run", "--", "true")
        assert rota("cancel", "[2-3]")[0] == 0
        states = [JobState(each) for each in cluster.controller.state.state]
        assert states == [JobState.PENDING, JobState.CANCELLED, JobState.CANCELLED]
        code, _, err = rota("cancel", "[3-2]")
        assert (code, "write the smaller number first" in err) == (2, True)

    @pytest.mark.parametrize(
        ("args", "words"),
        [
            (["--gpus", "0", "--", "x"], ["resources.gpus", "'0'"]),
            (["--priority", "huge", "--", "x"], ["priority", "'huge'"]),
            (["--env", "1=2", "--", "x"], ["env", "'1'"]),
            (["--env", "NOT_SET_ANYWHERE", "--", "x"], ["--env", "NOT_SET_ANYWHERE"]),
            (["--suspend", "no", "--", "x"], ["--suspend", "'no'"]),
            (["--grace", "5s", "--", "x"], ["grace", "'5s'", "suspend: restart"]),
            (["--resume-from", "a b", "--", "x"], ["resume_from", "'a b'", "has ended"]),
            ([], ["COMMAND"]),
            (["--gpu", "1", "x"], ["--gpu"]),
        ],
    )
    def test_what_is_wrong_is_named_in_one_line(self, rota, args, words):
        code, out, err = rota("run", *args)
        assert (code, out) == (2, "")
        assert err.startswith("error: ")
        assert err.count("\n") == 1
        assert all(word in err for word in words), err

    def test_a_plan_notices_a_script_that_is_not_there(self, rota, tmp_path):
        code, _, err = rota("run", "--dry-run", "--", "python3.11", "train.py")
        assert (code, err.count("warning: there is no "), "train.py" in err) == (0, 1, True)
        (tmp_path / "train.py").touch()
        for command in (["python", "train.py"], ["python", "-m", "x.py"], ["echo", "x.py"]):
            assert "warning" not in rota("run", "--dry-run", "--", *command)[2]

    @pytest.mark.parametrize("option", [(), ("--dry-run",), ("--wait",)])
    def test_a_job_that_never_fits_has_its_own_code(self, rota, option):
        code, out, err = rota("run", *option, "--gpus", "99", "--", "x")
        assert (code, out) == (3, "")
        assert "NEVER_FITS" in err

    def test_a_dry_run_takes_nothing(self, rota, cluster):
        code, out, _ = rota("run", "--dry-run", "--", "python", "train.py")
        assert (code, out) == (0, "train: it can be taken; it needs 1 GPU; 2 are free\n")
        assert cluster.controller.state.spec == []

    def test_a_dry_run_tells_which_jobs_would_be_waited_for(self, rota, cluster):
        rota("run", "--name", "prepare", "--", "true")
        rota("run", "--", "true")
        after = ("--after", "prepare", "--after", "2:ended")
        code, out, _ = rota("run", "--dry-run", *after, "--", "python", "train.py")
        assert (code, out) == (
            0,
            "train: it can be taken; it needs 1 GPU, and waits until job prepare has succeeded, "
            "job 2 has ended; 2 are free\n",
        )


class TestSubmit:
    def test_a_file(self, rota, cluster, tmp_path):
        (tmp_path / "sub").mkdir()
        file = tmp_path / "sub" / "job.yaml"
        file.write_text("name: mine\nrun: |\n  echo a\n  echo b\nenv: {A: '1'}\nworkdir: ..\n")
        assert rota("submit", str(file))[:2] == (0, "1\n")
        spec = cluster.controller.state.spec[0]
        assert (spec.name, spec.program.run) == ("mine", "echo a\necho b\n")
        assert spec.program.workdir == str(tmp_path)

    def test_values_are_read_as_they_are_written(self, rota, cluster, tmp_path):
        words = ["010:30", "2024-05-01", "1.10", "1e-4", "yes", "off", "007", "0x1F", "1_000"]
        words += ["100000000000000000000", "-0.50", "="]
        env = {f"A{number}": word for number, word in enumerate(words)}
        lines = [f"  {name}: {word}" for name, word in env.items()]
        lines = ["run: x", "priority: 010", "time_limit: 090", "env:", *lines]  # 10, and not 8
        (tmp_path / "job.yaml").write_text("\n".join(lines))
        assert rota("submit", "job.yaml")[:2] == (0, "1\n")
        spec = cluster.controller.state.spec[0]
        assert (spec.priority, spec.time_limit_s) == (10, 90.0)
        assert dict(spec.program.env) == env

    def test_numbers_truth_and_nothing_are_what_they_look_like(self, tmp_path):
        plain = b"[1, -2, 0, 10, 1.5, -.5, 2., 1.0e-3, .inf, true, False, null, ~, '1']"
        values = [1, -2, 0, 10, 1.5, -0.5, 2.0, 0.001, float("inf"), True, False, None, None, "1"]
        assert _load_yaml(plain) == values
        assert _load_yaml(b"{a: &x {b: 1}, c: {<<: *x, d: }}")["c"] == {"b": 1, "d": None}
        assert _load_yaml(b"") is None

    def test_standard_input(self, rota, cluster, monkeypatch, tmp_path):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"run: python x.py")))
        assert rota("submit", "-")[:2] == (0, "1\n")
        assert cluster.controller.state.spec[0].program.workdir == str(tmp_path)

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("run: x\nprority: 1", ["prority", "did you mean priority?"]),
            ("run: x\nrun: y", ["line 2", "'run'", "twice"]),
            ("run: [", ["line 1", "not YAML"]),
            ("run: x\nname: !!python/object/apply:os.system ['touch canary']", ["line 2"]),
            ("run: x\ntime_limit: 2024-13-45", ["time_limit: '2024-13-45'", "10m"]),
            (
                "run: x\ntime_limit: 1:30",
                ["time_limit: '1:30' can't be used", "with a unit", "90s"],
            ),
            ("run: x\npriority: 0x10", ["priority: '0x10'"]),
            ("run: x\nresources: {gpus: 1_0}", ["resources.gpus: '1_0'"]),
            ("run: x\nname: 010", ["name: '010'"]),
            ("run: x\nsuspend: no", ["suspend: 'no'"]),
            ("run: x\nenv: {A: true}", ["env.A: True", "quotes"]),
            ("run: x\nenv: {A: ~}", ["env.A: None", "quotes"]),
            ("run: x\npriority: " + "9" * 5000, ["not YAML"]),
            ("[" * 5000, ["nested too deeply"]),
            ("", ["job file"]),
            ("- a\n- b", ["job file"]),
            ("? {a: b}\n: c", ["not YAML"]),
            ("\0", ["not YAML"]),
            ("run: 'a\\", ["not YAML"]),
            ('run: "a\\0b"', ["run", "NUL"]),
        ],
    )
    def test_a_malformed_file_is_one_clear_error(self, rota, cluster, tmp_path, text, words):
        (tmp_path / "job.yaml").write_text(text)
        code, out, err = rota("submit", "job.yaml")
        assert (code, out) == (2, "")
        assert err.count("\n") == 1
        assert len(err) < 1000
        assert all(word in err for word in ["job.yaml", *words]), err
        assert not (tmp_path / "canary").exists()
        assert cluster.controller.state.spec == []

    def test_files_that_cannot_be_read(self, rota, tmp_path):
        (tmp_path / "huge.yaml").write_text("run: " + "x" * (1 << 20))
        (tmp_path / "bytes.yaml").write_bytes(b"run: \xff\xfe\xfa")
        for name in ("none.yaml", ".", "huge.yaml", "bytes.yaml"):
            code, _, err = rota("submit", name)
            assert (code, err.count("\n")) == (2, 1), name


class TestLooking:
    def three_jobs(self, rota, cluster):
        for _ in range(3):
            rota("run", "--", "python", "train.py")
        cluster.do(cluster.controller.turn)

    def test_ps_says_that_the_policy_fails(self, rota, cluster):
        cluster.controller.policy_error = "policy own: KeyError: 3 (own.py, line 7, in decide)"
        first = rota("ps")[1].splitlines()[0]
        assert "fails: its last plan stays (policy own: KeyError: 3 (own.py, line 7" in first
        cluster.do(lambda: setattr(cluster.controller.state, "fallback", Fallback(IN_ORDER)))
        first = rota("ps")[1].splitlines()[0]
        assert "fails: until it decides again, jobs start in order of arrival" in first

    def test_ps_counts_idle_jobs_apart(self, rota, cluster):
        self.three_jobs(rota, cluster)
        rota("run", "--flow", "--idle", "1m", "--", "python", "drive.py")
        assert rota("ps")[1].startswith("2 of 2 GPUs in use, 2 waiting, policy fifo")
        cluster.apply(SuspendRequested(cluster.do(cluster.controller.now_s), 3, by_itself=True))
        cluster.do(cluster.controller.turn)
        assert rota("ps")[1].startswith("2 of 2 GPUs in use, 1 waiting, 1 idle, policy fifo")

    def test_ps_has_its_columns(self, rota, cluster):
        self.three_jobs(rota, cluster)
        report = {0: {"step": 5, "total": 20, "step_time_s": 2.0}}
        cluster.do(lambda: cluster.controller.reports.update(report))
        code, out, _ = rota("ps")
        lines = [line.split() for line in out.splitlines()]
        assert out.startswith("2 of 2 GPUs in use, 1 waiting, policy fifo")
        assert (code, lines[1]) == (0, HEADER)
        user = getuser()
        assert lines[2][:9] == ["1", "train", user, "RUNNING", "-", "50", "1", "here:0", "50%"]
        assert lines[2][11:] == ["5/20", "25%", "30s-1m00s", "-"]
        waits = ["3", "train", user, "PENDING", "WAIT_RESOURCES", "50", "1", "-", "50%"]
        assert lines[4][:9] == waits

    def test_ps_lists_active_jobs_first_and_the_last_few_that_ended(self, rota, cluster):
        for _ in range(9):
            rota("run", "--", "true")
        for row in range(8):
            finish(cluster, row, *((JobState.FAILED, 3) if row == 7 else ()))
        lines = [line.split() for line in rota("ps")[1].splitlines()]
        assert [line[0] for line in lines[2:-1]] == ["9", "4", "5", "6", "7", "8"]
        assert lines[-2][-1] == "3"  # its exit code
        assert " ".join(lines[-1]) == "3 more ended within the hour; -a lists all"
        assert len(rota("ps", "-a")[1].splitlines()) == 11

    def test_show_takes_the_newest_of_a_name_and_says_so(self, rota, cluster):
        self.three_jobs(rota, cluster)
        code, out, err = rota("show", "train")
        assert (code, out.partition("\n")[0]) == (0, "job 3 (train)")
        assert err == "the newest job of that name; others: 1 2\n"
        assert rota("show", "2")[2] == ""
        assert json.loads(rota("show", "train", "--json")[1])["same_name"] == ["1", "2"]

    def test_ps_in_other_forms(self, rota, cluster):
        self.three_jobs(rota, cluster)
        as_json = json.loads(rota("ps", "-o", "json")[1])
        assert [job["id"] for job in as_json] == ["1", "2", "3"]
        as_yaml = yaml.safe_load(rota("ps", "-o", "yaml")[1])
        assert [job["id"] for job in as_yaml] == ["1", "2", "3"]
        rows = list(csv.reader(io.StringIO(rota("ps", "-o", "csv")[1])))
        assert rows[0][:12] == FIELDS
        assert [row[0] for row in rows[1:]] == ["1", "2", "3"]
        assert rota("ps", "-o", "wide")[1].split()[:12] == FIELDS

    def test_ps_lists_the_jobs_of_a_user(self, rota, cluster, monkeypatch):
        for name in ("ann", "bob"):
            monkeypatch.setenv("LOGNAME", name)
            rota("run", "--name", f"of-{name}", "--", "x")

        def names(*options):
            listed = json.loads(rota("ps", "-o", "json", *options)[1])
            return [job["name"] for job in listed]

        assert names() == ["of-ann", "of-bob"]
        assert names("--mine") == names("--user", "bob") == ["of-bob"]
        assert names("--user", "ann") == ["of-ann"]
        for options in (["--mine"], ["--filter", "name=of-ann"]):
            heading = rota("ps", *options)[1]
            assert heading.startswith("0 of 2 GPUs in use, 2 waiting"), "of all"
        code, _, err = rota("ps", "--mine", "--user", "ann")
        assert (code, "--mine are the jobs of bob" in err) == (2, True)

    @pytest.mark.parametrize("listing", [("nodes",), ("profiles",), ("ps",)])
    def test_listings_come_in_the_same_forms(self, rota, listing):
        wide = rota(*listing, "-o", "wide")[1].splitlines()[0].split()
        (header, *_) = csv.reader(io.StringIO(rota(*listing, "-o", "csv")[1]))
        assert header == wide
        found = json.loads(rota(*listing, "-o", "json")[1])
        assert yaml.safe_load(rota(*listing, "-o", "yaml")[1]) == found
        assert len(found) == (1 if listing == ("nodes",) else 0)

    def test_ps_filters(self, rota, cluster):
        self.three_jobs(rota, cluster)

        def ids(*filters):
            args = [word for text in filters for word in ("--filter", text)]
            return [job["id"] for job in json.loads(rota("ps", "-o", "json", *args)[1])]

        assert ids("state=running") == ["1", "2"]
        assert ids("state=RUNNING", "id=2") == ["2"]
        assert ids("node=here") == ["1", "2"]
        assert ids("gpus=1", "reason=wait_resources") == ["3"]
        assert ids("name=other") == []
        rota("run", "--tag", "Paper", "--", "true")
        assert ids("tag=paper") == ["4"]
        code, _, err = rota("ps", "--filter", "stat=x")
        assert (code, "there is no key 'stat' (did you mean 'state'?)" in err) == (2, True)
        for text in ("foo=1", "running"):
            code, _, err = rota("ps", "--filter", text)
            assert (code, err.count("\n")) == (2, 1)
            assert "--filter" in err and text in err
            assert "it takes: id, name, sweep, state" in err
            assert "for example --filter state=RUNNING" in err

    @pytest.mark.parametrize("samples", [0, 320])
    def test_show_tells_samples_if_the_program_does(self, rota, cluster, samples):
        self.three_jobs(rota, cluster)
        report = {0: {"step": 5, "total": 20, "samples": samples}}
        cluster.do(lambda: cluster.controller.reports.update(report))
        assert ("\n  samples " in rota("show", "1")[1]) == (samples > 0)

    def test_show_draws_what_a_flow_job_does(self, rota, cluster):
        assert rota("run", "--flow", "--gpus", "2", "python", "drive.py")[0] == 0
        cluster.do(cluster.controller.turn)
        use = {"devices": [0, 1], "share": [0.5, 1.0], "held_bytes": [1024, 0], "weight": 1.0}
        use |= {"memory_bytes": 2048, "tickets_per_s": 8.0, "outstanding": 1}
        use |= {"slices": [[0], [0, 1]]}
        use |= {"waits": {"what": "turn", "device": 1, "behind": "7"}}
        cluster.do(lambda: cluster.controller.reports.update({0: {"step": 5, "flow": use}}))
        waits = "its next operation waits for a turn on GPU 1 behind job 7"
        lines = rota("show", "1")[1].splitlines()
        at = lines.index(f"  operations   8 a second, 1 outstanding; {waits}; weight 1")
        assert [line.split()[-1] for line in lines[at + 2 : at + 4]] == ["##", ".#"]
        assert f"operations      {waits}" in rota("why", "1")[1].splitlines()
        told = json.loads(rota("why", "1", "--json")[1])["flow"]
        assert told == {**use, "sentence": waits}

    def test_show_tells_that_a_checkpoint_waits_for_room(self, rota, cluster):
        self.three_jobs(rota, cluster)
        report = {0: {"step": 5, "unsaved": "the checkpoint can't be written"}}
        cluster.do(lambda: cluster.controller.reports.update(report))
        line = "  checkpoint   the checkpoint can't be written; it is tried again"
        assert line in rota("show", "1")[1].splitlines()

    def test_show_tells_how_a_job_is_suspended(self, rota, cluster):
        self.three_jobs(rota, cluster)
        assert "not known yet" in rota("show", "1")[1]
        cluster.apply(WorkerRegistered(cluster.controller.now_s(), 0, Suspension.BOUNDARY, True))
        cluster.apply(WorkerRegistered(cluster.controller.now_s(), 1, Suspension.PROCESS, False))
        first, second = rota("show", "1")[1], rota("show", "2")[1]
        assert "at a step boundary (rota.train)" in first
        assert "its processes are stopped and continued" in second
        why = "it asked for that; SIGKILL follows SIGTERM after 10 s"
        cluster.controller.record.why_suspended[1] = why
        cluster.apply(WorkerRegistered(cluster.controller.now_s(), 1, Suspension.RESTART, True))
        text = f"its processes end, and start again from its own checkpoint: {why}"
        assert text in rota("show", "2")[1]
        shown = json.loads(rota("show", "2", "--json")[1])
        assert (shown["suspension"], shown["suspension_why"]) == ("RESTART", why)
        assert shown["suspend"] == "auto"
        assert "python train.py" in first
        assert "submitted" in first
        assert json.loads(rota("show", "@last", "--json")[1])["id"] == "3"

    @pytest.mark.parametrize(
        ("model_bytes", "largest", "text"),
        [
            (644, 512, "644 B, the largest tensor 80% of it"),
            (1024, 1024, "1 KiB, the largest tensor 100% of it"),
            (552_000_000, 411_000_000, "526.4 MiB, the largest tensor 74% of it"),
            (1 << 60, 1, "1.049e+06 TiB, the largest tensor 0% of it"),
        ],
    )
    def test_show_tells_the_size_of_the_model(self, rota, cluster, model_bytes, largest, text):
        self.three_jobs(rota, cluster)
        cluster.apply(ModelReported(cluster.controller.now_s(), 0, model_bytes, largest))
        cluster.controller.models[0] = (model_bytes, largest)
        assert text in rota("show", "1")[1]
        shown = json.loads(rota("show", "1", "--json")[1])
        assert (shown["model_bytes"], shown["skew"]) == (model_bytes, largest / model_bytes)
        assert "largest tensor" not in rota("show", "2")[1]
        assert json.loads(rota("show", "2", "--json")[1])["skew"] is None

    def test_show_tells_where_the_state_of_a_job_is_and_what_a_step_takes(self, rota, cluster):
        self.three_jobs(rota, cluster)
        assert "state kept" not in rota("show", "1")[1]
        cycle = {"least_bytes": 300 << 20, "most_bytes": 23 << 30, "least_after": "boundary"}
        memory = {"where": "memory", "bytes": 3 << 30, "error": "disk full", "cycle": cycle}
        cluster.controller.telemetry.memory[0] = memory
        shown = rota("show", "1")[1]
        assert "in host memory, 3 GiB (disk full)" in shown
        assert "300 MiB to 23 GiB over a step, the least at its boundary" in shown
        assert json.loads(rota("show", "1", "--json")[1])["memory"] == memory
        nothing = {"where": None, "bytes": None, "error": None, "cycle": None}
        cluster.controller.telemetry.memory[1] = nothing
        assert "state kept" not in rota("show", "2")[1]
        assert "GPU memory" not in rota("show", "2")[1]

    def test_show_tells_what_work_was_lost(self, rota, cluster):
        self.three_jobs(rota, cluster)
        assert "of work" not in rota("show", "1")[1]
        cluster.apply(AttemptLost(cluster.controller.now_s(), 0, 1, "gone", 90.0))
        assert "1m30s of work" in rota("show", "1")[1]

    def test_why_names_blockers_and_what_would_help(self, rota, cluster):
        self.three_jobs(rota, cluster)
        code, out, _ = rota("why", "3")
        assert code == 0
        assert "WAIT_RESOURCES" in out
        assert "1 2" in out
        assert "would start if" in out
        assert json.loads(rota("why", "3", "--json")[1])["position"] == 1
        assert "runs on here:0" in rota("why", "1")[1]

    def test_why_names_a_few_of_many_and_counts_the_others(self, rota, cluster):
        now_s = cluster.controller.now_s()
        specs = [job(number, at=now_s) for number in range(1, 2503)]
        cluster.apply(*(JobSubmitted(now_s, spec) for spec in specs))
        cluster.do(cluster.controller.turn)
        code, out, _ = rota("why", "2502")
        assert code == 0
        assert "3 4 5 6 7 8 9 10 11 12 and 2,489 more" in out

    def test_nodes(self, rota):
        code, out, _ = rota("nodes")
        assert (code, out.split()[:4]) == (0, ["NODE", "KIND", "TYPE", "GPUS"])
        assert json.loads(rota("nodes", "-o", "json")[1])[0]["name"] == "here"

    def test_nodes_that_are_awaited(self, rota, cluster):
        cluster.controller.awaited_nodes = [{"name": "m", "why": "the machine boots"}]
        assert rota("nodes")[1].splitlines()[-1] == "awaited: node m: the machine boots"
        for _ in range(2):
            rota("run", "--gpus", "2", "--", "true")
        cluster.do(cluster.controller.turn)
        assert "awaits          node m: the machine boots\n" in rota("why", "2")[1]
        assert "awaits" not in rota("why", "1")[1]

    def test_why_tells_what_was_tried_and_what_came_of_it(self):
        names = ("at_s", "what", "predicted", "measured", "kept")
        told = [(0.0, "move to t4", 0.8, 0.75, False), (9.0, "move", 1.0, None, True)]
        verdict = {"job_id": "1", "state": "RUNNING", "sentence": "it runs", "blockers": []}
        verdict |= {"would_start_if": None, "position": None, "resizing": None, "history": []}
        verdict["warnings"] = []
        verdict["trials"] = [dict(zip(names, trial, strict=True)) for trial in told]
        first, second = why_text(verdict).splitlines()[-2:]
        assert first.endswith("move to t4: predicted 0.8, measured 0.75, undone")
        assert second.endswith("move: predicted 1, not measured, kept")

    def test_nodes_names_all_jobs_that_share_a_gpu(self):
        node = {"name": "a", "kind": "cpu", "num_gpus": 3, "alive": True, "connected": True}
        node |= {"jobs": ["1", None, "3"], "holders": [["1", "2"], [], ["3"]]}
        cells = nodes_text([node]).splitlines()[-1].split()
        assert cells[3:] == ["3", "1", "-", "up", "0:1+2", "2:3"]
        node |= {"cores": 4.0, "cores_given": 1.5, "cores_held_by": "affinity"}
        assert "1.5/4 by affinity, whole cores" in nodes_text([node])
        assert "1.5/4 not held" in nodes_text([node | {"cores_held_by": "not held"}])
        assert "ENGINE" not in nodes_text([node])
        assert "up, leaves at " in nodes_text([node | {"leaves_s": 1e9}])
        assert "batch job 17" in nodes_text([node | {"about": "batch job 17"}])

    def test_text_from_jobs_plays_no_tricks_on_the_terminal(self, rota, cluster):
        self.three_jobs(rota, cluster)
        evil = "\x1b]0;owned\x07\x1b[2J\u202egnp.exe\r\n"
        cluster.apply(AttemptLost(cluster.controller.now_s(), 0, 1, evil))
        finish(cluster, 1, JobState.FAILED, 1, evil)
        report = {0: {"step": 1, "metrics": {evil: evil}}}
        cluster.do(lambda: cluster.controller.reports.update(report))
        for args in (
            ["show", "1"],
            ["show", "2"],
            ["ps", "-o", "wide"],
            ["why", "2"],
            ["wait", "2"],
        ):
            _, out, err = rota(*args)
            assert not set("\x1b\x07\u202e\r") & set(out + err), args
            assert "\\x1b" in out + err, args

    @pytest.mark.parametrize(
        "name",
        ["7", "", "..", "a/b", "%2e%2e", "x" * 400],
        ids=["id", "empty", "up", "slash", "code", "long"],
    )
    def test_a_job_that_is_not_there(self, rota, name):
        verbs = ("show", "why", "logs", "wait", "cancel", "suspend", "resume", "clean --dry-run")
        for verb in verbs:
            code, out, err = rota(*verb.split(), name)
            told = "there is nothing to remove\n" if verb.startswith("clean") else ""
            assert (code, out, err.count("\n")) == (1, told, 1), verb
            assert f"error: there is no job {name!r:.80}" in err

    def test_a_job_that_can_not_be_waited_for_is_named(self, rota):
        for words in (["--after", ".."], ["--resume-from", "a/b"]):
            code, out, err = rota("plan", *words, "--", "true")
            assert (code, out, err.count("\n")) == (2, "", 1)
            assert f"'{words[1]}' can't be used; write" in err


class TestUp:
    @pytest.mark.parametrize(
        ("options", "says"),
        [
            (["--set", "quantum_s:5"], "write for example quantum_s=60"),
            (["--set", "quantums=5"], "did you mean 'quantum_s'"),
            (["--policy", "fifo", "--set", "borrow"], "write for example borrow=yes"),
            (["--set", "quotas=equal", "--set", "types=on"], "types=on and quotas=equal exclude"),
        ],
        ids=str,
    )
    def test_wrong_settings_are_refused_before_anything_starts(self, rota, tmp_path, options, says):
        code, out, err = rota("up", "--home", tmp_path / "other", *options)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert says in err
        assert not (tmp_path / "other").exists()

    def test_a_log_that_it_does_not_understand_stays_as_it_is(self, rota, tmp_path):
        folder = Folder(tmp_path / "other").create()
        with closing(EventStore(folder.database)) as store:
            store.append([RetryDue(1.0, 7)])
        code, out, err = rota("up", "--home", folder.path)
        assert (code, out, err.count("\n")) == (1, "", 1)
        assert f"{folder.database}: event 1 can't be read by this version of Rota" in err
        with closing(EventStore(folder.database)) as store:
            assert list(store.load()) == [RetryDue(1.0, 7)]
            assert store.next_epoch() == 1
        assert not list(folder.path.glob("nodes/*"))


class TestSteering:
    def test_several_at_once_and_twice(self, rota, cluster):
        rota("run", "--name", "a", "--", "x")
        rota("run", "--name", "b", "--", "x")
        for verb, state in (("suspend", "HELD"), ("resume", "PENDING"), ("cancel", "CANCELLED")):
            for _ in range(2):
                code, out, _ = rota(verb, "a", "@last")
                assert code == 0
                assert [line.split(": ")[1].split(";")[0] for line in out.splitlines()] == [
                    state
                ] * 2

    def test_the_story_says_who_asked(self, rota, cluster, monkeypatch):
        rota("run", "--", "x")
        monkeypatch.setenv("LOGNAME", "änne")
        rota("suspend", "1")
        assert "suspended by änne" in rota("why", "1")[1]
        for verb in ("resume", "cancel"):
            rota(verb, "1")
        shown = rota("show", "1")[1]
        for line in ("suspended by änne", "resumed by änne", "asked to stop by änne (CANCELLED)"):
            assert line in shown
        rota("run", "--", "x")
        assert cluster.controller.state.spec[1].user == "änne"

    def test_a_job_that_has_ended_cannot_go_on(self, rota, cluster):
        rota("run", "--", "x")
        rota("cancel", "1")
        code, _, err = rota("resume", "1")
        assert (code, err.count("\n")) == (1, 1)

    @pytest.mark.parametrize("verb", ["cancel", "suspend", "resume"])
    def test_of_a_job_that_has_ended_it_says_when_and_what_to_do(self, rota, cluster, verb):
        rota("run", "--name", "mine", "--", "x")
        cluster.do(cluster.controller.turn)
        finish(cluster)
        code, out, err = rota(verb, "1")
        assert (code, out, err.count("\n")) == (1, "", 1)
        assert "job 1 (mine) can't be" in err
        assert re.search(r"ended as SUCCEEDED at \d{4}-\d\d-\d\d \d\d:\d\d:\d\d", err)
        assert "`rota show 1`" in err
        assert not re.search(r"\d{9}", err), "seconds since the epoch"

    def test_of_a_job_that_is_stopping_it_says_to_wait(self, rota, cluster):
        rota("run", "--", "x")
        cluster.do(cluster.controller.turn)
        assert rota("cancel", "1")[0] == 0
        code, _, err = rota("suspend", "1")
        assert (code, err.count("\n")) == (1, 1)
        assert "`rota wait 1`" in err

    def test_one_that_has_ended_does_not_keep_the_others_from_being_steered(self, rota, cluster):
        for name in ("a", "b", "c"):
            rota("run", "--name", name, "--", "x")
        rota("cancel", "a")
        code, out, err = rota("suspend", "a", "nobody", "b", "c")
        assert code == 1
        assert [line.split("; ")[0] for line in out.splitlines()] == [
            "job 2 (b): HELD",
            "job 3 (c): HELD",
        ]
        assert [line.split()[0] for line in err.splitlines()] == ["error:", "error:"]
        assert "'nobody'" in err

    def test_what_changes_nothing_says_so_and_is_no_error(self, rota, cluster):
        rota("run", "--", "x")
        cluster.do(cluster.controller.turn)
        code, out, _ = rota("resume", "1")
        assert (code, out) == (0, "job 1 (x): RUNNING; its owner had not suspended it\n")
        rota("run", "--gpus", "2", "--name", "y", "--", "x")
        assert rota("resume", "2")[1].endswith("; `rota why 2` tells what it waits for\n")
        rota("suspend", "2")
        code, out, _ = rota("suspend", "2")
        assert (code, out.split("; ")[1:]) == (
            0,
            ["it was suspended before, and waits for `rota resume`\n"],
        )
        rota("cancel", "2")
        assert rota("cancel", "2") == (
            0,
            "job 2 (y): CANCELLED; it was cancelled before\n",
            "",
        )

    @pytest.mark.parametrize(
        ("outcome", "code"), [(JobState.SUCCEEDED, 0), (JobState.FAILED, 4), (JobState.TIMEOUT, 4)]
    )
    def test_waiting_gives_the_jobs_end(self, rota, cluster, outcome, code):
        rota("run", "--", "x")
        cluster.do(cluster.controller.turn)
        finish(cluster, 0, outcome, 3)
        assert rota("wait", "1")[0] == code
        ended = rota("wait", "1", "--json")
        assert (ended[0], json.loads(ended[1])["exit_code"]) == (code, 3)

    def test_waiting_may_take_too_long(self, rota):
        rota("run", "--", "x")
        code, _, err = rota("wait", "1", "--timeout", "0")
        assert (code, "PENDING" in err) == (1, True)


class TestLogs:
    def test_output_of_a_rank_and_its_tail(self, rota, cluster):
        rota("run", "--gpus", "2", "--", "x")
        cluster.do(cluster.controller.turn)
        cluster.write_log(0, b"a\nb\n\x1b[31mc\n")
        cluster.write_log(0, b"other\n", rank=1)
        assert rota("logs", "1") == (0, "a\nb\n\x1b[31mc\n", "")
        assert rota("logs", "1", "--tail", "2")[1] == "b\n\x1b[31mc\n"
        assert rota("logs", "1", "--rank", "1")[1] == "other\n"

    @pytest.mark.parametrize("encoding", ["ascii", "gbk"])
    def test_letters_that_a_terminal_lacks_are_escaped_and_files_have_them(
        self, cluster, tmp_path, encoding
    ):
        cluster.do(cluster.controller.turn)
        environment = os.environ | {"PYTHONIOENCODING": encoding}
        rota = [sys.executable, "-m", "rota.cli.main"]
        run = [*rota, "run", "--", "echo", "ä→"]
        subprocess.run(run, env=environment, check=True, capture_output=True)
        cluster.do(cluster.controller.turn)
        cluster.write_log(0, "ä→\n".encode())
        shown = [
            subprocess.run([*rota, verb, "1"], env=environment, capture_output=True, check=True)
            for verb in ("logs", "show")
        ]
        assert shown[0].stdout == "ä→\n".encode()
        shows = b"\\xe4" if encoding == "gbk" else "ä".encode()  # click makes ASCII UTF-8
        assert b"echo '" + shows in shown[1].stdout

    def test_a_failed_job_shows_the_output_of_the_rank_that_failed(self, rota, cluster):
        rota("run", "--gpus", "2", "--", "x")
        cluster.do(cluster.controller.turn)
        cluster.write_ranks(0, [0, 1], failed=1)
        cluster.write_log(0, b"all is well\n")
        cluster.write_log(0, b"ValueError\n", rank=1)
        finish(cluster, 0, JobState.FAILED, 1)
        code, out, err = rota("logs", "1")
        assert (code, out) == (0, "ValueError\n")
        assert "rank 1, which failed; `rota logs 1 --rank 0`" in err
        assert rota("logs", "1", "--rank", "0") == (0, "all is well\n", "")
        assert rota("logs", "1", "--rank", "0", "--process", "1")[0] == 2
        code, out, err = rota("logs", "1", "--attempt", "9", "--system")
        assert (code, out) == (1, "")
        assert err == "error: job 1 has no attempt 9: it has had attempt 1 alone\n"

    def test_lines_of_all_ranks_begin_with_their_rank(self, rota, cluster):
        rota("run", "--gpus", "2", "--", "x")
        cluster.do(cluster.controller.turn)
        cluster.write_ranks(0, [0, 1])
        cluster.write_log(0, b"a\nb\n", rank=0)
        cluster.write_log(0, b"c\nlast", rank=1)
        finish(cluster)
        whole = "[rank 0] a\n[rank 0] b\n[rank 1] c\n[rank 1] last\n"
        assert rota("logs", "1", "--rank", "all") == (0, whole, "")
        code, out, _ = rota("logs", "1", "--rank", "all", "-f", "--tail", "1")
        assert (code, out) == (0, "[rank 0] b\n[rank 1] last\n")
        code, _, err = rota("logs", "1", "--rank", "every")
        assert (code, "'every' is no rank" in err) == (2, True)

    def test_lines_begin_with_their_times_and_the_story_is_told(self, rota, cluster):
        rota("run", "--", "x")
        cluster.do(cluster.controller.turn)
        cluster.write_ranks(0, [0])
        cluster.write_log(0, b"a\nb\n")
        for option in (["--timestamps"], ["--since", "1h"], ["--system"]):
            code, _, err = rota("logs", "1", *option)
            assert (code, "because an older Rota ran it; leave --" in err) == (1, True)
        (submitted_s, _), (started_s, _) = cluster.controller.state.story(0)
        first, second = stamp(started_s + 1), stamp(started_s + 60)
        cluster.write_times(0, (started_s + 1, 2), (started_s + 60, 4))
        assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d", first)
        assert rota("logs", "1", "--timestamps") == (0, f"{first} a\n{second} b\n", "")
        told = rota("logs", "1", "--timestamps", "--rank", "all")[1]
        assert told == f"{first} [rank 0] a\n{second} [rank 0] b\n"
        begin = f"{stamp(submitted_s)} [rota] submitted\n{stamp(started_s)} [rota] started\n"
        assert rota("logs", "1", "--system")[1] == f"{begin}a\nb\n"
        finish(cluster)
        code, told, _ = rota("logs", "1", "--system", "-f", "--since", "1h")
        assert (code, "[rota] succeeded\n" in told) == (0, True)
        assert rota("logs", "1", "--since", stamp(submitted_s))[1] == "a\nb\n"

    @pytest.mark.parametrize(
        ("since", "said"),
        [
            ("soon", "write how long ago, such as 10m"),
            ("5 minutes", "write how long ago"),
            ("0s", "write for example 30s"),
            ("2999-01-01", "that time is yet to come"),
            ("2026-13-01", "write how long ago"),
        ],
    )
    def test_a_time_that_is_none_is_refused_in_a_line(self, rota, since, said):
        code, out, err = rota("logs", "1", "--since", since)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert err.startswith(f"error: --since: {since!r} can't be used; ") and said in err

    def test_an_output_that_was_removed_is_told(self, rota, cluster):
        rota("run", "--", "x")
        cluster.do(cluster.controller.turn)
        finish(cluster)
        folder = cluster.log_path(0).parent
        shutil.rmtree(folder)
        code, out, err = rota("logs", "1")
        assert (code, out) == (1, "")
        assert err == (
            f"error: the output of job 1 is no longer there: its folder {folder} on node here "
            "is gone\n"
        )

    def test_ranks_are_shown_with_their_processes(self, rota, cluster):
        rota("run", "--gpus", "2", "--", "x")
        cluster.do(cluster.controller.turn)
        cluster.write_ranks(0, [0, 3], gpus=[0, 1])
        pids = cluster.log_path(0, 3).with_suffix(".pid")
        pids.write_text('{"shim": 41, "worker": 42}')
        shown = rota("show", "1")[1]
        assert "    rank 0  GPU 0  pid -  process 0\n" in shown
        assert "    rank 1  GPU 1  pid 42  process 3\n" in shown

    @pytest.mark.parametrize(
        ("gpus", "sizes", "text"),
        [
            ("1..2", "any", "1 of 1..2, now"),
            ("1..8", "pow2", "1 of 1..8 (pow2), now"),
            ("3..8", "pow2", "3 of 3..8 (pow2), now"),
            ("1..8", [1, 3, 8], "1 of 1, 3, 8, now"),
        ],
    )
    def test_a_range_of_gpus_is_shown_and_told_at_submission(
        self, rota, cluster, tmp_path, gpus, sizes, text
    ):
        path = tmp_path / "job.yaml"
        path.write_text(f"run: x\nresources: {{gpus: {gpus}}}\nelastic: {{sizes: {sizes}}}\n")
        code, _, err = rota("submit", path)
        if gpus.startswith("3"):
            assert "NEVER_FITS" in err
            return
        assert (code, f"takes {gpus} GPUs (it stays at 1 GPU: " in err) == (0, True)
        cluster.do(cluster.controller.turn)
        assert f"  GPUs         {text}" in rota("show", "1")[1]
        assert "size            it stays at 1 GPU: the policy fifo" in rota("why", "1")[1]

    def test_on_a_terminal_control_characters_are_written_out(self, rota, cluster, monkeypatch):
        rota("run", "--", "x")
        cluster.do(cluster.controller.turn)
        cluster.write_log(0, b"a\tb\r\n\x1b[31mred\x07\n")
        monkeypatch.setattr(type(sys.stdout), "isatty", lambda self: True)
        assert rota("logs", "1")[1] == "a\tb\r\n\\x1b[31mred\\x07\n"
        assert rota("logs", "1", "--raw")[1] == "a\tb\r\n\x1b[31mred\x07\n"

    def test_before_the_start_the_reason_is_told(self, rota):
        rota("run", "--", "x")
        code, out, err = rota("logs", "1")
        assert (code, out) == (0, "")
        assert "has not started" in err

    def test_following_ends_with_the_job(self, rota, cluster):
        rota("run", "--", "x")
        cluster.do(cluster.controller.turn)
        cluster.write_log(0, b"a\n")
        finish(cluster, 0, JobState.FAILED, 2)
        code, out, err = rota("logs", "-f", "1")
        assert (code, out) == (4, "a\n")
        assert "FAILED (exit code 2)" in err

    @pytest.mark.process
    def test_ctrl_c_detaches_and_says_so(self, rota, cluster):
        rota("run", "--", "x")
        cluster.do(cluster.controller.turn)
        cluster.write_log(0, b"first\n")
        with subprocess.Popen(
            [sys.executable, "-c", FOLLOW],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                assert process.stdout.readline() == "first\n"
                process.send_signal(signal.SIGINT)
                out, err = process.communicate()
            finally:
                process.kill()
        assert (process.returncode, out) == (130, "")
        assert "detached" in err
        assert "Traceback" not in err
        assert rota("show", "1", "--json")[0] == 0
        assert cluster.controller.state.state[0] == JobState.RUNNING


class TestTrouble:
    def test_without_a_controller_it_says_how_to_start_one(self, monkeypatch, tmp_path, capsys):
        monkeypatch.setenv("ROTA_HOME", str(tmp_path / "empty"))
        with pytest.raises(SystemExit) as ended:
            main(["ps"])
        assert ended.value.code == 1
        assert "rota up" in capsys.readouterr().err

    def test_a_wrong_token_has_its_own_code(self, rota, monkeypatch):
        monkeypatch.setenv("ROTA_TOKEN", "wrong")
        code, out, err = rota("ps")
        assert (code, out, err.count("\n")) == (5, "", 1)


def test_a_controller_that_answers_no_more_but_lives_is_told_of(tmp_path, monkeypatch):
    folder = Folder(tmp_path).create()
    monkeypatch.setattr(up, "SETTLE_S", 0.0)
    with closing(hold_lock(folder.controller_lock)):
        assert up._left_after(folder) == ["the controller"]
    assert up._left_after(folder) == []


def test_a_controller_that_does_not_answer_is_not_said_to_be_gone(tmp_path, monkeypatch, capsys):
    folder = Folder(tmp_path).create()
    monkeypatch.delenv("ROTA_SERVER", raising=False)
    with closing(hold_lock(folder.controller_lock)), pytest.raises(SystemExit, match="1"):
        main(["down", "--home", str(tmp_path)])
    assert "does not answer; `rota down --now` kills it" in capsys.readouterr().err
