"""What it costs to measure the noise of gradients, as a part of a step.

    python bench/gradient_noise.py [--samples 32] [--device cuda]

Small models train in a session with batches that the scheduler may choose. Printed for each model,
optimiser and number of parts of a batch: milliseconds of a step, and the part of it that is spent
on measuring, in the mean over sixteen steps; the target is below 2 %. On a CPU it is time of the
processor, with one thread; on a GPU, time until it has come so far.
"""

import argparse
import os
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

import rota.train
from rota.train.norms import Norms

SETTLED = 32  # steps: as many are all measured, of later ones some
STEPS = 16


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 64, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(64, 128, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(128, 256, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(256, 10),
    )


def layers() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(3072, 512), nn.ReLU(), nn.Linear(512, 512), nn.Linear(512, 10)
    )


class Tokens(nn.Module):
    """A transformer over the rows of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(96, 256)
        layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True)
        self.body, self.head = nn.TransformerEncoder(layer, 3), nn.Linear(256, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(self.embed(x.transpose(1, 2).flatten(2))).mean(1))


MODELS = {"convolutions": convolutions, "linear layers": layers, "transformer": Tokens}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=32, help="of one part")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.device == "cuda":
        os.environ["ROTA_DEVICE"] = "0"
    for name, make in MODELS.items():
        for optimizer in ("SGD", "AdamW"):
            for parts in (1, 4):
                step_s, measuring_s, count = train(make, optimizer, parts, options)
                print(
                    f"{name} ({count / 1e6:.1f} M), {optimizer}, {parts} x {options.samples}: "
                    f"{1e3 * step_s:.1f} ms a step, {measuring_s / step_s:.1%} of it measuring",
                    flush=True,
                )


class Meter:
    """Seconds within some methods of a class."""

    def __init__(self, kind: type, names: list[str], now: Callable[[], float]) -> None:
        self.spent_s = 0.0
        for name in names:
            setattr(kind, name, self._timed(getattr(kind, name), now))

    def _timed(self, method: Callable[..., Any], now: Callable[[], float]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            began = now()
            result = method(*args, **kwargs)
            self.spent_s += now() - began
            return result

        return timed


def now_on_gpu() -> float:
    torch.cuda.synchronize()
    return time.perf_counter()


def train(make: Any, optimizer: str, parts: int, options: Any) -> tuple[float, float, int]:
    """Seconds of one step, and those in it of measuring; the parameters."""
    torch.manual_seed(0)
    batch = parts * options.samples
    x = torch.randn(batch, 3, 32, 32)
    data = TensorDataset(x, torch.randint(10, (batch,)))
    now = time.process_time if options.device == "cpu" else now_on_gpu
    names = ["begin", "note", "measured"]
    kept = {name: getattr(Norms, name) for name in names}
    meter = Meter(Norms, names, now)
    with rota.train.session() as s:
        net = make().to(s.device)
        model, own = s.prepare(net, getattr(torch.optim, optimizer)(net.parameters(), lr=1e-3))
        loader = s.loader(data, batch_size=batch, adapt=True)
        if parts > 1:
            loader.adaptation.load([batch, options.samples, parts - 1, 1, batch, batch])
        began = 0.0
        for step in s.steps(SETTLED + STEPS):
            if step == SETTLED:
                began, meter.spent_s = now(), 0.0
            for inputs, targets in s.next_batch():
                outputs = model(inputs.to(s.device))
                nn.functional.cross_entropy(outputs, targets.to(s.device)).backward()
            own.step()
            own.zero_grad()
        took_s = now() - began
    for name, method in kept.items():
        setattr(Norms, name, method)
    count = sum(parameter.numel() for parameter in net.parameters())
    return took_s / STEPS, meter.spent_s / STEPS, count


if __name__ == "__main__":
    main()
