"""Whole simulations with background jobs under several policies, one of them an antagonist."""

import pytest

from rota.model.events import DecisionTaken, FillMeasured
from rota.model.job import MAX_SLOWDOWN, JobState, Share
from rota.policy.fill.settings import FILL_SETTINGS
from rota.policy.registry import create
from rota.sim.fills import Gaps
from rota.sim.machine import Costs
from rota.testing.builders import job, random_trace, simulation
from rota.workload.trace import Trace

COSTS = Costs(suspend_s=1.0, resume_s=2.0, migrate_s=3.0, cold_start_s=4.0)
HOG = "hog"  # a model whose jobs slow others down however much they are held back
BACKGROUND = Share("background")


def simulated(policy, **more):
    """A queue of foreground jobs and ten background jobs, run to the end; its log."""
    work = (job(1000 + i, at=20.0 * i, lasts=90.0 + 30.0 * i, share=BACKGROUND) for i in range(9))
    hog = job(2000, at=5.0, lasts=300.0, model=HOG, share=BACKGROUND)
    jobs = Trace([*random_trace(3), *work, hog])
    sim = simulation(jobs, policy, costs=COSTS, gaps=Gaps(floors={HOG: 0.5}, **more))
    sim.state.log = []
    sim.run()
    return sim


@pytest.mark.parametrize("name", ["fifo", "gandiva", "tiresias", "pollux"])
def test_background_work_gets_done_and_foregrounds_stay_within_their_limits(name):
    sim = simulated(create(name))
    state = sim.state
    assert {*state.state} == {JobState.SUCCEEDED}
    hog = next(row for row, spec in enumerate(state.spec) if spec.model == HOG)
    harmless = (row for row, spec in enumerate(state.spec) if spec.is_background and row != hog)
    probes = [probe for row in harmless for probe in state.notes.probes.get(row, ())]
    assert probes
    assert all(probe.kept for probe in probes)
    assert not any(probe.kept for probe in state.notes.probes[hog])
    assert sim.machine.fills.figures()["foreground_slowdown"] <= MAX_SLOWDOWN


@pytest.mark.parametrize("name", ["fifo", "gandiva", "tiresias", "pollux"])
def test_an_antagonist_is_undone_within_the_time_of_a_probe(name):
    state = simulated(create(name), probe_s=FILL_SETTINGS["fill_trial_s"].default / 2).state
    hog = next(row for row, spec in enumerate(state.spec) if spec.model == HOG)
    place, undone, beyond = None, 0, None
    for event in state.log:
        if isinstance(event, FillMeasured) and event.row == hog and event.beside >= 0:
            assert event.low > MAX_SLOWDOWN
            beyond = event.at_s
        if isinstance(event, DecisionTaken):
            before, place = place, event.allocations.get(hog, place)
            if beyond is not None:
                assert event.at_s == beyond
                assert place != before
                undone, beyond = undone + 1, None
    assert undone > 0
