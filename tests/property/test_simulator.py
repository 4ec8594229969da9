"""What holds for every load: nothing is lost, nothing depends on chance."""

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rota.policy.registry import BUILT_IN, create
from rota.report.metrics import summarise
from rota.sim.machine import FREE, Costs
from rota.testing.builders import job, run, simulation
from rota.workload.trace import Trace
from support.strategies import EIGHTHS, traces

COSTS = st.builds(
    Costs,
    suspend_s=st.sampled_from([0.0, 0.5]),
    resume_s=st.sampled_from([0.0, 2.0]),
    migrate_s=st.sampled_from([0.0, 4.0]),
    cold_start_s=st.sampled_from([0.0, 8.0]),
)
SETTINGS = {
    "tiresias": {"thresholds": "50,400", "promote_knob": "4"},
    "gandiva": {"quantum_s": "32"},
    "pollux": {"interval_s": "32"},
}


def policy(name):
    return create(name, SETTINGS.get(name))


@pytest.mark.parametrize("name", BUILT_IN)
@given(jobs=traces(), costs=COSTS)
@settings(max_examples=15, deadline=None)
def test_service_is_conserved_and_time_adds_up(name, jobs, costs):
    state, decisions = run(jobs, policy(name), "1x4,2x2", costs)
    state.validate()
    assert list(state.service_s) == pytest.approx([spec.duration_s for spec in jobs])
    for row, spec in enumerate(jobs):
        jct_s = state.finish_s[row] - spec.submit_s
        used_s = state.service_s[row] + state.overhead_s[row]
        assert jct_s >= used_s or jct_s == pytest.approx(used_s)
        assert state.overhead_s[row] >= costs.cold_start_s
    summary = summarise(state, decisions=decisions, policy=name)
    assert summary["finished"] == len(jobs)
    assert summary["gpu_utilisation"] is None or summary["gpu_utilisation"] <= 1 + 1e-9


@pytest.mark.parametrize("name", BUILT_IN)
@given(jobs=traces(max_jobs=8))
@settings(max_examples=12, deadline=None)
def test_gpus_are_never_over_allocated_at_any_event(name, jobs):
    sim = simulation(jobs, policy(name), "1x4,2x2")
    while sim.step():
        sim.state.validate()


@pytest.mark.parametrize("name", BUILT_IN)
@given(jobs=traces(), seed=st.randoms(use_true_random=False))
@settings(max_examples=12, deadline=None)
def test_the_order_in_which_a_trace_is_written_does_not_matter(name, jobs, seed):
    shuffled = list(jobs)
    seed.shuffle(shuffled)
    written, _ = run(jobs, policy(name), "2x4")
    read, _ = run(Trace(shuffled), policy(name), "2x4")
    assert written.finish_s == read.finish_s
    assert written.spec == read.spec


@pytest.mark.parametrize("name", BUILT_IN)
@given(jobs=traces(max_jobs=8, gangs=(1, 2, 4, 8)), later=st.integers(1, 64))
@settings(max_examples=12, deadline=None)
def test_a_trace_that_begins_later_ends_later_and_is_otherwise_the_same(name, jobs, later):
    # With these gangs no time is ever rounded, so that even ties between events stay ties.
    moved = Trace([spec._replace(submit_s=spec.submit_s + 32.0 * later) for spec in jobs])
    now, _ = run(jobs, policy(name), "2x4")
    then, _ = run(moved, policy(name), "2x4")
    assert [at - 32.0 * later for at in then.finish_s] == list(now.finish_s)
    assert then.preemptions == now.preemptions


@given(
    lengths=st.lists(st.integers(1, 20), min_size=1, max_size=5),
    arrivals=st.lists(st.integers(0, 15), min_size=5, max_size=5),
)
@settings(max_examples=30, deadline=None)
def test_shortest_remaining_is_the_best_of_all_schedules_of_one_gpu(lengths, arrivals):
    jobs = [
        job(i, at=at, lasts=lasts)
        for i, (at, lasts) in enumerate(zip(arrivals, lengths, strict=False))
    ]
    state, _ = run(jobs, create("srtf"), "1x1")
    total_s = sum(state.finish_s[row] - state.submit_s[row] for row in range(len(jobs)))
    assert total_s == least_total_completion(jobs)


@given(lengths=st.lists(EIGHTHS, min_size=1, max_size=5))
@settings(max_examples=30, deadline=None)
def test_with_equal_arrivals_shortest_remaining_is_shortest_first(lengths):
    state, _ = run([job(i, lasts=lasts) for i, lasts in enumerate(lengths)], create("srtf"), "1x1")
    ends, at = [], 0.0
    for lasts in sorted(lengths):
        at += lasts
        ends.append(at)
    assert sorted(state.finish_s) == ends
    assert sum(state.preemptions) == 0


@pytest.mark.parametrize("name", BUILT_IN)
@given(lengths=st.lists(st.integers(1, 20), min_size=1, max_size=4))
@settings(max_examples=12, deadline=None)
def test_no_policy_beats_shortest_remaining_on_one_gpu(name, lengths):
    jobs = [job(i, lasts=lasts) for i, lasts in enumerate(lengths)]
    best, _ = run(jobs, create("srtf"), "1x1", FREE)
    theirs, _ = run(jobs, policy(name), "1x1", FREE)
    assert sum(best.finish_s) <= sum(theirs.finish_s) + 1e-6


def least_total_completion(jobs):
    """By trying every schedule: at each arrival and finish any job may go on, on one GPU."""
    arrivals = tuple(int(spec.submit_s) for spec in jobs)

    @cache
    def least(now, left):
        if not any(left):
            return 0
        here = [i for i, s in enumerate(left) if s and arrivals[i] <= now]
        to_come = [arrivals[i] for i, s in enumerate(left) if s and arrivals[i] > now]
        if not here:
            return least(min(to_come), left)
        best = None
        for i in here:
            runs = min([left[i], *(at - now for at in to_come)])
            after = tuple(s - runs if j == i else s for j, s in enumerate(left))
            ends = now + runs - arrivals[i] if after[i] == 0 else 0
            total = ends + least(now + runs, after)
            best = total if best is None else min(best, total)
        return best

    return least(0, tuple(int(spec.duration_s) for spec in jobs))
