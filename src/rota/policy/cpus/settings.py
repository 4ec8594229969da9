"""The settings of CPU cores, which every policy takes, and the stage that they make."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from rota.errors import PolicySettingError
from rota.policy.base import Setting, one_of, turn_s

if TYPE_CHECKING:
    from rota.policy.cpus.stage import CpuStage

OFF = "off"
# The class of each stage, which takes ``floor`` and ``period_s``; imported when somebody asks.
STAGES = {
    "equal": "rota.policy.cpus.even:Equal",
    "proportional": "rota.policy.cpus.even:Proportional",
    "sad": "rota.policy.cpus.sad:Sad",
}
CPU_SETTINGS = {
    "cpus": Setting(
        one_of(OFF, *STAGES),
        OFF,
        "How the CPU cores of a node are shared out: off: not at all; equal: all of them evenly "
        "over the GPUs in use; proportional: for each GPU in use its part of the node's cores; "
        "sad: by what cores are worth to each job, as it has told or shows in trials.",
    ),
    "cpu_floor": Setting(
        one_of("proportional", "none"),
        "proportional",
        "The least that a job keeps where cores are apportioned by what jobs make of them: its "
        "GPUs' part of the node's cores, or none.",
    ),
    "cpu_period_s": Setting(
        turn_s, 300.0, "Seconds after which cores are apportioned anew by what jobs make of them."
    ),
}


def check_cpu_settings(name: str, given: Mapping[str, Any]) -> None:
    """Raise PolicySettingError for a setting that has no effect without ``cpus``.

    ``given`` are the values of CPU_SETTINGS that are not the default; ``name`` is what messages
    call the policy.
    """
    for key in given:
        if "cpus" not in given:
            raise PolicySettingError(
                f"policy {name}: {key}={given[key]} has no effect without cpus; "
                f"give cpus too, or drop {key}"
            )


def cpu_stage(given: Mapping[str, Any]) -> CpuStage:
    """A stage of its own for the ``cpus`` in ``given``, with the other settings in it."""
    values = {key: setting.default for key, setting in CPU_SETTINGS.items()} | dict(given)
    module, _, attribute = STAGES[values["cpus"]].partition(":")
    stage: CpuStage = getattr(import_module(module), attribute)(
        floor=values["cpu_floor"], period_s=values["cpu_period_s"]
    )
    return stage
