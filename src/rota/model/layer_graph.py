"""The layers of a model with their measured times, and the graph that joins them."""

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

from rota.errors import InputError, did_you_mean

MAX_LAYERS = 10_000
MOST_S = 1e9
FORMAT = "rota-layer-profile"


class Network(NamedTuple):
    """Links between GPUs: bytes per second in each direction, and seconds until the first byte.

    Reductions have figures of their own where they were measured; else they take the bandwidth of
    the links and no latency. ``reduce_bandwidth_bytes_s`` is that of the bytes a ring sends: of
    ``2 (g - 1) / g`` times the gradients.
    """

    bandwidth_bytes_s: float
    latency_s: float
    reduce_bandwidth_bytes_s: float | None = None
    reduce_latency_s: float = 0.0


class LayerTime(NamedTuple):
    """Seconds that a layer took on one GPU with ``batch`` samples."""

    batch: int
    forward_s: float
    backward_s: float


class Layer(NamedTuple):
    """One layer of a model.

    ``times`` are by batch, in rising order. ``inputs`` names the layers whose output it reads.
    ``parameters`` is the number of its trainable values, ``output_values`` how many values it
    yields for a sample. ``activation_values`` is how many a sample keeps in memory until its
    backward pass. A layer with ``keeps_size`` runs on the GPUs of its only input, as an activation
    function does. ``tied_to`` names the layer that has this layer's parameters as well.
    """

    name: str
    times: tuple[LayerTime, ...]
    inputs: tuple[str, ...] = ()
    parameters: int = 0
    output_values: int = 0
    activation_values: int = 0
    keeps_size: bool = False
    tied_to: str | None = None

    def seconds(self, batch: float) -> tuple[float, float]:
        """Forward and backward seconds with ``batch`` samples, linear between measured batches.

        Raises InputError outside them.
        """
        times = self.times
        least, most = times[0].batch, times[-1].batch
        if not least <= batch <= most:
            raise InputError(
                f"layer {self.name}: {batch:g} samples on a GPU were not measured; "
                f"the profile has {least} to {most}"
            )
        at = bisect_left(times, batch, key=lambda time: time.batch)
        high = times[at]
        if high.batch == batch:
            return high.forward_s, high.backward_s
        low = times[at - 1]
        part = (batch - low.batch) / (high.batch - low.batch)
        return (
            low.forward_s + part * (high.forward_s - low.forward_s),
            low.backward_s + part * (high.backward_s - low.backward_s),
        )


class LayerGraph:
    """The layers of a model, each after all of its inputs.

    ``bytes_per_value`` is the width of activations and gradients, ``bytes_per_parameter`` what a
    parameter takes on a GPU with its gradient and what the optimiser keeps of it. ``network`` has
    the links that were measured with the layers, if any. Raises InputError for layers that make no
    graph, naming the layer.
    """

    def __init__(
        self,
        name: str,
        layers: Iterable[Layer],
        *,
        bytes_per_value: int = 4,
        bytes_per_parameter: int | None = None,
        network: Network | None = None,
    ) -> None:
        self.name = name
        self.network = network
        self.layers = tuple(layers)
        self.bytes_per_value = bytes_per_value
        self.bytes_per_parameter = (
            3 * bytes_per_value if bytes_per_parameter is None else bytes_per_parameter
        )
        self.index: Mapping[str, int] = {layer.name: i for i, layer in enumerate(self.layers)}
        self._check()
        self.edges = tuple(
            (self.index[source], i)
            for i, layer in enumerate(self.layers)
            for source in layer.inputs
        )
        self.least_batch = max(layer.times[0].batch for layer in self.layers)
        self.most_batch = min(layer.times[-1].batch for layer in self.layers)

    @property
    def parameters(self) -> int:
        """Trainable values of the model; those of tied layers count once."""
        return sum(layer.parameters for layer in self.layers if layer.tied_to is None)

    def as_json(self) -> dict[str, Any]:
        """The graph as JSON-able values that ``rota.workload.layer_profiles`` reads."""
        layers = []
        for layer in self.layers:
            times = [time._asdict() for time in layer.times]
            layers.append({**layer._asdict(), "inputs": list(layer.inputs), "times": times})
        return {
            "format": FORMAT,
            "version": 1,
            "model": self.name,
            "bytes_per_value": self.bytes_per_value,
            "bytes_per_parameter": self.bytes_per_parameter,
            **({"network": self.network._asdict()} if self.network else {}),
            "layers": layers,
        }

    def _check(self) -> None:
        if not 0 < len(self.layers) <= MAX_LAYERS:
            raise InputError(f"a profile has 1 to {MAX_LAYERS} layers, and not {len(self.layers)}")
        if len(self.index) < len(self.layers):
            names = [layer.name for layer in self.layers]
            twice = next(name for name in names if names.count(name) > 1)
            raise InputError(f"layer {twice}: the name is taken twice; give each its own")
        if self.bytes_per_value <= 0 or self.bytes_per_parameter < self.bytes_per_value:
            raise InputError(
                f"bytes_per_value is {self.bytes_per_value} and bytes_per_parameter "
                f"{self.bytes_per_parameter}; both are above 0, the second at least the first"
            )
        for i, layer in enumerate(self.layers):
            self._check_inputs(i, layer)
            self._check_tie(layer)
            _check_figures(layer)

    def _check_inputs(self, i: int, layer: Layer) -> None:
        for source in layer.inputs:
            if source not in self.index:
                hint = did_you_mean(source, self.index)
                raise InputError(f"layer {layer.name}: there is no input {source!r}{hint}")
            if self.index[source] >= i:
                raise InputError(
                    f"layer {layer.name}: its input {source} comes later or is the layer itself; "
                    "list each layer after its inputs"
                )
        if len(set(layer.inputs)) < len(layer.inputs):
            raise InputError(f"layer {layer.name}: an input is named twice; name each once")
        if layer.keeps_size and len(layer.inputs) != 1:
            raise InputError(
                f"layer {layer.name}: it keeps the size of its input and has "
                f"{len(layer.inputs)}; it needs one, or keeps_size must be false"
            )

    def _check_tie(self, layer: Layer) -> None:
        if layer.tied_to is None:
            return
        other = self.index.get(layer.tied_to)
        if other is None:
            hint = did_you_mean(layer.tied_to, self.index)
            raise InputError(f"layer {layer.name}: tied_to {layer.tied_to!r} is no layer{hint}")
        if self.layers[other].tied_to is not None or layer.tied_to == layer.name:
            raise InputError(
                f"layer {layer.name}: tied_to {layer.tied_to} is tied itself; "
                "name the layer that owns the parameters"
            )


def _check_figures(layer: Layer) -> None:
    if not layer.times:
        raise InputError(f"layer {layer.name}: it has no time; measure it with one batch or more")
    batches = [time.batch for time in layer.times]
    if batches[0] < 1 or any(a >= b for a, b in pairwise(batches)):
        raise InputError(f"layer {layer.name}: its batches are {batches}; they rise from 1 or more")
    for time in layer.times:
        if not all(0.0 <= s <= MOST_S for s in time[1:]):
            raise InputError(
                f"layer {layer.name}: at batch {time.batch} it takes {time.forward_s:g} s forward "
                f"and {time.backward_s:g} s backward; times are numbers from 0 to {MOST_S:g}"
            )
    for field in ("parameters", "output_values", "activation_values"):
        if getattr(layer, field) < 0:
            raise InputError(f"layer {layer.name}: {field} is {getattr(layer, field)}, below 0")
