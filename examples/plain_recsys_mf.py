"""Train a matrix factorisation on synthetic ratings, made from a fixed seed."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn

USERS, ITEMS, RATINGS = 5000, 2000, 1_600_000
EVAL_EVERY = 25


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=6000, help="upper bound on optimiser steps")
    parser.add_argument("--target", type=float, default=0.13, help="stop at this val_mse")
    parser.add_argument("--batch-size", type=int, default=8192)
    parser.add_argument("--seed", type=int, default=0, help="of the weights and the data order")
    parser.add_argument("--save", metavar="PATH", help="write the final weights here")
    return parser.parse_args()


def load_data(device):
    """Ratings (user, item, value): biases, eight hidden traits and noise of variance 0.09."""
    rng = torch.Generator().manual_seed(0)
    users = torch.randint(USERS, (RATINGS,), generator=rng)
    items = torch.randint(ITEMS, (RATINGS,), generator=rng)
    user_traits = torch.randn(USERS, 8, generator=rng) / 8**0.5
    item_traits = torch.randn(ITEMS, 8, generator=rng)
    user_bias = 0.5 * torch.randn(USERS, generator=rng)
    item_bias = 0.5 * torch.randn(ITEMS, generator=rng)
    values = (user_traits[users] * item_traits[items]).sum(dim=1)
    values += 3.5 + user_bias[users] + item_bias[items]
    values += 0.3 * torch.randn(RATINGS, generator=rng)
    columns = [column.to(device) for column in (users, items, values)]
    return [column[20_000:] for column in columns], [column[:20_000] for column in columns]


class MatrixFactorisation(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.users, self.items = nn.Embedding(USERS, width), nn.Embedding(ITEMS, width)
        self.user_bias, self.item_bias = nn.Embedding(USERS, 1), nn.Embedding(ITEMS, 1)
        for embedding in self.children():
            nn.init.normal_(embedding.weight, std=0.1)
        self.mean = nn.Parameter(torch.tensor(3.5))

    def forward(self, users, items):
        match = (self.users(users) * self.items(items)).sum(dim=1)
        return match + self.user_bias(users)[:, 0] + self.item_bias(items)[:, 0] + self.mean


@torch.no_grad()
def validation_mse(model, users, items, values):
    return F.mse_loss(model(users, items), values).item()


def train(args):
    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    (users, items, values), validation = load_data(device)
    model = MatrixFactorisation().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=7e-4)

    done = 0
    for step in range(args.steps):
        batch = torch.randint(len(values), (args.batch_size,))
        loss = F.mse_loss(model(users[batch], items[batch]), values[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

        done = step + 1
        if done % EVAL_EVERY == 0:
            val_mse = validation_mse(model, *validation)
            print(f"step {done} loss {loss.item():.4f} val_mse {val_mse:.3f}", flush=True)
            if val_mse <= args.target:
                break

    val_mse = validation_mse(model, *validation)
    if val_mse <= args.target:
        print(f"reached val_mse {val_mse:.3f} <= {args.target:.3f} after {done} steps")
    else:
        print(f"stopped at val_mse {val_mse:.3f} > {args.target:.3f} after {done} steps")
    if args.save:
        torch.save(model.state_dict(), args.save)


def main():
    # One thread a worker is fastest when several workers share the cores.
    torch.set_num_threads(1)
    args = parse_args()
    train(args)


if __name__ == "__main__":
    main()
