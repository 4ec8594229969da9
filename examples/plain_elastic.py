"""Train a multilayer perceptron on handwritten digits, epoch by epoch."""

import argparse

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--seed", type=int, default=0, help="of the weights and the data order")
    parser.add_argument("--save", metavar="PATH", help="write the final weights here")
    return parser.parse_args()


def load_data():
    """All images (n, 64) in [0, 1] with their labels."""
    images, labels = load_digits(return_X_y=True)
    return TensorDataset(torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels))


def build_model(width=1024):
    return nn.Sequential(
        nn.Linear(64, width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, 10),
    )


def train(args):
    torch.manual_seed(args.seed)
    model = build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    loader = DataLoader(load_data(), batch_size=args.batch_size, shuffle=True)

    for epoch in range(args.epochs):
        total = samples = 0
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            total, samples = total + loss.item() * len(x), samples + len(x)
            optimizer.step()
            optimizer.zero_grad()
        print(f"epoch {epoch + 1} loss {total / samples:.4f}", flush=True)

    if args.save:
        torch.save(model.state_dict(), args.save)


def main():
    torch.set_num_threads(1)
    args = parse_args()
    train(args)


if __name__ == "__main__":
    main()
