import pytest
from scipy import stats

from rota.policy.scaling.significance import surely_above_zero


@pytest.mark.parametrize("shift", [0.0, 0.3, 0.5, 0.8, 1.2])
def test_the_verdict_is_that_of_welchs_test(shift):
    one, other = [1.0, 2.0, 3.0, 2.5, 1.5, 2.2], [1.9, 2.0, 2.1, 2.05, 1.95, 2.0, 2.1, 2.1]
    moved = [value + shift for value in other]
    exact = stats.ttest_ind(moved, one, equal_var=False, alternative="greater").pvalue < 0.05
    parts = [(stats.tvar(values) / len(values), len(values)) for values in (moved, one)]
    difference = sum(moved) / len(moved) - sum(one) / len(one)
    assert surely_above_zero(difference, parts, 0.95) == exact


def test_without_any_noise_every_difference_counts():
    assert surely_above_zero(1e-12, [(0.0, 5), (0.0, 5)], 0.95)
    assert not surely_above_zero(0.0, [(0.0, 5), (0.0, 5)], 0.95)
