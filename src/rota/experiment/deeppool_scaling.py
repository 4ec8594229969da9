"""Weak, strong and batch-optimal scaling at three network speeds (DeepPool, MLSys 2022, section 2).

*Weak* scaling keeps the batch of each GPU, *strong* scaling that of the training, and
*batch-optimal* scaling chooses the batch with which the target accuracy is reached first. Data
parallelism on VGG-16, with the published A100 times and with reductions that overlap the backward
pass. The samples until the target are those of small batches times (1 + batch / noise scale); the
noise scale is assumed.

Published without figures, and judged at every network speed: batch-optimal scaling reaches the
target first at each number of GPUs; its batch per GPU shrinks with scale; none is linear. Strong
scaling gains most from a fast network.
"""

from pathlib import Path
from typing import NamedTuple

from rota.burst.planner.costs import Costs, Network
from rota.burst.planner.plan import data_parallel
from rota.burst.planner.timeline import timeline
from rota.experiment.base import Figure, Outcome
from rota.experiment.runs.deeppool import model, require
from rota.model.layer_graph import LayerGraph

NAME = "deeppool-scaling"
SEEDS: list[int] = []
BATCH = 256  # of strong scaling, and of all on the fewest GPUs
NOISE_SCALE = 4000.0
GPUS = (4, 8, 16, 32, 64, 128, 256)
PER_GPU = (1, 2, 4, 8, 16, 32, 64)  # batches of a GPU to choose from
NETWORKS = {
    "266 GB/s": Network(2.66e11, 40e-6),
    "23 GB/s": Network(2.2937e10, 40e-6),
    "1.25 GB/s": Network(1.25e9, 40e-6),
}
BELOW_ONE = (0.0, 1.0 - 1e-9)


class Reached(NamedTuple):
    """Relative time until the target, and the batch of a GPU."""

    time: float
    per_gpu: int


def run(data: Path | None = None) -> Outcome:
    """Read the profile in ``data``. Raises DataMissingError."""
    graph = model(require(data), "VGG-16")
    settings = {"batch": BATCH, "noise_scale": NOISE_SCALE, "gpus": list(GPUS)}
    found = {name: scaled(graph, network) for name, network in NETWORKS.items()}
    return Outcome(NAME, SEEDS, settings, figures(found))


def scaled(graph: LayerGraph, network: Network) -> dict[str, list[Reached]]:
    """By way to scale: what is reached on each of the ``GPUS``."""

    def reached(gpus: int, per_gpu: int) -> Reached:
        batch = gpus * per_gpu
        costs = Costs(graph, batch, gpus, network)
        step_s = timeline(costs, data_parallel(costs, gpus)).step_s
        return Reached(step_s / batch * (1.0 + batch / NOISE_SCALE), per_gpu)

    return {
        "weak": [reached(gpus, BATCH // GPUS[0]) for gpus in GPUS],
        "strong": [reached(gpus, BATCH // gpus) for gpus in GPUS],
        "batch-optimal": [min(reached(gpus, size) for size in PER_GPU) for gpus in GPUS],
    }


def figures(found: dict[str, dict[str, list[Reached]]]) -> list[Figure]:
    """Figures of what each network and way to scale reached."""
    made = []
    for network, ways in found.items():
        optimal = ways["batch-optimal"]
        others = [min(each) for each in zip(ways["weak"], ways["strong"], strict=True)]
        over = [mine.time / other.time for mine, other in zip(optimal, others, strict=True)]
        name = f"{network}: batch-optimal time over the better of the others"
        made.append(Figure(name, "", None, None, max(over), 0.0, 1.0, min(over), max(over)))
        shrinks = optimal[-1].per_gpu / optimal[0].per_gpu
        name = f"{network}: batch of a GPU, {GPUS[-1]} over {GPUS[0]} GPUs"
        made.append(Figure(name, "", None, None, shrinks, *BELOW_ONE))
        for way, each in ways.items():
            linear = each[0].time / each[-1].time / (GPUS[-1] / GPUS[0])
            name = f"{network}: {way}, part of linear speed-up"
            made.append(Figure(name, "", None, None, linear, *BELOW_ONE))
    fast, *_, slow = found.values()
    gains = {way: slow[way][-1].time / fast[way][-1].time for way in fast}
    for way, gain in gains.items():
        made.append(Figure(f"{way}: gain from the fastest network", "", None, None, gain))
    most = max(gain for way, gain in gains.items() if way != "strong")
    further = gains["strong"] / most
    name = "strong: gain from the fastest network over the others'"
    return [*made, Figure(name, "", None, None, further, 1.0, 100.0)]
