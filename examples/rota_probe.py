"""Look for the largest learning rate that a perceptron bears: it rises from step to step.

Submit it as probe.yaml says: in the background, where it uses what other jobs leave.
"""

import argparse

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

import rota.train

TELL_EVERY = 50


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=2000, help="from the first rate to the last")
    parser.add_argument("--first", type=float, default=0.0001, metavar="LR")
    parser.add_argument("--last", type=float, default=10.0, metavar="LR")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--seed", type=int, default=0, help="of the weights and the data order")
    return parser.parse_args()


def load_data(device):
    """All images (n, 64) in [0, 1], then their labels."""
    images, labels = load_digits(return_X_y=True)
    images = torch.tensor(images / 16, dtype=torch.float32)
    return images.to(device), torch.tensor(labels).to(device)


def build_model(width=512):
    return nn.Sequential(
        nn.Linear(64, width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, 10),
    )


@torch.no_grad()
def mean_loss(model, x, y):
    return F.cross_entropy(model(x), y).item()


def probe(args, s):
    torch.manual_seed(args.seed)
    x, y = load_data(s.device)
    model = build_model().to(s.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.first)
    model, optimizer = s.prepare(model, optimizer)

    for step in s.steps(args.steps):
        lr = args.first * (args.last / args.first) ** (step / args.steps)
        for group in optimizer.param_groups:
            group["lr"] = lr
        batch = torch.randint(len(x), (args.batch_size,))
        F.cross_entropy(model(x[batch]), y[batch]).backward()
        optimizer.step()
        optimizer.zero_grad()
        if (step + 1) % TELL_EVERY == 0:
            loss = mean_loss(model, x, y)
            s.report(lr=lr, loss=loss)
            print(f"lr {lr:.5f} loss {loss:.4f}", flush=True)


def main():
    torch.set_num_threads(1)
    args = parse_args()
    with rota.train.session() as s:
        probe(args, s)


if __name__ == "__main__":
    main()
