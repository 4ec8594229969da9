"""What marks and gates add to a step, and how controllers compare on one simulated device.

    python bench/multiplexer.py [--rounds 30]

A training (four linear layers of 512, 128 samples) runs in a session without a page, with marks,
and with a gate beside no foreground, in turn in one process, and so does one with layers of 2 and 2
samples, which makes the same calls and computes next to nothing; CPU time of this process is
counted. Printed: what is added to the small one's step, in microseconds (median of the rounds,
quartiles) and as a part of the large one's step; targets: marks 0.5 %, gates 1 %. What is added to
the large one's step is printed as well, and is mostly noise. Then the cost of one call, and the
table of controllers beside a training of 12 ms a step that waits a third of its time for others,
and beside one whose steps vary and leave 0.83 of their time idle.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median, quantiles

import torch

import rota.train
from rota.share.controllers import Aimd, Controller, SlowdownFeedback, StrictIdle
from rota.share.marks import BACKWARD, FORWARD, LOAD, OPTIMISE, REDUCE, WAIT
from rota.share.page import MarkWriter, PageReader
from rota.sim.tasklets import Foreground, Part, share

MS = 1e-3
BESIDE = Foreground(
    (
        Part(LOAD, 1, 0.5 * MS),
        Part(FORWARD, 10, 0.3 * MS),
        Part(WAIT, 1, 0.0, 4 * MS),
        Part(BACKWARD, 10, 0.3 * MS),
        Part(REDUCE, 2, 0.2 * MS, 0.2 * MS),
        Part(OPTIMISE, 1, 0.5 * MS),
    ),
    noise=0.03,
)
VARIES = Foreground(
    (
        Part(LOAD, 1, 0.1 * MS),
        Part(FORWARD, 4, 0.2 * MS),
        Part(BACKWARD, 4, 0.25 * MS),
        Part(OPTIMISE, 1, 0.1 * MS, 10 * MS),
    ),
    varies=0.25,
    strays=0.02,
)
CONTROLLERS: dict[str, Callable[[], Controller | None]] = {
    "fair share": lambda: None,
    "strict idle": StrictIdle,
    "AIMD": Aimd,
    "slowdown feedback": SlowdownFeedback,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=30)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="rota-") as folder:
        page = str(Path(folder) / "page")
        large = compare(page, rounds, 512, 128, steps=20)
        small = compare(page, rounds, 2, 2, steps=400)
        step_s = median(large["plain"])
        print(f"a step takes {1e3 * step_s:.2f} ms of CPU time")
        for name in ("marks", "gates"):
            low, middle, high = added(small, name)
            print(
                f"{name}: {1e6 * middle:.1f} us a step (quartiles {1e6 * low:.1f}, "
                f"{1e6 * high:.1f}), {middle / step_s:.2%} of it; measured in it "
                + ", ".join(f"{each / step_s:+.1%}" for each in added(large, name))
            )
        calls(page)
    controllers()


def compare(page: str, rounds: int, width: int, samples: int, steps: int) -> dict[str, list[float]]:
    """CPU seconds of a step in each round, by what the session is told."""
    told = {"plain": {}, "marks": {"ROTA_MARKS": page}, "gates": {"ROTA_FILLS": f"{page}2"}}
    taken: dict[str, list[float]] = {name: [] for name in told}
    for number in range(rounds + 1):
        for name in list(told) if number % 2 else list(reversed(told)):
            seconds = training(told[name], width, samples, steps)
            if number:
                taken[name].append(seconds)
    return taken


def added(taken: dict[str, list[float]], name: str) -> list[float]:
    """The quartiles of what is added to a step, in seconds."""
    pairs = zip(taken[name], taken["plain"], strict=True)
    return quantiles([one - plain for one, plain in pairs], n=4)


def training(environment: dict[str, str], width: int, samples: int, steps: int) -> float:
    """CPU seconds of a step, in a session that is told this."""
    for name in ("ROTA_MARKS", "ROTA_FILLS"):
        os.environ.pop(name, None)
    os.environ.update(environment)
    torch.manual_seed(0)
    linear = [torch.nn.Linear(width, width) for _ in range(4)]
    layers = [each for one in linear for each in (one, torch.nn.ReLU())]
    with rota.train.session() as s:
        model = torch.nn.Sequential(*layers, torch.nn.Linear(width, 1))
        model, optimizer = s.prepare(model, torch.optim.SGD(model.parameters(), lr=1e-3))
        loader = s.loader(Samples(width), batch_size=samples, shards=1)
        began = 0.0
        for step in s.steps(steps + 2):
            if step == 2:
                began = time.process_time()
            for x in s.next_batch():
                model(x).square().mean().backward()
            optimizer.step()
        taken = time.process_time() - began
    loader.close()
    return taken / steps


class Samples(torch.utils.data.Dataset[torch.Tensor]):
    """Ones, batch by batch."""

    def __init__(self, width: int) -> None:
        self._one = torch.ones(width)

    def __len__(self) -> int:
        return 1 << 14

    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        return [self._one] * len(indices)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self._one


def calls(page: str) -> None:
    """What one mark, one look at a page, and one answer of a controller cost."""
    writer, reader, controller = MarkWriter(page), PageReader(page), SlowdownFeedback()
    writer.enter(LOAD)
    marks = timed(lambda number: writer.enter(1 + number % 2))
    reads = timed(lambda _: reader.read(time.monotonic()))
    seen = reader.read(time.monotonic())
    asks = timed(lambda _: controller.ask(seen, time.monotonic()))
    print(f"one mark {marks:.1f} us, one look at the page {reads:.1f} us, one answer {asks:.1f} us")


def timed(call: Callable[[int], object]) -> float:
    """Microseconds of CPU time of a call."""
    began = time.process_time()
    for number in range(20_000):
        call(number)
    return 1e6 * (time.process_time() - began) / 20_000


def controllers() -> None:
    """Mean and 95th percentile of the slowdown, worst of 20 steps in a row, harvest."""
    for piece_ms in (0.5, 2.0, 5.0):
        for name, make in CONTROLLERS.items():
            found = share(BESIDE, [piece_ms * MS], make(), steps=1000, seed=1, skip=20)
            print(
                f"pieces of {piece_ms} ms, {name}: slowdown {found.mean:.3f}, 95 % "
                f"{found.p95:.3f}, worst 20 steps {found.worst(20):.3f}, "
                f"harvest {found.harvest:.2f} of {found.idle:.2f} idle"
            )
    for part in (0.98, 0.0):
        for name, make in CONTROLLERS.items():
            controller = make()
            found = share(VARIES, [0.5 * MS], controller, steps=2000, seed=1, skip=100, beside=part)
            print(
                f"steps that vary, {part} of the speed beside pieces, {name}: slowdown "
                f"{found.mean:.3f}, harvest {found.harvest:.2f} of {found.idle:.2f} idle"
                + (f", told {told(controller)}" if controller is not None else "")
            )


def told(controller: Controller) -> str:
    """The slowdown of the latest steps that a controller tells, with its interval."""
    told = controller.totals().slowdown
    if told is None:
        return "none"
    return f"{told.ratio:.3f} ({told.low:.3f} to {told.high:.3f}, {told.pairs} pairs)"


if __name__ == "__main__":
    main()
