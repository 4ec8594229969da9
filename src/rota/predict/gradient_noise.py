"""The gradient noise scale: how noisy gradients are, and so how much a larger batch gains.

The estimator of Qiao et al., *Pollux*, OSDI 2021, section 3.1, after McCandlish et al., *An
Empirical Model of Large-Batch Training*, 2018: gradients of parts of a batch differ from each other
by noise alone. It needs the squared norms of such gradients and that of their mean, nothing else.
"""

import math
from typing import NamedTuple

THETA = 0.999  # weight of the old averages after a batch of the initial size
LEAST_VAR = 1e-6  # part of the signal: less noise can't be told from none


class Squares(NamedTuple):
    """Measurements of the gradients of one batch.

    ``of_parts`` is the mean of the squared norms of the gradients of so many ``parts`` of it, and
    ``of_mean`` the squared norm of their mean, both weighted by samples. ``scale`` is the size of
    the batch in initial batches. ``paired`` says that the parts are batches of two steps; see
    :func:`pair`.
    """

    of_parts: float
    of_mean: float
    parts: int
    scale: float
    paired: bool = False

    @property
    def finite(self) -> bool:
        """True if no gradient has overflowed."""
        return math.isfinite(self.of_parts) and math.isfinite(self.of_mean)


def pair(
    before: float, now: float, product: float, scale_before: float, scale_now: float
) -> Squares:
    """The gradients of two consecutive steps, treated as the two parts of one batch.

    For batches of a single part. The first two arguments are the squared norms, ``product`` is the
    inner product. The result is biased: the weights have changed between the two.
    """
    scale = scale_before + scale_now
    one, other = scale_before / scale, scale_now / scale
    of_mean = one * one * before + other * other * now + 2 * one * other * product
    return Squares(one * before + other * now, of_mean, 2, scale, paired=True)


class GradientNoise:
    """Running averages of the signal and of the noise in gradients.

    ``sqr`` is |G|^2, the squared norm of the true gradient, and ``var`` the trace of the covariance
    of the gradient of a batch of the initial size; both are 0 until something has been measured.
    The published lower bound of ``var`` is 1e-6; here it is that part of ``sqr``, so that a loss
    that is multiplied by a number leaves the noise scale as it is.
    """

    def __init__(self) -> None:
        self._sqr = self._var = self._weight = 0.0  # smoothed sums, and their weight
        self._paired = False  # True if they come from batches of a single part

    @property
    def known(self) -> bool:
        """True if anything has been measured."""
        return self._weight > 0

    @property
    def sqr(self) -> float:
        """|G|^2."""
        return max(self._sqr / self._weight, 0.0) if self.known else 0.0

    @property
    def var(self) -> float:
        """The trace of the covariance, for the initial batch size."""
        return max(self._var / self._weight, LEAST_VAR * self.sqr) if self.known else 0.0

    def observe(self, squares: Squares, every: int = 1) -> bool:
        """Add the measurements of one batch. True if it was informative.

        It stands for ``every`` batches, of which only this one was measured. Results from single
        gradients, which are biased, are dropped once there are several gradients in a batch.
        """
        of_parts, of_mean, parts, scale, paired = squares
        if parts < 2 or not squares.finite:
            return False
        if self._paired and not paired:
            self.forget()
        self._paired = paired
        kept = THETA ** (scale * every)
        sqr = (parts * of_mean - of_parts) / (parts - 1)
        var = (of_parts - of_mean) * scale / (parts - 1)
        self._sqr = kept * self._sqr + (1 - kept) * sqr
        self._var = kept * self._var + (1 - kept) * var
        self._weight = kept * self._weight + (1 - kept)
        return True

    def forget(self) -> None:
        """Start over: later measurements have another unit, or are of another kind."""
        self._sqr = self._var = self._weight = 0.0

    def gain(self, scale: float) -> float:
        """Number of steps with the initial batch that a step of ``scale`` times the batch is worth.

        From 1 to ``scale`` (Johnson et al., *AdaScale SGD*, ICML 2020); 1 if nothing is known.
        """
        return gain(self.sqr, self.var, scale)

    def state(self) -> list[float]:
        """Numbers from which another instance continues as this one."""
        return [self._sqr, self._var, self._weight, float(self._paired)]

    def load(self, state: list[float]) -> None:
        """Load what :meth:`state` returned."""
        self._sqr, self._var, self._weight, paired = state
        self._paired = bool(paired)


def gain(sqr: float, var: float, scale: float) -> float:
    """:meth:`GradientNoise.gain` of this signal and this noise."""
    if not sqr + var > 0:
        return 1.0
    return (var + sqr) / (var / scale + sqr)
