"""``rota plan`` in front of a real server: where a job would start, and whom it would displace."""

import json

import pytest

from rota.folder import Folder
from support.served import StandInController, served


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    for name in ("ROTA_SERVER", "ROTA_TOKEN", "VIRTUAL_ENV", "CONDA_PREFIX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ROTA_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    folder = Folder().create()
    with served(folder, StandInController(folder, policy="smallest-first")) as it:
        yield it


def test_a_command_that_would_start_now(cluster, rota):
    code, out, _ = rota("plan", "--gpus", "2", "--name", "eval", "--", "python", "x.py", "--json")
    assert (code, out) == (0, "eval: would start now, on here:0,1; policy smallest-first\n")
    assert cluster.controller.state.spec == []


def test_a_file_that_would_displace_a_job(cluster, rota, tmp_path):
    rota("run", "--gpus", "2", "--name", "wide", "--", "sleep", "9")
    cluster.do(cluster.controller.turn)
    (tmp_path / "job.yaml").write_text("run: python x.py\nname: narrow\n")
    code, out, _ = rota("plan", "job.yaml")
    user = cluster.controller.state.spec[0].user
    assert code == 0
    assert out.splitlines() == [
        "narrow: would start as soon as job 1 has given GPUs up, on here:0; policy smallest-first",
        f"  job 1 (wide) of {user} would be suspended; it has here:0,1",
    ]
    told = json.loads(rota("plan", "--json", "job.yaml")[1])
    assert (told["start"], told["after"]) == ("after", ["1"])


def test_a_job_that_would_wait_is_told_why(cluster, rota):
    rota("run", "--gpus", "2", "--name", "wide", "--", "sleep", "9")
    cluster.do(cluster.controller.turn)
    code, out, _ = rota("plan", "--gpus", "2", "--", "python", "x.py")
    assert code == 0
    assert out.startswith("x: would wait: too few GPUs are free; policy smallest-first\n")
    assert "would start if  2 GPUs more were free, as when job 1 ends" in out


def test_a_job_that_never_fits_has_its_own_code(cluster, rota):
    code, out, err = rota("plan", "--gpus", "9", "--", "python", "x.py")
    assert (code, out) == (3, "")
    assert "NEVER_FITS" in err


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (["--help"], 0, "Say where and when a job would start"),
        ([], 2, "Missing argument 'JOB.YAML|COMMAND...'"),
        (["--gpus", "1"], 2, "Missing argument 'JOB.YAML|COMMAND...'"),
    ],
)
def test_without_a_job_it_tells_what_it_takes(rota, args, code, words):
    found, out, err = rota("plan", *args)
    assert found == code
    assert words in out + err


@pytest.mark.parametrize(
    ("content", "args", "words"),
    [
        ("run: x", ("--gpus", "2"), "--gpus is for a command; write it into job.yaml"),
        (
            "run: x\nsweep: {space: {lr: {choice: [1, 2]}}, max_trials: 2}",
            (),
            "plan one without this block",
        ),
        ("rum: x", (), "rum"),
    ],
)
def test_what_can_not_be_planned_is_named(cluster, rota, tmp_path, content, args, words):
    (tmp_path / "job.yaml").write_text(content)
    code, _, err = rota("plan", *args, "job.yaml")
    assert code == 2
    assert words in err


def test_a_job_that_would_wait_for_another_one_is_told_which(cluster, rota):
    rota("run", "--name", "first", "--", "true")
    code, out, _ = rota("plan", "--after", "1", "--", "python", "x.py")
    assert code == 0
    assert out.startswith("x: would wait: a job that it depends on has not ended; ")
    assert "job 1 to have succeeded" in out
    assert cluster.controller.state.dependents == {}
    code, _, err = rota("plan", "--array", "0-3", "--", "true")
    assert (code, "an array has many jobs" in err) == (2, True)


def test_options_may_follow_a_job_file_as_with_submit(cluster, rota, tmp_path):
    (tmp_path / "job.yaml").write_text("run: python x.py")
    assert json.loads(rota("plan", "job.yaml", "--json")[1])["start"] == "now"
    code, _, err = rota("plan", "job.yaml", "--gpus", "2")
    assert (code, "write it into job.yaml" in err) == (2, True)


@pytest.mark.parametrize("verb", [("plan",), ("submit",), ("submit", "--dry-run")])
def test_one_job_file_is_handed_in_at_a_time(cluster, rota, tmp_path, verb):
    (tmp_path / "a.yaml").write_text("run: python x.py")
    code, out, err = rota(*verb, "a.yaml", "b.yaml")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "2 job files are given, a.yaml, b.yaml; give one" in err
    code, out, err = rota(*verb, "b.yaml")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "'b.yaml' can't be read: No such file" in err
    assert cluster.controller.state.spec == []
