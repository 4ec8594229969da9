"""Squared norms of gradients, in the units of the optimisers that use them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from rota.predict.gradient_noise import Squares, pair
from rota.train.optimizers import torch_optimizers

Parameters = Mapping[torch.dtype, Sequence[torch.Tensor]]  # trained parameters by type

FIRST = 32  # the first batches are all measured
EVERY = 8  # later, one of so many is: measuring takes passes over all gradients
WARM_STEPS = 5  # before, an optimiser's running means are meaningless (as in AdaptDL)
CHUNK = 1 << 16  # numbers that stay in a processor's caches between operations


class Divisor(NamedTuple):
    """An optimiser's divisor of a gradient: the root of ``mean / correction``, plus ``eps``."""

    mean: torch.Tensor
    correction: float
    eps: float


class Norms:
    """Squared norms of gradients; for Adam and its kin, of what these make of them.

    Such optimisers divide each gradient by the root of the running mean of its square, and noise
    counts as it is after that (Qiao et al., *Pollux*, OSDI 2021, section 3.1). ``others`` gives the
    optimisers and gradient scalers of the training. What is measured, and when, follows from their
    state and from the number of the batch alone, so that all ranks find the same.

    The first batches are all measured, later some of them: noise changes slowly.
    """

    def __init__(self, others: Callable[[], Iterable[Any]]) -> None:
        self._others = others
        self._inverse: dict[torch.dtype, torch.Tensor] = {}  # one over the divisors
        self._before: dict[torch.dtype, torch.Tensor] = {}  # gradients of the step before
        self._spare: dict[torch.dtype, torch.Tensor] = {}
        self._last: tuple[int, float, float] | None = None  # its number, squared norm and scale
        self._parameters: Parameters = {}  # of the present batch, and its number
        self._number = 0
        self.unit = 0  # number of parameters whose gradients are divided: others can't be compared
        self.every = 1  # number of batches that each measured one stands for
        self.due = False  # True if the present batch is measured

    def begin(self, parameters: Parameters, number: int, *, single: bool) -> None:
        """Start a batch, in a ``single`` part or in several, and decide whether to measure it."""
        self.every = 1 if number < FIRST else EVERY
        self.due = number % (2 * EVERY) < 2 if single else number % EVERY == 0
        self.due = self.due or number < FIRST
        self._parameters, self._number = parameters, number
        if not self.due:
            return
        divisors = _divisors(self._others())
        self.unit = 0
        for dtype, own in parameters.items():
            known = [divisors.get(id(parameter)) for parameter in own]
            self.unit += sum(divisor is not None for divisor in known)
            if any(divisor is not None for divisor in known):
                self._invert(dtype, own, known)
            else:
                self._inverse.pop(dtype, None)

    def note(self, leaves: Mapping[torch.dtype, torch.Tensor], weight: float) -> None:
        """Add the squared norm of a shard's gradients to the last number of its leaf.

        The leaves are vectors that begin with the gradients, multiplied by ``weight``.
        """
        for dtype in self._parameters if self.due else ():
            leaves[torch.float32][-1:].add_(self._square(dtype, leaves[dtype]) / weight)

    def measured(
        self,
        reduced: Mapping[torch.dtype, torch.Tensor],
        of_parts: float,
        parts: int,
        scale: float,
    ) -> Squares | None:
        """Measurements of the present batch, from the sums of its leaves; None if not measured.

        ``of_parts`` is the last number of those. Without leaves the batch was in a single part, and
        its gradients are in place.
        """
        if not self.due:
            return None
        if not reduced:
            return self._pair(scale)
        unit = self._loss_scale() ** 2
        of_mean = sum(float(self._square(dtype, reduced[dtype])) for dtype in self._parameters)
        return Squares(of_parts / unit, of_mean / unit, parts, scale)

    def _square(self, dtype: torch.dtype, vector: torch.Tensor) -> torch.Tensor:
        """The squared norm of the gradients that a vector begins with, on its device."""
        vector = vector[: sum(parameter.numel() for parameter in self._parameters[dtype])]
        inverse = self._inverse.get(dtype)
        if inverse is None:
            return _sum([_dot(part, part) for part in _chunks(vector)], vector)
        found = []
        for part, by in zip(_chunks(vector), _chunks(inverse), strict=True):
            scaled = torch.mul(part, by)
            found.append(_dot(scaled, scaled))
        return _sum(found, vector)

    def _pair(self, scale: float) -> Squares:
        """Measurements of the gradients in place, paired with those of the previous batch."""
        loss_scale, last = self._loss_scale(), self._last
        follows = last is not None and last[0] == self._number - 1
        square = product = 0.0
        for dtype, own in self._parameters.items():
            now, before = self._flat(dtype, own, loss_scale), self._before.get(dtype)
            square += float(_sum([_dot(part, part) for part in _chunks(now)], now))
            if before is None or before.numel() != now.numel():
                follows = False
            elif follows:
                both = zip(_chunks(now), _chunks(before), strict=True)
                product += float(_sum([_dot(*parts) for parts in both], now))
            if before is not None:
                self._spare[dtype] = before
            self._before[dtype] = now
        self._last = (self._number, square, scale) if math.isfinite(square) else None
        if last is None or not follows or not math.isfinite(square):
            return Squares(square, square, 1, scale)
        return pair(last[1], square, product, last[2], scale)

    def _loss_scale(self) -> float:
        """The factor of gradients if a gradient scaler was prepared, else 1."""
        for part in self._others():
            if hasattr(part, "get_scale") and part.is_enabled():
                return float(part.get_scale())
        return 1.0

    def _flat(
        self, dtype: torch.dtype, parameters: Sequence[torch.Tensor], loss_scale: float
    ) -> torch.Tensor:
        """The gradients as the optimisers see them."""
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        flat = self._spare.pop(dtype, None)
        length = sum(grad.numel() for grad in grads)
        if flat is None or flat.numel() != length:
            flat = grads[0].new_empty(length, dtype=_wide(dtype))
        torch.cat([grad.reshape(-1) for grad in grads], out=flat)
        inverse = self._inverse.get(dtype)
        parts = _chunks(flat)
        for part, by in zip(parts, _chunks(inverse) if inverse is not None else parts, strict=True):
            if inverse is not None:
                part.mul_(by)
            if loss_scale != 1:
                part.div_(loss_scale)
        return flat

    def _invert(
        self,
        dtype: torch.dtype,
        parameters: Sequence[torch.Tensor],
        divisors: Sequence[Divisor | None],
    ) -> None:
        """Work out one over the divisors; one where there is none."""
        lengths = [parameter.numel() for parameter in parameters]
        inverse = self._inverse.get(dtype)
        if inverse is None or inverse.numel() != sum(lengths):
            wide = _wide(dtype)
            inverse = self._inverse[dtype] = parameters[0].new_empty(sum(lengths), dtype=wide)
        kinds = {(d.correction, d.eps) if d is not None else None for d in divisors}
        if len(kinds) == 1 and None not in kinds:  # the usual case
            torch.cat([d.mean.reshape(-1) for d in divisors if d is not None], out=inverse)
            places = [(inverse, divisors[0])]
        else:
            places = list(zip(inverse.split(lengths), divisors, strict=True))
            for place, divisor in places:
                place.copy_(divisor.mean.reshape(-1)) if divisor is not None else place.fill_(1)
        for place, divisor in places:
            if divisor is not None:
                for part in _chunks(place):
                    part.div_(divisor.correction).sqrt_().add_(divisor.eps).reciprocal_()


def _mean_of(state: Mapping[str, Any]) -> Any:
    """The running mean of the squares of a parameter's gradients, if an optimiser keeps it."""
    return state.get("exp_avg_sq", state.get("square_avg"))


def _divisors(others: Iterable[Any]) -> dict[int, Divisor]:
    """Divisors by parameter, of the optimisers that have one for it."""
    found: dict[int, tuple[Any, Any, float, float]] = {}
    for optimizer in torch_optimizers(others):
        for group in optimizer.param_groups:
            beta = group["betas"][1] if "betas" in group else 0.0
            for parameter in group["params"]:
                state = optimizer.state.get(parameter) or {}
                if _mean_of(state) is not None and "step" in state and "eps" in group:
                    found[id(parameter)] = (_mean_of(state), state["step"], beta, group["eps"])
    steps = _numbers([step for _, step, _, _ in found.values()])
    return {
        key: Divisor(mean, 1 - beta**step, eps)
        for (key, (mean, _, beta, eps)), step in zip(found.items(), steps, strict=True)
        if step >= WARM_STEPS
    }


def _numbers(steps: Sequence[Any]) -> list[float]:
    """Counts of steps, which may be tensors on a device: waiting for it once."""
    if steps and all(isinstance(step, torch.Tensor) and step.is_cuda for step in steps):
        return [float(step) for step in torch.stack(list(steps)).tolist()]
    return [float(step) for step in steps]


def _chunks(vector: torch.Tensor) -> Sequence[torch.Tensor]:
    return vector.split(CHUNK) if vector.device.type == "cpu" else (vector,)


def _dot(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """The inner product, in single precision at least."""
    if one.is_complex():
        one, other = torch.view_as_real(one).reshape(-1), torch.view_as_real(other).reshape(-1)
    return torch.dot(one.to(_wide(one.dtype)), other.to(_wide(other.dtype)))


def _wide(dtype: torch.dtype) -> torch.dtype:
    """A type in which squares of this one are in range."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def _sum(values: Sequence[torch.Tensor], like: torch.Tensor) -> torch.Tensor:
    if not values:
        return torch.zeros((), dtype=torch.float64, device=like.device)
    return torch.stack(list(values)).sum(dtype=torch.float64)
