"""A program that has come to its end leaves in order, without taking its modules apart."""

import subprocess
import sys

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
