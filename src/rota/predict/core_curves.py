"""Curves of step time by cores that agree with measurements: what a fit may be off by.

A grid of curves stands for all of them: how far GPU and CPU overlap, and the cores at which the two
take equally long. The rest of a curve follows from the measurements.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rota.predict.core_points import NOISE, CorePoint

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[np.float64]]

GAMMAS = (1.0, 1.5, 2.5, 4.0, 6.5, 10.0)
KINKS = 64  # numbers of cores at which GPU and CPU take equally long
BEYOND = 16.0  # times the fewest and the most cores that were measured, as far as kinks lie


class Grid:
    """Curves [gamma, kink], with the GPU's part of each and how far it is off the points."""

    def __init__(self, points: Sequence[CorePoint], base: str) -> None:
        import numpy as np

        own = [point for point in points if point.gpu_type == base]
        cores = np.array([point.cores for point in own])
        logs = np.log([point.step_s for point in own])
        self.gammas = np.array(GAMMAS)[:, None, None]
        self.log_kinks = np.log(np.geomspace(cores.min() / BEYOND, cores.max() * BEYOND, KINKS))
        shapes = self.shapes(cores)
        self.log_gpu_s = (logs - shapes).mean(axis=2)
        self.squares = ((logs - shapes - self.log_gpu_s[:, :, None]) ** 2).sum(axis=2)
        # By how much the points scatter about the best curve, of which two terms are their own.
        scatter = float(self.squares.min()) / max(len(own) - 2, 1)
        self.variance = max(scatter, NOISE**2)
        self.count = len(own)

    def shapes(self, cores: Array) -> Array:
        """[gamma, kink, cores]: logarithm of a step's time over the GPU's part of it."""
        import numpy as np

        ahead = self.log_kinks[None, :, None] - np.log(cores)
        return np.maximum(ahead, 0) + np.log1p(np.exp(-self.gammas * np.abs(ahead))) / self.gammas


def likeliest(points: Sequence[CorePoint], base: str) -> tuple[float, float, float]:
    """Gamma, the GPU's part and the CPU's by core, of the curve nearest to points of ``base``."""
    from math import exp

    grid = Grid(points, base)
    gamma, kink = divmod(int(grid.squares.argmin()), KINKS)
    gpu = float(grid.log_gpu_s[gamma, kink])
    return GAMMAS[gamma], exp(gpu), exp(gpu + float(grid.log_kinks[kink]))


def errors(
    points: Sequence[CorePoint],
    cores: Sequence[float],
    gpu_type: str,
    base: str,
    predicted: Sequence[float],
) -> list[float]:
    """Root mean square of what predicted step times are off by, over curves by their likelihood.

    ``base`` is the GPU type that tells the CPU's part; the GPU's own part of another ``gpu_type``
    is any by which its points are met.
    """
    import numpy as np

    grid = Grid(points, base)
    shapes, logs = grid.shapes(np.array(cores, dtype=float)), np.log(predicted)
    off = grid.squares
    if gpu_type == base:
        steps = grid.log_gpu_s[:, :, None] + shapes
    else:
        own = [point for point in points if point.gpu_type == gpu_type]
        # [gamma, kink of base, kink of the other type]: the GPU's part, as the CPU's is the same.
        by_core = grid.log_gpu_s + grid.log_kinks
        gpu = by_core[:, :, None] - grid.log_kinks
        met = grid.shapes(np.array([point.cores for point in own]))
        told = np.log([point.step_s for point in own])
        off = off[:, :, None] + ((gpu[..., None] + met[:, None] - told) ** 2).sum(axis=3)
        steps = gpu[..., None] + shapes[:, None]
    weight = np.exp((off.min() - off) / (2 * grid.variance))
    axes = tuple(range(weight.ndim))
    squares = (weight[..., None] * (steps - logs) ** 2).sum(axis=axes) / weight.sum()
    return [float(each) for each in np.sqrt(squares + grid.variance / grid.count)]
