"""Train a tiny model, stop at gates, and write down what happens.

In the folder --out: ``rankN.jsonl`` (start, suspended, resumed, end; with pid, attempt, step,
cores and time), ``stepN`` (one byte for each step begun), ``atS`` when step S waits for ``goS``,
and ``weights.pt`` at the end. With --until a training ends where it is as soon as a file
``enough`` is there.
"""

import argparse
import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import rota.train

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--steps", type=int, default=100)
parser.add_argument("--pace", type=float, default=0.004, help="seconds to idle in each step")
parser.add_argument("--gate", type=int, action="append", default=[], help="wait before this step")
parser.add_argument("--until", action="store_true", help="stop early if there is a file `enough`")
parser.add_argument("--linger", action="store_true", help="wait for goend after the session")
options = parser.parse_args()


def write(rank, what, **more):
    line = {"what": what, "pid": os.getpid(), "attempt": int(os.environ.get("ROTA_ATTEMPT", "0"))}
    line |= {"cores": sorted(os.sched_getaffinity(0)), "at_s": time.time(), **more}
    with open(options.out / f"rank{rank}.jsonl", "a") as file:
        file.write(json.dumps(line) + "\n")


def wait_for(gate):
    (options.out / f"at{gate}").touch()
    while not (options.out / f"go{gate}").exists():
        time.sleep(0.002)


def is_enough():
    """Whether a rank sees the file: all of them stop at the same step."""
    seen = torch.tensor((options.out / "enough").exists(), dtype=torch.int)
    if dist.is_initialized() and dist.get_world_size() > 1:
        dist.all_reduce(seen, dist.ReduceOp.MAX)
    return bool(seen)


def watch(s):
    await_resume = s._boundary.turn._await_resume

    def watched():
        write(s.rank, "suspended", step=s._progress.step)
        device = await_resume()
        write(s.rank, "resumed", step=s._progress.step)
        return device

    s._boundary.turn._await_resume = watched


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with rota.train.session() as s:
        write(s.rank, "start")
        if s._boundary.turn is not None:
            watch(s)
        net = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.Tanh(), nn.Linear(16, 1))
        optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
        model, optimizer = s.prepare(net, optimizer)
        for step in s.steps(options.steps):
            with open(options.out / f"step{s.rank}", "ab") as file:
                file.write(b".")
            if step in options.gate and s.rank == 0:
                wait_for(step)
            time.sleep(options.pace)
            x = torch.randn(16, 8)
            loss = (model(x) - x.sum(dim=1, keepdim=True)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            s.report(loss=loss.item(), samples=16)
            if options.until and is_enough():
                break
        if s.rank == 0:
            torch.save(net.state_dict(), options.out / "weights.pt")
    if options.linger:
        wait_for("end")
    write(s.rank, "end")


main()
