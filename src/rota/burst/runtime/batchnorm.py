"""Batch normalisation over the whole batch of a layer, wherever its samples are.

Torch's SyncBatchNorm does so on GPUs alone, and for a group that must be known when it is made.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from rota.burst.runtime.groups import talk

_ARGUMENTS = signature(F.batch_norm)


class WholeBatch(TorchFunctionMode):
    """While it is entered, ``F.batch_norm`` in training normalises over all ranks of a group.

    All ranks of the group must have samples. Modules of batch normalisation call that function.
    """

    def __init__(self, group: Any, ranks: int) -> None:
        super().__init__()
        self._group, self._ranks = group, ranks

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func is F.batch_norm:
            given = _ARGUMENTS.bind(*args, **(kwargs or {}))
            given.apply_defaults()
            if given.arguments["training"]:
                return self._normalised(**given.arguments)
        return func(*args, **(kwargs or {}))

    def _normalised(
        self,
        input: torch.Tensor,
        running_mean: torch.Tensor | None,
        running_var: torch.Tensor | None,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        momentum: float,
        eps: float,
        **_: Any,
    ) -> torch.Tensor:
        count, mean, var = self._moments(input.detach())
        if count <= 1:
            raise ValueError(
                "Expected more than 1 value per channel when training, got input size "
                f"{tuple(input.shape)}"
            )
        if running_mean is not None and running_var is not None:
            unbiased = var * (count / (count - 1))
            running_mean.lerp_(mean.to(running_mean.dtype), momentum)
            running_var.lerp_(unbiased.to(running_var.dtype), momentum)
        rows = (count, self._group)
        found: torch.Tensor = _Normalise.apply(input, weight, bias, mean, var, eps, rows)
        return found

    def _moments(self, values: torch.Tensor) -> tuple[float, torch.Tensor, torch.Tensor]:
        """Number of values of a channel on all ranks; their means and variances, in double."""
        over = _all_but_channels(values)
        count = values.numel() // values.shape[1]
        wide = values.float() if values.dtype.itemsize < 4 else values
        var, mean = torch.var_mean(wide, over, correction=0)
        one = torch.full((1,), count, dtype=torch.float64, device=values.device)
        own = torch.cat((one, mean.double(), var.double()))
        parts = [torch.empty_like(own) for _ in range(self._ranks)]
        talk(dist.all_gather, parts, own, group=self._group)
        found = torch.stack(parts)
        counts, channels = found[:, :1], values.shape[1]
        share = counts / counts.sum()
        means, variances = found[:, 1 : 1 + channels], found[:, 1 + channels :]
        mean = (share * means).sum(0)
        var = (share * (variances + (means - mean).square())).sum(0)
        return float(counts.sum()), mean, var


class _Normalise(torch.autograd.Function):
    """(input - mean) / sqrt(var + eps) * weight + bias, where mean and var are of all ranks."""

    @staticmethod
    def forward(
        ctx: Any,
        values: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        mean: torch.Tensor,
        var: torch.Tensor,
        eps: float,
        rows: tuple[float, Any],
    ) -> torch.Tensor:
        kind = torch.promote_types(values.dtype, torch.float32)
        ctx.rows = rows
        ctx.save_for_backward(values, weight, mean.to(kind), (var + eps).rsqrt().to(kind))
        return F.batch_norm(
            values, mean.to(kind), var.to(kind), weight, bias, training=False, eps=eps
        )

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        values, weight, mean, inverse = ctx.saved_tensors
        count, group = ctx.rows
        over = _all_but_channels(values)
        shape = [1, -1] + [1] * (values.dim() - 2)
        wide = gradient.to(mean.dtype)
        centred = values - mean.view(shape)
        of_bias = wide.sum(over)
        of_weight = (wide * centred).sum(over) * inverse
        of_values = None
        if ctx.needs_input_grad[0]:
            sums = torch.cat((of_bias, of_weight)).double()
            talk(dist.all_reduce, sums, group=group)
            mean_bias, mean_weight = (sums / count).to(mean.dtype).chunk(2)
            scale = inverse if weight is None else inverse * weight.to(mean.dtype)
            centred.mul_((inverse * mean_weight).view(shape)).add_(mean_bias.view(shape))
            of_values = wide.sub(centred).mul_(scale.view(shape)).to(values.dtype)
        kept = (of_weight, of_bias)
        ends = [
            each.to(weight.dtype) if weight is not None and ctx.needs_input_grad[1 + at] else None
            for at, each in enumerate(kept)
        ]
        return of_values, *ends, None, None, None, None


def _all_but_channels(values: torch.Tensor) -> list[int]:
    return [0, *range(2, values.dim())]
