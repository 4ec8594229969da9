"""Stands for the gradient of a parameter that other ranks keep: its norm, without its values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from rota.errors import InputError

_aten = torch.ops.aten
TWO = 2.0


class Elsewhere(torch.Tensor):
    """A gradient that lies on other ranks, of the shape of its parameter.

    It has a 2-norm, can be multiplied by a number and set to zero: so ``clip_grad_norm_`` finds the
    norm of the whole model's gradient on each rank. All else is an InputError. Take it away before
    an optimiser's step.
    """

    norm_: torch.Tensor
    ranks: tuple[int, ...]

    @staticmethod
    def __new__(cls, like: torch.Tensor, norm: torch.Tensor, ranks: tuple[int, ...]) -> Elsewhere:
        made = torch.Tensor._make_wrapper_subclass(
            cls, like.shape, dtype=like.dtype, device=like.device
        )
        made.norm_, made.ranks = norm.to(like.device), ranks
        return made

    def __repr__(self, **_: Any) -> str:
        return f"Elsewhere(norm={self.norm_.item()}, ranks={self.ranks})"

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(
        cls,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """The few operations that clipping needs."""
        own = args[0]
        given: Callable[..., Any] | None = _OPERATIONS.get(func)
        if given is None or not isinstance(own, Elsewhere):
            first = next(each for each in (*args, *(kwargs or {}).values()) if type(each) is cls)
            raise InputError(
                f"{func}: the gradient of a parameter of shape {tuple(first.shape)} lies on ranks "
                f"{first.ranks}, and here only its 2-norm is known; clip by "
                "torch.nn.utils.clip_grad_norm_ with norm 2, and look at other gradients on rank 0"
            )
        return given(*args, **(kwargs or {}))


def _norm(own: Elsewhere, order: float = TWO, *_: Any, **options: Any) -> torch.Tensor:
    if order != TWO:
        raise InputError(
            f"norm {order:g} of a gradient that lies on ranks {own.ranks}: here only its 2-norm is "
            "known; clip by norm 2, which is torch's default"
        )
    return own.norm_.to(options.get("dtype") or own.dtype)


def _scaled(own: Elsewhere, factor: Any) -> Elsewhere:
    own.norm_ = own.norm_ * abs(factor)
    return own


def _zeroed(own: Elsewhere) -> Elsewhere:
    own.norm_ = torch.zeros_like(own.norm_)
    return own


def _itself(own: Elsewhere, *_: Any, **__: Any) -> Elsewhere:
    return own


_OPERATIONS: dict[Any, Callable[..., Any]] = {
    _aten.linalg_vector_norm.default: _norm,
    _aten.norm.Scalar: _norm,
    _aten.mul_.Tensor: _scaled,
    _aten.mul_.Scalar: _scaled,
    _aten.zero_.default: _zeroed,
    _aten.detach.default: _itself,
    _aten.detach_.default: _itself,
}


def away(parameters: Any) -> None:
    """Take such gradients from the parameters: an optimiser then leaves them alone."""
    for parameter in parameters:
        if isinstance(parameter.grad, Elsewhere):
            parameter.grad = None
