"""``make test-stress`` counts what ran and failed, and leaves no process that burns CPU."""

import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from .conftest import is_gone, until

SCRIPT = Path(__file__).parents[1] / "stress.py"
TESTS = """
from pathlib import Path
import time
import pytest

def test_of_which_every_second_run_fails():
    try:
        Path("ran").rmdir()
    except FileNotFoundError:
        Path("ran").mkdir()
    else:
        raise ValueError("once too often")

@pytest.mark.parametrize("text", ["a b", "c::d"])
def test_with_words(text):
    pass

@pytest.mark.skip(reason="of no use here")
def test_left_out():
    pass

def test_that_waits():
    Path("begun").touch()
    while Path("waits").exists():
        time.sleep(0.01)
"""
Start = Callable[..., subprocess.Popen]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts the script on the tests above; what it keeps is in the folder ``kept``."""
    (tmp_path / "test_it.py").write_text(TESTS)
    (tmp_path / "kept").mkdir()
    started = []

    def start(*words: str) -> subprocess.Popen:
        process = subprocess.Popen(
            [sys.executable, SCRIPT, *words],
            cwd=tmp_path,
            env={"PATH": "/usr/bin:/bin", "TMPDIR": str(tmp_path / "kept")},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        with process:
            process.kill()


def counts(told: str) -> dict[str, tuple[int, int, int]]:
    """How often each test ran, was skipped and failed."""
    rows = re.findall(r"^ +(\d+) +(\d+) +(\d+) test_it\.py::(.*)$", told, re.MULTILINE)
    return {name: (int(ran), int(skipped), int(failed)) for ran, skipped, failed, name in rows}


def test_it_counts_runs_and_failures_and_keeps_the_output_of_failures(start: Start, tmp_path: Path):
    script = start("test_it.py", "test_it.py::test_left_out", "--times=3", "--burners=1")
    told, _ = script.communicate()
    assert script.returncode == 1
    assert counts(told) == {
        "test_of_which_every_second_run_fails": (3, 0, 1),
        "test_with_words[a b]": (3, 0, 0),
        "test_with_words[c::d]": (3, 0, 0),
        "test_left_out": (0, 3, 0),
        "test_that_waits": (3, 0, 0),
    }
    (kept,) = (tmp_path / "kept").glob("*/*/output.txt")
    assert "once too often" in kept.read_text()
    assert str(kept) in told


def test_files_of_one_name_in_several_folders_run_side_by_side(start: Start, tmp_path: Path):
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib\n")
    for folder in ("one", "other"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "test_same.py").write_text("def test_nothing():\n    pass\n")
    script = start("one", "other", "--times=2", "--workers=2", "--burners=1")
    told, _ = script.communicate()
    assert script.returncode == 0, told


def test_without_a_failure_it_succeeds_and_keeps_nothing(start: Start, tmp_path: Path):
    script = start("test_it.py::test_with_words", "--times=2", "--workers=2", "--burners=0")
    told, _ = script.communicate()
    assert script.returncode == 0
    assert set(counts(told)) == {"test_with_words[a b]", "test_with_words[c::d]"}
    assert set(counts(told).values()) == {(2, 0, 0)}
    assert list((tmp_path / "kept").iterdir()) == []


def test_tests_that_are_not_there_are_an_error(start: Start):
    script = start("test_other.py", "--burners=0")
    told, _ = script.communicate()
    assert script.returncode == 2
    assert "pytest finds no tests by: test_other.py" in told


def test_it_ends_its_burners_and_pieces_when_it_is_interrupted(start: Start, tmp_path: Path):
    (tmp_path / "waits").touch()
    script = start("test_it.py", "--times=5", "--burners=2")
    until((tmp_path / "begun").exists, "a test has begun")
    children = psutil.Process(script.pid).children()
    assert len(children) == 3  # a piece and two burners
    script.send_signal(signal.SIGINT)
    told, _ = script.communicate()
    assert script.returncode == 1
    assert all(is_gone(process) for process in children)
    assert counts(told)["test_that_waits"] == (0, 0, 0)
    assert counts(told)["test_with_words[a b]"] == (1, 0, 0)
    assert "did not run 5 times" in told


def test_burners_end_with_it_when_it_is_killed(start: Start, tmp_path: Path):
    (tmp_path / "waits").touch()
    script = start("test_it.py", "--times=1", "--burners=2")
    until((tmp_path / "begun").exists, "a test has begun")
    children = psutil.Process(script.pid).children()
    script.kill()
    (tmp_path / "waits").unlink()
    for process in children:
        until(lambda process=process: is_gone(process), "it has ended")
