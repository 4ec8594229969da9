"""Refuses uses of optimisers and models that fail if gradients come from several ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from rota.errors import InputError


def check_parts(model: Any, optimizer: Any, others: Iterable[Any]) -> None:
    """Raises InputError if ``s.prepare`` can't take these; None stands for nothing."""
    if not isinstance(model, torch.nn.Module):
        raise InputError(
            f"s.prepare: the model is {_kind(model)}, not a torch.nn.Module; "
            "call s.prepare(model, optimizer, ...), once for each model"
        )
    if optimizer is not None and not hasattr(optimizer, "param_groups"):
        raise InputError(
            f"s.prepare: the optimizer is {_kind(optimizer)}, which has no param_groups; "
            "call s.prepare(model, optimizer, ...), with None for a model without one"
        )
    for part in (optimizer, *others):
        known = hasattr(part, "state_dict") and hasattr(part, "load_state_dict")
        if part is not None and not known:
            raise InputError(
                f"s.prepare: {_kind(part)} has no state_dict and load_state_dict, by which other "
                "ranks would get its state; keep it by s.save(name=value)"
            )


def torch_optimizers(parts: Iterable[Any]) -> list[torch.optim.Optimizer]:
    """The optimisers among these, without the wrappers of Accelerate and Fabric."""
    found = []
    for part in parts:
        if not hasattr(part, "param_groups"):
            continue
        inner = getattr(part, "optimizer", part)
        if isinstance(inner, torch.optim.Optimizer):
            found.append(inner)
    return found


class Optimizers:
    """Watches the steps of a training's optimisers for misuse.

    ``in_pieces`` is True while a batch is being worked through. All methods raise InputError.
    """

    def __init__(
        self,
        optimizers: Sequence[torch.optim.Optimizer],
        models: Iterable[torch.nn.Module],
        in_pieces: Callable[[], bool],
    ) -> None:
        self._optimizers = list(optimizers)
        self._known = {id(p) for model in models for p in model.parameters()}
        self._in_pieces = in_pieces
        self._counted = -1

    def check(self) -> None:
        """Every optimised parameter must be one of a prepared model: others are not shared."""
        groups = [group for optimizer in self._optimizers for group in optimizer.param_groups]
        count = sum(len(group["params"]) for group in groups)
        if count == self._counted:
            return
        for parameter in (p for group in groups for p in group["params"]):
            if id(parameter) not in self._known:
                raise InputError(
                    f"an optimizer has a parameter of shape {tuple(parameter.shape)} that is in no "
                    "model given to s.prepare before the first step, so that its gradients are not "
                    "added up; make it part of a model, and prepare all models before the loop"
                )
        self._counted = count

    def watch(self, *, several: bool) -> None:
        """Check each step from now on; ``several`` is True if there may be several ranks."""
        for optimizer in self._optimizers:
            if several and isinstance(optimizer, torch.optim.LBFGS):
                raise InputError(
                    "LBFGS works out gradients in its step, where they are those of one rank; "
                    "use an optimizer that takes one gradient per step, or a fixed job of one GPU"
                )
            optimizer.register_step_pre_hook(self._hook(several))

    def _hook(self, several: bool) -> Callable[..., Any]:
        def before(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> Any:
            if self._in_pieces():
                raise InputError(
                    "optimizer.step() was called before the batch was worked through; step after "
                    "the loop over its pieces (for x, y in batch: ...), and do not leave that loop"
                )
            # torch gives the optimizer itself as the first of the positional arguments.
            closure = args[1] if len(args) > 1 else kwargs.get("closure")
            if closure is None or not several:
                return None
            rest = {name: value for name, value in kwargs.items() if name != "closure"}
            return (args[0], _checked(optimizer, closure), *args[2:]), rest

        return before


def _checked(optimizer: torch.optim.Optimizer, closure: Callable[[], Any]) -> Callable[[], Any]:
    """The closure, which must not make gradients of its own."""

    def gradients() -> list[Any]:
        every = [p.grad for group in optimizer.param_groups for p in group["params"]]
        return [grad if grad is None else (id(grad), grad._version) for grad in every]

    def run() -> Any:
        before = gradients()
        result = closure()
        if gradients() != before:
            raise InputError(
                "the closure given to optimizer.step() changes gradients, which would be those of "
                "one rank; call backward in the loop over the pieces of a batch, and then "
                "optimizer.step() without a closure"
            )
        return result

    return run


def _kind(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__name__}"
