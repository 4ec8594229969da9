"""The best goodput of many jobs in many allocations at once, from which an allocator chooses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from rota.predict.goodput import BatchChoice, BatchLimits, Goodput
from rota.predict.step_time import StepTime

if TYPE_CHECKING:
    import numpy as np

    Matrix = np.ndarray[tuple[int, int], np.dtype[Any]]

POINTS = 50  # tried whole batch sizes, in geometric steps from least to most
BLOCK = 8192  # points that are worked on at once: the memory of larger arrays is fresh each time
FINE = 8  # numbers of nodes that are offered in each octave, from 8 nodes on
TOLERANCE = 1e-8  # of rounding up and down


class Tables(NamedTuple):
    """One row per job, one column per allocation; see :class:`rota.predict.goodput.BatchChoice`."""

    goodput: Matrix
    batch: Matrix
    accumulation: Matrix

    def rows(self, which: Sequence[int]) -> Tables:
        """A copy of these rows, in this order."""
        return Tables(*(matrix[list(which)] for matrix in self))

    def choice(self, row: int, column: int) -> BatchChoice:
        """The best choice for a job in an allocation."""
        goodput, batch, accumulation = (matrix.item(row, column) for matrix in self)
        return BatchChoice(goodput, batch, accumulation)


def canonical(node_gpus: int, most_gpus: int) -> list[tuple[int, int]]:
    """(GPUs, nodes) that a job is offered: powers of two within a node, then whole nodes.

    Beyond 16 nodes some numbers are left out: each is an eighth larger than the one before at most.
    """
    within = [2**i for i in range(node_gpus.bit_length()) if 2**i < node_gpus]
    sizes = [(gpus, 1) for gpus in within]
    most, nodes = most_gpus // node_gpus, 1
    while nodes <= most:
        sizes.append((node_gpus * nodes, nodes))
        nodes += 1 << max(0, nodes.bit_length() - FINE.bit_length())
    return [(gpus, nodes) for gpus, nodes in sizes if gpus <= most_gpus]


def tables(models: Sequence[Goodput], shapes: Sequence[tuple[int, int]]) -> Tables:
    """The best batch of each model for each of the shapes, which are (GPUs, nodes).

    For a shape, 50 whole batches from the least that is allowed to the most are divided among the
    GPUs, and further into as few parts as fit on one. A job on one GPU that goes beyond its
    initial batch does so in two parts at least: from one alone, gradient noise can't be told.
    """
    import numpy as np

    if not models or not shapes:
        empty = np.zeros((len(models), len(shapes)))
        return Tables(empty, empty.astype(np.int64), empty.astype(np.int64))
    alike: dict[tuple[StepTime, BatchLimits], list[int]] = {}
    for row, model in enumerate(models):
        alike.setdefault((model.step_time, model.limits), []).append(row)
    found = Tables(*(np.empty((len(models), len(shapes)), kind) for kind in (float, int, int)))
    block, kinds = max(1, BLOCK // (POINTS * len(shapes))), list(alike)
    for start in range(0, len(kinds), block):
        some = kinds[start : start + block]
        tried = _tried(some, shapes)
        members = [(number, row) for number, kind in enumerate(some) for row in alike[kind]]
        for first in range(0, len(members), block):
            numbers, rows = zip(*members[first : first + block], strict=True)
            best = _best(tried, numbers, [models[row] for row in rows])
            for matrix, values in zip(found, best, strict=True):
                matrix[list(rows)] = values
    return found


class _Tried(NamedTuple):
    """The batches that are tried, [kinds of jobs, shapes, points]; no throughput: not allowed."""

    batch: Any
    parts: Any
    whole: Any
    throughput: Any


def _columns(rows: Sequence[Sequence[float]]) -> Any:
    """An array of [rows, 1, 1] for each field of the rows."""
    import numpy as np

    return np.array(rows, dtype=float).T[:, :, None, None]


def _tried(
    kinds: Sequence[tuple[StepTime, BatchLimits]], shapes: Sequence[tuple[int, int]]
) -> _Tried:
    import numpy as np

    terms = _columns([[term or 0.0 for term in step_time] for step_time, _ in kinds])
    alpha_c, beta_c, alpha_r, beta_r, alpha_n, beta_n, gamma = terms
    limits = _columns([each for _, each in kinds])
    initial, most, least_per_gpu, most_per_gpu = limits
    gpus, nodes = np.array(shapes, dtype=float).T[:, None, :, None]

    least = np.maximum(initial, least_per_gpu * gpus)
    whole = least * np.maximum(most / least, 1.0) ** np.linspace(0.0, 1.0, POINTS)
    local = whole / gpus
    parts = np.ceil(local / most_per_gpu - TOLERANCE)
    parts = np.maximum(parts, 1.0 + ((gpus == 1) & (local > initial + TOLERANCE)))
    batch = np.ceil(local / parts - TOLERANCE)
    batch = np.minimum(batch, np.floor(most / (gpus * parts) + TOLERANCE))
    allowed = (least_per_gpu <= batch) & (batch <= most_per_gpu)
    batch = np.maximum(batch, 1.0)  # gives batches that are not allowed a speed as well

    compute_s = alpha_c + beta_c * batch
    further = gpus - 2
    sync_s = np.where(nodes > 1, alpha_n + beta_n * further, alpha_r + beta_r * further)
    sync_s = np.where(gpus > 1, sync_s, 0.0)
    longer = np.maximum(np.maximum(compute_s, sync_s), 1e-300)
    shorter = np.minimum(compute_s, sync_s)
    step_s = longer * (1.0 + (shorter / longer) ** gamma) ** (1.0 / gamma)
    whole = gpus * batch * parts
    throughput = whole / (step_s + (parts - 1.0) * compute_s) * allowed
    return _Tried(batch, parts, whole, throughput)


def best_choice(model: Goodput, gpus: int, nodes: int) -> BatchChoice:
    """The batch of the highest goodput there; of equal ones, the smallest."""
    return tables([model], [(gpus, nodes)]).choice(0, 0)


def _best(tried: _Tried, kind_of: Sequence[int], models: Sequence[Goodput]) -> Tables:
    """The best of what was tried, for each model; ``kind_of`` has the number of its kind."""
    import numpy as np

    sqr, var = _columns([m.noise if any(m.noise) else (1.0, 0.0) for m in models])
    initial = np.array([m.limits.initial for m in models], dtype=float)[:, None, None]
    kinds = np.array(kind_of)
    efficiency = tried.whole[kinds]
    efficiency *= sqr / initial
    efficiency += var
    np.divide(var + sqr, efficiency, out=efficiency)
    np.minimum(efficiency, 1.0, out=efficiency)
    goodput = tried.throughput[kinds]
    goodput *= efficiency

    at = kinds[:, None], np.arange(goodput.shape[1]), np.argmax(goodput, axis=2)
    best = np.take_along_axis(goodput, at[2][:, :, None], 2)[:, :, 0]
    chosen = tried.batch[at], tried.parts[at] - 1.0
    return Tables(best, *(np.where(best > 0, values, 0).astype(np.int64) for values in chosen))


class TableCache:
    """Tables of the same shapes for the present jobs, each computed when its model changes.

    It remembers the models of the last call. Throwing it away changes speed only.
    """

    def __init__(self, shapes: Sequence[tuple[int, int]]) -> None:
        self.shapes = tuple(shapes)
        self._rows: dict[Goodput, int] = {}
        self._tables = tables([], self.shapes)

    def of(self, models: Sequence[Goodput]) -> Tables:
        """The tables of these models, a row each; a model may occur several times."""
        import numpy as np

        wanted = dict.fromkeys(models)
        kept = [model for model in wanted if model in self._rows]
        new = [model for model in wanted if model not in self._rows]
        if new or len(kept) < len(self._rows):
            old = self._tables.rows([self._rows[model] for model in kept])
            pairs = zip(old, tables(new, self.shapes), strict=True)
            self._tables = Tables(*(np.concatenate(pair) for pair in pairs))
            self._rows = {model: row for row, model in enumerate([*kept, *new])}
        return self._tables.rows([self._rows[model] for model in models])

    def choices(self, asked: Sequence[tuple[Goodput, tuple[int, int]]]) -> list[BatchChoice]:
        """The best batch of each model at a shape of its own, from the tables if it is there."""
        columns = {shape: column for column, shape in enumerate(self.shapes)}
        found: dict[int, BatchChoice] = {}
        elsewhere: dict[tuple[int, int], list[int]] = {}
        for number, (model, shape) in enumerate(asked):
            row, column = self._rows.get(model), columns.get(shape)
            if row is None or column is None:
                elsewhere.setdefault(shape, []).append(number)
            else:
                found[number] = self._tables.choice(row, column)
        for shape, numbers in elsewhere.items():
            there = tables([asked[number][0] for number in numbers], [shape])
            found.update((number, there.choice(row, 0)) for row, number in enumerate(numbers))
        return [found[number] for number in range(len(asked))]
