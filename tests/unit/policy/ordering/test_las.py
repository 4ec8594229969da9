from rota.policy.registry import create
from rota.testing.builders import job, run, simulation


def las(quantum_s="10"):
    return create("las", {"quantum_s": quantum_s})


def test_the_least_served_has_the_next_quantum():
    jobs = [job("a", lasts=30), job("b", lasts=20)]
    state, _ = run(jobs, las(), "1x1")
    # a b a b a, ten seconds each.
    assert list(state.finish_s) == [50.0, 40.0]


def test_service_is_counted_in_gpus_times_time():
    jobs = [job("a", 2, lasts=20), job("b", 1, lasts=40)]
    state, _ = run(jobs, las(), "1x2")
    # a has 20 GPU-seconds after one quantum, b after two: equal then, and a came first.
    assert list(state.finish_s) == [40.0, 60.0]


def test_nobody_is_preempted_within_a_quantum_not_even_by_a_newcomer():
    jobs = [job("old", lasts=100), job("second", at=1, lasts=100), job("new", at=13, lasts=5)]
    state, _ = run(jobs, las(), "1x1")
    # The first quantum ended at 10, without need; at 13 the one that began at 11 goes on.
    assert state.first_start_s[1] == 10.0
    assert state.first_start_s[2] == 20.0


def test_a_newcomer_after_quiet_times_has_the_order_taken_at_once():
    jobs = [job("old", lasts=1000), job("new", at=500, lasts=5)]
    state, _ = run(jobs, las(), "1x1")
    assert state.first_start_s[1] == 500.0


def test_gpus_that_become_free_within_a_quantum_are_used_at_once():
    jobs = [job("a", lasts=3), job("b", lasts=50)]
    state, _ = run(jobs, las(), "1x1")
    assert state.first_start_s[1] == 3.0


def test_when_nobody_waits_nobody_is_woken():
    sim = simulation([job("a", lasts=1000), job("b", lasts=900)], las(), "1x2")
    assert sim.run().decisions == 3
