"""DeepPool's published layer profiles: one line a layer, in one block for each batch.

A line is ``KIND{SETTINGS}[BATCH]INPUT  TOTAL_MS  FORWARD_US  BACKWARD_US``, where INPUT is the
shape of one sample as ``[channels,height,width]``, or its number of values. A block ends in a line
with its sum. Lines are in the order of the model's definition, without the edges: where a layer
does not take the output of the line before, it begins another branch from the fork, or it takes the
outputs of all branches, concatenated.

A kernel that follows in place is measured with the backward pass of the layer before it, so that
activation functions keep the size of their input. The total is what counts; the other two columns
tell how it is divided.
"""

import json
import re
from collections.abc import Iterable, Sequence
from math import prod
from typing import Any, NamedTuple

from rota.errors import InputError
from rota.model.layer_graph import Layer, LayerGraph, LayerTime

LINE = re.compile(
    r"^\s*(?P<kind>\w+)(?P<settings>\{.*\})\[(?P<batch>\d{1,9})\]"
    r"(?:\[(?P<shape>\d{1,9}(?:,\d{1,9})*)\]|(?P<values>\d{1,9}))"
    r"\s+(?P<total_ms>\S+)\s+(?P<forward_us>\d+)\s+(?P<backward_us>\d+)\s*$"
)
SUM = re.compile(r"^\s*(?:SUM\(avg\)|sum:)\s")
BYTES_PER_VALUE = 2  # the profiles are of half precision
# Weight and gradient in half precision; the optimiser's weight and momentum in single precision.
BYTES_PER_PARAMETER = 12
KEEP_SIZE = {"ReLU1d", "ReLU2d", "flatten"}
Shape = tuple[int, ...]


class Row(NamedTuple):
    """A layer of one block."""

    line: int
    kind: str
    settings: dict[str, Any]
    shape: Shape
    time: LayerTime

    @property
    def what(self) -> tuple[str, str, Shape]:
        """All that is the same in every block."""
        return self.kind, json.dumps(self.settings, sort_keys=True), self.shape


def graph_of(text: str, name: str) -> LayerGraph:
    """The graph of a published profile. Raises InputError naming the line."""
    blocks = _blocks(text)
    first = blocks[0]
    for block in blocks[1:]:
        if len(block) != len(first):
            raise InputError(
                f"line {block[0].line}: batch {block[0].time.batch} has {len(block)} layers and "
                f"batch {first[0].time.batch} has {len(first)}; all have the same ones"
            )
        for row, other in zip(block, first, strict=True):
            if row.what != other.what:
                raise InputError(
                    f"line {row.line}: the layer is another one than in line {other.line}; "
                    "all batches have the same layers"
                )
    blocks.sort(key=lambda block: block[0].time.batch)
    batches = [block[0].time.batch for block in blocks]
    if len(set(batches)) < len(batches):
        raise InputError(f"its batches are {batches}; each is there once")
    times = [tuple(row.time for row in rows) for rows in zip(*blocks, strict=True)]
    return LayerGraph(
        name,
        _Joined(first, times).layers,
        bytes_per_value=BYTES_PER_VALUE,
        bytes_per_parameter=BYTES_PER_PARAMETER,
    )


def _blocks(text: str) -> list[list[Row]]:
    blocks: list[list[Row]] = []
    rows: list[Row] = []
    for number, line in enumerate(text.splitlines(), 1):
        if SUM.match(line):
            if rows:
                blocks.append(rows)
                rows = []
        elif line.strip():
            rows.append(_row(number, line))
            if rows[0].time.batch != rows[-1].time.batch:
                raise InputError(
                    f"line {number}: batch {rows[-1].time.batch} begins within the block of "
                    f"batch {rows[0].time.batch}; a line `sum: MS` ends a block"
                )
    if rows:
        raise InputError(
            f"its last block, of batch {rows[0].time.batch}, has no sum: the file is cut off"
        )
    if not blocks:
        raise InputError("it has no layer; it is neither a published profile nor JSON of Rota")
    return blocks


def _row(number: int, line: str) -> Row:
    match = LINE.match(line)
    if match is None:
        raise InputError(
            f"line {number} is {line.strip()[:60]!r}; it is "
            "KIND{SETTINGS}[BATCH]INPUT TOTAL_MS FORWARD_US BACKWARD_US"
        )
    try:
        settings = json.loads(match["settings"])
        total_s = float(match["total_ms"]) / 1e3
    except (ValueError, RecursionError):
        raise InputError(
            f"line {number}: the settings are no JSON, or {match['total_ms'][:20]!r} is no time"
        ) from None
    forward, backward = float(match["forward_us"]), float(match["backward_us"])
    part = forward / (forward + backward) if forward + backward else 0.5
    shape = match["shape"] or match["values"]
    return Row(
        number,
        match["kind"],
        settings,
        tuple(map(int, shape.split(","))),
        LayerTime(int(match["batch"]), part * total_s, (1.0 - part) * total_s),
    )


class _Joined:
    """Layers with the edges that their shapes tell."""

    def __init__(self, rows: Sequence[Row], times: Sequence[tuple[LayerTime, ...]]) -> None:
        self.layers: list[Layer] = []
        self._shapes: list[Shape] = []  # of the outputs
        self._fork: int | None = None
        self._ends: list[int] = []  # of the branches from the fork that are complete
        self._times = times
        for at, row in enumerate(rows):
            self._take(row, rows[at - 1] if at else None, times[at])
        if self._fork is not None:
            self._join(rows[-1])

    def _take(self, row: Row, before: Row | None, times: tuple[LayerTime, ...]) -> None:
        last = len(self.layers) - 1
        twin = before is not None and _is_twin(row, before)
        source: int | None = None
        if twin:  # the two halves of a split convolution both take what the first one took
            source = self._index(self.layers[last].inputs[0])
        elif before is not None:
            source = self._source(row)
        number = sum(layer.name.startswith(row.kind) for layer in self.layers) + 1
        parameters, output = _made(row)
        kept = 0 if row.kind in KEEP_SIZE else prod(output)
        self._add(
            Layer(
                f"{row.kind}-{number}",
                times,
                () if source is None else (self.layers[source].name,),
                parameters,
                prod(output),
                kept,
                row.kind in KEEP_SIZE and source is not None,
            ),
            output,
        )
        if twin:
            self._concatenate((last, last + 1))

    def _add(self, layer: Layer, output: Shape) -> int:
        self.layers.append(layer)
        self._shapes.append(output)
        return len(self.layers) - 1

    def _source(self, row: Row) -> int:
        """The layer whose output the row takes, after a join that it may need."""
        last = len(self.layers) - 1
        if self._shapes[last] == row.shape:
            return last
        if self._fork is not None and self._concatenated() == row.shape:
            return self._join(row)
        if self._fork is not None and self._shapes[self._fork] == row.shape:
            self._ends.append(last)
            return self._fork
        if self._fork is None:
            for at in range(last - 1, -1, -1):
                if self._shapes[at] == row.shape:
                    self._fork, self._ends = at, [last]
                    return at
        raise InputError(
            f"line {row.line}: {row.kind} takes {list(row.shape)}, which is neither the output "
            f"{list(self._shapes[last])} of the line before, nor that of a fork, nor all branches "
            "concatenated"
        )

    def _index(self, name: str) -> int:
        return next(i for i, layer in enumerate(self.layers) if layer.name == name)

    def _concatenated(self) -> Shape:
        """The shape of all branches' outputs together; () if they differ in more than channels."""
        return self._together((*self._ends, len(self.layers) - 1))

    def _together(self, parts: Sequence[int]) -> Shape:
        shapes = [self._shapes[at] for at in parts]
        if len({shape[1:] for shape in shapes}) > 1:
            return ()
        return (sum(shape[0] for shape in shapes), *shapes[0][1:])

    def _join(self, row: Row) -> int:
        """End the branches in a layer that concatenates them."""
        if not self._concatenated():
            raise InputError(f"line {row.line}: the branches that end here do not fit together")
        ends = (*self._ends, len(self.layers) - 1)
        self._fork, self._ends = None, []
        return self._concatenate(ends)

    def _concatenate(self, parts: Sequence[int]) -> int:
        """A layer that takes several outputs as one, and no time."""
        shape = self._together(parts)
        number = sum(layer.name.startswith("concat") for layer in self.layers) + 1
        free = tuple(LayerTime(time.batch, 0.0, 0.0) for time in self._times[0])
        names = tuple(self.layers[at].name for at in parts)
        return self._add(Layer(f"concat-{number}", free, names, 0, prod(shape)), shape)


def _is_twin(row: Row, before: Row) -> bool:
    """True for the second of two convolutions 1x3 and 3x1 that stand side by side."""
    kernels = [each.settings.get("kernel_size") for each in (before, row)]
    return kernels == [[1, 3], [3, 1]] and row.shape == before.shape


def _made(row: Row) -> tuple[int, Shape]:
    """Number of parameters of a layer, and the shape of its output."""
    try:
        return _KINDS[row.kind](row.settings, row.shape)
    except KeyError as error:
        missing = error.args[0]
        if missing == row.kind:
            fault = f"{missing}: there is no kind {missing!r}; there are {', '.join(_KINDS)}"
        else:
            fault = f"{row.kind}: it has no {missing!r}"
        raise InputError(f"line {row.line}: {fault}") from None
    except (TypeError, ValueError, IndexError, ZeroDivisionError):
        raise InputError(
            f"line {row.line}: the settings of {row.kind} do not fit its input {list(row.shape)}"
        ) from None


def _pair(value: Any) -> tuple[int, int]:
    one, other = value if isinstance(value, list) else (value, value)
    if not isinstance(one, int) or not isinstance(other, int):
        raise TypeError
    return one, other


def _slid(settings: dict[str, Any], shape: Shape) -> Iterable[int]:
    """Height and width after a kernel has slid over them."""
    _, height, width = shape
    kernel, padding = _pair(settings["kernel_size"]), _pair(settings["padding"])
    stride = _pair(settings["stride"])
    for size, k, p, s in zip((height, width), kernel, padding, stride, strict=True):
        yield (size + 2 * p - k) // s + 1


def _convolution(settings: dict[str, Any], shape: Shape) -> tuple[int, Shape]:
    taken, made = settings["in_channels"], settings["out_channels"]
    if taken != shape[0]:
        raise ValueError
    high, wide = _pair(settings["kernel_size"])
    return made * (taken * high * wide + 1), (made, *_slid(settings, shape))


def _pooling(settings: dict[str, Any], shape: Shape) -> tuple[int, Shape]:
    return 0, (shape[0], *_slid(settings, shape))


def _adaptive_pooling(settings: dict[str, Any], shape: Shape) -> tuple[int, Shape]:
    return 0, (shape[0], settings["output_height"], settings["output_width"])


def _linear(settings: dict[str, Any], shape: Shape) -> tuple[int, Shape]:
    taken, made = settings["in_features"], settings["out_features"]
    if taken != prod(shape):
        raise ValueError
    return made * (taken + bool(settings.get("bias", True))), (made,)


def _same(settings: dict[str, Any], shape: Shape) -> tuple[int, Shape]:
    return 0, shape


def _flatten(settings: dict[str, Any], shape: Shape) -> tuple[int, Shape]:
    return 0, (prod(shape),)


def _bottleneck(settings: dict[str, Any], shape: Shape) -> tuple[int, Shape]:
    """Three convolutions without bias, each with a normalisation, and one beside them maybe."""
    taken, planes, stride = settings["inplanes"], settings["planes"], settings.get("stride", 1)
    wide, made = planes * settings["base_width"] // 64, 4 * planes
    parameters = taken * wide + 9 * wide * wide + wide * made + 2 * (wide + wide + made)
    if "downsampleParams" in settings:
        parameters += taken * made + 2 * made
    return parameters, (made, *((size - 1) // stride + 1 for size in shape[1:]))


_KINDS = {
    "conv2d": _convolution,
    "maxPool2d": _pooling,
    "avgPool2d": _pooling,
    "adAvgPool2d": _adaptive_pooling,
    "linear": _linear,
    "ReLU1d": _same,
    "ReLU2d": _same,
    "flatten": _flatten,
    "ResnetBottleneck": _bottleneck,
}
