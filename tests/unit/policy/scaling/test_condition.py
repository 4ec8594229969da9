import pytest
from pytest import approx

from rota.errors import InputError
from rota.policy.scaling import (
    LinearUtility,
    Outlook,
    ThroughputScaling,
    UtilityOverCost,
)

FAR = Outlook(elapsed_s=100, remaining_samples=1000, initial_jct_s=5000)


def test_scaling_efficiency_is_the_gain_per_worker_over_a_worker_so_far():
    # From 2 to 4 workers, 10 to 16 samples/s: (6 / 2) / (10 / 2) = 0.6.
    assert ThroughputScaling(0.59).passes((2, 10.0), (4, 16.0), FAR)
    assert not ThroughputScaling(0.6).passes((2, 10.0), (4, 16.0), FAR)
    assert ThroughputScaling(-1e5).passes((2, 10.0), (4, 1.0), FAR)


def test_utility_must_gain_more_than_the_rest_costs():
    # 1000 samples: 100 s at 2 workers, 62.5 s at 4; 200 and 250 worker-seconds.
    price = 3600 / 50 * 0.37
    assert UtilityOverCost(LinearUtility(100, 10_000), price).passes((2, 10.0), (4, 16.0), FAR)
    dearer = UtilityOverCost(LinearUtility(100, 10_000), price * 1.1)
    assert not dearer.passes((2, 10.0), (4, 16.0), FAR)


def test_worths_are_in_the_unit_of_the_decision():
    points = [(1, 10.0), (2, 18.0)]
    low, high = ThroughputScaling(0.0).worths(points, FAR)
    assert high - low == approx(0.5878, abs=1e-4)  # ln 1.8
    condition = UtilityOverCost(LinearUtility(100, 10_000), 3600)
    one, two = condition.worths(points, FAR)
    assert one == approx(100 - (100 + 100) / 100 - 100)
    assert two == approx(100 - (100 + 1000 / 18) / 100 - 2 * 1000 / 18)


def test_a_pause_costs_time_and_what_the_workers_cost_meanwhile():
    assert ThroughputScaling().pause((4, 10.0), 5.0, FAR) == approx(0.05)  # of 100 s
    condition = UtilityOverCost(LinearUtility(100, 10_000), 3600)
    assert condition.pause((4, 10.0), 5.0, FAR) == approx(5 / 100 + 4 * 5)


def test_sensitivity_is_the_slope_of_the_worth_in_relative_throughput():
    condition = UtilityOverCost(LinearUtility(100, 10_000), 3600)
    assert condition.sensitivity((2, 10.0), FAR) == approx(100 / 100 + 2 * 100, rel=1e-4)
    assert ThroughputScaling().sensitivity((2, 10.0), FAR) == 1.0


def test_utility_cannot_be_weighed_without_knowing_what_remains():
    with pytest.raises(InputError, match="report the total"):
        UtilityOverCost(LinearUtility(1, 10), 1).worths([(1, 1.0)], Outlook())


@pytest.mark.parametrize("threshold", ["low", float("nan"), True])
def test_a_threshold_that_is_no_number_is_refused(threshold):
    with pytest.raises(InputError, match="threshold"):
        ThroughputScaling(threshold)


@pytest.mark.parametrize("price", [-1, "2", float("inf")])
def test_a_price_that_makes_no_sense_is_refused(price):
    with pytest.raises(InputError, match="price_per_gpu_hour"):
        UtilityOverCost(LinearUtility(1, 60), price)
