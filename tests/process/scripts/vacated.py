"""Train with batches that the program cuts itself, and all that goes with it, gates included.

In the folder --out: ``pidsN`` (a line for each process that rank N has been), ``atS`` when rank 0
waits in step S for ``goS``, with the number of ranks, and ``atS.N`` when rank N has come to that
step, ``endN.pt`` with all of the state at the end.
"""

import argparse
import os
import random
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import rota.train

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--steps", type=int, default=12)
parser.add_argument("--gate", type=int, action="append", default=[], help="wait in this step")
parser.add_argument("--hidden", type=int, default=16, help="width of the network")
parser.add_argument("--accumulate", type=int, default=1, help="steps to one of the optimiser")
parser.add_argument("--amp", action="store_true", help="bfloat16, and a gradient scaler")
parser.add_argument("--unprepared", action="store_true")
parser.add_argument("--ends-at-once", action="store_true", help="in its second life")
options = parser.parse_args()
RANK = int(os.environ.get("RANK", "0"))


def gate(number):
    if RANK != 0:
        (options.out / f"at{number}.{RANK}").touch()
        return
    draft = options.out / f"at{number}.new"
    draft.write_text(os.environ.get("WORLD_SIZE", "1"))
    draft.rename(options.out / f"at{number}")
    while not (options.out / f"go{number}").exists():
        time.sleep(0.002)


def train(s):
    net = nn.Sequential(
        nn.Linear(6, options.hidden),
        nn.BatchNorm1d(options.hidden),
        nn.ReLU(),
        nn.Dropout(0.2),
        nn.Linear(options.hidden, 3),
    )
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.5)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3, enabled=options.amp)
    model = net
    if not options.unprepared:
        model, *_ = s.prepare(net, optimizer, scheduler, scaler)
    for step in s.steps(options.steps):
        if step in options.gate:
            gate(step)
        x = torch.randn(12, 6) + random.random() + np.random.rand()
        y = torch.randint(3, (12,))
        with torch.autocast("cpu", torch.bfloat16, enabled=options.amp):
            loss = F.cross_entropy(model(x), y) / options.accumulate
        scaler.scale(loss).backward()
        if (step + 1) % options.accumulate == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            scheduler.step()
        s.report(loss=loss.item())
        s.save(trail=[*s.restore("trail", []), step], mean=x.mean())
    s.save(generator=None)
    state = s._training.replica.state() | {"next": [random.random(), np.random.rand()]}
    torch.save(state | {"torch": torch.rand(1)}, options.out / f"end{RANK}.pt")


torch.set_num_threads(1)
torch.manual_seed(RANK)
random.seed(RANK)
np.random.seed(RANK)
with open(options.out / f"pids{RANK}", "a") as file:
    print(os.getpid(), file=file)
if options.ends_at_once and len((options.out / f"pids{RANK}").read_text().split()) > 1:
    os._exit(7)
with rota.train.session() as session:
    train(session)
os._exit(0)  # without taking torch apart, which takes a second of computation
