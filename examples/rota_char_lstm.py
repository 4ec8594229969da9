"""Train an LSTM to predict the characters of Python's own standard library."""

import argparse
import sysconfig
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

import rota.train

CONTEXT = 64
EVAL_EVERY = 25


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=4000, help="upper bound on optimiser steps")
    parser.add_argument("--target", type=float, default=1.85, help="stop at this val_loss")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0, help="of the weights and the data order")
    parser.add_argument("--save", metavar="PATH", help="write the final weights here")
    return parser.parse_args()


def load_data(device):
    """The source of the top-level stdlib modules as ASCII codes: first nine tenths, last tenth."""
    modules = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    source = "".join(module.read_text(encoding="utf-8") for module in modules)
    codes = bytearray(source.encode("ascii", "replace"))
    text = torch.frombuffer(codes, dtype=torch.uint8).to(device)
    split = len(text) * 9 // 10
    return text[:split], text[split:]


def windows(text, starts):
    """Inputs and targets (len(starts), CONTEXT): the targets are the inputs' next characters."""
    index = starts[:, None] + torch.arange(CONTEXT + 1)
    chunk = text[index].long()
    return chunk[:, :-1], chunk[:, 1:]


def cross_entropy(model, x, y):
    return F.cross_entropy(model(x).flatten(0, 1), y.flatten())


@torch.no_grad()
def validation_loss(model, text):
    starts = torch.linspace(0, len(text) - CONTEXT - 1, 64).long()
    return cross_entropy(model, *windows(text, starts)).item()


class LSTM(nn.Module):
    def __init__(self, width=192):
        super().__init__()
        self.embed = nn.Embedding(128, 64)
        self.lstm = nn.LSTM(64, width, batch_first=True)
        self.head = nn.Linear(width, 128)

    def forward(self, x):
        hidden, _ = self.lstm(self.embed(x))
        return self.head(hidden)


def train(args, s):
    torch.manual_seed(args.seed)
    device = s.device
    train_text, val_text = load_data(device)
    model = LSTM().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model, optimizer = s.prepare(model, optimizer)

    done = 0
    for step in s.steps(args.steps):
        starts = torch.randint(len(train_text) - CONTEXT, (args.batch_size,))
        loss = cross_entropy(model, *windows(train_text, starts))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        s.report(loss=loss.item(), samples=args.batch_size)

        done = step + 1
        if done % EVAL_EVERY == 0:
            val_loss = validation_loss(model, val_text)
            s.report(val_loss=val_loss)
            print(f"step {done} loss {loss.item():.4f} val_loss {val_loss:.3f}", flush=True)
            if val_loss <= args.target:
                break

    val_loss = validation_loss(model, val_text)
    if val_loss <= args.target:
        print(f"reached val_loss {val_loss:.3f} <= {args.target:.3f} after {done} steps")
    else:
        print(f"stopped at val_loss {val_loss:.3f} > {args.target:.3f} after {done} steps")
    if args.save:
        torch.save(model.state_dict(), args.save)


def main():
    # One thread a worker is fastest when several workers share the cores.
    torch.set_num_threads(1)
    args = parse_args()
    with rota.train.session() as s:
        train(args, s)


if __name__ == "__main__":
    main()
