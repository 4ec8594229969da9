"""Two searches over hyper-parameters: the space, the data and the model of each.

Both tasks are made hard enough by noise and little data that settings decide: see
docs/reference/traces.md.
"""

import math
import random
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import nn

Parameters = dict[str, Any]


class Data(NamedTuple):
    """What is trained on, in as many variants as there are shifts, and what is validated on."""

    x: torch.Tensor  # (variants, samples, ...); the first variant is as it is
    y: torch.Tensor
    x_val: torch.Tensor
    y_val: torch.Tensor


class Search(NamedTuple):
    """One search. ``draw`` makes parameters, ``model`` a network of them."""

    task: str
    epochs: int
    draw: Callable[[random.Random], Parameters]
    data: Callable[[], Data]
    model: Callable[[Parameters], nn.Module]


def common(rng: random.Random) -> Parameters:
    """The parameters that both searches have, each drawn by itself; a search may replace some."""
    optimizer = rng.choice(["sgd", "adamw", "rmsprop"])
    # The others divide by the size of gradients, and live a decade lower.
    low = 3e-4 if optimizer == "sgd" else 3e-5
    return {
        "optimizer": optimizer,
        "learning_rate": log_uniform(rng, low, 1e4 * low),
        "momentum": rng.choice([0.0, 0.5, 0.9, 0.95]),
        "weight_decay": log_uniform(rng, 1e-6, 1e-1),
        "schedule": rng.choice(["constant", "cosine", "steps", "linear"]),
        "warmup_epochs": rng.choice([0, 0, 2, 8]),
        "batch_size": rng.choice([32, 64, 128, 256]),
        "dropout": round(rng.uniform(0.0, 0.6), 3),
        "label_smoothing": rng.choice([0.0, 0.0, 0.1, 0.3]),
        "init_scale": log_uniform(rng, 0.2, 3.0),
    }


def log_uniform(rng: random.Random, low: float, high: float) -> float:
    """A number of four digits whose logarithm is uniform."""
    return float(f"{math.exp(rng.uniform(math.log(low), math.log(high))):.4g}")


# -- a residual network on digits ------------------------------------------------------------------


def draw_digits(rng: random.Random) -> Parameters:
    return common(rng) | {
        "batch_size": rng.choice([32, 64, 128]),
        "width": rng.choice([4, 8, 16]),
        "depth": rng.choice([1, 2]),
        "normalisation": rng.choice(["none", "batch"]),
        "noise": round(rng.uniform(0.0, 1.0), 3),
        "shift": rng.choice([0, 1]),
    }


@cache
def digits() -> Data:
    """Noisy digits: 400 to train on, an eighth of the labels drawn anew, 1,000 to validate."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    generator = torch.Generator().manual_seed(1)
    order = torch.randperm(len(images), generator=generator)[:1400]
    x = torch.tensor(images / 16, dtype=torch.float32).view(-1, 1, 8, 8)[order]
    y = torch.tensor(labels)[order]
    x = (x - x.mean()) / x.std()
    x = x + 0.5 * torch.randn(x.shape, generator=generator)
    train, y_train = x[:400], mislabelled(y[:400], 0.125, generator)
    shifts = [(0, 0), (0, 1), (0, -1), (1, 0), (-1, 0), (1, 1), (1, -1), (-1, 1), (-1, -1)]
    shifted = torch.stack([torch.roll(train, by, (2, 3)) for by in shifts])
    return Data(shifted, y_train, x[400:], y[400:])


def mislabelled(y: torch.Tensor, share: float, generator: torch.Generator) -> torch.Tensor:
    """The labels, a share of them replaced by any of the ten."""
    drawn = torch.randint(10, y.shape, generator=generator)
    return torch.where(torch.rand(y.shape, generator=generator) < share, drawn, y)


class Residual(nn.Module):
    def __init__(self, width: int, normalisation: str) -> None:
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1)
        self.second = nn.Conv2d(width, width, 3, padding=1)
        self.norm = nn.BatchNorm2d(width) if normalisation == "batch" else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.second(torch.relu(self.first(torch.relu(self.norm(x)))))


def residual_network(parameters: Parameters) -> nn.Module:
    width = parameters["width"]
    blocks = [Residual(width, parameters["normalisation"]) for _ in range(parameters["depth"])]
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1),
        nn.MaxPool2d(2),
        *blocks,
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(parameters["dropout"]),
        nn.Linear(16 * width, 10),
    )


# -- layers on clusters ----------------------------------------------------------------------------


def draw_clusters(rng: random.Random) -> Parameters:
    return common(rng) | {
        "width": rng.choice([16, 32, 64, 128]),
        "depth": rng.choice([1, 2, 3]),
        "noise": round(rng.uniform(0.0, 1.0), 3),
        "activation": rng.choice(["relu", "tanh", "gelu"]),
    }


@cache
def clusters() -> Data:
    """Ten classes of four clusters each in 24 dimensions: 1,600 to train on, 1,000 to validate.

    A tenth of the labels to train on are drawn anew.
    """
    generator = torch.Generator().manual_seed(2)
    centres = torch.randn(40, 24, generator=generator)
    cluster = torch.randint(40, (2600,), generator=generator)
    x = centres[cluster] + torch.randn(2600, 24, generator=generator)
    y = cluster % 10
    return Data(x[None, :1600], mislabelled(y[:1600], 0.1, generator), x[1600:], y[1600:])


def layers(parameters: Parameters) -> nn.Module:
    kinds = {"relu": nn.ReLU, "tanh": nn.Tanh, "gelu": nn.GELU}
    width, activation = parameters["width"], kinds[parameters["activation"]]
    parts: list[nn.Module] = [nn.Linear(24, width), activation()]
    for _ in range(parameters["depth"] - 1):
        parts += [nn.Dropout(parameters["dropout"]), nn.Linear(width, width), activation()]
    return nn.Sequential(*parts, nn.Dropout(parameters["dropout"]), nn.Linear(width, 10))


SEARCHES = {
    "digits-resnet": Search(
        "a small residual network on noisy digits", 81, draw_digits, digits, residual_network
    ),
    "clusters-mlp": Search(
        "fully connected layers on noisy clusters", 81, draw_clusters, clusters, layers
    ),
}
