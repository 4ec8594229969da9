"""What holds whatever fails: no work is lost unnoticed, and every job finishes."""

from itertools import takewhile
from math import floor, inf

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rota.errors import InputError, SimulationError
from rota.model.cluster import parse_cluster
from rota.policy.registry import BUILT_IN, create
from rota.sim.faults import Faults, What
from rota.sim.machine import FREE, Costs
from rota.sim.simulation import Simulation
from rota.testing.builders import job
from rota.workload.trace import Trace
from support.strategies import traces

SETTINGS = {
    "tiresias": {"thresholds": "50,400", "promote_knob": "4"},
    "gandiva": {"quantum_s": "32"},
}
# Rare enough that every job of at most 1000 s gets through, with a checkpoint or without.
FAULTS = st.builds(
    Faults,
    seed=st.integers(0, 1000),
    mtbf_s=st.sampled_from([None, 2000.0, 8000.0]),
    mttr_s=st.sampled_from([1.0, 300.0]),
    worker_mtbf_s=st.sampled_from([None, 20000.0]),
    straggler_every_s=st.sampled_from([None, 300.0]),
    straggler_for_s=st.sampled_from([20.0, 200.0]),
    straggler_speed=st.sampled_from([0.25, 0.7, 1.0]),
    checkpoint_s=st.sampled_from([None, 10.0, 33.3]),
    script=st.just(()),
)
COSTS = st.sampled_from(
    [FREE, Costs(suspend_s=3.0, resume_s=7.0, migrate_s=11.0, cold_start_s=5.0)]
)
MOST_STEPS = 20_000


@pytest.mark.parametrize("name", BUILT_IN)
@given(jobs=traces(max_jobs=8, gangs=(1, 2, 4, 8)), faults=FAULTS, costs=COSTS)
@settings(max_examples=20, deadline=None)
def test_all_jobs_finish_and_their_time_is_accounted_for(name, jobs, faults, costs):
    policy = create(name, SETTINGS.get(name))
    sim = Simulation(jobs, parse_cluster("1x4,2x2"), policy, costs, faults=faults)
    state = sim.state
    for _ in range(MOST_STEPS):
        if not sim.step():
            break
        state.validate()
    assert not sim.step()
    for row, spec in enumerate(jobs):
        assert state.finish_s[row] >= 0
        assert state.work(row, state.finish_s[row]) == pytest.approx(spec.duration_s)
        slower_s = state.lag_s[row] - state.lost_s[row]
        assert slower_s >= -1e-6
        assert state.service_s[row] == pytest.approx(spec.duration_s + state.lost_s[row] + slower_s)
        if faults.straggler_every_s is None:
            assert slower_s == pytest.approx(0, abs=1e-6)
        used_s = state.service_s[row] + state.overhead_s[row]
        jct_s = state.finish_s[row] - spec.submit_s
        assert jct_s >= used_s or jct_s == pytest.approx(used_s)
        assert (state.lost_s[row] > 0) <= (state.attempt[row] > 1)


@pytest.mark.parametrize("name", BUILT_IN)
@given(jobs=traces(max_jobs=6, gangs=(1, 2, 4)), faults=FAULTS)
@settings(max_examples=7, deadline=None)
def test_the_same_faults_give_the_same_events_twice(name, jobs, faults):
    def log():
        policy = create(name, SETTINGS.get(name))
        sim = Simulation(jobs, parse_cluster("2x4"), policy, FREE, faults=faults)
        sim.state.log = []
        sim.run()
        return repr(sim.state.log)

    assert log() == log()


TENS = st.floats(-1, 4).map(lambda power: 10**power)
NUMBERS = st.one_of(TENS, st.floats(), st.sampled_from([0.0, 5e-324, 1e-320, 1e308, 1e-9]))


@given(
    mtbf_s=NUMBERS,
    mttr_s=NUMBERS,
    worker_mtbf_s=st.none() | TENS,
    checkpoint_s=st.none() | NUMBERS,
    gang=st.integers(1, 6),
)
@example(0.1, 1e4, None, None, 6)
@example(1000.0, 1.0, None, 1e-320, 1)
@settings(max_examples=30, deadline=None)
def test_a_run_ends_or_says_why_not_whatever_the_numbers_are(
    mtbf_s, mttr_s, worker_mtbf_s, checkpoint_s, gang
):
    faults = Faults(
        mtbf_s=mtbf_s, mttr_s=mttr_s, worker_mtbf_s=worker_mtbf_s, checkpoint_s=checkpoint_s
    )
    jobs = Trace([job(0, gang, lasts=5), job(1, 1, at=3, lasts=2)])
    try:
        state = Simulation(jobs, parse_cluster("6x1"), create("fifo"), FREE, faults=faults).run()
    except (InputError, SimulationError) as error:
        assert len(str(error)) < 300
    else:
        assert all(finish_s >= 5 for finish_s in state.state.finish_s)


@given(faults=FAULTS, lasts=st.integers(1, 4000))
@settings(max_examples=75, deadline=None)
def test_one_job_on_one_gpu_ends_when_a_calculation_by_hand_says(faults, lasts):
    sim = Simulation(
        Trace([job(lasts=lasts)]), parse_cluster("1x1"), create("fifo"), FREE, faults=faults
    )
    state = sim.run().state
    finish_s, lost_s = finish_of_one_job(faults, lasts)
    assert state.finish_s[0] == pytest.approx(finish_s)
    assert state.lost_s[0] == pytest.approx(lost_s)


def finish_of_one_job(faults, lasts):
    """When a job on the only GPU ends, and what it loses, by going from change to change."""
    changes = []
    for stream in faults.streams(parse_cluster("1x1")):
        for fault in takewhile(lambda fault: fault.at_s < 1e6, stream):
            changes.append((fault.at_s, 1, fault))
            if fault.what != What.CRASH:
                changes.append((fault.at_s + fault.for_s, 0, fault))
    now_s = work_s = lost_s = 0.0
    down, slow = 0, 0
    for at_s, begins, fault in [*sorted(changes), (inf, 0, None)]:
        speed = 0.0 if down else faults.straggler_speed if slow else 1.0
        if speed and now_s + (lasts - work_s) / speed <= at_s:
            return now_s + (lasts - work_s) / speed, lost_s
        work_s += (at_s - now_s) * speed
        now_s = at_s
        if fault.what == What.SLOW:
            slow += 1 if begins else -1
        elif begins:
            every_s = faults.checkpoint_s
            kept_s = floor(work_s / every_s) * every_s if every_s else 0.0
            lost_s, work_s = lost_s + work_s - kept_s, kept_s
        if fault.what == What.FAIL:
            down += 1 if begins else -1
    raise AssertionError("the job did not end within the faults that were drawn")
