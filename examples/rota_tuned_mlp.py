"""Train a multilayer perceptron on handwritten digits with given hyper-parameters.

Submit a search for the best of them as sweep.yaml says.
"""

import argparse

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.utils.data import TensorDataset

import rota.train


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--momentum", type=float, default=0.0)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0, help="of the weights and the data order")
    return parser.parse_args()


def load_data():
    """Training and validation images (n, 64) in [0, 1], then their labels; one fixed split."""
    images, labels = load_digits(return_X_y=True)
    images = torch.tensor(images / 16, dtype=torch.float32)
    labels = torch.tensor(labels)
    return train_test_split(images, labels, test_size=0.3, random_state=0)


def build_model(width):
    return nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))


@torch.no_grad()
def accuracy(model, x, y):
    return (model(x).argmax(dim=1) == y).float().mean().item()


def train(args, s):
    """Train, and report the validation accuracy after each epoch."""
    torch.manual_seed(args.seed)
    x_train, x_val, y_train, y_val = load_data()
    model = build_model(args.width)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=args.momentum)
    model, optimizer = s.prepare(model, optimizer)
    dataset = TensorDataset(x_train, y_train)
    loader = s.loader(dataset, batch_size=32, shards=1, seed=args.seed)

    for epoch in s.epochs(args.epochs):
        for batch in loader:
            for x, y in batch:
                loss = F.cross_entropy(model(x.to(s.device)), y.to(s.device))
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        val_acc = accuracy(model, x_val.to(s.device), y_val.to(s.device))
        print(f"epoch {epoch + 1} val_acc {val_acc:.3f}", flush=True)
        s.report(val_acc=val_acc)


def main():
    torch.set_num_threads(1)
    with rota.train.session() as s:
        train(parse_args(), s)


if __name__ == "__main__":
    main()
