"""What ``rota.train`` adds to a step, measured side by side in one process.

    python bench/overhead.py [--step-ms 10] [--rounds 60]

A step of fixed work runs in a plain loop and in a session that reports every step to an agent over
a real socket, in turn. Printed: microseconds added per step (median of the rounds, minimum,
maximum) and its part of the step (target: below 1 % of a 10 ms step), for the whole and for the
session's own calls without any work around them.
"""

import argparse
import os
import socket
import tempfile
import threading
import time
from pathlib import Path
from statistics import median

import rota.train

BARE_STEPS = 20_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--step-ms", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=60)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rota-") as folder:
        os.environ |= {"ROTA_AGENT_SOCKET": listen(Path(folder) / "s"), "ROTA_JOB_ID": "1"}
        loops = calibrate(options.step_ms / 1e3)
        steps = max(10, round(200 / options.step_ms))
        added, bare = [], []
        for _ in range(options.rounds):
            plain_s = plain(steps, loops)
            added.append((with_session(steps, loops) - plain_s) / steps)
        for _ in range(15):
            bare.append((with_session(BARE_STEPS, 0) - plain(BARE_STEPS, 0)) / BARE_STEPS)
    for name, values in (("whole step", added), ("session's own calls", bare)):
        us = [1e6 * value for value in values]
        part = median(us) / (1e3 * options.step_ms)
        print(
            f"{name}: {median(us):.1f} us a step (min {min(us):.1f}, max {max(us):.1f}), "
            f"{part:.3%} of {options.step_ms:g} ms"
        )


def listen(path: Path) -> str:
    """A socket that reads and drops whatever comes."""
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(path))
    server.listen()

    def serve() -> None:
        while True:
            connection, _ = server.accept()
            threading.Thread(target=drain, args=(connection,), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    return str(path)


def drain(connection: socket.socket) -> None:
    while connection.recv(1 << 16):
        pass


def calibrate(seconds: float) -> int:
    """How many turns of ``work`` take so long."""
    turns = 1000
    while True:
        began = time.process_time()
        work(turns)
        took = time.process_time() - began
        if took > 0.05:
            return max(1, round(turns * seconds / took))
        turns *= 2


def work(turns: int) -> float:
    total = 0.0
    for number in range(turns):
        total += number * 0.5
    return total


def plain(steps: int, loops: int) -> float:
    began = time.process_time()
    for _ in range(steps):
        work(loops)
    return time.process_time() - began


def with_session(steps: int, loops: int) -> float:
    with rota.train.session() as s:
        began = time.process_time()
        for _ in s.steps(steps):
            loss = work(loops)
            s.report(loss=loss, samples=32)
        return time.process_time() - began


if __name__ == "__main__":
    main()
