"""A call of a flow job that was suspended because it was idle, from the call to its result.

    python bench/idle_calls.py [--megabytes 0 64 512] [--rounds 7]

A program holds a flow job on one slot of `rota up`, with an array of so many megabytes there. In
turn, it calls an addition while the job runs, and once the job has been suspended with the reason
IDLE. Printed in ms as median of the rounds with minimum and maximum.
"""

import argparse
import os
import tempfile
import time
from pathlib import Path
from statistics import median

import torch

from rota import flow
from rota.client.client import Client
from rota.experiment.runs.live import cluster

IDLE_S = 1.0
LOOK_EVERY_S = 0.05


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, nargs="+", default=[0, 64, 512])
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        cluster(Path(folder, "home"), gpus=1, policy="fifo"),
    ):
        os.environ["ROTA_HOME"] = str(Path(folder, "home"))
        for megabytes in options.megabytes:
            running, idle = measured(megabytes, options.rounds)
            print(f"{megabytes:>5} MB  running {in_words(running)}  idle {in_words(idle)}")


def measured(megabytes: int, rounds: int) -> tuple[list[float], list[float]]:
    """The times of calls while the job runs, and while it is suspended, in ms."""
    running, idle = [], []
    with flow.connect(gpus=1, idle_s=IDLE_S) as client, Client() as controller:
        one = client.slice(1)
        add = one.function("torch:neg")
        kept = one.put(torch.zeros(max(1, megabytes * 250_000)))
        x = one.put(torch.zeros(1))
        add(x).result()
        job = controller.job("@last")["id"]
        for _ in range(rounds):
            running.append(call_ms(add, x))
            while controller.job(job)["state"] != "SUSPENDED":
                time.sleep(LOOK_EVERY_S)
            idle.append(call_ms(add, x))
        kept.free()
    return running, idle


def call_ms(function: flow.Function, x: flow.ShardedBuffer) -> float:
    """From a call to its result."""
    began_s = time.perf_counter()
    function(x).result()
    return 1000 * (time.perf_counter() - began_s)


def in_words(times: list[float]) -> str:
    """Median, minimum and maximum."""
    return f"{median(times):7.1f} ({min(times):.1f}, {max(times):.1f})"


if __name__ == "__main__":
    main()
