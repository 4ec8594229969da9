"""A program that Rota knows nothing of: it counts into the ledger, and ends as it was told to."""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from beats import beat
from ledger import Ledger

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=50, help="-1: without end")
parser.add_argument("--pace", type=float, default=0.02, help="seconds to idle in each step")
parser.add_argument("--exit", type=int, default=0, help="the exit code")
parser.add_argument("--die", type=int, default=0, help="the signal to die of")
parser.add_argument("--deaf", action="store_true", help="ignore SIGTERM")
parser.add_argument("--own", action="store_true", help="save on SIGTERM, and go on from there")
parser.add_argument("--family", action="store_true", help="start a child and a daemon")
parser.add_argument("--hide", action="store_true", help="start a daemon without an environment")
parser.add_argument("--talk", type=int, default=0, help="lines to print in each step")
options = parser.parse_args()
ledger = Ledger()
asked = []


def start_family():
    """A child in this process's group, and a daemon with a session and a group of its own."""
    if os.fork() == 0:
        beat(ledger.path, ledger.who)
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            beat(ledger.path, ledger.who)
        os._exit(0)
    os.wait()
    subprocess.Popen(["sleep", "1000"], start_new_session=True)


def start_hidden():
    """A daemon that has left the session, the group and the environment that it was started in."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.chdir("/")
            beats = str(Path(__file__).with_name("beats.py"))
            words = [sys.executable, beats, ledger.path, json.dumps(ledger.who)]
            os.execve(sys.executable, words, {})
        os._exit(0)
    os.wait()


def saved():
    return Path(os.environ["ROTA_CHECKPOINT_DIR"], "count")


def save(count):
    draft = saved().with_suffix(".new")
    draft.write_text(str(count))
    ledger.write("saving", count)
    os.replace(draft, saved())
    ledger.write("saved", count)


if options.deaf:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if options.own:
    signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
count = int(saved().read_text()) if options.own and saved().exists() else 0
ledger.write("begin", count)
if options.family:
    start_family()
if options.hide:
    start_hidden()
while count != options.steps:
    ledger.write("step", count)
    for line in range(options.talk):
        print(f"step {count} line {line}: " + "x" * 100)
    time.sleep(options.pace)
    count += 1
    if asked:
        save(count)
        sys.exit(0)
if options.own:
    save(count)
if options.die:
    ledger.write("end", -options.die)
    signal.signal(options.die, signal.SIG_DFL)
    os.kill(os.getpid(), options.die)
ledger.write("end", options.exit)
sys.exit(options.exit)
