"""Train a convolutional network on digits of which some are mislabelled, to a target accuracy.

Submit it as adaptive.yaml says: how many ranks it has, and how large its batches are, is chosen for
what it learns in a second.
"""

import argparse

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

import rota.train


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=200, help="at most so many")
    parser.add_argument("--target", type=float, default=0.95, help="validation accuracy")
    parser.add_argument("--batch-size", type=int, default=16, help="that the rate is tuned for")
    parser.add_argument("--lr", type=float, default=0.0002)
    parser.add_argument("--wrong", type=float, default=0.1, help="part of the labels, by chance")
    parser.add_argument("--seed", type=int, default=0, help="of the weights and the data order")
    return parser.parse_args()


def load_data(wrong, num_validation=360):
    """The images (n, 1, 8, 8) in [0, 1] with their labels: for training, and for validation."""
    images, labels = load_digits(return_X_y=True)
    x = torch.tensor(images / 16, dtype=torch.float32).view(-1, 1, 8, 8)
    y = torch.tensor(labels)
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(len(x), generator=generator)
    training, validation = order[num_validation:], order[:num_validation]
    other = torch.randint(10, training.shape, generator=generator)
    mislabelled = torch.rand(training.shape, generator=generator) < wrong
    labels = torch.where(mislabelled, other, y[training])
    return TensorDataset(x[training], labels), (x[validation], y[validation])


def build_model(channels=8):
    return nn.Sequential(
        nn.Conv2d(1, channels, 3, padding=1),
        nn.BatchNorm2d(channels),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(channels, 2 * channels, 3, padding=1),
        nn.BatchNorm2d(2 * channels),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(2 * channels * 16, 10),
    )


def accuracy(model, x, y):
    model.eval()
    with torch.no_grad():
        right = (model(x).argmax(1) == y).float().mean().item()
    model.train()
    return right


def train(args, s):
    torch.manual_seed(args.seed)
    training, validation = load_data(args.wrong)
    model = build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    model, optimizer = s.prepare(model, optimizer)
    # Where batches adapt they are cut anew, else into two pieces: as many as there may be ranks.
    loader = s.loader(training, batch_size=args.batch_size, shards=2, seed=args.seed)

    for epoch in s.epochs(args.epochs):
        for batch in loader:
            for x, y in batch:  # this rank's pieces of the batch
                x, y = x.to(s.device), y.to(s.device)
                loss = F.cross_entropy(model(x), y)
                loss.backward()
            optimizer.step()  # with the learning rate for a batch of this size
            optimizer.zero_grad()
            s.report(loss=loss.item())
        with s.evaluate():
            right = accuracy(model, *(each.to(s.device) for each in validation))
        s.report(val_acc=right)
        if s.rank == 0:
            batch_size = f"batches of {loader.batch_size} on {s.world_size}"
            print(f"epoch {epoch + 1} val_acc {right:.4f}, {batch_size}", flush=True)
        if right >= args.target:
            break


def main():
    torch.set_num_threads(1)
    args = parse_args()
    with rota.train.session() as s:
        train(args, s)


if __name__ == "__main__":
    main()
