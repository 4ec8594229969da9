"""Invented layer graphs, and the unbeaten plans of them by plain enumeration."""

from itertools import product
from random import Random

from rota.burst.planner.costs import Costs, Network
from rota.burst.planner.plan import chained
from rota.model.layer_graph import Layer, LayerGraph, LayerTime

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
