"""EASY backfilling: the head of the line starts no later than its reservation ever said."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rota.policy.registry import create
from rota.testing.builders import simulation
from rota.workload.trace import Trace
from support.strategies import EIGHTHS, traces


@st.composite
def traces_with_limits(draw, gangs):
    """Jobs that mostly have a time limit, and all keep to it."""
    jobs = draw(traces(max_jobs=14, gangs=gangs))
    return Trace(
        spec._replace(
            submit_s=spec.submit_s / 8,
            time_limit_s=draw(st.one_of(st.none(), EIGHTHS.map(spec.duration_s.__add__))),
        )
        for spec in jobs
    )


@pytest.mark.parametrize("one_node_gangs", [False, True], ids=["any nodes", "one node"])
@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_the_head_starts_no_later_than_its_reservation_said(one_node_gangs, data):
    gangs = (1, 2, 3, 4) if one_node_gangs else (1, 2, 3, 4, 6, 8)
    jobs = data.draw(traces_with_limits(gangs))
    sim = simulation(jobs, create("easy-backfill", {"priority": "ignore"}), "1x4,2x2")
    sim.state.is_live = one_node_gangs
    latest_s = {}
    while sim.step():
        reserved = sim.state.notes.reserved
        if reserved is not None and reserved.at_s is not None:
            before_s = latest_s.setdefault(reserved.row, reserved.at_s)
            assert reserved.at_s <= before_s + 1e-6, "a reservation was put off"
            latest_s[reserved.row] = reserved.at_s
    for row, at_s in latest_s.items():
        assert sim.state.first_start_s[row] <= at_s + 1e-6
