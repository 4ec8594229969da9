"""Train as a trial of a search, report the metric in every step, and write down what was reported.

In the folder --out: ``told.jsonl`` ([step, value or null] of each report that rank 0 makes),
``atS`` when step S waits for ``goS``, ``params`` as the session gives them, and ``heldS`` with the
process that waits in step S for its end. With --until a training ends as soon as a file ``enough``
is there.
"""

import argparse
import errno
import json
import math
import os
import time
from pathlib import Path

import torch
from torch.utils.data import TensorDataset

import rota.train
from rota.train import curve

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--steps", type=int, default=30)
parser.add_argument("--gate", type=int, action="append", default=[], help="wait after this report")
parser.add_argument("--until", action="store_true", help="stop early if there is a file `enough`")
parser.add_argument("--nan-at", type=int, default=-1)
parser.add_argument("--checkpoint-at", type=int, default=-1, help="in this step")
parser.add_argument("--before", action="store_true", help="report before the first step, too")
parser.add_argument("--pace", type=float, default=0.002, help="seconds to idle in each step")
parser.add_argument("--loader", action="store_true", help="of an elastic gang")
parser.add_argument("--full-from", type=int, default=-1, help="the disk, for reports to the end")
options = parser.parse_args()


class FullDisk:
    """As ``os``, but for what is written."""

    def write(self, descriptor, data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def __getattr__(self, name):
        return getattr(os, name)


def value_of(s, step):
    """Another one in each attempt, so that it shows of which one a report is."""
    if step == options.nan_at:
        return math.nan
    return s.params["lr"] * step + 100 * int(os.environ["ROTA_ATTEMPT"])


def tell(s, step):
    value = value_of(s, step)
    if s.rank == 0:
        with open(options.out / "told.jsonl", "a") as file:
            file.write(json.dumps([step, None if math.isnan(value) else value]) + "\n")
    s.report(val_acc=torch.tensor(value, dtype=torch.float64), loss=1.0)


def wait_for(gate):
    (options.out / f"at{gate}").touch()
    while not (options.out / f"go{gate}").exists():
        time.sleep(0.002)


def hold(s, step):
    """If there is a file ``hold``, rank 0 waits for its end, and says where it is."""
    if s.rank == 0 and (options.out / "hold").exists():
        (options.out / f"held{step}").write_text(str(os.getpid()))
        while True:  # it is killed
            time.sleep(0.002)


def main():
    torch.manual_seed(0)
    with rota.train.session() as s:
        (options.out / "params").write_text(json.dumps(s.params))
        net = torch.nn.Linear(4, 1)
        sgd = torch.optim.SGD(net.parameters(), lr=0.01)
        net, sgd = s.prepare(net, sgd)
        if options.loader:
            data = TensorDataset(torch.ones(80, 4), torch.ones(80, 1))
            s.loader(data, batch_size=8, shards=4)
        if options.before:
            s.report(val_acc=-1.0)
        for step in s.steps(options.steps):
            pieces = s.next_batch() if options.loader else [(torch.ones(8, 4), torch.ones(8, 1))]
            for x, y in pieces:
                (net(x) - y).square().mean().backward()
            sgd.step()
            sgd.zero_grad()
            if step == options.full_from:
                curve.os = FullDisk()
            tell(s, step)
            if step in options.gate and s.rank == 0:
                wait_for(step)
            hold(s, step)
            if step == options.checkpoint_at:
                s.checkpoint()
            if options.until and (options.out / "enough").exists():
                break
            time.sleep(options.pace)


main()
