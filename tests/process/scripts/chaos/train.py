"""Train a tiny model; each step is in the ledger with a checksum of the weights before it.

--draw says where the batches come from: a random ``stream`` that only lives in the process, the
number of the ``step``, or a ``loader`` whose batches any number of ranks can share. The weights
before each step are the same however often the training is suspended, moved, resized or begun
anew.
"""

import argparse
import os
import sys
import time
import traceback
import zlib

import torch
import torch.nn.functional as F
from ledger import Ledger
from torch import nn
from torch.utils.data import TensorDataset

import rota.train

SAMPLES, BATCH = 53, 12


def checksum(model):
    """Of all weights, bit for bit."""
    return zlib.crc32(b"".join(p.detach().numpy().tobytes() for p in model.parameters()))


def rows():
    """What the loader draws from."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(SAMPLES, 8, generator=generator)
    return TensorDataset(x, x.sum(dim=1, keepdim=True))


def train(options):
    """One whole training."""
    ledger = Ledger()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dropout = nn.Dropout(0.0 if options.adapt else 0.1)
    model = nn.Sequential(nn.Linear(8, 16), dropout, nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    with rota.train.session() as s:
        ledger.write("begin")
        wrapped, optimizer = s.prepare(model, optimizer)
        if options.draw == "loader":
            sizes = {"adapt": True} if options.adapt else {"shards": 4}
            s.loader(rows(), batch_size=BATCH, seed=3, **sizes)
        for step in s.steps(options.steps):
            rehearses = s._member.rehearses
            ledger.write("rehearse" if rehearses else "step", step, weights=checksum(model))
            time.sleep(options.pace)
            loss, samples = one_step(options, s, step, wrapped, optimizer)
            s.report(loss=loss, samples=samples)
            every = options.checkpoint_every
            if every and step % every == every - 1 and not rehearses:
                ledger.write("saving", step + 1)
                s.checkpoint()
                ledger.write("saved", step + 1)
    ledger.write("end", 0, weights=checksum(model), steps=options.steps)


def one_step(options, s, step, model, optimizer):
    """One step of the optimiser; the loss, and how many samples it was of."""
    if options.draw == "loader":
        total = samples = 0
        for x, y in s.next_batch():
            loss = F.mse_loss(model(x), y)
            loss.backward()
            total, samples = total + loss.item() * len(x), samples + len(x)
        optimizer.step()
        optimizer.zero_grad()
        return total / max(1, samples), samples
    if options.draw == "step":
        torch.manual_seed(step)
    x = torch.randn(16, 8)
    loss = F.mse_loss(model(x), x.sum(dim=1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item(), 16


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--draw", choices=["stream", "step", "loader"], default="stream")
    parser.add_argument("--adapt", action="store_true", help="batches as the policy wants them")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--pace", type=float, default=0.02, help="seconds to idle in each step")
    parser.add_argument("--checkpoint-every", type=int, default=0, help="in steps")
    train(parser.parse_args())


try:
    main()
except SystemExit:
    raise
except BaseException:
    traceback.print_exc()
    sys.stderr.flush()
    os._exit(1)  # without taking torch apart, and without waiting for other ranks
