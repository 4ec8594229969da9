"""Batches to which every rank adds a part of its own, and learning rates that follow their size."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

RULES = ("none", "linear", "sqrt", "adascale")
FORGETTING_STEPS = 1000  # a batch of S parts weighs S / 1000 of all before (AdaScale, ICML 2020)


class LrScaling:
    """By what the learning rate is multiplied when a batch has several parts.

    ``linear``: by their number (Goyal et al., *Accurate, Large Minibatch SGD*, 2017). ``sqrt``: by
    its square root. ``adascale``: by the gain, from 1 to their number, which is larger the more the
    gradients of the parts differ from each other (Johnson et al., *AdaScale SGD*, ICML 2020).

    ``scaled_steps`` is how many steps with a single part training so far amounts to: the parts that
    were worked through, and with ``adascale`` the sum of the gains.
    """

    def __init__(self, rule: str) -> None:
        self.rule = rule
        self.parts = 1  # of the present batch
        self.scaled_steps = 0.0
        self._noise = self._signal = self._weight = 0.0  # smoothed sums, and their weight

    @property
    def measures(self) -> bool:
        """Whether it must know how much the gradients of the parts differ."""
        return self.rule == "adascale"

    @property
    def factor(self) -> float:
        """By what the learning rate of the present batch is multiplied."""
        if self.rule == "linear":
            return float(self.parts)
        if self.rule == "sqrt":
            return math.sqrt(self.parts)
        return self.gain if self.measures else 1.0

    @property
    def gain(self) -> float:
        """AdaScale's: how many steps with a single part one step with all of them is worth."""
        if self.parts == 1 or not self._weight:
            return 1.0
        noise, signal = max(self._noise, 0.0), max(self._signal, 0.0)
        if not noise + signal:
            return 1.0
        return (noise + signal) / (noise / self.parts + signal)

    def complete(self, share: float, squares: tuple[float, float] | None) -> None:
        """Count a batch that has been worked through.

        ``share`` is how much of a whole batch it was. ``squares``, of a whole one, are the mean
        of the squared norms of its parts' gradients, and the squared norm of their mean.
        """
        if squares is not None and self.parts > 1 and all(map(math.isfinite, squares)):
            of_parts, of_mean = squares
            noise = (of_parts - of_mean) * self.parts / (self.parts - 1)
            kept = max(1 - self.parts / FORGETTING_STEPS, 0.0)
            self._noise = kept * self._noise + (1 - kept) * noise
            self._signal = kept * self._signal + (1 - kept) * (of_mean - noise / self.parts)
            self._weight = kept * self._weight + (1 - kept)
        self.scaled_steps += share * (self.gain if self.measures else self.parts)

    def follow(self, optimizer: torch.optim.Optimizer) -> None:
        """Let the optimiser's steps, and nothing else, see the multiplied learning rate."""
        rates: list[Any] = []

        def multiply(*_: Any) -> None:
            restore()
            rates[:] = [group["lr"] for group in optimizer.param_groups]
            for group in optimizer.param_groups:
                group["lr"] = group["lr"] * self.factor

        def restore(*_: Any) -> None:
            for group, rate in zip(optimizer.param_groups, rates, strict=False):
                group["lr"] = rate
            rates.clear()

        step = optimizer.step

        @functools.wraps(step)
        def restoring(*args: Any, **kwargs: Any) -> Any:
            try:
                return step(*args, **kwargs)
            finally:
                restore()  # hooks that come after a step are not called when it fails

        optimizer.register_step_pre_hook(multiply)
        optimizer.register_step_post_hook(restore)
        optimizer.step = restoring

    def state(self) -> list[float]:
        """What a newcomer must know."""
        return [self.scaled_steps, self._noise, self._signal, self._weight]

    def load(self, state: list[float]) -> None:
        """Take over what :meth:`state` gave."""
        self.scaled_steps, self._noise, self._signal, self._weight = state
