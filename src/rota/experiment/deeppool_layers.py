"""Layers of one model gain very differently from more GPUs (DeepPool, MLSys 2022, figure 5).

Published for VGG-16 on A100 GPUs, from 64 samples on one GPU to 2 on each of 32: the first
convolution runs 25.7 times as fast, convolutions of 512 channels at 14x14 run 6.6 times, and the
linear layer of 25,088 inputs 1.1 times. (The paper goes on to 128 samples, which the published
profile lacks.) A layer is taken with the activation function after it, with whose time its backward
pass was measured. Each is judged within 10 %.
"""

from pathlib import Path

from rota.experiment.base import Figure, Outcome
from rota.experiment.runs.deeppool import model, require
from rota.model.layer_graph import LayerGraph

NAME = "deeppool-layers"
SEEDS: list[int] = []
MOST, LEAST = 64, 2
TOLERANCE = 0.1
# Name of the layer in the profile, and what was published of it.
PUBLISHED = {
    "first convolution": ("conv2d-1", 25.7),
    "512 channels at 14x14": ("conv2d-11", 6.6),
    "linear layer of 25,088": ("linear-1", 1.1),
}


def run(data: Path | None = None) -> Outcome:
    """Read the profile in ``data``. Raises DataMissingError."""
    graph = model(require(data), "VGG-16")
    settings = {"model": graph.name, "samples": [MOST, LEAST], "tolerance": TOLERANCE}
    return Outcome(NAME, SEEDS, settings, figures(graph))


def figures(graph: LayerGraph) -> list[Figure]:
    """Speed-up of each published layer, and of the whole model."""
    made = []
    for label, (name, published) in PUBLISHED.items():
        bounds = (published * (1 - TOLERANCE), published * (1 + TOLERANCE))
        ours = _seconds(graph, name, MOST) / _seconds(graph, name, LEAST)
        made.append(Figure(f"{label}: speed-up", "", published, None, ours, *bounds))
    whole = [sum(sum(each.seconds(batch)) for each in graph.layers) for batch in (MOST, LEAST)]
    return [*made, Figure("all layers: speed-up", "", None, None, whole[0] / whole[1])]


def _seconds(graph: LayerGraph, name: str, batch: int) -> float:
    """A layer with those that follow on the same GPUs."""
    at = graph.index[name]
    seconds = sum(graph.layers[at].seconds(batch))
    for layer in graph.layers[at + 1 :]:
        if not layer.keeps_size:
            break
        seconds += sum(layer.seconds(batch))
    return seconds
