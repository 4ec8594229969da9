import json
from statistics import mean, variance

import pytest
from pytest import approx

from rota.errors import InputError
from rota.policy.scaling import Observations, Throughput


def test_the_first_step_at_a_size_is_not_counted():
    job = Observations()
    for seconds in (9.0, 1.0, 1.0):
        job.step(2, 10, seconds)
    assert job[2] == Throughput(2, 10.0, 0.0)
    assert (job.workers, job.steps) == (2, 2)


def test_a_new_size_and_a_restart_drop_their_first_step_too():
    job = Observations()
    for workers, seconds in ((2, 9.0), (2, 1.0), (3, 9.0), (3, 2.0), (2, 9.0), (2, 1.0)):
        job.step(workers, 10, seconds)
    job.restart(2)
    assert job.steps == 0
    job.step(2, 10, 9.0)
    assert job.steps == 0
    assert job.sizes == [2, 3]
    assert (job[2].steps, job[2].mean, job[3].mean) == (2, 10.0, 5.0)


def test_mean_and_variance_are_those_of_the_throughputs():
    job, seconds = Observations(), [1.0, 2.0, 1.5, 1.25, 4.0]
    job.restart(4)
    for each in [1.0, *seconds]:
        job.step(4, 20, each)
    rates = [20 / each for each in seconds]
    assert job[4].mean == approx(mean(rates))
    assert job[4].variance == approx(variance(rates))
    assert job[4].error == approx((variance(rates) / 5) ** 0.5)


def test_steps_reported_together_count_as_if_one_by_one():
    together, single = Observations(), Observations()
    for rate in (1.0, 2.0, 4.0, 5.0):
        single.add(2, Throughput(1, rate, 0.0))
    together.add(2, Throughput(2, 1.5, 0.5))
    together.add(2, Throughput(2, 4.5, 0.5))
    assert together[2] == approx(single[2])
    assert together.steps == single.steps == 4


def test_what_was_measured_survives_json():
    job = Observations()
    for workers, seconds in ((2, 9.0), (2, 1.0), (2, 3.0), (3, 9.0)):
        job.step(workers, 10, seconds)
    again = Observations.from_dict(json.loads(json.dumps(job.as_dict())))
    for each in (job, again):
        each.step(3, 10, 1.0)
    assert again.as_dict() == job.as_dict()


@pytest.mark.parametrize(
    "numbers", [(0, 1, 1), (2, 0, 1), (2, 1, 0), (2, 1, -1), (2, 1, float("inf"))]
)
def test_a_step_that_makes_no_sense_is_refused(numbers):
    with pytest.raises(InputError, match="numbers above zero"):
        Observations().step(*numbers)


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"workers": 1, "steps": 1, "warming": False, "sizes": {"1": [1]}},
        {"workers": 1, "steps": 1, "warming": False, "sizes": {"1": [0, 1.0, 0.0]}},
        {"workers": 1, "steps": 1, "warming": False, "sizes": {"0": [1, 1.0, 0.0]}},
        {"workers": 1, "steps": 1, "warming": False, "sizes": {"1": [1, float("nan"), 0.0]}},
        {"workers": 1, "steps": 1, "warming": False, "sizes": {"1": [1, 1.0, -1.0]}},
        {"workers": 1, "steps": 1, "warming": False, "sizes": [1]},
    ],
)
def test_memory_that_is_none_is_refused(data):
    with pytest.raises(InputError, match="observations"):
        Observations.from_dict(data)
