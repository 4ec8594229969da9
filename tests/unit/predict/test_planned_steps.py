"""Step times that a program predicts, corrected by those that were measured."""

from math import sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.predict.planned_steps import corrected

PREDICTED = (8.0, 5.0, None, 3.0)
seconds = st.floats(1e-6, 1e4)


def test_predictions_stand_while_nothing_is_measured():
    assert corrected(PREDICTED, {}) == {1: 8.0, 2: 5.0, 4: 3.0}


def test_one_measured_size_corrects_all_others_by_its_ratio():
    assert corrected(PREDICTED, {2: 10.0}) == pytest.approx({1: 16.0, 2: 10.0, 4: 6.0})


def test_between_measured_sizes_the_factor_changes_in_proportion_on_logarithmic_scales():
    found = corrected(PREDICTED, {1: 8.0, 4: 12.0})
    assert found == pytest.approx({1: 8.0, 2: 5.0 * sqrt(4.0), 4: 12.0})


def test_a_measured_size_that_nobody_predicted_is_known_and_corrects_nothing():
    assert corrected(PREDICTED, {3: 4.0}) == {1: 8.0, 2: 5.0, 3: 4.0, 4: 3.0}


@given(
    st.lists(st.none() | seconds, min_size=1, max_size=8),
    st.dictionaries(st.integers(1, 8), seconds),
    st.floats(1e-3, 1e3),
)
def test_measured_times_are_kept_and_only_ratios_count(predicted, measured, factor):
    found = corrected(predicted, measured)
    assert {size: found[size] for size in measured} == measured
    assert found.keys() == measured.keys() | {n for n, s in enumerate(predicted, 1) if s}
    if any(predicted[size - 1] for size in measured if size <= len(predicted)):
        scaled = corrected([s and s * factor for s in predicted], measured)
        assert scaled == pytest.approx(found, rel=1e-6)
