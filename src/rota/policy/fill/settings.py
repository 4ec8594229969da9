"""The setting of background jobs, which every policy takes, and the stage that it makes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rota.policy.base import Setting, one_of
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
}


class Fill(FillStage):
    """The stage for background jobs, imported when it is asked first: most runs have none."""

    def __init__(self) -> None:
        self._stage: FillStage | None = None

    def place(self, view: View, plan: Plan) -> FillPlan:
        if self._stage is None:
            from rota.policy.fill.least_served import LeastServed

            self._stage = LeastServed()
        return self._stage.place(view, plan)


def fill_stage(given: str) -> FillStage | None:
    """A stage of its own for the value of ``fill``; None for OFF."""
    return None if given == OFF else Fill()
