"""Step time of a training job by its CPU cores, fitted to a few measurements.

The GPU computes a step while the CPU prepares the next ones, which takes c cores
(gpu^g + (fixed + by_core / c)^g)^(1/g) seconds. With g = 1 nothing overlaps, which is the form of
Ernest (Venkataraman et al., NSDI 2016) and Optimus (Peng et al., EuroSys 2018); with a large g it
is the longer of the two, as with loaders that work ahead. Only ``gpu`` depends on the GPU's type,
so that one measurement tells of another type.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from math import inf, sqrt
from typing import TYPE_CHECKING, Any, NamedTuple

from rota.model.figure import rounded
from rota.predict.core_points import NOISE, CorePoint, best_known, falling, usable
from rota.predict.one_thread import one_thread
from rota.predict.step_points import listed

if TYPE_CHECKING:
    import numpy as np

    Vector = np.ndarray[Any, np.dtype[np.float64]]

KNEE = 0.05  # relative: a step at the knee is longer than with any number of cores by this
MOST_GAMMA = 10.0
UNSATURATED = 0.5  # of the steps' time saved by the last cores, were all of it the CPU's
CONTRADICTION = 1.5  # times as long or short as fitted
PRIOR = 1e-4  # weight of the wish for no fixed part, which decides where nothing was measured
TINY = 1e-9  # of the steps' time: the least of each term in a search


class CpuDemand(NamedTuple):
    """Seconds of a step with c cores for each GPU, by the type of the GPU.

    ``gpu_s`` is the GPU's part by type. The CPU's part is ``fixed_s`` + ``by_core_s`` / c +
    ``each_s`` c, the last above 0 for jobs that more cores slow down. ``gamma``, 1 to 10, tells how
    far the two overlap.
    """

    gpu_s: dict[str, float]
    by_core_s: float
    fixed_s: float = 0.0
    each_s: float = 0.0
    gamma: float = 1.0

    def step_s(self, cores: float, gpu_type: str = "") -> float:
        """Seconds of a step; ``gpu_type`` is one of ``gpu_s``."""
        return self._together(self._cpu_s(cores), self.gpu_s[gpu_type])

    def speed(self, cores: float, gpu_type: str = "") -> float:
        """Steps in a second."""
        return 1.0 / self.step_s(cores, gpu_type)

    def knee(self, gpu_type: str = "", within: float = KNEE) -> float:
        """Cores from which on no step is longer than the shortest by more than ``within``.

        Infinite if more cores always make steps shorter.
        """
        if not self.by_core_s:
            return 0.0
        gpu_s = self.gpu_s[gpu_type]
        fastest = self.fixed_s + 2 * sqrt(self.by_core_s * self.each_s)  # the CPU's least part
        target = (1 + within) * self._together(fastest, gpu_s)
        if target <= gpu_s:
            return inf
        longest = target * (1 - (gpu_s / target) ** self.gamma) ** (1 / self.gamma)
        spare = longest - self.fixed_s
        if spare <= 0:
            return inf
        root = sqrt(max(0.0, spare**2 - 4 * self.each_s * self.by_core_s))
        return 2 * self.by_core_s / (spare + root)

    def waits(self, cores: float, gpu_type: str = "") -> float:
        """The part of a step, 0 to 1, that goes beyond the GPU's own: waiting for the CPU."""
        return 1.0 - self.gpu_s[gpu_type] / self.step_s(cores, gpu_type)

    def _cpu_s(self, cores: float) -> float:
        return self.fixed_s + self.by_core_s / cores + self.each_s * cores

    def _together(self, cpu_s: float, gpu_s: float) -> float:
        longer, shorter = max(cpu_s, gpu_s), min(cpu_s, gpu_s)
        if not longer:
            return 0.0
        return longer * (1 + (shorter / longer) ** self.gamma) ** (1 / self.gamma)

    def _slope(self, cores: float, gpu_type: str) -> float:
        """Relative change of a step's time by that of the cores, -1 to 0 for a job they help."""
        cpu_s = self._cpu_s(cores)
        part = (cpu_s / self.step_s(cores, gpu_type)) ** self.gamma
        return part * (self.each_s * cores - self.by_core_s / cores) / cpu_s if cpu_s else 0.0


class CoreFit(NamedTuple):
    """A model, the points that it was fitted to, and the GPU type with most of them."""

    demand: CpuDemand
    points: tuple[CorePoint, ...]
    base: str

    def errors(self, cores: Sequence[float], gpu_type: str = "") -> list[float]:
        """Relative standard error of a step's time at each number of cores; 0.1 is 10 %.

        It is the difference from all curves of the model that the points allow. Infinite on a GPU
        type that was not measured.
        """
        from rota.predict.core_curves import errors

        if gpu_type not in self.demand.gpu_s:
            return [inf] * len(cores)
        predicted = [self.demand.step_s(each, gpu_type) for each in cores]
        with one_thread():
            return errors(self.points, cores, gpu_type, self.base, predicted)


def fit(points: Iterable[CorePoint]) -> tuple[CoreFit | None, tuple[str, ...]]:
    """The model with the least relative errors, and warnings that name what is doubtful.

    None if no GPU type was measured at two numbers of cores. The simplest form that agrees with the
    points is taken: no overlap, then the full one; for a job that more cores slow down, one that
    grows with the cores. Each point counts once.
    """
    kept, dropped = usable(points)
    warnings = [f"measurements left out: {listed(dropped)}"] if dropped else []
    base = best_known(kept)
    if base is None:
        counts = sorted({point.cores for point in kept})
        if counts:
            at = ", ".join(f"{count:g}" for count in counts)
            warnings.append(f"speed by cores is unknown: each GPU type was measured once, at {at}")
        return None, tuple(warnings)
    found, doubts = _fitted(tuple(kept), base)
    return found, (*warnings, *doubts)


@lru_cache(maxsize=1024)  # between two decisions few jobs have measured anything new
def _fitted(points: tuple[CorePoint, ...], base: str) -> tuple[CoreFit, tuple[str, ...]]:
    slower = falling(points)
    with one_thread():
        demand = _without_overlap(points, growing=False)
        if _misfit(demand, points) > NOISE:
            forms = [demand, _overlapping(points, base)]
            if slower:
                forms.append(_without_overlap(points, growing=True))
            demand = min(forms, key=lambda form: _misfit(form, points))
    return CoreFit(demand, points, base), tuple(_doubts(demand, points, base, slower))


def _doubts(
    demand: CpuDemand, points: Sequence[CorePoint], base: str, slower: list[str]
) -> Iterable[str]:
    """Warnings of what is strange about a fitted curve."""
    if slower:
        yield f"more cores make steps longer: {listed(slower)}"
    most = max(point.cores for point in points if point.gpu_type == base)
    if demand._slope(most, base) < -UNSATURATED:
        yield f"speed does not saturate: up to {most:g} cores, more make steps shorter"
    off = []
    for point in points:
        ratio = point.step_s / demand.step_s(point.cores, point.gpu_type)
        if not 1 / CONTRADICTION < ratio < CONTRADICTION:
            off.append(f"{point}: {rounded(ratio, 2)} times as long as the others make likely")
    if off:
        yield f"measurements contradict each other: {listed(off)}"


def _misfit(demand: CpuDemand, points: Sequence[CorePoint]) -> float:
    """The root mean square of relative errors."""
    squares = [(demand.step_s(p.cores, p.gpu_type) / p.step_s - 1) ** 2 for p in points]
    return sqrt(sum(squares) / len(squares))


def _without_overlap(points: Sequence[CorePoint], *, growing: bool) -> CpuDemand:
    """Non-negative least squares of relative errors on [1 for each GPU type, 1/c], and c."""
    import numpy as np
    from scipy.optimize import nnls

    types = sorted({point.gpu_type for point in points})
    rows = []
    for cores, step_s, gpu_type in points:
        features = [*(float(each == gpu_type) for each in types), 1 / cores]
        rows.append([each / step_s for each in [*features, *([cores] if growing else [])]])
    table = np.array(rows)
    scale = table.max(axis=0)
    found = (nnls(table / scale, np.ones(len(points)))[0] / scale).tolist()
    by_type = dict(zip(types, found, strict=False))
    return CpuDemand(by_type, found[len(types)], each_s=found[-1] if growing else 0.0)


def _overlapping(points: Sequence[CorePoint], base: str) -> CpuDemand:
    """Bounded least squares of the logarithms, from the likeliest of a grid of curves."""
    import numpy as np
    from scipy.optimize import least_squares

    from rota.predict.core_curves import likeliest

    types = sorted({point.gpu_type for point in points})
    cores = np.array([point.cores for point in points])
    logs = np.log([point.step_s for point in points])
    at = np.array([types.index(point.gpu_type) for point in points])
    gamma, gpu_s, by_core_s = likeliest(points, base)
    unit = float(np.exp(logs.mean()))

    def parts(terms: Vector) -> tuple[Vector, Vector, Vector]:
        cpu, gpu = terms[1] + terms[2] / cores, terms[3:][at]
        return cpu, gpu, np.minimum(cpu, gpu) / np.maximum(cpu, gpu)

    def off(terms: Vector) -> Vector:
        cpu, gpu, ratio = parts(terms)
        steps = np.log(np.maximum(cpu, gpu)) + np.log1p(ratio ** terms[0]) / terms[0]
        return np.append(steps - (logs - np.log(unit)), PRIOR * terms[1])

    def slopes(terms: Vector) -> Vector:
        cpu, gpu, ratio = parts(terms)
        power = ratio ** terms[0]
        less = power / (1 + power)  # the weight of the shorter part
        by_gpu = np.where(gpu > cpu, 1 - less, less)
        table = np.zeros((len(cores) + 1, len(terms)))
        of = table[:-1]
        of[:, 0] = (less * np.log(ratio) - np.log1p(power) / terms[0]) / terms[0]
        of[:, 1] = (1 - by_gpu) / cpu
        of[:, 2] = of[:, 1] / cores
        of[:, 3:] = (at[:, None] == np.arange(len(types))) * (by_gpu / gpu)[:, None]
        table[-1, 1] = PRIOR
        return table

    start = np.array([gamma, 1e-3, by_core_s / unit, *([gpu_s / unit] * len(types))])
    low = np.array([1.0, *([TINY] * (len(start) - 1))])
    high = np.array([MOST_GAMMA, *([inf] * (len(start) - 1))])
    begin = np.clip(start, low, high)
    found = least_squares(off, begin, slopes, bounds=(low, high), x_scale="jac")
    gamma, fixed, by_core, *gpus = found.x.tolist()
    by_type = {each: s * unit for each, s in zip(types, gpus, strict=True)}
    return CpuDemand(by_type, by_core * unit, fixed * unit, gamma=gamma)
