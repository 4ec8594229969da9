"""Simulations of jobs that play measured profiles, and the jobs that are drawn for them."""

from functools import partial

import pytest

from rota.experiment.pollux_autoscale import stretched
from rota.experiment.pollux_load import at_load
from rota.experiment.runs.pollux import (
    Run,
    Subject,
    Variant,
    makespan_s,
    measure,
    p99_jct_s,
    restarts_per_job,
    run_all,
)
from rota.experiment.runs.pollux_jobs import (
    JITTER_S,
    jittered,
    jobs_of,
    misdeclared,
    workload,
    workloads,
)
from rota.testing.builders import job, trace


def spread_jobs(*at_s):
    """Jobs of four GPUs that come at these times, and take as long as each other."""
    specs = [job(i, 4, at=at, model="cifar10", batch=512) for i, at in enumerate(at_s)]
    return lambda seed: trace(*specs)


def on_two_nodes(data, *at_s, links=0.0, placement="spread"):
    variant = Variant("fifo", {"placement": placement})
    return measure(Subject(data, variant, spread_jobs(*at_s), "2x4", links), 0)


def test_time_beside_others_is_that_in_which_spread_jobs_share_a_node(pollux_data):
    alone = on_two_nodes(pollux_data, 0.0)
    lasts_s = alone.makespan_s
    assert alone.beside == 0.0
    assert on_two_nodes(pollux_data, 0.0, 0.0).beside == 1.0
    assert on_two_nodes(pollux_data, 0.0, lasts_s / 2).beside == pytest.approx(0.5)
    assert on_two_nodes(pollux_data, 0.0, 0.0, placement="consolidate").beside == 0.0


def test_jobs_beside_each_other_lose_what_they_are_said_to(pollux_data):
    apart, together = (on_two_nodes(pollux_data, 0.0, 0.0, links=lost) for lost in (0.0, 0.5))
    start_s = 30.0  # in which they are not slowed down
    assert together.jct_s == pytest.approx([2 * jct_s - start_s for jct_s in apart.jct_s])
    alone = on_two_nodes(pollux_data, 0.0, links=0.5)
    assert alone.jct_s == pytest.approx(apart.jct_s[:1])


def test_a_policy_that_ticks_waits_for_the_next_minute(pollux_data):
    variants = [Variant("fifo"), Variant("fifo", ticks=True)]
    at_events, ticking = (
        measure(Subject(pollux_data, each, spread_jobs(10.0), "2x4"), 0) for each in variants
    )
    assert ticking.jct_s == pytest.approx([at_events.jct_s[0] + 50.0])


def test_nodes_that_are_rented_are_counted(pollux_data):
    variant = Variant("pollux", {"nodes": "1,2"})
    run = measure(Subject(pollux_data, variant, spread_jobs(0.0), "2x4", node_start_s=60.0), 0)
    assert run.rented["node_hours"] >= run.makespan_s / 3600
    assert measure(Subject(pollux_data, variant, spread_jobs(0.0), "2x4"), 0).rented == {}


def test_runs_come_by_key_and_seed_in_the_order_of_the_jobs(pollux_data):
    jobs = [spread_jobs(0.0), spread_jobs(0.0, 0.0), lambda seed: spread_jobs(*[0.0] * seed)(seed)]
    each = [Subject(pollux_data, Variant("fifo"), draw) for draw in jobs]
    found = run_all({"fifo": each, "same": each[:1]}, [3, 4])
    assert [[len(run.jct_s) for run in runs] for runs in found["fifo"]] == [[1, 2, 3], [1, 2, 4]]
    assert [[len(run.jct_s) for run in runs] for runs in found["same"]] == [[1], [1]]


def test_percentile_and_restarts_are_over_the_jobs_of_all_workloads():
    found = [Run([1.0] * 98, 0.0, 49, 0.0), Run([5.0, 9.0], 0.0, 1, 0.0)]
    assert p99_jct_s(found) == 5.0
    assert restarts_per_job(found) == 0.5
    assert makespan_s([Run([1.0], 10.0, 0, 0.0), Run([1.0], 30.0, 0, 0.0)]) == 20.0


def test_seeds_move_arrivals_a_little_and_seed_0_not_at_all():
    jobs = trace(*(job(i, at=100.0 * i) for i in range(20)))
    assert jittered(jobs, 0) is jobs
    moved = jittered(jobs, 1)
    gaps = [one.submit_s - other.submit_s for one, other in zip(moved, jobs, strict=True)]
    assert any(gaps)
    assert all(abs(gap) <= JITTER_S for gap in gaps)
    assert [spec.submit_s for spec in jittered(jobs, 1)] == [spec.submit_s for spec in moved]


def test_a_workload_has_its_own_jobs_and_those_of_a_seed_come_a_little_sooner_or_later(pollux_data):
    draws = workloads(pollux_data, [2, 4])
    assert [list(draw(0)) for draw in draws] == [list(jobs_of(pollux_data, at)) for at in (2, 4)]
    assert list(draws[0](1)) == list(jittered(jobs_of(pollux_data, 2), 1))
    assert list(workload(1, pollux_data, 2)) == list(draws[0](1))


def test_at_a_quarter_of_the_load_jobs_are_four_times_as_far_apart(pollux_data):
    near, far = (stretched(0, pollux_data, 3, load) for load in (1.0, 0.25))
    assert [spec.submit_s for spec in far] == [4 * spec.submit_s for spec in near]


def test_wrong_lengths_are_wrong_in_what_is_declared_alone():
    jobs = trace(*(job(i)._replace(epochs=10.0) for i in range(200)))
    wrong = misdeclared(jobs, 0.5, 3)
    assert [spec._replace(epochs=10.0) for spec in wrong] == list(jobs)
    longer = [spec for spec in wrong if spec.epochs > 10.0]
    assert 70 < len(longer) < 130  # the median of the factor is 1
    assert misdeclared(jobs, 0.0, 3) is jobs


def test_a_run_is_the_same_twice(pollux_data):
    jobs = partial(at_load, data=pollux_data, number=1, load=1.5)
    variant = Variant("pollux", {"objective": "length"}, length_error=0.5)
    first, second = (measure(Subject(pollux_data, variant, jobs), 1) for _ in range(2))
    assert first._replace(cpu_s=0.0) == second._replace(cpu_s=0.0)
    assert measure(Subject(pollux_data, Variant("fifo"), jobs), 1).restarts == 0
