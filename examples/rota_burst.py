"""Train a convolutional network on handwritten digits, its wide linear layers on one rank alone.

Submit it as burst.yaml says. Rank 1 waits while rank 0 works on these layers: time for the job of
probe.yaml.
"""

import argparse

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.utils.data import TensorDataset

import rota.train

PLAN = {"6": 1, "8": 1}  # the linear layers have one rank, all others all


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0, help="of the weights and the data order")
    parser.add_argument("--plan", default=PLAN, metavar="PROFILE", help="of rota.burst.profile")
    parser.add_argument("--save", metavar="PATH", help="write the final weights here")
    return parser.parse_args()


def load_data():
    """Training and validation images (n, 1, 16, 16) with their labels; one fixed split."""
    images, labels = load_digits(return_X_y=True)
    images = torch.tensor(images / 16, dtype=torch.float32).view(-1, 1, 8, 8)
    images = F.interpolate(images, size=16, mode="bilinear")
    parts = train_test_split(images, torch.tensor(labels), test_size=0.3, random_state=0)
    return TensorDataset(parts[0], parts[2]), (parts[1], parts[3])


def build_model(channels=32, width=1024):
    """Much computing and few parameters first, few operations and many parameters then."""
    return nn.Sequential(
        nn.Conv2d(1, channels, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.Conv2d(channels, channels, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(channels * 8 * 8, width),
        nn.ReLU(),
        nn.Linear(width, 10),
    )


def make_model():
    """What `python -m rota.burst.profile rota_burst.py:make_model --batch 64` measures."""
    return build_model(), torch.randn(64, 1, 16, 16), lambda outputs: outputs.square().mean()


@torch.no_grad()
def accuracy(model, x, y):
    return (model(x).argmax(dim=1) == y).float().mean().item()


def train(args, s):
    torch.manual_seed(args.seed)
    training, validation = load_data()
    model = build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    model, optimizer = s.prepare(model, optimizer, reduction="burst", plan=args.plan)
    loader = s.loader(training, batch_size=args.batch_size, seed=args.seed)

    for epoch in s.epochs(args.epochs):
        for batch in loader:
            for x, y in batch:  # this rank's samples
                x, y = x.to(s.device), y.to(s.device)
                loss = F.cross_entropy(model(x), y)
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            s.report(loss=loss.item())
        if s.rank == 0:  # the only one that has all layers
            right = accuracy(model, *(each.to(s.device) for each in validation))
            print(f"epoch {epoch + 1} loss {loss.item():.4f} val_acc {right:.4f}", flush=True)

    if s.rank == 0 and args.save:
        torch.save(model.state_dict(), args.save)


def main():
    torch.set_num_threads(1)
    args = parse_args()
    with rota.train.session() as s:
        train(args, s)


if __name__ == "__main__":
    main()
