"""Learning rates that follow the changing size of batches."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch

from rota.errors import InputError
from rota.predict.gradient_noise import GradientNoise, Squares

RULES = ("none", "linear", "sqrt", "legw", "adascale", "adamscale")
BY_OPTIMIZER = "by optimizer"  # adamscale where steps are divided by a norm, else adascale


class LrScaling:
    """Factor of the learning rate for a batch that is ``scale`` times the initial one.

    ``linear``: the scale (Goyal et al., *Accurate, Large Minibatch SGD*, 2017). ``sqrt``: its
    square root. ``legw``: its square root, after a linear warm-up from 0 over ``warmup_steps``
    initial batches, which grows with the scale (You et al., *Large-Batch Training for LSTM and
    Beyond*, 2019). ``adascale``: the gain, from 1 to the scale, which is larger the noisier
    gradients are (Johnson et al., *AdaScale SGD*, ICML 2020). ``adamscale``: the square root of the
    gain, for Adam and its kin (Qiao et al., *Pollux*, OSDI 2021). Initially the factor is that for
    ``scale`` 1.

    ``scaled_steps`` is the number of steps with the initial batch that training so far amounts to:
    the sum of the gains where ``counts_gains``, else of the scales.
    """

    def __init__(
        self, rule: str, *, counts_gains: bool | None = None, warmup_steps: float = 0.0
    ) -> None:
        self.rule = rule
        self.scale = 1.0  # of the present batch
        self.scaled_steps = 0.0
        self.noise = GradientNoise()
        self._unit = 0  # unit of the measurements
        by_gain = rule in ("adascale", "adamscale", BY_OPTIMIZER)
        self._counts_gains = by_gain if counts_gains is None else counts_gains
        self._warmup_steps = warmup_steps
        self.measures = by_gain or self._counts_gains  # True if it needs the noise

    @property
    def gain(self) -> float:
        """AdaScale's gain: the steps of the initial batch that one of the present is worth."""
        return 1.0 if self.scale == 1 else self.noise.gain(self.scale)

    def factor(self, rule: str) -> float:
        """This rule's factor of the learning rate for the present batch."""
        if rule == "linear":
            return self.scale
        if rule == "sqrt":
            return math.sqrt(self.scale)
        if rule == "legw":
            warmup = self._warmup_steps * self.scale
            warm = min(1.0, self.scaled_steps / warmup) if warmup else 1.0
            return math.sqrt(self.scale) * warm
        if rule == "adascale":
            return self.gain
        return math.sqrt(self.gain) if rule == "adamscale" else 1.0

    def complete(
        self, share: float, squares: Squares | None, *, unit: int = 0, every: int = 1
    ) -> None:
        """Count a batch that has been worked through; the optimisers' step follows.

        ``share`` is how much of a whole batch it was. ``squares`` is None if they were not
        measured; of a batch whose gradients overflow nothing is counted, because a gradient scaler
        leaves its step out. ``unit`` tells apart what gradients are measured in, and ``every`` is
        for how many batches each that is measured stands.
        """
        if squares is not None and not squares.finite:
            return
        if squares is not None:
            if unit != self._unit:
                self.noise.forget()
                self._unit = unit
            self.noise.observe(squares, every)
        self.scaled_steps += share * (self.gain if self._counts_gains else self.scale)

    def follow(self, optimizer: torch.optim.Optimizer) -> None:
        """Let the optimiser's steps, and nothing else, see the multiplied learning rate."""
        rates: list[Any] = []
        rule = self.rule if self.rule != BY_OPTIMIZER else rule_for(optimizer)

        def multiply(*_: Any) -> None:
            restore()
            rates[:] = [group["lr"] for group in optimizer.param_groups]
            for group in optimizer.param_groups:
                group["lr"] = group["lr"] * self.factor(rule)

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

    def state(self) -> dict[str, Any]:
        """The state that a newcomer needs."""
        steps = {"scaled_steps": self.scaled_steps, "unit": self._unit}
        return steps | {"noise": self.noise.state()}

    def load(self, state: dict[str, Any]) -> None:
        """Take over what :meth:`state` gave."""
        self.scaled_steps, self._unit = state["scaled_steps"], state["unit"]
        self.noise.load(state["noise"])


def rule_for(optimizer: torch.optim.Optimizer) -> str:
    """The rule that suits an optimiser, by whether it divides steps by the size of gradients."""
    divide = (
        torch.optim.Adam,  # and AdamW
        torch.optim.NAdam,
        torch.optim.RAdam,
        torch.optim.Adamax,
        torch.optim.Adagrad,
        torch.optim.Adadelta,
        torch.optim.RMSprop,
    )
    named = type(optimizer).__name__.lower()
    return "adamscale" if isinstance(optimizer, divide) or "adam" in named else "adascale"


def check_rule(lr_scaling: str | None, warmup_epochs: float) -> None:
    """Raises InputError for an unknown rule, or one without this warm-up."""
    if lr_scaling not in (None, *RULES):
        raise InputError(f"s.loader: lr_scaling={lr_scaling!r} must be one of {', '.join(RULES)}")
    number = isinstance(warmup_epochs, int | float) and not isinstance(warmup_epochs, bool)
    if not number or not 0 <= warmup_epochs < math.inf:
        raise InputError(f"s.loader: warmup_epochs={warmup_epochs!r} must be a number from 0")
    if warmup_epochs and lr_scaling != "legw":
        raise InputError(
            f"s.loader: warmup_epochs={warmup_epochs!r} is for lr_scaling='legw', and that is "
            f"{lr_scaling!r}; leave it out, or choose that rule"
        )
