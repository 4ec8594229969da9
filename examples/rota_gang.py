"""Train a multilayer perceptron on handwritten digits with data-parallel ranks.

Submit it with two devices: Rota starts one rank on each.
"""

import argparse

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

import rota.train

EVAL_EVERY = 25


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300, help="upper bound on optimiser steps")
    parser.add_argument("--target", type=float, default=0.95, help="stop at this val_acc")
    parser.add_argument("--batch-size", type=int, default=128, help="of all ranks together")
    parser.add_argument("--seed", type=int, default=0, help="of the weights and the data order")
    parser.add_argument("--save", metavar="PATH", help="write the final weights here")
    return parser.parse_args()


def load_data(device):
    """Training and validation images (n, 64) in [0, 1], then their labels; one fixed split."""
    images, labels = load_digits(return_X_y=True)
    images = torch.tensor(images / 16, dtype=torch.float32)
    labels = torch.tensor(labels)
    split = train_test_split(images, labels, test_size=0.3, random_state=0)
    return [part.to(device) for part in split]


def build_model(width=1024):
    return nn.Sequential(
        nn.Linear(64, width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, 10),
    )


@torch.no_grad()
def accuracy(net, x, y):
    return (net(x).argmax(dim=1) == y).float().mean().item()


def train(args, s):
    torch.manual_seed(args.seed)
    device = s.device
    x_train, x_val, y_train, y_val = load_data(device)
    net = build_model().to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    model, optimizer = s.prepare(net, optimizer)

    done = 0
    for step in s.steps(args.steps):
        # Every rank draws the same batch and keeps its own share of it.
        batch = torch.randint(len(x_train), (args.batch_size,))[s.rank :: s.world_size]
        loss = F.cross_entropy(model(x_train[batch]), y_train[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        s.report(loss=loss.item(), samples=len(batch))

        done = step + 1
        if done % EVAL_EVERY == 0:
            # The ranks hold the same weights, so they agree on when to stop.
            val_acc = accuracy(net, x_val, y_val)
            s.report(val_acc=val_acc)
            if s.rank == 0:
                print(f"step {done} loss {loss.item():.4f} val_acc {val_acc:.3f}", flush=True)
            if val_acc >= args.target:
                break

    if s.rank == 0:
        val_acc = accuracy(net, x_val, y_val)
        if val_acc >= args.target:
            print(f"reached val_acc {val_acc:.3f} >= {args.target:.3f} after {done} steps")
        else:
            print(f"stopped at val_acc {val_acc:.3f} < {args.target:.3f} after {done} steps")
        if args.save:
            torch.save(net.state_dict(), args.save)


def main():
    # One thread a worker is fastest when several workers share the cores.
    torch.set_num_threads(1)
    args = parse_args()
    with rota.train.session() as s:
        train(args, s)


if __name__ == "__main__":
    main()
