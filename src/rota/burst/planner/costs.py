"""Costs of layers on any number of GPUs: computing, reduction, re-sharding, memory.

DeepPool (MLSys 2022), section 3, with the corrections that docs/research/deeppool.md lists.
"""

from functools import cached_property

from rota.errors import InputError
from rota.model.layer_graph import MOST_S, LayerGraph, Network

MAX_GPUS = 4096
LEAST_S = 1e-12

A100_NVSWITCH = Network(2.66e11, 40e-6)
V100_NVLINK = Network(2.2937e10, 40e-6)


class Costs:
    """Costs of one step of ``batch`` samples on at most ``gpus`` GPUs.

    ``sizes`` are the numbers of GPUs a layer may have: divisors of the batch whose samples per GPU
    the profile covers, rising. Without a ``network``, the links are those measured with the
    profile, else an A100's. ``memory_bytes`` limits what a GPU holds; None is no limit. With
    ``hidden_reductions`` all reductions overlap the backward pass, and cost nothing. Raises
    InputError if no size is left, or for a figure out of range.
    """

    def __init__(
        self,
        graph: LayerGraph,
        batch: int,
        gpus: int,
        network: Network | None = None,
        memory_bytes: float | None = None,
        *,
        hidden_reductions: bool = False,
    ) -> None:
        network = network or graph.network or A100_NVSWITCH
        _check(batch, gpus, network, memory_bytes)
        self.graph, self.batch, self.gpus = graph, batch, gpus
        self.network, self.memory_bytes = network, memory_bytes
        self.hidden_reductions = hidden_reductions
        least, most = graph.least_batch, graph.most_batch
        self.sizes = tuple(
            size
            for size in range(1, min(gpus, batch) + 1)
            if batch % size == 0 and least <= batch // size <= most
        )
        if not self.sizes:
            raise InputError(
                f"batch {batch} on up to {gpus} GPUs: no number of GPUs divides it into the "
                f"{least} to {most} samples per GPU that the profile {graph.name} has"
            )
        if not any(sum(layer.seconds(batch / self.sizes[0])) > LEAST_S for layer in graph.layers):
            raise InputError(f"the layers of {graph.name} take no time; measure them")
        self._tied: dict[int, list[int]] = {}
        for i, layer in enumerate(graph.layers):
            if layer.tied_to is not None:
                self._tied.setdefault(graph.index[layer.tied_to], []).append(i)

    def compute_s(self, layer: int, size: int) -> tuple[float, float]:
        """Forward and backward seconds of a layer on ``size`` GPUs."""
        return self.graph.layers[layer].seconds(self.batch / size)

    def reduce_bytes(self, layer: int) -> int:
        """Bytes of the gradients that are summed after the layer's backward pass.

        Those of tied layers are summed once, after the last backward pass that adds to them: that
        of the first of these layers.
        """
        layers = self.graph.layers
        owner = layers[layer].tied_to
        at = layer if owner is None else self.graph.index[owner]
        if layer != min([at, *self._tied.get(at, ())]):
            return 0
        return layers[at].parameters * self.graph.bytes_per_value

    def reduce_s(self, layer: int, size: int) -> float:
        """Seconds of a ring all-reduce of the layer's gradients among ``size`` GPUs."""
        held = self.reduce_bytes(layer)
        if size == 1 or not held:
            return 0.0
        links = self.network
        bandwidth = links.reduce_bandwidth_bytes_s or links.bandwidth_bytes_s
        return links.reduce_latency_s + 2.0 * (size - 1) / size * held / bandwidth

    def alone_s(self, layer: int, size: int) -> float:
        """Seconds of a layer on ``size`` GPUs with what its reduction costs, without transfers."""
        reduce_s = 0.0 if self.hidden_reductions else self.reduce_s(layer, size)
        return sum(self.compute_s(layer, size)) + reduce_s

    def transfer_s(self, source: int, sending: int, taking: int, moved: bool) -> float:
        """Seconds, forward and backward together, to re-shard the output of layer ``source``.

        Its ``sending`` GPUs hold it, ``taking`` need it. GPUs of the smaller group are among those
        of the larger one unless ``moved``, and keep their samples where they can.
        """
        if sending == taking and not moved:
            return 0.0
        sample = self.graph.layers[source].output_values * self.graph.bytes_per_value
        held, needed = self.batch / sending * sample, self.batch / taking * sample
        common = 0.0 if moved else min(held, needed)
        out = held - (common if taking >= sending else 0.0)
        into = needed - (common if taking <= sending else 0.0)
        if max(out, into) <= 0.0:
            return 0.0
        return 2.0 * (max(out, into) / self.network.bandwidth_bytes_s + self.network.latency_s)

    def held_bytes(self, layer: int, size: int) -> float:
        """Bytes of a layer on each of its ``size`` GPUs: parameters and kept activations."""
        one, graph = self.graph.layers[layer], self.graph
        owned = 0 if one.tied_to is not None else one.parameters * graph.bytes_per_parameter
        return owned + one.activation_values * graph.bytes_per_value * self.batch / size

    @cached_property
    def least_gpu_time_s(self) -> float:
        """GPU-seconds of a step on the fewest GPUs that the profile covers: one, mostly."""
        fewest = self.sizes[0]
        return fewest * sum(self.alone_s(i, fewest) for i in range(len(self.graph.layers)))


def _check(batch: int, gpus: int, network: Network, memory_bytes: float | None) -> None:
    if batch < 1:
        raise InputError(f"batch is {batch}; it is 1 or more samples")
    if not 1 <= gpus <= MAX_GPUS:
        raise InputError(f"gpus is {gpus}; they are 1 to {MAX_GPUS}")
    pairs = ((network.bandwidth_bytes_s, network.latency_s), network[2:])
    for bandwidth, latency_s in pairs:
        if not (bandwidth is None or bandwidth >= 1.0) or not 0.0 <= latency_s <= MOST_S:
            raise InputError(
                f"the network has {bandwidth or 0:g} bytes/s and {latency_s:g} s latency; the "
                f"first is at least 1, the second from 0 to {MOST_S:g}"
            )
    if memory_bytes is not None and not memory_bytes > 0.0:
        raise InputError(f"the memory of a GPU is {memory_bytes:g} bytes; it is above 0")
