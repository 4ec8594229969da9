"""Measured profiles of training: step times by placement, and progress by epoch and batch size.

As Pollux's simulator keeps and reads them (Qiao et al., OSDI 2021, section 5.3): what an
application does between two measured points is interpolated.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from functools import lru_cache
from math import ceil, isnan
from typing import Any, NamedTuple

from rota.errors import SimulationError

ROUNDING = 1e-8  # a batch that is so little more than whole micro-batches is whole
MOST_NODES = 16  # no placement over more nodes was measured; one over more counts as this many

Placement = tuple[int, ...]  # GPUs on each of a job's nodes, in the order of the nodes


class Step(NamedTuple):
    """Seconds of one step, and those of them in which gradients are exchanged."""

    step_s: float
    sync_s: float


class Epochs(NamedTuple):
    """Training with one global batch size: one entry per epoch in each.

    ``progress`` is what the job has gained by the end of the epoch, in steps of the initial batch
    size (scale-invariant iterations); ``steps`` how many it took. ``sqr`` and ``var`` are the
    gradient's squared norm and variance, at the scale of the initial batch.
    """

    progress: tuple[float, ...]
    steps: tuple[float, ...]
    sqr: tuple[float, ...]
    var: tuple[float, ...]


class Batch(NamedTuple):
    """Samples that a GPU computes at once, and how often it adds up gradients before a step."""

    size: int
    accumulations: int = 0

    def total(self, num_gpus: int) -> int:
        """Samples of a whole step."""
        return num_gpus * self.size * (self.accumulations + 1)


class Measured:
    """One application as it was measured.

    ``placements`` gives steps by placement (its smallest rotation) and samples per GPU, ``scaled``
    by (nodes, GPUs) and samples per GPU where it is not told how the GPUs lay; ``by_batch`` the
    epochs by global batch size. ``least_per_gpu`` and ``most_per_gpu`` are what a GPU computes at
    once, ``most_gpus`` how many GPUs the application is ever given, None for no limit.
    """

    def __init__(
        self,
        name: str,
        placements: Mapping[Placement, Mapping[int, Step]],
        scaled: Iterable[tuple[tuple[int, int, int], Step]],
        by_batch: Mapping[int, Epochs],
        *,
        most_per_gpu: int | None = None,
        most_gpus: int | None = None,
    ) -> None:
        self.name = name
        self._placements = {place: dict(sorted(row.items())) for place, row in placements.items()}
        self._scaled = list(scaled)
        self._by_batch = dict(sorted(by_batch.items()))
        sizes = [size for row in self._placements.values() for size in row]
        self.init_batch, self.max_batch = min(by_batch), max(by_batch)
        self.least_per_gpu = min(sizes)
        self.most_per_gpu = most_per_gpu or max(sizes)
        self.num_epochs = min(len(epochs.progress) for epochs in by_batch.values())
        most = self.max_batch // self.least_per_gpu
        self.most_gpus = most if most_gpus is None else min(most, most_gpus)
        self._between: Any = None  # made when somebody asks: it takes SciPy
        self._steps: dict[tuple[Placement, int], Step] = {}

    # -- how fast ------------------------------------------------------------------------------

    def step(self, placement: Placement, size: int) -> Step:
        """One step with ``size`` samples on each GPU. Raises SimulationError where none is near.

        On a placement that was measured, linear in the samples; elsewhere linear between (nodes,
        GPUs, samples).
        """
        placement = smallest_rotation(placement)
        step = self._steps.get((placement, size))
        if step is None:
            row = self._placements.get(placement)
            step = self._on(row, size) if row is not None else None
            if step is None and row is None:
                step = self._interpolated(placement, size)
            if step is None:
                raise SimulationError(
                    f"{self.name} was measured neither with {size} samples a GPU on the GPUs "
                    f"{'+'.join(map(str, placement))} of {len(placement)} nodes nor around that; "
                    "use nodes of as many GPUs as those of its profile"
                )
            self._steps[placement, size] = step
        return step

    def _on(self, row: dict[int, Step], size: int) -> Step | None:
        sizes = list(row)
        at = bisect_left(sizes, size)
        if at == len(sizes) or size < sizes[0]:
            return None
        if sizes[at] == size:
            return row[size]
        low, high = sizes[at - 1], sizes[at]
        part = (size - low) / (high - low)
        return Step(*(a + part * (b - a) for a, b in zip(row[low], row[high], strict=True)))

    def _interpolated(self, placement: Placement, size: int) -> Step | None:
        if self._between is None:
            from scipy.interpolate import LinearNDInterpolator
            from scipy.spatial import QhullError

            points, steps = self._points()
            try:
                self._between = LinearNDInterpolator(points, steps)
            except (QhullError, ValueError):  # too few points, or all in a plane
                return None
        nodes = min(len(placement), MOST_NODES)
        step_s, sync_s = map(float, self._between([nodes, sum(placement), size])[0])
        return None if isnan(step_s) else Step(step_s, sync_s)

    def _points(self) -> tuple[list[tuple[int, int, int]], list[Step]]:
        """The mean step by (nodes, GPUs, samples per GPU)."""
        sums: dict[tuple[int, int, int], list[Step]] = {}
        for placement, row in self._placements.items():
            for size, step in row.items():
                sums.setdefault((len(placement), sum(placement), size), []).append(step)
        found = [
            (point, Step(*(sum(each) / len(steps) for each in zip(*steps, strict=True))))
            for point, steps in sorted(sums.items())
        ]
        found += self._scaled
        return [point for point, _ in found], [step for _, step in found]

    def measurements(self) -> list[tuple[tuple[int, int, int], Step]]:
        """Every step that was measured, under its (nodes, GPUs, samples on a GPU).

        Those of placements first; none with more samples than a GPU is ever given.
        """
        found = [
            ((len(placement), sum(placement), size), step)
            for placement, row in self._placements.items()
            for size, step in row.items()
        ]
        found += self._scaled
        return [each for each in found if each[0][2] <= self.most_per_gpu]

    def epochs(self) -> dict[int, Epochs]:
        """The epochs by global batch size, the initial one first."""
        return dict(self._by_batch)

    # -- how far -------------------------------------------------------------------------------

    def noise(self, batch: int, epoch: int) -> tuple[float, float]:
        """The gradient's squared norm and variance in an epoch, at a global batch size.

        Linear between the batch sizes that were measured, and as at the nearest beyond them.
        """
        sizes = list(self._by_batch)
        high = min(bisect_left(sizes, batch), len(sizes) - 1)
        low = high if sizes[high] <= batch else max(0, high - 1)
        if low == high or batch <= sizes[0]:
            epochs = self._by_batch[sizes[high]]
            return epochs.sqr[epoch], epochs.var[epoch]
        below, above = self._by_batch[sizes[low]], self._by_batch[sizes[high]]
        part = (batch - sizes[low]) / (sizes[high] - sizes[low])
        return (
            below.sqr[epoch] + part * (above.sqr[epoch] - below.sqr[epoch]),
            below.var[epoch] + part * (above.var[epoch] - below.var[epoch]),
        )

    def gain(self, batch: int, epoch: int) -> float:
        """Gain of one step, in steps of the initial batch size."""
        sqr, var = self.noise(batch, epoch)
        return (var + sqr) / (var * self.init_batch / batch + sqr)

    def progress(self, epoch: int) -> float:
        """Progress of a job after so many epochs: the least of all batch sizes."""
        if epoch == 0:
            return 0.0
        return min(epochs.progress[epoch - 1] for epochs in self._by_batch.values())

    def steps(self, batch: int | None) -> tuple[float, ...]:
        """Number of steps with this whole batch by the end of each epoch.

        Linear between the batch sizes that were measured.
        """
        sizes = list(self._by_batch)
        batch = min(max(batch or self.init_batch, sizes[0]), sizes[-1])
        high = bisect_left(sizes, batch)
        above = self._by_batch[sizes[high]].steps[: self.num_epochs]
        if sizes[high] == batch:
            return above
        below, part = sizes[high - 1], (batch - sizes[high - 1]) / (sizes[high] - sizes[high - 1])
        less = self._by_batch[below].steps
        return tuple(a + part * (b - a) for a, b in zip(less, above, strict=False))

    # -- a job ---------------------------------------------------------------------------------

    def split(self, batch: int | None, num_gpus: int) -> Batch:
        """Splits a global batch over so many GPUs, in the fewest parts that fit them.

        One GPU alone computes a batch above the initial one in two parts at least, whose difference
        gives the noise. A batch that is too small for so many GPUs becomes the least of each; None
        stands for the initial one.
        """
        batch = max(batch or self.init_batch, self.least_per_gpu * num_gpus)
        each = ceil(batch / num_gpus - ROUNDING)
        accumulations = ceil(each / self.most_per_gpu - ROUNDING) - 1
        if num_gpus == 1 and batch > self.init_batch:
            accumulations = max(1, accumulations)
        size = ceil(each / (accumulations + 1) - ROUNDING)
        most = self.max_batch // (num_gpus * (accumulations + 1))
        return Batch(max(1, min(size, most)), accumulations)

    def step_s(self, placement: Placement, batch: Batch) -> float:
        """Seconds of a whole step with its accumulations."""
        step_s, sync_s = self.step(placement, batch.size)
        return step_s + batch.accumulations * (step_s - sync_s)

    @lru_cache(maxsize=4096)  # noqa: B019  profiles live as long as the process
    def epochs_s(self, placement: Placement, batch: Batch) -> tuple[float, ...]:
        """Seconds of each epoch with this batch on these GPUs."""
        step_s, total = self.step_s(placement, batch), batch.total(sum(placement))
        found = []
        for epoch in range(self.num_epochs):
            steps = (self.progress(epoch + 1) - self.progress(epoch)) / self.gain(total, epoch)
            found.append(steps * step_s)
        return tuple(found)


def smallest_rotation(placement: Placement) -> Placement:
    """The placement turned so that it comes first in order: rings of the same GPUs are one."""
    return min(placement[at:] + placement[:at] for at in range(len(placement)))


def epoch_at(ends: tuple[float, ...], work: float) -> int:
    """The epoch that work so far lies in, where epochs end at ``ends``."""
    return min(bisect_right(ends, work), len(ends) - 1)
