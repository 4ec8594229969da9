"""States of training, and how tests compare them: bit by bit."""

from pathlib import Path
from typing import Any

import torch


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """What the training script has ended with, in its folder."""
    return torch.load(folder / "weights.pt")


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    """Whether they do not differ in a single bit."""
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


def differences(one: Any, other: Any, where: str = "state") -> list[str]:
    """Where two states differ in a single bit."""
    if isinstance(one, torch.Tensor):
        same = one.dtype == other.dtype and torch.equal(one, other)
        return [] if same else [where]
    if isinstance(one, dict):
        if one.keys() != other.keys():
            return [f"{where}: {set(one) ^ set(other)}"]
        return [d for key in one for d in differences(one[key], other[key], f"{where}.{key}")]
    if isinstance(one, list | tuple):
        if len(one) != len(other):
            return [f"{where}: {len(one)} and {len(other)}"]
        return [
            d for i, each in enumerate(one) for d in differences(each, other[i], f"{where}.{i}")
        ]
    return [] if one == other else [f"{where}: {one} and {other}"]


def outcome(state: dict[str, Any]) -> dict[str, Any]:
    """What must not depend on the sizes that a job has had."""
    plain = {key: state["plain"][key] for key in ("epoch", "position", "step", "samples", "extra")}
    return {"models": state["models"], "others": state["others"], "plain": plain}
