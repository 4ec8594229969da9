"""Programs are executed; those that ask for it are forked where that makes no other difference."""

import os
import sys

import pytest

from rota.live.agent.program_start import FORKED, FRESH, start_of

OWN = os.path.dirname(sys.executable)
PATH = OWN + os.pathsep + "/usr/bin:/bin"


def environment(**values):
    return dict(os.environ) | {"PATH": PATH} | values


def start(run, *, warm=False, env=None, **fields):
    program = {"run": run, "start": "warm" if warm else "fresh"} | fields
    return start_of(program, env or environment(), "/")


@pytest.mark.parametrize(
    ("run", "words"),
    [
        ("python train.py", ["python", "train.py"]),
        (
            "python train.py --lr=0.1 'two words' \"x=y\"",
            ["python", "train.py", "--lr=0.1", "two words", "x=y"],
        ),
        ("python -m train --n 3", ["python", "-m", "train", "--n", "3"]),
        (f"{sys.executable} train.py", [sys.executable, "train.py"]),
        ("python -u train.py", ["python", "-u", "train.py"]),
        ("/usr/bin/env python train.py", None),
        ("A=1 python train.py", None),
        ("exec python train.py", None),
        ("python train.py > out", None),
        ("python train.py; true", None),
        ("python $SCRIPT", None),
        ("python *.py", None),
        ("python train.py # why", None),
        ("python train.py\npython two.py", None),
        ("python 'train.py", None),
        ("bash train.sh", None),
        ("cd /", None),
        ("nosuchpython train.py", None),
    ],
)
def test_one_call_of_python_is_executed_and_all_else_is_read_by_bash(run, words):
    assert start(run) == (words, False, FRESH)


@pytest.mark.parametrize(
    ("run", "obstacle"),
    [
        ("python train.py", None),
        ("python -m train --n 3", None),
        (f"{sys.executable} train.py", None),
        ("python train.py && true", "its command is no plain `python SCRIPT`"),
        ("python -m", "it names no module"),
        ("python", "it has options of the interpreter, or no script"),
        ("python -u train.py", "it has options of the interpreter, or no script"),
        ("python folder", "folder is no .py file"),
    ],
)
def test_what_asks_for_a_fork_is_forked_unless_a_reason_is_told(run, obstacle):
    found = start(run, warm=True)
    assert (found.fork, found.told) == (
        (True, FORKED) if obstacle is None else (False, f"{FRESH}: {obstacle}")
    )


@pytest.mark.parametrize(
    "name", ["TZ", "TMPDIR", "TORCHDYNAMO_DISABLE", "PYTHONPATH", "LC_ALL", "LD_PRELOAD", "HOME"]
)
def test_a_variable_that_is_read_once_needs_a_process_of_its_own(monkeypatch, name):
    monkeypatch.delenv(name, raising=False)
    found = start("python train.py", warm=True, env=environment(**{name: "/elsewhere"}))
    assert found == (["python", "train.py"], False, f"{FRESH}: {name} is set")
    monkeypatch.setenv(name, "/elsewhere")  # the process with torch has it too
    assert start("python train.py", warm=True).fork
    without = environment()
    del without[name]
    assert start("python x.py", warm=True, env=without).told == f"{FRESH}: {name} is not set"


@pytest.mark.parametrize("folders", ["src", "/x:", ":/x", "/x:lib"])
def test_folders_of_modules_that_lie_where_the_program_starts_are_not_those_of_a_fork(
    monkeypatch, folders
):
    monkeypatch.setenv("PYTHONPATH", folders)
    found = start("python train.py", warm=True)
    assert found.told == f"{FRESH}: PYTHONPATH names a folder from where the program starts"


def test_variables_that_rota_sets_and_those_of_the_job_alone_are_no_obstacle():
    values = {
        "OMP_NUM_THREADS": "7",
        "CUDA_VISIBLE_DEVICES": "1",
        "TEMPERATURE": "3",
        "LEARNING_RATE": "1",
    }
    assert start("python train.py", warm=True, env=environment(**values)).fork


@pytest.mark.parametrize("name", ["BASH_ENV", "BASH_FUNC_python%%"])
def test_what_bash_alone_heeds_is_run_by_bash(name):
    found = start("python train.py", env=environment(**{name: "() { other; }"}))
    assert found == (None, False, FRESH)


def test_another_python_is_named(tmp_path):
    other = tmp_path / "python"
    other.write_text("#!/bin/sh\n")
    other.chmod(0o755)
    env = environment(PATH=f"{tmp_path}:{PATH}")
    assert start("python x.py", env=env) == (["python", "x.py"], False, FRESH)
    told = start("python x.py", warm=True, env=env).told
    assert told == f"{FRESH}: {other} is not the Python that Rota runs in"


def test_a_job_with_a_setup_is_run_by_bash():
    assert start("python x.py", setup="pip list") == (None, False, FRESH)
    assert start("python x.py", warm=True, setup="true").told == f"{FRESH}: it has a setup"


def test_where_no_program_can_be_forked_it_is_executed():
    program = {"run": "python train.py", "start": "warm"}
    words = ["python", "train.py"]
    told = start_of(program, environment(), "/", "torch can't be loaded: see zygote.log")
    assert told == (words, False, f"{FRESH}: torch can't be loaded: see zygote.log")
    assert start_of(program | {"start": "fresh"}, environment(), "/", "x") == (words, False, FRESH)
