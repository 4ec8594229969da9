"""Fit the step times and gradient noise of the model catalogue from measured data.

    python bench/fit_catalog.py --data DIR           # fit, report errors, compare with the files
    python bench/fit_catalog.py --data DIR --write   # and rewrite the catalogue's generated files

DIR holds ``pollux/profiles`` (placements.csv, scalability.csv, validation-*.csv of six models on
T4; github.com/petuum/adaptdl, branch osdi21-artifact), ``gavel/simulation_throughputs.json.gz``
(github.com/stanford-futuredata/gavel) and ``deeppool/A100_*.prof``
(github.com/DeepPoolML/DeepPool). Published tables that are small enough stand below. Least squares
on the logarithms of times. Skipped without the data; exits with 1 if the fit differs from the
files.
"""

import argparse
import csv
import gzip
import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
from _data import add_data, is_there
from scipy.optimize import least_squares

from rota.predict.step_time import StepTime

CATALOG = Path(__file__).parents[1] / "src" / "rota" / "workload" / "catalog"

# Images per second with synthetic data (TensorFlow benchmarks, May 2017): GPUs -> rate, by batch.
TENSORFLOW = {
    ("vgg16", "p100"): {
        64: {1: 154, 2: 295, 4: 584, 8: 1081},
        32: {1: 144, 2: 281, 4: 549, 8: 820},
    },
    ("vgg16", "k80"): {32: {1: 35.4, 2: 64.8, 4: 120, 8: 234}},
    ("alexnet", "p100"): {512: {1: 2987, 2: 5658, 4: 10509, 8: 17822}},
    ("alexnet", "k80"): {512: {1: 656, 2: 1209, 4: 2328, 8: 4640}},
    ("inception3", "p100"): {
        64: {1: 142, 2: 284, 4: 569, 8: 1131},
        32: {1: 128, 2: 259, 4: 520, 8: 995},
    },
    ("inception3", "k80"): {
        64: {1: 30.5, 2: 57.8, 4: 116, 8: 227},
        32: {1: 29.3, 2: 55.0, 4: 109, 8: 216},
    },
    ("resnet152", "p100"): {
        64: {1: 91.8, 2: 181, 4: 356, 8: 716},
        32: {1: 82.7, 2: 160, 4: 317, 8: 632},
    },
    ("resnet152", "k80"): {32: {1: 20.0, 2: 38.2, 4: 75.8, 8: 148}},
}
RESNET50_P100 = {64: 219.0, 32: 195.0}
# The same on EC2 p2.8xlarge, 8 GPUs to a node: images per second over several nodes.
TENSORFLOW_NODES = {
    ("inception3", "k80"): {64: {16: 459, 32: 902, 64: 1783}},
    ("resnet152", "k80"): {32: {16: 291, 32: 565, 64: 981}},
}
# Scaling efficiency over nodes of 4 Pascal GPUs with 25 Gbit/s (Horovod's README), batch 64.
HOROVOD = {
    "vgg16": {128: 0.79, 512: 0.68},
    "inception3": {128: 0.90, 512: 0.90},
    "resnet101": {128: 0.90, 512: 0.90},
}
GFLOPS = {"vgg11": 7.61, "vgg16": 15.47, "vgg19": 19.63, "resnet50": 4.09, "resnet101": 7.80}
GFLOPS |= {"resnet152": 11.51, "inception3": 5.71, "inception4": 12.3}
SIZE_MIB = {"vgg11": 506.5, "vgg16": 526.8, "vgg19": 547.1, "alexnet": 235.8}
# Gavel's job types, as the catalogue calls them.
GAVEL = {
    "ResNet-18": "cifar10",
    "ResNet-50": "resnet50",
    "Transformer": "transformer",
    "A3C": "a3c",
    "LM": "lm",
    "Recommendation": "recommendation",
    "CycleGAN": "cyclegan",
}
DEEPPOOL = {"vgg": "vgg16", "inception": "inception3", "wrn": "wide_resnet101_2"}
POLLUX = {  # the catalogue's name, and the batch size that gradient noise is scaled to
    "bert": ("bert", 12),
    "cifar10": ("cifar10", 128),
    "deepspeech2": ("deepspeech2", 20),
    "imagenet": ("resnet50", 200),
    "ncf": ("ncf", 256),
    "yolov3": ("yolov3", 8),
}


class Point(NamedTuple):
    """One measurement: a step's seconds, and those of its computing if they are known."""

    gpus: int
    nodes: int
    batch: float
    step_s: float
    compute_s: float | None = None


class Fit(NamedTuple):
    """A step-time model, what it was fitted to, and its relative errors there."""

    model: StepTime
    source: str
    points: int
    median_error: float | None
    p90_error: float | None
    sync_from: str = ""
    note: str = ""


def fit(points: list[Point], source: str, *, overlap: bool = True, note: str = "") -> Fit:
    """The step-time model closest to the points, in logarithms; robust against outliers."""
    has_r = any(p.gpus > 1 and p.nodes == 1 for p in points)
    has_n = any(p.nodes > 1 for p in points)
    overlap = overlap and (has_r or has_n)
    has_batches = len({p.batch for p in points}) > 1
    names = ["alpha_c"] if not has_batches else ["alpha_c", "beta_c"]
    names += ["alpha_r", "beta_r"] * has_r + ["alpha_n", "beta_n"] * has_n

    def model(x: np.ndarray) -> StepTime:
        values = dict(zip(names, np.exp(x[: len(names)]), strict=True))
        if not has_batches:  # one batch size: all of it counts as growing with the batch
            values["beta_c"] = values["alpha_c"] / points[0].batch
            values["alpha_c"] = 0.0
        return StepTime(**values, gamma=1 + 9 / (1 + np.exp(-x[-1])) if overlap else 1.0)

    def residuals(x: np.ndarray) -> list[float]:
        m = model(x)
        errors = [np.log(m.step_s(p.gpus, p.nodes, p.batch) / p.step_s) for p in points]
        computed = [p for p in points if p.compute_s]
        errors += [np.log(m.compute_s(p.batch) / p.compute_s) for p in computed]
        return errors

    quick = min(p.step_s for p in points)
    best = None
    for gamma in (-3.0, -1.0, 1.0) if overlap else (0.0,):
        guess = {"alpha_c": quick / 2, "beta_c": quick / 2 / points[0].batch}
        guess |= {"alpha_r": quick / 10, "beta_r": quick / 100}
        guess |= {"alpha_n": quick / 5, "beta_n": quick / 50}
        if not has_batches:
            guess["alpha_c"] = quick
        start = np.array([*(np.log(guess[name]) for name in names), gamma])
        low, high = np.full(len(start), -25.0), np.full(len(start), 5.0)
        found = least_squares(residuals, start, bounds=(low, high), loss="soft_l1", f_scale=0.1)
        if best is None or found.cost < best.cost:
            best = found
    assert best is not None
    m = model(best.x)
    m = StepTime(*(None if term is None else 0.0 if term < 1e-7 else term for term in m))
    errors = [abs(m.step_s(p.gpus, p.nodes, p.batch) / p.step_s - 1) for p in points]
    p90 = float(np.quantile(errors, 0.9))
    return Fit(m, source, len(points), median(errors), p90, note=note)


# -- sources ---------------------------------------------------------------------------------------


def pollux_points(folder: Path) -> list[Point]:
    """Every placement and shape measured for one model on T4 GPUs, 4 to a node."""
    points = []
    for row in rows(folder / "placements.csv"):
        gpus = [int(digit) for digit in row["placement"]]
        points.append(pollux_point(row, sum(gpus), len(gpus)))
    for row in rows(folder / "scalability.csv"):
        points.append(pollux_point(row, int(row["num_replicas"]), int(row["num_nodes"])))
    return points


def pollux_point(row: dict[str, str], gpus: int, nodes: int) -> Point:
    step_s, sync_s = float(row["step_time"]), float(row["sync_time"])
    return Point(gpus, nodes, float(row["local_bsz"]), step_s, step_s - sync_s)


def gavel_points(data: Path) -> dict[tuple[str, str], list[Point]]:
    """By model and GPU type. The rate of a gang is that of all its workers together."""
    with gzip.open(data / "gavel" / "simulation_throughputs.json.gz", "rt") as file:
        table = json.load(file)
    points: dict[tuple[str, str], list[Point]] = defaultdict(list)
    for kind in ("k80", "p100", "v100"):
        for spread in (False, True):
            for key, rates in table[f"{kind}_unconsolidated" if spread else kind].items():
                name, gpus = re.fullmatch(r"\('(.*)', (\d+)\)", key).groups()
                rate = rates["null"]
                if not rate or (spread and gpus == "1"):
                    continue
                family, _, batch = name.partition(" (batch size ")
                samples = float(batch.rstrip(")")) if batch else 1.0
                nodes = int(gpus) if spread else 1
                point = Point(int(gpus), nodes, samples, int(gpus) / rate)
                points[GAVEL[family], kind].append(point)
    return points


def deeppool_points(path: Path) -> list[Point]:
    """The layers' forward and backward times on one A100, summed, by batch size."""
    total: dict[int, float] = defaultdict(float)
    for line in path.read_text().splitlines():
        found = re.match(r"\s*(?:[^\s{\[]+)(?:\{.*?\})?\[(\d+)\]\S*\s+([\d.]+)\s+\d+\s+\d+", line)
        if found:
            total[int(found[1])] += float(found[2]) / 1000
    return [Point(1, 1, batch, step_s) for batch, step_s in sorted(total.items())]


def tensorflow_points(key: tuple[str, str]) -> list[Point]:
    points = []
    for batch, rates in TENSORFLOW[key].items():
        points += [Point(k, 1, batch, k * batch / rate) for k, rate in rates.items()]
    for batch, rates in TENSORFLOW_NODES.get(key, {}).items():
        points += [Point(k, k // 8, batch, k * batch / rate) for k, rate in rates.items()]
    if key[1] == "p100":
        alone = TENSORFLOW[key].get(64, {}).get(1)
        for k, share in HOROVOD.get(key[0], {}).items():
            points.append(Point(k, k // 4, 64, 64 / alone / share))
    return points


def rows(path: Path) -> Iterable[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


# -- all fits --------------------------------------------------------------------------------------


def fit_all(data: Path) -> dict[str, dict[str, Fit]]:
    """Model -> GPU type -> fit."""
    fits: dict[str, dict[str, Fit]] = defaultdict(dict)
    for app, (name, _) in POLLUX.items():
        fits[name]["t4"] = fit(pollux_points(data / "pollux" / "profiles" / app), "pollux")
    for (name, kind), points in gavel_points(data).items():
        fits[name][kind] = fit(points, "gavel")
    for key in TENSORFLOW:
        nodes = key in TENSORFLOW_NODES or (key[1] == "p100" and key[0] in HOROVOD)
        over = " horovod" if nodes and key[1] == "p100" else ""
        fits[key[0]][key[1]] = fit(tensorflow_points(key), "tensorflow" + over, overlap=False)
    for short, name in DEEPPOOL.items():
        points = deeppool_points(data / "deeppool" / f"A100_{short}.prof")
        fits[name]["a100"] = fit(points, "deeppool", overlap=False)
    derive(fits)
    for name in sorted(fits):
        borrow_sync(fits[name])
    return fits


def derive(fits: dict[str, dict[str, Fit]]) -> None:
    """Models that nobody measured whole, from those of their family that somebody did."""
    for kind, of in dict(fits["vgg16"]).items():
        for name in ("vgg11", "vgg19"):
            work, size = GFLOPS[name] / GFLOPS["vgg16"], SIZE_MIB[name] / SIZE_MIB["vgg16"]
            note = "vgg16, computing scaled by multiply-adds, exchange by size"
            fits[name][kind] = scaled(of, work, size, note)
    network = fits["vgg16"]["p100"].model
    for kind, of in dict(fits["alexnet"]).items():
        ratio = SIZE_MIB["alexnet"] / SIZE_MIB["vgg16"]
        model = of.model._replace(alpha_n=network.alpha_n * ratio, beta_n=network.beta_n * ratio)
        note = "exchange between nodes: that of vgg16 on p100, scaled by size"
        fits["alexnet"][kind] = of._replace(model=no_faster_outside(model), note=note)
    for kind, of in dict(fits["inception3"]).items():
        work = GFLOPS["inception4"] / GFLOPS["inception3"]
        note = "inception3, all scaled by multiply-adds"
        fits["inception4"][kind] = scaled(of, work, work, note)
    part = (GFLOPS["resnet101"] - GFLOPS["resnet50"]) / (GFLOPS["resnet152"] - GFLOPS["resnet50"])
    points = []
    for batch, rate in RESNET50_P100.items():
        low_s, high_s = batch / rate, batch / TENSORFLOW["resnet152", "p100"][batch][1]
        points.append(Point(1, 1, batch, low_s + part * (high_s - low_s)))
    alone_s = points[0].step_s
    points += [Point(k, k // 4, 64, alone_s / eff) for k, eff in HOROVOD["resnet101"].items()]
    note = "computing between resnet50 and resnet152 by multiply-adds"
    fits["resnet101"]["p100"] = fit(points, "tensorflow horovod", overlap=False, note=note)


def scaled(of: Fit, work: float, size: float, note: str) -> Fit:
    m = of.model
    sync = [None if v is None else v * size for v in (m.alpha_r, m.beta_r, m.alpha_n, m.beta_n)]
    model = StepTime(m.alpha_c * work, m.beta_c * work, *sync, m.gamma)
    return Fit(model, "derived " + of.source, 0, None, None, note=note)


def borrow_sync(types: dict[str, Fit]) -> None:
    """Where exchange was not measured on a type of GPU, take it as on one where it was."""
    for missing in ("alpha_r", "alpha_n"):
        known = [k for k, f in types.items() if getattr(f.model, missing) is not None]
        if not known:
            continue
        beta = missing.replace("alpha", "beta")
        lender = "p100" if "p100" in known else known[0]
        for kind, of in types.items():
            if getattr(of.model, missing) is None:
                terms = {term: getattr(types[lender].model, term) for term in (missing, beta)}
                model = no_faster_outside(of.model._replace(**terms))
                types[kind] = of._replace(model=model, sync_from=lender)


def no_faster_outside(m: StepTime) -> StepTime:
    """Between nodes a tenth slower than within one at least, where only the latter was measured.

    AdaptDL's fit takes the same for granted of gangs that it has not seen on several nodes.
    """
    if m.alpha_r is None or m.alpha_n is None:
        return m
    return m._replace(alpha_n=max(m.alpha_n, 1.1 * m.alpha_r), beta_n=max(m.beta_n, 1.1 * m.beta_r))


def noise_all(data: Path) -> dict[str, dict[str, object]]:
    """Model -> its gradient noise scale, in samples, over the course of a run at its first batch.

    phi = M0 * tr(Sigma) / |G|^2, the median of the epochs in each fifth of the run.
    """
    shapes: dict[str, dict[str, object]] = {}
    for app, (name, batch) in POLLUX.items():
        epochs = rows(data / "pollux" / "profiles" / app / f"validation-{batch}.csv")
        pairs = [(float(e["grad_var"]), float(e["grad_sqr"])) for e in epochs]
        phi = [batch * var / sqr for var, sqr in pairs if sqr > 0]  # estimates can be below zero
        parts = min(5, len(phi))
        cuts = [round(i * len(phi) / parts) for i in range(parts + 1)]
        values = [median(phi[a:b]) for a, b in pairwise(cuts)]
        shapes[name] = {"batch": batch, "phi": [float(f"{v:.3g}") for v in values]}
    return shapes


# -- files and report ------------------------------------------------------------------------------


def step_times_toml(fits: dict[str, dict[str, Fit]]) -> str:
    lines = ["# Written by bench/fit_catalog.py; seconds, seconds per sample, seconds per GPU."]
    for name in sorted(fits):
        for kind in sorted(fits[name]):
            of = fits[name][kind]
            lines += ["", f"[{name}.{kind}]"]
            for term, value in of.model._asdict().items():
                if value is not None:
                    lines.append(f"{term} = {float(f'{value:.4g}')!r}")
            lines.append(f'source = "{of.source}"')
            if of.points:
                lines.append(f"points = {of.points}")
                lines.append(f"median_error = {of.median_error:.4f}")
                lines.append(f"p90_error = {of.p90_error:.4f}")
            if of.sync_from:
                lines.append(f'sync_from = "{of.sync_from}"')
            if of.note:
                lines.append(f'note = "{of.note}"')
    return "\n".join(lines) + "\n"


def noise_toml(shapes: dict[str, dict[str, object]]) -> str:
    lines = ["# Written by bench/fit_catalog.py; phi in samples, over equal parts of a run."]
    for name in sorted(shapes):
        lines += ["", f"[{name}]", f"batch = {shapes[name]['batch']}"]
        lines += [f"phi = {shapes[name]['phi']}", 'source = "pollux"']
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add_data(parser)
    parser.add_argument("--write", action="store_true", help="rewrite the generated files")
    arguments = parser.parse_args()
    if not is_there(arguments.data, "pollux/profiles", "gavel", "deeppool"):
        return 0
    fits = fit_all(arguments.data)
    print(f"{'model':18}{'GPU':6}{'points':>7}{'median':>8}{'p90':>8}  source")
    for name in sorted(fits):
        for kind, of in sorted(fits[name].items()):
            errors = "" if of.median_error is None else f"{of.median_error:8.1%}{of.p90_error:8.1%}"
            print(f"{name:18}{kind:6}{of.points:7}{errors:16}  {of.source} {of.note}")
    same = True
    files = {"step_times.toml": step_times_toml(fits)}
    files["gradient_noise.toml"] = noise_toml(noise_all(arguments.data))
    for name, text in files.items():
        path = CATALOG / name
        if arguments.write:
            path.write_text(text)
        same &= path.exists() and path.read_text() == text
    print("the catalogue is what was fitted" if same else "the catalogue DIFFERS from this fit")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
