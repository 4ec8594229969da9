"""A search whose trials leave GPUs mostly idle: a good configuration sooner by sharing them.

A hundred configurations on four GPUs, with the recorded learning curves of gandiva-automl: how long
until the first passes a value that 16, 3 and 1 of them pass, under Gandiva with and without
packing, and by running four at a time to completion. How fast trials are that share a GPU is given
by the throughputs of Gandiva's table (OSDI 2018), as in gandiva-packing; the policy is told only
how far a trial uses its GPU, and how much memory it needs, of which as many fit as are published.
"""

from random import Random
from typing import Any, NamedTuple

from rota.experiment.base import Figure, Outcome, for_each_seed, information, over_seeds, ratios
from rota.experiment.gandiva_automl import (
    CONFIGURATIONS,
    COSTS,
    RARE,
    RUN_S,
    first_passed_s,
    rare_values,
    trials_of,
)
from rota.experiment.gandiva_packing import RESNET, SUPER_RESOLUTION, VAE, Kind
from rota.model.cluster import parse_cluster
from rota.policy.registry import create
from rota.predict.interference import Interference
from rota.sim.simulation import Simulation
from rota.workload.learning_curves import load
from rota.workload.trace import Trace

NAME = "sweep-packing"
SEEDS = list(range(10))  # each a random order of the configurations
SEARCH = "digits-resnet"
CLUSTER = "1x4"
GPU_GB = 24.0
MEMORY_GB = {"vae": 4.0, "super-resolution": 7.0, "resnet50": 7.0}  # five, three and three fit
# A ResNet that seems small enough for a trial of packing, and loses by it as the table's do.
KINDS = (VAE, SUPER_RESOLUTION, RESNET._replace(utilisation=0.4))
# Fixed before the first run: at the top 3, packing on against off in the same order.
JUDGED = 3
LEAST_RATIO = {"vae": 2.0, "super-resolution": 1.5, "resnet50": 1 / 1.02}
MOST_RATIO = 100.0  # running so many configurations at once could not give more


class Subject(NamedTuple):
    """The search under one policy, its trials of one kind."""

    policy: str
    kind: Kind
    pack: str = "off"


WHOLE, TURNS = Subject("fifo", VAE), Subject("gandiva", VAE)  # alone, all kinds are alike
PACKED = [Subject("gandiva", kind, "on") for kind in KINDS]


def run() -> Outcome:
    """Run the search in every order, in each of the ways."""
    subjects = [WHOLE, TURNS, *PACKED]
    keyed = dict(zip(subjects, subjects, strict=True))
    found = for_each_seed(times_min, keyed, SEEDS, num_jobs=CONFIGURATIONS)
    figures = []
    for index, number in enumerate(RARE):
        whole, turns = ([each[index] for each in found[subject]] for subject in (WHOLE, TURNS))
        name = f"top {number}, not packed: time"
        figures.append(over_seeds(name, "min", turns, baseline=whole))
        for subject in PACKED:
            packed = [each[index] for each in found[subject]]
            figures += _figures(subject.kind.model, number, turns, packed)
    return Outcome(NAME, SEEDS, _settings(), figures)


def _figures(model: str, number: int, turns: list[float], packed: list[float]) -> list[Figure]:
    """Time until packed trials pass the goal, and its ratio to that of trials not packed."""
    bounds = (LEAST_RATIO[model], MOST_RATIO) if number == JUDGED else None
    return [
        over_seeds(f"top {number}, {model} packed: time", "min", packed, baseline=turns),
        over_seeds(
            f"top {number}, {model} packed: sooner by",
            "times",
            ratios(turns, packed),
            bounds=bounds,
        ),
    ]


def _settings() -> dict[str, Any]:
    return {
        "cluster": CLUSTER,
        "configurations": CONFIGURATIONS,
        "run_min": RUN_S / 60,
        "search": load(SEARCH).task,
        "passed_by": list(RARE),
        "utilisation": {kind.model: kind.utilisation for kind in KINDS},
        "speed beside one of its kind": {kind.model: round(kind.speed, 4) for kind in KINDS},
        "memory_gb": MEMORY_GB,
        "gpu_memory_gb": GPU_GB,
        "costs": COSTS._asdict(),
        "baseline": "fifo for times not packed, else gandiva with pack=off",
        "information": information("fifo", "gandiva"),
    }


def times_min(subject: Subject, seed: int) -> list[float]:
    """Minutes until the first configuration passes the value that each number of RARE pass."""
    kind = subject.kind
    runs = Random(seed).sample(load(SEARCH).runs, CONFIGURATIONS)
    memory_gb = MEMORY_GB[kind.model]
    jobs, curves = trials_of(
        SEARCH, runs, model=kind.model, gpu_util=kind.utilisation, memory_gb=memory_gb
    )
    given = {"pack": subject.pack, "gpu_memory_gb": str(GPU_GB)}
    policy = create(subject.policy, given if subject.policy == "gandiva" else {})
    simulation = Simulation(
        Trace(jobs, NAME),
        parse_cluster(CLUSTER),
        policy,
        COSTS,
        interference=Interference({(kind.model, kind.model): (kind.speed, kind.speed)}),
        curves=curves,
    )
    return [at_s / 60 for at_s in first_passed_s(simulation, curves, rare_values(runs))]
