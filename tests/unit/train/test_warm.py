"""A program in a fork of the warm process ends as an interpreter does, and tells errors as one."""

import os
import subprocess
import sys

import pytest

RUN = """
import sys
from rota.train.warm import run_python
sys.exit(run_python(["python", *sys.argv[1:]]))
"""


def run(folder, source, *, words=("program.py",), stdout=subprocess.PIPE):
    (folder / "program.py").write_text(source)
    command = [sys.executable, "-c", RUN, *words]
    return subprocess.run(
        command, cwd=folder, stdout=stdout, stderr=subprocess.PIPE, text=True, check=False
    )


PROGRAM = """
import atexit, sys, threading, time
class Kept:
    def __del__(self):
        print("taken apart")
kept = Kept()
atexit.register(print, "exit function")
threading.Thread(target=lambda: (time.sleep(0.1), print("thread"))).start()
rows = open("rows", "w")
rows.write("unfinished")
sys.stdout.write("unfinished line ")
"""


def test_threads_exit_functions_finalisers_and_files_come_to_their_end(tmp_path):
    done = run(tmp_path, PROGRAM)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "unfinished line thread\nexit function\ntaken apart\n"
    assert (tmp_path / "rows").read_text() == "unfinished"


def test_output_that_can_not_be_written_is_still_an_error(tmp_path):
    with open("/dev/full", "w") as full:
        assert run(tmp_path, PROGRAM, stdout=full).returncode != 0


@pytest.mark.parametrize("words", [("program.py",), ("-m", "program")])
def test_a_traceback_is_that_of_python(tmp_path, words):
    source = "\ndef f():\n    1 / 0\nf()\n"
    done = run(tmp_path, source, words=words)
    plain = subprocess.run(
        [sys.executable, *words], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (plain.returncode, plain.stderr)
    assert done.returncode == 1


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("f(\n", ("program.py",)),
        ("pass", (f"no{os.sep}such.py",)),
        ("exit('why')", ("program.py",)),
    ],
    ids=["not compiled", "not there", "exit with words"],
)
def test_what_can_not_begin_or_ends_with_words_is_told_as_by_python(tmp_path, source, words):
    done = run(tmp_path, source, words=words)
    plain = subprocess.run(
        [sys.executable, *words], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (plain.returncode, plain.stderr)
