"""How fast jobs run beside others on one GPU."""

import pytest

from rota.predict.interference import Interference, Load


def test_alone_a_job_runs_at_its_own_speed():
    assert Interference().speed(Load("x", 1.0), []) == 1


def test_a_pair_is_known_from_both_sides():
    known = Interference({("x", "y"): (0.9, 0.4)})
    assert known.speed(Load("x"), [Load("y")]) == 0.9
    assert known.speed(Load("y"), [Load("x")]) == 0.4


def test_of_three_the_slow_downs_of_the_pairs_multiply():
    known = Interference({("x", "y"): (0.9, 0.4), ("x", "z"): (0.5, 0.5)})
    assert known.speed(Load("x"), [Load("y"), Load("z")]) == pytest.approx(0.45)


def test_where_a_pair_is_unknown_utilisation_says_what_is_left():
    known = Interference({("x", "y"): (0.9, 0.4)})
    assert known.speed(Load("x", 0.5), [Load("y", 0.5), Load("q", 1.0)]) == 0.5
    assert Interference().speed(Load("p", 0.3), [Load("q", 0.6)]) == 1


def flow(utilisation, weight=1.0, model=""):
    return Load(model, utilisation, weight)


def speeds(*jobs):
    return [Interference().speed(job, [*jobs[:at], *jobs[at + 1 :]]) for at, job in enumerate(jobs)]


CASES = {
    "two that fit lose nothing": ([flow(0.4, 8), flow(0.6)], [1, 1]),
    "equal weights halve the GPU": ([flow(1.0), flow(1.0)], [1 / 2, 1 / 2]),
    "weights share it out": ([flow(1.0, 3), flow(1.0)], [3 / 4, 1 / 4]),
    "who needs less than its part gets it": ([flow(0.2), flow(1.0)], [1, 0.8]),
    "the rest is shared by weight": ([flow(0.1), flow(1.0, 2), flow(0.9)], [1, 0.6, 1 / 3]),
    "two rounds of filling": ([flow(0.1, 2), flow(0.3), flow(1), flow(1)], [1, 1, 0.3, 0.3]),
    "a large weight takes no more than it needs": ([flow(0.7, 1e6), flow(0.5)], [1, 0.6]),
    "a job that never computes": ([flow(0), flow(1), flow(1)], [1, 0.5, 0.5]),
}


@pytest.mark.parametrize("jobs, expected", CASES.values(), ids=CASES)
def test_flow_jobs_share_the_time_of_a_gpu_by_weight(jobs, expected):
    assert speeds(*jobs) == pytest.approx(expected)


def test_what_was_measured_of_models_is_not_about_flow_jobs():
    known = Interference({("x", "y"): (0.9, 0.4)})
    assert known.speed(flow(0.5, model="x"), [flow(0.5, model="y")]) == 1
    assert known.speed(flow(0.5, model="x"), [Load("y", 0.5)]) == 0.9


def test_beside_other_jobs_flow_jobs_share_by_what_all_need():
    assert Interference().speed(flow(1.0, 9), [Load("", 1.0)]) == 0.5
