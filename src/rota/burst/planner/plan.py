"""A plan: the GPUs of each layer, and what a step costs with them."""

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from rota.burst.planner.costs import Costs


class Group(NamedTuple):
    """GPUs ``first`` to ``first + size - 1``."""

    first: int
    size: int

    @property
    def end(self) -> int:
        """The number after the last GPU's."""
        return self.first + self.size


class Plan(NamedTuple):
    """The GPUs of each layer, in the order of the graph, and the costs of a step.

    ``gpu_time_s`` is the sum over layers of seconds times GPUs, a transfer counted to the layer
    that takes; ``memory_bytes`` is what the fullest GPU holds. ``gpus`` is how many are used.
    """

    groups: tuple[Group, ...]
    step_s: float
    gpu_time_s: float
    memory_bytes: float

    @property
    def gpus(self) -> int:
        """GPUs from the first to the last that has a layer."""
        return max(group.end for group in self.groups)

    @property
    def is_data_parallel(self) -> bool:
        """True if every layer runs on the same GPUs."""
        return len(set(self.groups)) == 1


def chained(costs: Costs, sizes: Sequence[int]) -> Plan:
    """The plan whose layers have these sizes and run one after another, on GPUs from the first.

    Transfers and reductions overlap nothing.
    """
    step_s = gpu_time_s = memory_bytes = 0.0
    for layer, size in enumerate(sizes):
        alone_s = costs.alone_s(layer, size)
        step_s += alone_s
        gpu_time_s += alone_s * size
        memory_bytes += costs.held_bytes(layer, size)
    for source, taker in costs.graph.edges:
        transfer_s = costs.transfer_s(source, sizes[source], sizes[taker], moved=False)
        step_s += transfer_s
        gpu_time_s += transfer_s * sizes[taker]
    groups = tuple(Group(0, size) for size in sizes)
    return Plan(groups, step_s, gpu_time_s, memory_bytes)


def fullest_bytes(costs: Costs, groups: Sequence[Group]) -> float:
    """Bytes on the GPU that holds most, where the layers are on these groups."""
    change: dict[int, float] = {}
    for layer, group in enumerate(groups):
        held = costs.held_bytes(layer, group.size)
        change[group.first] = change.get(group.first, 0.0) + held
        change[group.end] = change.get(group.end, 0.0) - held
    return max(accumulate(change[gpu] for gpu in sorted(change)))


def data_parallel(costs: Costs, size: int) -> Plan:
    """Every layer on ``size`` GPUs."""
    return chained(costs, [size] * len(costs.graph.layers))
