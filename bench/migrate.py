"""What it costs to move a training to another node, by the size of its model.

    python bench/migrate.py [--millions 1 25 100] [--times 6]

A training moves to and fro between two nodes of this machine, through a live cluster. Printed as
median with minimum and maximum: from the command until the job ran on the other node, and of that
the time until its state was there and checked (its processes write it down, it is sent by way of
the controller in pieces, and read once more). Beside it, in turn with the moves: a copy of as many
bytes from one file in memory to a new one, which is what the memory allows.
"""

import argparse
import os
import re
import shutil
import tempfile
import time
from pathlib import Path
from statistics import median

from rota.client.client import Client
from rota.demo.cluster import private_cluster
from rota.folder import Folder
from rota.model.commands import Migrate
from rota.model.events import CommandSent, JobResumed
from rota.store.events import EventStore

SCRIPT = """
import math, sys, torch, rota.train
torch.set_num_threads(1)
width = int(math.sqrt(float(sys.argv[1]) * 1e6 / 4))
with rota.train.session() as s:
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width, bias=False) for _ in range(4)))
    model, optimizer = s.prepare(model, torch.optim.AdamW(model.parameters()))
    for _ in s.steps():
        loss = model(torch.randn(8, width, device=s.device)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        s.report(loss=loss.item(), samples=8)
"""
HOLD = "while :; do sleep 0.1; done"
ARRIVED = re.compile(r"job (\S+)\.1: (\d+) bytes from \S+ in ([0-9.]+) s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--millions", type=float, nargs="+", default=[1, 25, 100])
    parser.add_argument("--times", type=int, default=6)
    options = parser.parse_args()
    print(f"{'parameters':>12}{'bytes':>10}{'move ms (min, max)':>30}", end="")
    print(f"{'until it is there':>30}{'MB/s':>8}{'copy in memory ms':>30}{'there/copy':>12}")
    for millions in options.millions:
        with tempfile.TemporaryDirectory(prefix="rota-bench-") as folder:
            measure(Path(folder), millions, options.times)


def measure(folder: Path, millions: float, times: int) -> None:
    (folder / "train.py").write_text(SCRIPT)
    home = folder / "home"
    copies_s: list[float] = []
    with private_cluster(home, "fifo-backfill", {}, 1, nodes=2) as client:
        run = f"python train.py {millions}"
        job = client.submit({"run": run, "start": "warm", "workdir": str(folder)})["id"]
        for _ in range(times):
            wait_for(client, job, "RUNNING", steps=2)
            client.suspend(job)
            wait_for(client, job, "SUSPENDED")
            blocker = occupy(client, client.job(job)["state_on"], folder)
            client.resume(job)
            wait_for(client, job, "RUNNING")
            client.cancel(blocker)
            client.wait(blocker)
            copies_s.append(copy(arrivals(home, job)[-1][0]))
        client.cancel(job)
        client.wait(job)
    moves_s = read_moves(home, job)
    there = [seconds for _, seconds in arrivals(home, job)]
    size = arrivals(home, job)[-1][0]
    rate = size / 1e6 / median(there)
    print(
        f"{millions:>10g} M{size / 1e9:>7.2f} GB{spread(moves_s):>30}{spread(there):>30}"
        f"{rate:>8.0f}{spread(copies_s):>30}{median(there) / median(copies_s):>12.1f}"
    )


def occupy(client: Client, node: str, folder: Path) -> str:
    """A job that holds this node's slot; it gets there when those before it hold the others."""
    held = []
    while True:
        job = client.submit({"run": HOLD, "workdir": str(folder), "name": "hold"})["id"]
        wait_for(client, job, "RUNNING")
        if client.job(job)["gpus"][0]["node"] == node:
            break
        held.append(job)
    for other in held:
        client.cancel(other)
        client.wait(other)
    return str(job)


def copy(size: int) -> float:
    """Seconds to copy so many bytes from one file in memory to a new one."""
    with tempfile.TemporaryDirectory(prefix="rota-bench-", dir="/dev/shm") as folder:
        source = Path(folder, "source")
        with open(source, "wb") as file:
            piece = os.urandom(1 << 20)
            for _ in range(size >> 20):
                file.write(piece)
        began_s = time.perf_counter()
        shutil.copyfile(source, Path(folder, "copy"))
        return time.perf_counter() - began_s


def arrivals(home: Path, job: str) -> list[tuple[int, float]]:
    """Bytes and seconds of each arrival of the job, as the agents noted them."""
    found = []
    for log in home.glob("nodes/*/agent.log"):
        for line in log.read_text().splitlines():
            match = ARRIVED.search(line)
            if match and match[1] == job:
                found.append((line[:23], int(match[2]), float(match[3])))
    return [(size, seconds) for _, size, seconds in sorted(found)]


def read_moves(home: Path, job: str) -> list[float]:
    """Seconds from each command to move the job until it ran."""
    store, row = EventStore(Folder(home).database), int(job) - 1
    sent_s, seconds = None, []
    try:
        for event in store.load():
            if isinstance(event, CommandSent) and event.command.row == row:
                sent_s = event.at_s if isinstance(event.command, Migrate) else None
            elif isinstance(event, JobResumed) and event.row == row and sent_s is not None:
                seconds.append(event.at_s - sent_s)
    finally:
        store.close()
    return seconds


def wait_for(client: Client, job: str, state: str, steps: int = 0) -> None:
    """Wait for a state, and in it for so many more steps than were reported before."""
    goal = None
    while True:
        now = client.job(job)
        if now["state"] == "FAILED":
            raise SystemExit("".join(client.logs(job)))
        if now["state"] == state:
            step = now["progress"].get("step") or 0
            goal = step + steps if goal is None else goal
            if step >= goal:
                return
        time.sleep(0.01)


def spread(seconds: list[float]) -> str:
    """Median, minimum and maximum in milliseconds."""
    values = [1e3 * value for value in seconds]
    return f"{median(values):.0f} ({min(values):.0f}, {max(values):.0f})"


if __name__ == "__main__":
    main()
