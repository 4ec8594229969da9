"""Look for the largest learning rate that a perceptron bears: it rises from step to step."""

import argparse

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

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


def probe(args):
    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    x, y = load_data(device)
    model = build_model().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.first)

    for step in range(args.steps):
        lr = args.first * (args.last / args.first) ** (step / args.steps)
        for group in optimizer.param_groups:
            group["lr"] = lr
        batch = torch.randint(len(x), (args.batch_size,))
        F.cross_entropy(model(x[batch]), y[batch]).backward()
        optimizer.step()
        optimizer.zero_grad()
        if (step + 1) % TELL_EVERY == 0:
            print(f"lr {lr:.5f} loss {mean_loss(model, x, y):.4f}", flush=True)


def main():
    torch.set_num_threads(1)
    probe(parse_args())


if __name__ == "__main__":
    main()
