"""The step-time model on many points at once, with its slopes.

Terms are a vector of seven: alpha_c, beta_c, alpha_n, beta_n, alpha_r, beta_r, gamma, as in
:class:`rota.predict.step_time.StepTime` but none missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[np.float64]]

ORDER = ("alpha_c", "beta_c", "alpha_n", "beta_n", "alpha_r", "beta_r", "gamma")
GAMMA = ORDER.index("gamma")
TINY = 1e-8  # seconds: the least of every term, and what costs nothing


class Slopes(NamedTuple):
    """Logarithms of the times of n points, and their [n, 7] derivatives by the terms."""

    log_compute: Array
    log_step: Array
    of_compute: Array
    of_step: Array


class Places:
    """Places and batches of steps: (nodes, GPUs, batch per GPU) of each."""

    def __init__(self, places: Sequence[tuple[int, int, float]]) -> None:
        import numpy as np

        self.nodes, self.gpus, self.batch = np.array(places, dtype=float).reshape(-1, 3).T
        between, within = self.nodes > 1, (self.nodes == 1) & (self.gpus > 1)
        further = np.maximum(self.gpus - 2.0, TINY)
        self._computing = np.column_stack([np.ones(len(places)), self.batch])
        terms = [between, between * further, within, within * further]
        self._exchange = np.column_stack(terms).astype(float)
        # A row for each term is faster to work on, as one loop goes over all points.
        self._by_term = self._computing.T.copy(), self._exchange.T.copy()
        self._nothing = np.where(between | within, 0.0, TINY)

    def slopes(self, terms: Array) -> Slopes:
        """Times and slopes for terms that are all above 0."""
        import numpy as np

        gamma = terms[GAMMA]
        compute = self._computing @ terms[:2]
        sync = self._exchange @ terms[2:6] + self._nothing
        log_compute, log_sync = np.log(compute), np.log(sync)
        ahead = log_compute - log_sync
        # Powers of gamma, in units of the longer of the two so that none overflows.
        shorter = np.exp(-gamma * np.abs(ahead))
        log_step = np.maximum(log_compute, log_sync) + np.log1p(shorter) / gamma
        share = np.where(ahead > 0, 1.0, shorter) / (1.0 + shorter)  # of computing

        computing, exchange = self._by_term
        of_compute, of_step = np.zeros((7, len(compute))), np.empty((7, len(compute)))
        np.divide(computing, compute, out=of_compute[:2])
        np.multiply(share, of_compute[:2], out=of_step[:2])
        np.multiply(exchange, (1.0 - share) / sync, out=of_step[2:6])
        of_step[GAMMA] = (log_sync + share * ahead - log_step) / gamma
        return Slopes(log_compute, log_step, of_compute.T.copy(), of_step.T.copy())
