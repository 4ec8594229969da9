"""Train a ResNet on the GPU with data that so many CPU cores prepare; print seconds per step.

python resnet_on_cores.py CORES
"""

import os
import statistics
import sys
import time
import zlib

import numpy
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

WARM_UP, STEPS, BATCH, SIDE, WORKERS = 5, 20, 64, 128, 8


class Block(nn.Module):
    """Two convolutions beside a shortcut, as in ResNet-18."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inside, outside, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outside),
            nn.ReLU(),
            nn.Conv2d(outside, outside, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outside),
        )
        self.shortcut = nn.Conv2d(inside, outside, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


class Images(Dataset):
    """Images that are decompressed, flipped and normalised one by one."""

    def __init__(self) -> None:
        chance = numpy.random.default_rng(0)
        pixels = chance.integers(0, 32, (3, 2 * SIDE, 2 * SIDE), dtype=numpy.uint8)
        self.packed = zlib.compress(pixels.tobytes())

    def __len__(self) -> int:
        return BATCH * (WARM_UP + STEPS + 2 * WORKERS)

    def __getitem__(self, index: int) -> torch.Tensor:
        pixels = numpy.frombuffer(zlib.decompress(self.packed), dtype=numpy.uint8)
        image = pixels.reshape(3, 2 * SIDE, 2 * SIDE)[:, ::2, ::2]
        image = image[:, :, ::-1] if index % 2 else image
        return torch.from_numpy((image.astype(numpy.float32) - 16.0) / 9.0)


def main(cores: int) -> None:
    """Take the steps, and print the median of their times."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    torch.set_num_threads(1)
    sizes = [(3, 64, 2), (64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)]
    layers = [Block(*size) for size in sizes]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))
    model.to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    times = []
    began_s = time.perf_counter()
    for step, batch in enumerate(DataLoader(Images(), BATCH, num_workers=WORKERS)):
        optimizer.zero_grad()
        model(batch.to("cuda")).square().mean().backward()
        optimizer.step()
        torch.cuda.synchronize()
        now_s = time.perf_counter()
        if step >= WARM_UP:
            times.append(now_s - began_s)
        began_s = now_s
        if len(times) == STEPS:
            break
    print(statistics.median(times))


if __name__ == "__main__":
    main(int(sys.argv[1]))
