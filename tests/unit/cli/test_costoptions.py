import pytest

from rota.cli.costoptions import parse_costs
from rota.errors import InputError
from rota.sim.machine import FREE, Costs


def test_costs_not_given_keep_their_defaults():
    assert parse_costs(False, resume_s=60.0, suspend_s=None) == Costs()._replace(resume_s=60.0)
    assert parse_costs(True, resume_s=None) == FREE


def test_restarts_alone_may_cost():
    costs = parse_costs(False, 30.0, resume_s=None)
    assert (costs.cold_start_s, costs.resume_s, costs.resize_pause_s) == (30.0, 30.0, 30.0)
    assert sum(costs) == 90.0
    for no_overheads, given, other in (
        (True, {}, "no-overheads"),
        (False, {"suspend_s": 1.0}, "suspend-s"),
    ):
        with pytest.raises(InputError, match=f"--restart-s and --{other} contradict"):
            parse_costs(no_overheads, 30.0, **given)
    with pytest.raises(InputError, match="--restart-s: -1"):
        parse_costs(False, -1.0)
