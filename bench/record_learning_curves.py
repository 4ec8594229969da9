"""Learning curves of random hyper-parameters: real trainings of small models, on one CPU thread.

    python bench/record_learning_curves.py [--repeat 2] [--jobs 1]
    python bench/record_learning_curves.py --write [--runs 200] [--jobs 2] [SEARCH ...]

Without ``--write`` it trains some recorded configurations again and prints how far their
accuracies are from the recorded ones: nothing with the same torch on the same processor. With it,
it trains those that the files of ``rota.workload.learning_curves`` lack, and adds them one by one;
so it goes on where it was cut off. The searches are in ``_searches.py``.
"""

import argparse
import json
import math
import multiprocessing
import os
import platform
import random
import time
from pathlib import Path
from typing import Any

import torch
from _searches import SEARCHES, Data, Parameters
from torch import nn
from torch.nn import functional

from rota.workload import learning_curves
from rota.workload.learning_curves import Run


def parameters_of(search: str, number: int) -> Parameters:
    """The parameters of one configuration, whatever was drawn before."""
    return SEARCHES[search].draw(random.Random(f"{search} {number}"))


# -- one training ----------------------------------------------------------------------------------


def train(job: tuple[str, int]) -> Run:
    """Trains one configuration, on one thread."""
    torch.set_num_threads(1)
    name, number = job
    search, parameters = SEARCHES[name], parameters_of(name, number)
    torch.manual_seed(number)
    data, model = search.data(), search.model(parameters)
    with torch.no_grad():
        for weights in model.parameters():
            if weights.dim() > 1:
                weights.mul_(parameters["init_scale"])
    optimizer = optimizer_of(model, parameters)
    accuracies: list[float] = []
    took_s: list[float] = []
    diverged = None
    for epoch in range(search.epochs):
        if diverged:  # what is no number stays so
            accuracies.append(accuracies[-1])
            continue
        began = time.thread_time()
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(parameters, epoch, search.epochs)
        finite = train_epoch(model, optimizer, data, parameters)
        accuracies.append(accuracy(model, data))
        took_s.append(time.thread_time() - began)
        if not finite:
            diverged = epoch + 1
    # The lower quartile: what else the machine does makes some epochs longer.
    epoch_s = sorted(took_s)[len(took_s) // 4]
    values = tuple(parameters.items())
    return Run(number, values, float(f"{epoch_s:.3g}"), diverged, tuple(accuracies))


def optimizer_of(model: nn.Module, parameters: Parameters) -> torch.optim.Optimizer:
    weights, momentum = model.parameters(), parameters["momentum"]
    rest = {"lr": parameters["learning_rate"], "weight_decay": parameters["weight_decay"]}
    if parameters["optimizer"] == "sgd":
        return torch.optim.SGD(weights, momentum=momentum, fused=True, **rest)
    if parameters["optimizer"] == "rmsprop":
        return torch.optim.RMSprop(weights, momentum=momentum, foreach=True, **rest)
    return torch.optim.AdamW(weights, betas=(momentum, 0.999), fused=True, **rest)


def learning_rate(parameters: Parameters, epoch: int, epochs: int) -> float:
    """The learning rate of an epoch, counted from zero."""
    rate, warmup = parameters["learning_rate"], parameters["warmup_epochs"]
    done = epoch / epochs
    if epoch < warmup:
        return rate * (epoch + 1) / (warmup + 1)
    match parameters["schedule"]:
        case "cosine":
            return rate * (1 + math.cos(math.pi * done)) / 2
        case "linear":
            return rate * (1 - done)
        case "steps":
            return rate * 0.1 ** ((done >= 0.5) + (done >= 0.75))
    return rate


def train_epoch(
    model: nn.Module, optimizer: torch.optim.Optimizer, data: Data, parameters: Parameters
) -> bool:
    """Goes through the data once. Whether all losses were finite."""
    model.train()
    variants = len(data.x) if parameters.get("shift") else 1
    total = torch.zeros(())
    for chosen in torch.randperm(len(data.y)).split(parameters["batch_size"]):
        x = data.x[torch.randint(variants, chosen.shape), chosen]
        x = x + parameters["noise"] * torch.randn(x.shape)
        loss = functional.cross_entropy(
            model(x), data.y[chosen], label_smoothing=parameters["label_smoothing"]
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.detach()
    return bool(total.isfinite())


@torch.no_grad()
def accuracy(model: nn.Module, data: Data) -> float:
    model.eval()
    right = int((model(data.x_val).argmax(1) == data.y_val).sum())
    return round(right / len(data.y_val), 4)


# -- files -----------------------------------------------------------------------------------------


def recorded_runs(search: str) -> list[Run]:
    """The runs in the file of a search; none if there is no file."""
    there = search in learning_curves.names()
    return list(learning_curves.load(search).runs) if there else []


def write(search: str, runs: list[Run]) -> None:
    """Puts the file in place as a whole: who is cut off leaves the one before."""
    of = SEARCHES[search]
    head = {"task": of.task, "epochs": of.epochs, "recorded": machine()}
    head["parameters"] = [name for name, _ in runs[0].parameters]
    lines = []
    for run in sorted(runs):
        row = run._asdict() | {"parameters": [value for _, value in run.parameters]}
        lines.append(json.dumps(row, separators=(",", ":")))
    text = json.dumps(head | {"runs": []}, indent=1).replace(
        "[]", "[\n" + ",\n".join(lines) + "\n]"
    )
    path = learning_curves.FOLDER / f"{search}.json"
    new = path.with_suffix(".new")
    new.write_text(text + "\n")
    os.replace(new, path)


def machine() -> str:
    processor = platform.processor() or platform.machine()
    cpus = Path("/proc/cpuinfo")
    if cpus.exists():
        named = [line for line in cpus.read_text().splitlines() if line.startswith("model name")]
        processor = named[0].partition(":")[2].strip() if named else processor
    return f"torch {torch.__version__}, one thread of {processor}"


# -- the program -----------------------------------------------------------------------------------


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("searches", nargs="*", metavar="SEARCH", default=list(SEARCHES))
    parser.add_argument("--write", action="store_true", help="train what is missing, and keep it")
    parser.add_argument("--runs", type=int, default=200, help="of each search, with --write")
    parser.add_argument("--repeat", type=int, default=2, help="of each search, without --write")
    parser.add_argument("--jobs", type=int, default=1, help="trainings at a time")
    options = parser.parse_args()
    unknown = set(options.searches) - set(SEARCHES)
    if unknown:
        parser.error(f"SEARCH: {unknown.pop()!r} is none of {', '.join(SEARCHES)}")
    known = {search: recorded_runs(search) for search in options.searches}
    context = multiprocessing.get_context("spawn")
    with context.Pool(options.jobs) as pool:
        if options.write:
            record(pool, known, options.runs)
            return 0
        return repeat(pool, known, options.repeat)


def record(pool: Any, known: dict[str, list[Run]], count: int) -> None:
    """Trains what is missing of the first ``count`` configurations, of all searches in turn."""
    there = {(search, run.number) for search, runs in known.items() for run in runs}
    every = [(search, number) for number in range(count) for search in known]
    for search, run in pool.imap_unordered(_named, [job for job in every if job not in there]):
        known[search].append(run)
        write(search, known[search])
        best = max(run.accuracies)
        print(f"{search} {run.number}: {best:.3f}, {1e3 * run.epoch_s:.1f} ms an epoch", flush=True)


def _named(job: tuple[str, int]) -> tuple[str, Run]:
    return job[0], train(job)


def repeat(pool: Any, known: dict[str, list[Run]], count: int) -> int:
    """Trains the first of each search again. 1 if the parameters are others, else 0."""
    jobs = [(search, run) for search, runs in known.items() for run in runs[:count]]
    again = pool.map(train, [(search, run.number) for search, run in jobs])
    changed = False
    for (search, before), run in zip(jobs, again, strict=True):
        pairs = zip(before.accuracies, run.accuracies, strict=True)
        largest = max(abs(a - b) for a, b in pairs)
        changed |= before.parameters != run.parameters
        print(
            f"{search} {run.number}: accuracies differ by {largest:.3f} at most; "
            f"{1e3 * run.epoch_s:.1f} ms an epoch, recorded {1e3 * before.epoch_s:.1f}"
        )
    if changed:
        print("the searches are others than those that were recorded: record them anew")
    return int(changed)


if __name__ == "__main__":
    raise SystemExit(main())
