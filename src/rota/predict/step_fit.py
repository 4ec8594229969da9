"""Step time by the number of GPUs that share its batch, fitted to measurements.

The model of Peng et al., *Optimus*, EuroSys 2018, section 3.2, for workers that exchange gradients
among themselves: a part that the GPUs share, a part that stays, and one that grows with each GPU.
"""

from functools import lru_cache
from itertools import combinations
from typing import NamedTuple


class StepFit(NamedTuple):
    """Seconds of a step on K GPUs: ``shared_s`` / K + ``fixed_s`` + ``each_s`` K; none below 0."""

    shared_s: float
    fixed_s: float = 0.0
    each_s: float = 0.0

    def step_s(self, gpus: int) -> float:
        """Seconds of a step on so many GPUs."""
        return self.shared_s / gpus + self.fixed_s + self.each_s * gpus


@lru_cache(maxsize=4096)  # between two decisions few jobs have measured anything new
def fit_steps(points: tuple[tuple[int, float], ...]) -> StepFit:
    """The model with the least sum of squared relative errors at ``(GPUs, seconds)`` points.

    A term is left out if it would be below zero. If there are fewer sizes than terms, the first
    terms are kept: for a job that has run at one size, all time is assumed to be shared. Raises
    ValueError without points.
    """
    if not points:
        raise ValueError("there is nothing to fit a step's time to")
    import numpy as np

    terms = np.array([(1.0 / gpus / s, 1.0 / s, gpus / s) for gpus, s in points])
    sizes = len({gpus for gpus, _ in points})
    best, least = StepFit(points[0][0] * points[0][1]), float("inf")
    for count in range(1, min(sizes, 3) + 1):
        for kept in combinations(range(3), count):
            if sizes == 1 and kept != (0,):
                continue
            found, _, rank, _ = np.linalg.lstsq(terms[:, kept], np.ones(len(points)))
            if rank < count or found.min() < 0:
                continue
            off = terms[:, kept] @ found - 1.0
            error = float(off @ off)
            if error < least * (1 - 1e-9) - 1e-18:
                values = [0.0, 0.0, 0.0]
                for x, at in zip(found.tolist(), kept, strict=True):
                    values[at] = x
                best, least = StepFit(*values), error
    return best
