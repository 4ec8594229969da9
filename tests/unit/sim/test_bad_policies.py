"""Policies that break the contract end with one clear error, and no simulation goes on for ever."""

from math import inf, nan

import pytest

from rota.errors import PlanError, PolicySettingError, SimulationError
from rota.model.plan import Plan
from rota.policy.base import Policy
from rota.policy.ordering.fifo import Fifo
from rota.testing.builders import job, simulation, trace


class Decides(Policy):
    """A policy that says the same whatever the view shows."""

    def __init__(self, plan):
        self.plan = plan

    def decide(self, view):
        return self.plan


class WakesAlways(Fifo):
    """First in first out, asked again every minute, also when nobody is there."""

    def decide(self, view):
        return super().decide(view)._replace(wake_at_s=view.now_s + 60)


def test_a_class_that_is_no_policy_is_refused_with_the_fix():
    class Foreign:
        def decide(self, view):
            return view.unchanged()

    with pytest.raises(PolicySettingError, match="Foreign is no policy: derive its class from"):
        simulation(trace(job()), Foreign())


class OnlyWakes(Policy):
    """Starts nobody."""

    def decide(self, view):
        return Plan({}, {}, {}, None, view.now_s + 1)


@pytest.mark.parametrize(
    "plan",
    [
        None,
        "plan",
        (1, 2),
        Plan({0: "all"}, {}, {}),
        Plan({0: 4}, {}, {}),
        Plan({}, {}, {}, None, "soon"),
        Plan({}, {}, {}, None, inf),
        Plan({}, {}, {}, None, nan),
        Plan({}, {}, {}, None, -1.0),
        Plan({7: None}, {}, {}),
    ],
)
def test_what_is_no_plan_is_one_clear_error(plan):
    with pytest.raises(PlanError):
        simulation(trace(job()), Decides(plan)).run()


def test_a_policy_that_wants_to_be_woken_for_ever_comes_to_an_end():
    result = simulation(trace(job(lasts=100)), WakesAlways()).run()
    assert result.state.finish_s[0] == pytest.approx(100.0, abs=1)
    assert result.decisions < 10


def test_a_policy_that_wakes_and_starts_nobody_is_given_up():
    with pytest.raises(SimulationError, match="OnlyWakes was woken 10000 times"):
        simulation(trace(job()), OnlyWakes()).run()
