"""A program that has come to its end leaves in order, without taking its modules apart."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import atexit, sys, threading, time
from rota.train.zygote import leave
class Unending:
    def __del__(self):
        print("taken apart")
kept = Unending()
atexit.register(print, "exit function")
threading.Thread(target=lambda: (time.sleep(0.1), print("thread"))).start()
sys.stdout.write("unfinished line")
leave(0)
"""


def run(stdout=subprocess.PIPE):
    command = [sys.executable, "-c", PROGRAM]
    return subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, check=False)


def test_threads_exit_functions_and_output_come_first():
    done = run()
    assert done.returncode == 0
    assert done.stdout == "unfinished linethread\nexit function\n"


def test_output_that_can_not_be_written_is_still_an_error():
    with open("/dev/full", "w") as full:
        assert run(full).returncode != 0


FAILING = """
import sys
from rota.train.zygote import exit_code
request = {"python": sys.argv[1:], "cpus": None, "groups": [], "env": {}, "workdir": "."}
sys.exit(exit_code(request))
"""
TOLD = """Traceback (most recent call last):
  File "{path}", line 4, in <module>
    f()
  File "{path}", line 3, in f
    1 / 0
ZeroDivisionError: division by zero
"""


@pytest.mark.parametrize("how", [("bad.py",), ("-m", "bad")])
def test_the_traceback_of_a_program_begins_at_its_first_frame(tmp_path, how):
    (tmp_path / "bad.py").write_text("\ndef f():\n    1 / 0\nf()\n")
    command = [sys.executable, "-c", FAILING, *how]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    path = "bad.py" if how == ("bad.py",) else os.path.join(tmp_path, "bad.py")
    lines = [line for line in done.stderr.splitlines() if set(line) - set(" ^~")]
    assert (done.returncode, "\n".join(lines) + "\n") == (1, TOLD.format(path=path))


def test_a_program_that_can_not_be_compiled_is_told_without_frames(tmp_path):
    (tmp_path / "bad.py").write_text("f(\n")
    command = [sys.executable, "-c", FAILING, "bad.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "zygote" not in done.stderr and "runpy" not in done.stderr
    assert "SyntaxError" in done.stderr
