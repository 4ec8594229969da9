"""Train a small GPT to predict the characters of Python's own standard library."""

import argparse
import sysconfig
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

CONTEXT = 64
EVAL_EVERY = 25


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=2000, help="upper bound on optimiser steps")
    parser.add_argument("--target", type=float, default=1.95, help="stop at this val_loss")
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


class GPT(nn.Module):
    def __init__(self, width=80, layers=3, heads=4):
        super().__init__()
        self.embed = nn.Embedding(128, width)
        self.position = nn.Parameter(torch.randn(CONTEXT, width))
        layer = nn.TransformerEncoderLayer(
            width,
            heads,
            4 * width,
            dropout=0.0,
            activation="gelu",
            batch_first=True,
            norm_first=True,
        )
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 128))

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(CONTEXT, device=x.device)
        hidden = self.encoder(self.embed(x) + self.position, mask=mask, is_causal=True)
        return self.head(hidden)


def train(args):
    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train_text, val_text = load_data(device)
    model = GPT().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    done = 0
    for step in range(args.steps):
        starts = torch.randint(len(train_text) - CONTEXT, (args.batch_size,))
        loss = cross_entropy(model, *windows(train_text, starts))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

        done = step + 1
        if done % EVAL_EVERY == 0:
            val_loss = validation_loss(model, val_text)
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
    train(args)


if __name__ == "__main__":
    main()
