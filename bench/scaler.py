"""Choosing a size while the job runs: the published search, the fitted curve, every static size.

    python bench/scaler.py [--data DIR] [--curves]

Each job runs 10,000 steps of a fixed global batch on a known scaling curve; noise is the deviation
of the logarithm of its step times. A scaler is asked every 10 steps and does not know the curve. A
resize pauses training for 1 s while newcomers have started up for 30 s. Three families of curves:

* closed form: t_k = a + (1 - a) / k, where the best size is known on paper
* catalogue: step times that the catalogue has, on nodes of 4 GPUs
* measured (with ``--data``): step times of ``pollux/profiles`` on 1 to 64 GPUs of type T4, as many
  GPUs on a node as there are; sizes and batches between which nobody measured are left out

"Best" is the static size of most worth under a scaling threshold of 0.1. Of a scaler are shown: the
error of its final size (sizes of the list), resizes, JCT and GPU-time over those of the best static
size (geometric means), and the worth that its final size loses (0.01 is 1 % of throughput).
``--curves`` shows each curve as well.
"""

import argparse
import csv
from collections.abc import Callable
from math import ceil, exp, log
from pathlib import Path
from statistics import fmean
from time import process_time
from typing import NamedTuple

from _data import add_data

from rota.experiment.elasticity_autoscaling import jobs
from rota.policy.scaling import (
    FitScaler,
    Outlook,
    ProbeScaler,
    Replay,
    Resizing,
    Scaler,
    ThroughputScaling,
    replay,
)

STEPS = 10_000
NOISES = (0.0, 0.02, 0.05, 0.1)
SEEDS = (0, 1)
THRESHOLD = 0.1
RESIZING = Resizing(pause_s=1.0, warm_up_s=30.0)
STEP_S = 5.0  # of the closed forms, on one worker
# a of the closed form, and the first size; the first two have the walks of 46 and 13 resizes.
CLOSED = [(0.15518, 4), (0.4737, 16), (0.3, 4), (0.05, 4), (0.5, 4), (0.9, 8), (0.01, 4), (0.2, 30)]
SCALERS: dict[str, Callable[..., Scaler]] = {
    "published search": ProbeScaler,
    "fitted curve": FitScaler,
}
Rate = Callable[[int], float]


class Curve(NamedTuple):
    """Samples per second by size; the global batch, the sizes, and the one to start with."""

    name: str
    rate: Rate
    batch: float
    sizes: tuple[int, ...]
    start: int

    def worths(self) -> dict[int, float]:
        points = [(size, self.rate(size)) for size in self.sizes]
        worths = ThroughputScaling(THRESHOLD).worths(points, Outlook())
        return dict(zip(self.sizes, worths, strict=True))

    def best(self) -> int:
        worths = self.worths()
        return max(self.sizes, key=lambda size: (round(worths[size], 9), -size))

    def static(self, size: int, noise: float = 0.0) -> Replay:
        jct_s = STEPS * self.batch / self.rate(size) * exp(noise**2 / 2)
        return Replay(jct_s, jct_s * size, (size,))


def closed_forms() -> list[Curve]:
    sizes = tuple(range(1, 65))

    def rate(a: float) -> Rate:
        return lambda k: 1 / (STEP_S * (a + (1 - a) / k))

    return [Curve(f"a = {a:g}", rate(a), 1.0, sizes, start) for a, start in CLOSED]


def catalogue() -> list[Curve]:
    sizes = tuple(range(4, 65, 4))
    return [
        Curve(f"{name} on {kind}", job.rate, job.batch, sizes, 4)
        for (name, kind), job in jobs().items()
    ]


def measured(folder: Path) -> list[Curve]:
    """Curves of the measured step times; the global batch is 16 of the largest measured part."""
    curves = []
    for path in sorted(path for path in folder.iterdir() if path.is_dir()):
        times = read_times(path)
        most = max(times[1])
        batch = 16 * most
        rates = {}
        for size, points in times.items():
            part = batch / size
            micro_steps = ceil(part / max(points))
            if part / micro_steps >= min(points):
                step_s, sync_s = at(points, part / micro_steps)
                rates[size] = batch / (micro_steps * step_s - (micro_steps - 1) * sync_s)
        sizes = tuple(sorted(rates))
        curves.append(Curve(f"{path.name}, measured", rates.__getitem__, batch, sizes, sizes[0]))
    return curves


Times = dict[int, dict[float, tuple[float, float]]]


def read_times(path: Path) -> Times:
    """GPUs -> samples per GPU -> (step, exchange) in seconds, where nodes are full but the last."""
    times: Times = {}
    for row in csv.DictReader((path / "placements.csv").open()):
        nodes = sorted(map(int, row["placement"]), reverse=True)
        if all(gpus == 4 for gpus in nodes[:-1]):
            note(times, sum(nodes), row)
    for row in csv.DictReader((path / "scalability.csv").open()):
        nodes, gpus = int(row["num_nodes"]), int(row["num_replicas"])
        if gpus == 4 * nodes:
            note(times, gpus, row)
    return times


def note(times: Times, gpus: int, row: dict[str, str]) -> None:
    pair = float(row["step_time"]), float(row["sync_time"])
    times.setdefault(gpus, {})[float(row["local_bsz"])] = pair


def at(points: dict[float, tuple[float, float]], part: float) -> tuple[float, float]:
    """Step and exchange in between measured batches, on a straight line."""
    known = sorted(points)
    high = next((each for each in known if each >= part), known[-1])
    low = max((each for each in known if each <= part), default=known[0])
    share = (part - low) / (high - low) if high > low else 0.0
    one, other = points[low], points[high]
    return (one[0] + share * (other[0] - one[0]), one[1] + share * (other[1] - one[1]))


class Score(NamedTuple):
    """What one replay came to, against the best static size."""

    error: int
    resizes: int
    jct: float
    gpu: float
    lost: float


def score(curve: Curve, found: Replay, noise: float) -> Score:
    best, worths = curve.best(), curve.worths()
    one = curve.static(best, noise)
    final = found.sizes[-1]
    return Score(
        abs(curve.sizes.index(final) - curve.sizes.index(best)),
        found.resizes,
        found.jct_s / one.jct_s,
        found.gpu_s / one.gpu_s,
        worths[best] - worths[final],
    )


def run(curve: Curve, scaler: Callable[..., Scaler], noise: float, seed: int) -> Replay:
    return replay(
        curve.rate,
        scaler(curve.sizes, ThroughputScaling(THRESHOLD)),
        start=curve.start,
        steps=STEPS,
        batch=curve.batch,
        resizing=RESIZING,
        noise=noise,
        seed=seed,
    )


HEADER = (
    f"{'':34} {'noise':>5} {'error':>6} {'resizes':>13} {'JCT':>6} {'GPU-time':>8} {'lost':>13}"
)


def line(name: str, noise: str, scores: list[Score]) -> str:
    mean = [exp(fmean(log(getattr(each, what)) for each in scores)) for what in ("jct", "gpu")]
    resizes = [each.resizes for each in scores]
    lost = [each.lost for each in scores]
    return (
        f"{name:34} {noise:>5} {fmean(each.error for each in scores):6.2f} "
        f"{fmean(resizes):6.2f} <={max(resizes):4} {mean[0]:6.3f} {mean[1]:8.3f} "
        f"{fmean(lost):6.4f} <={max(lost):5.3f}"
    )


def show(family: str, curves: list[Curve], each: bool) -> None:
    print(f"\n{family}: {len(curves)} curves\n{HEADER}")
    for noise in NOISES:
        for name, scaler in SCALERS.items():
            seeds = SEEDS if noise else SEEDS[:1]
            found = {c: [score(c, run(c, scaler, noise, s), noise) for s in seeds] for c in curves}
            print(line(name, f"{noise:.0%}", [one for scores in found.values() for one in scores]))
            for curve, scores in found.items() if each else ():
                print(line(f"  {curve.name}, best {curve.best()}", f"{noise:.0%}", scores))
    sizes = sorted({size for curve in curves for size in curve.sizes})
    few = [size for size in sizes if size in (1, 2, 4, 8, 12, 16, 24, 32, 48, 64)]
    for size in sizes if each else few:
        having = [curve for curve in curves if size in curve.sizes]
        scores = [score(curve, curve.static(size), 0.0) for curve in having]
        print(line(f"static {size}", "", scores))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_data(parser)
    parser.add_argument("--curves", action="store_true", help="show each curve as well")
    args = parser.parse_args()
    begun = process_time()
    show("closed form", closed_forms(), args.curves)
    show("catalogue", catalogue(), args.curves)
    profiles = args.data and args.data / "pollux" / "profiles"
    if profiles and profiles.exists():
        show("measured", measured(profiles), args.curves)
    else:
        print("\nmeasured curves: left out, they need pollux/profiles of the public data")
    print(f"\n{process_time() - begun:.0f} s of CPU time")


if __name__ == "__main__":
    main()
