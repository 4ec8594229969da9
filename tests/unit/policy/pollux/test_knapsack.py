"""One choice for each item, most value within a capacity."""

from itertools import product
from math import inf

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rota.policy.pollux.knapsack import _feasible, solve

WEIGHTS = [0, 1, 2, 4]
offer = st.one_of(st.just(-inf), st.integers(-3, 9).map(float))
items = st.lists(st.tuples(st.integers(-2, 2).map(float), offer, offer, offer), max_size=5)


def best_of_all(values, capacity):
    combinations = product(range(len(WEIGHTS)), repeat=len(values))
    return max(
        sum(offers[choice] for offers, choice in zip(values, choices, strict=True))
        for choices in combinations
        if sum(WEIGHTS[choice] for choice in choices) <= capacity
    )


@given(items, st.integers(0, 14))
def test_no_other_choices_within_the_capacity_are_worth_more(values, capacity):
    found = solve(np.array(values).reshape(-1, len(WEIGHTS)), WEIGHTS, capacity)
    assert sum(WEIGHTS[choice] for choice in found.choices) <= capacity
    assert found.value == pytest.approx(best_of_all(values, capacity))
    assert found.bound >= found.value - 1e-9


@pytest.mark.parametrize("power", [-1.0, 0.5])
def test_the_bound_certifies_what_was_found_for_a_large_cluster(power):
    rng = np.random.default_rng(7)
    weights = [0, 1, 2, 4, *range(8, 65, 4)]
    gains = np.array(weights) ** rng.uniform(0.3, 1.0, (400, 1))
    values = ((gains + 1e-3) ** power - 1e-3**power) / power * rng.uniform(0.2, 1.0, (400, 1))
    found = solve(values, weights, 1200)
    assert sum(weights[choice] for choice in found.choices) <= 1200
    assert found.bound - found.value <= 1e-4 * found.bound


tiny_to_huge = st.builds(
    lambda sign, digits, power: sign * digits * 10.0**power,
    st.sampled_from([0.0, 1.0, 1.0, -1.0]),
    st.sampled_from([1.0, 1.0, 2.0, 3.7]),
    st.sampled_from([-323, -300, -12, 0, 0, 1, 9, 150]),
)
uneven = st.one_of(st.just(-inf), tiny_to_huge)


@given(
    st.lists(st.tuples(tiny_to_huge, uneven, uneven, uneven), max_size=4),
    st.integers(0, 12),
)
@example([(0.0, 1.0, -inf, -inf), (0.0, 1e-17, -inf, -inf)], 1)
@example([(0.0, 5e-324, -inf, 5e-324)] * 4, 2)
@example([(0.0, 1e150, 1e150, 2e150), (0.0, 1e-300, 2e-300, 3e-300)] * 2, 3)
@settings(deadline=None, max_examples=400)
def test_nothing_and_everything_may_be_worth_as_much(values, capacity):
    found = solve(np.array(values).reshape(-1, len(WEIGHTS)), WEIGHTS, capacity)
    most = best_of_all(values, capacity)
    assert sum(WEIGHTS[choice] for choice in found.choices) <= capacity
    scale = max((abs(offer) for each in values for offer in each if offer > -inf), default=0.0)
    assert found.value == pytest.approx(most, rel=1e-9, abs=1e-9 * scale)


def test_a_price_that_is_far_too_low_ends_at_one_that_fits():
    values, sizes = np.array([[0.0, 1.0, 1.5, 2.0]] * 5), np.array(WEIGHTS)
    chosen = _feasible(values, sizes, 3, (0.0, 2.0))
    assert int(sizes[chosen].sum()) == 3
    assert values[np.arange(5), chosen].sum() == 3.0


def test_items_that_are_all_alike_share_as_much_as_there_is():
    values = np.tile([0.0, 1.0, 1.9, 3.5], (9, 1))
    found = solve(values, WEIGHTS, 13)
    assert sum(WEIGHTS[choice] for choice in found.choices) == 13
    assert found.value == pytest.approx(best_of_all_alike(values[0], 9, 13))


def best_of_all_alike(offers, number, capacity):
    best = [0.0] * (capacity + 1)
    for _ in range(number):
        best = [
            max(
                best[room - weight] + offers[choice]
                for choice, weight in enumerate(WEIGHTS)
                if weight <= room
            )
            for room in range(capacity + 1)
        ]
    return best[capacity]


def test_without_items_there_is_nothing_to_choose():
    assert solve(np.empty((0, 4)), WEIGHTS, 5) == ([], 0.0, 0.0)
