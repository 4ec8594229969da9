"""Batch normalisation over the whole batch of a layer, wherever its samples are.

Torch's SyncBatchNorm does so on GPUs alone, and for a group that must be known when it is made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import signature
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from rota.burst.runtime.groups import talk
from rota.errors import InputError

_ARGUMENTS = signature(F.batch_norm)
_OF_TORCH = (  # of torch.batch_norm, which has no signature and no defaults
    *("input", "weight", "bias", "running_mean", "running_var", "training", "momentum", "eps"),
    "cudnn_enabled",
)


class WholeBatch(TorchFunctionMode):
    """While it is entered, ``F.batch_norm`` in training normalises over all ranks of a group.

    So does ``torch.batch_norm``. All ranks of the group must have samples. Modules of batch
    normalisation call the first. ``numbers`` has a number for tensors of the model by their id, the
    same on all ranks; raises InputError if these normalise by different ones at once.
    """

    def __init__(self, group: Any, ranks: int, numbers: Mapping[int, int]) -> None:
        super().__init__()
        self._group, self._ranks, self._numbers = group, ranks, numbers

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
        elif func is torch.batch_norm:
            named = dict(zip(_OF_TORCH, args, strict=False)) | (kwargs or {})
            if named["training"]:
                return self._normalised(**named)
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
        layer = self._numbers.get(id(running_mean if weight is None else weight), 0)
        count, mean, var = self._moments(input.detach(), layer)
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

    def _moments(
        self, values: torch.Tensor, layer: int
    ) -> tuple[float, torch.Tensor, torch.Tensor]:
        """Number of values of a channel on all ranks; their means and variances, in double.

        Raises InputError if other ranks are at another ``layer``.
        """
        over = _all_but_channels(values)
        count = values.numel() // values.shape[1]
        wide = values.float() if values.dtype.itemsize < 4 else values
        var, mean = torch.var_mean(wide, over, correction=0)
        told = torch.tensor([layer, count], dtype=torch.float64, device=values.device)
        own = torch.cat((told, mean.double(), var.double()))
        parts = [torch.empty_like(own) for _ in range(self._ranks)]
        talk(dist.all_gather, parts, own, group=self._group)
        found = torch.stack(parts)
        layers, counts, means, variances = found.split([1, 1, *[values.shape[1]] * 2], dim=1)
        total, differ = torch.stack((counts.sum(), (layers != layer).sum())).tolist()
        if differ:
            raise InputError(
                "ranks are at different layers of batch normalisation at once: which layers run "
                "must not depend on a rank's samples or random numbers; draw for each sample alone"
            )
        share = counts / total
        mean = (share * means).sum(0)
        var = (share * (variances + (means - mean).square())).sum(0)
        return total, mean, var


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
        ctx.bias = None if bias is None else bias.dtype
        ctx.save_for_backward(values, weight, mean.to(kind), (var + eps).rsqrt().to(kind))
        # Torch takes one type for all four: that of the moments is the widest.
        scale, shift = (None if each is None else each.to(kind) for each in (weight, bias))
        return F.batch_norm(
            values, mean.to(kind), var.to(kind), scale, shift, training=False, eps=eps
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
        kept = ((of_weight, weight.dtype if weight is not None else None), (of_bias, ctx.bias))
        ends = [
            each.to(dtype) if ctx.needs_input_grad[1 + at] else None
            for at, (each, dtype) in enumerate(kept)
        ]
        return of_values, *ends, None, None, None, None


def _all_but_channels(values: torch.Tensor) -> list[int]:
    return [0, *range(2, values.dim())]
