"""The settings of background jobs, which every policy takes, and the stage that they make."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rota.errors import PolicySettingError
from rota.policy.base import Setting, one_of, pause_s, turn_s
from rota.policy.fill.stage import FillStage

if TYPE_CHECKING:
    from rota.model.plan import FillPlan, Plan
    from rota.model.view import View

ON, OFF = "on", "off"
FILL_SETTINGS = {
    "fill": Setting(
        one_of(ON, OFF),
        ON,
        "Background jobs: on: they use what foreground jobs leave of GPUs; off: they wait.",
    ),
    "fill_trial_s": Setting(
        turn_s,
        30.0,
        "Seconds for which a background job is on trial beside a foreground job, at least.",
    ),
    "fill_pause_s": Setting(
        pause_s,
        600.0,
        "Seconds before a background job is tried again beside a foreground job that it slowed "
        "beyond its limit; doubled each time.",
    ),
}


class Fill(FillStage):
    """The stage for background jobs, imported when it is asked first: most runs have none."""

    def __init__(self, *, trial_s: float, pause_s: float) -> None:
        self._stage: FillStage | None = None
        self._trial_s, self._pause_s = trial_s, pause_s

    def place(self, view: View, plan: Plan) -> FillPlan:
        if self._stage is None:
            from rota.policy.fill.gap_fill import GapFill

            self._stage = GapFill(trial_s=self._trial_s, pause_s=self._pause_s)
        return self._stage.place(view, plan)


def check_fill_settings(name: str, given: Mapping[str, Any]) -> None:
    """Raise PolicySettingError for a setting that has no effect with ``fill=off``.

    ``given`` are the values of FILL_SETTINGS that are not the default; ``name`` is what messages
    call the policy.
    """
    for key in given:
        if key != "fill" and given.get("fill") == OFF:
            raise PolicySettingError(
                f"policy {name}: {key}={given[key]} has no effect with fill=off; drop one of them"
            )


def fill_stage(given: Mapping[str, Any]) -> FillStage | None:
    """A stage of its own for these values of FILL_SETTINGS; None for ``fill=off``."""
    values = {key: setting.default for key, setting in FILL_SETTINGS.items()} | dict(given)
    if values["fill"] == OFF:
        return None
    return Fill(trial_s=values["fill_trial_s"], pause_s=values["fill_pause_s"])
