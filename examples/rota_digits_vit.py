"""Train a small vision transformer on scikit-learn's handwritten digits."""

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
    parser.add_argument("--steps", type=int, default=4000, help="upper bound on optimiser steps")
    parser.add_argument("--target", type=float, default=0.93, help="stop at this val_acc")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0, help="of the weights and the data order")
    parser.add_argument("--save", metavar="PATH", help="write the final weights here")
    return parser.parse_args()


def load_data(device):
    """Training and validation images (n, 8, 8) in [0, 1], then their labels; one fixed split."""
    images, labels = load_digits(return_X_y=True)
    images = torch.tensor(images / 16, dtype=torch.float32).view(-1, 8, 8)
    labels = torch.tensor(labels)
    split = train_test_split(images, labels, test_size=0.3, random_state=0)
    return [part.to(device) for part in split]


class ViT(nn.Module):
    """Sixteen 2x2 patches, a few pre-norm encoder layers, the mean of the tokens, a linear head."""

    def __init__(self, width=64, layers=3, heads=4):
        super().__init__()
        self.embed = nn.Linear(4, width)
        self.position = nn.Parameter(0.02 * torch.randn(16, width))
        layer = nn.TransformerEncoderLayer(
            width, heads, 2 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 10))

    def forward(self, images):
        patches = images.unfold(1, 2, 2).unfold(2, 2, 2).flatten(3).flatten(1, 2)
        tokens = self.encoder(self.embed(patches) + self.position)
        return self.head(tokens.mean(dim=1))


@torch.no_grad()
def accuracy(model, x, y):
    return (model(x).argmax(dim=1) == y).float().mean().item()


def train(args, s):
    torch.manual_seed(args.seed)
    device = s.device
    x_train, x_val, y_train, y_val = load_data(device)
    model = ViT().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.2e-4)
    model, optimizer = s.prepare(model, optimizer)

    done = 0
    for step in s.steps(args.steps):
        batch = torch.randint(len(x_train), (args.batch_size,))
        loss = F.cross_entropy(model(x_train[batch]), y_train[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        s.report(loss=loss.item(), samples=args.batch_size)

        done = step + 1
        if done % EVAL_EVERY == 0:
            val_acc = accuracy(model, x_val, y_val)
            s.report(val_acc=val_acc)
            print(f"step {done} loss {loss.item():.4f} val_acc {val_acc:.3f}", flush=True)
            if val_acc >= args.target:
                break

    val_acc = accuracy(model, x_val, y_val)
    if val_acc >= args.target:
        print(f"reached val_acc {val_acc:.3f} >= {args.target:.3f} after {done} steps")
    else:
        print(f"stopped at val_acc {val_acc:.3f} < {args.target:.3f} after {done} steps")
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
