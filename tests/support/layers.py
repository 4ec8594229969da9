"""Invented layer graphs, and the unbeaten plans of them by plain enumeration."""

import json
from itertools import product
from random import Random

from rota.burst.planner.costs import Costs, Network
from rota.burst.planner.plan import chained
from rota.model.layer_graph import FORMAT, Layer, LayerGraph, LayerTime

NETWORK = Network(1e9, 1e-4)


def layer(name, inputs=(), *, seed=0, batch=12, **fields):
    """A layer that gains from GPUs more or less, as the seed has it."""
    draw = Random(f"{name}-{seed}")
    fixed, each = draw.uniform(1e-4, 4e-3), draw.uniform(1e-5, 1e-3)
    times = tuple(
        LayerTime(n, fixed + each * n, 2 * fixed + 2 * each * n) for n in range(1, batch + 1)
    )
    fields = {
        "parameters": draw.randrange(0, 2_000_000),
        "output_values": draw.randrange(1, 50_000),
        "activation_values": draw.randrange(1, 50_000),
    } | fields
    return Layer(name, times, tuple(inputs), **fields)


def graph(edges, seed=0, batch=12, **fields):
    """A graph of layers a, b, c, ... whose edges are written as ``ab bc``."""
    names = sorted({name for edge in edges.split() for name in edge} or {"a"})
    inputs = {name: [edge[0] for edge in edges.split() if edge[1] == name] for name in names}
    layers = [
        layer(name, inputs[name], seed=seed, batch=batch, **fields.get(name, {})) for name in names
    ]
    return LayerGraph("invented", layers)


def exhausted(costs: Costs, same=()):
    """(seconds, GPU-seconds) of all unbeaten plans whose layers run one after another."""
    number = len(costs.graph.layers)
    found = []
    for sizes in product(costs.sizes, repeat=number):
        if all(sizes[a] == sizes[b] for a, b in same):
            plan = chained(costs, sizes)
            if costs.memory_bytes is None or plan.memory_bytes <= costs.memory_bytes:
                found.append((plan.step_s, plan.gpu_time_s))
    return front(found)


def front(points):
    """Those that no other point beats, the fastest first."""
    kept = []
    for point in sorted(points):
        if not kept or point[1] < kept[-1][1] * (1 - 1e-9):
            kept.append(point)
    return kept


def write_profile(path, chain, most, **more):
    """A profile of layers in a row; ``chain`` has their seconds with one sample and with most."""
    before, layers = [], []
    for name, ends in chain.items():
        times = [
            {"batch": batch, "forward_s": seconds / 3, "backward_s": 2 * seconds / 3}
            for batch, seconds in zip((1, most), ends, strict=True)
        ]
        layer = {"name": name, "inputs": before, "parameters": 100, "output_values": 16}
        layers.append(layer | {"times": times})
        before = [name]
    told = {"format": FORMAT, "version": 1, "model": "a chain", "layers": layers}
    path.write_text(json.dumps(told | more))
    return path
