import pytest
from pytest import approx

from rota.errors import InputError
from rota.policy.scaling import Observations, fit_curve


def test_one_size_is_taken_for_perfect_scaling(closed_form, measured):
    curve = fit_curve(measured(closed_form(0.3), [4]))
    assert curve.rate(8) == approx(2 * closed_form(0.3)(4))


def test_two_sizes_give_the_published_closed_form(closed_form, measured):
    curve = fit_curve(measured(closed_form(0.2, tau=3), [4, 8]))
    assert curve.terms == approx((0.6, 2.4, 0.0))
    assert curve.rate(60) == approx(closed_form(0.2, tau=3)(60))
    assert curve.spare == 0


def test_a_third_size_reveals_what_each_worker_adds(closed_form, measured):
    rate = closed_form(0.1, c=0.01)
    curve = fit_curve(measured(rate, [4, 8, 30]))
    assert curve.terms == approx((0.1, 0.9, 0.01))
    assert not curve.misfit
    plain = fit_curve(measured(closed_form(0.1), [4, 8, 30]))
    assert plain.terms == approx((0.1, 0.9, 0.0))
    assert plain.spare == 1


def test_a_curve_of_another_shape_is_bent_through_what_was_measured(measured):
    rates = {2: 2.0, 4: 4.0, 8: 3.0, 16: 9.0, 32: 9.5}
    curve = fit_curve(measured(rates.get, rates, deviation=0.01))
    assert curve.misfit
    off = [curve.rate(size) / rate - 1 for size, rate in rates.items()]
    assert max(map(abs, off)) <= 0.01
    assert 3.0 < curve.rate(12) < 9.0


def test_one_worker_that_exchanges_nothing_does_not_spoil_the_rest(measured):
    rates = {1: 1.0, 2: 1 / (0.5 + 0.5), 4: 1 / (0.5 + 0.25), 16: 1 / (0.5 + 1 / 16)}
    curve = fit_curve(measured(rates.get, rates))
    assert curve.rate(8) == approx(1 / (0.5 + 0.125))
    assert curve.rate(1) == approx(1.0)


def test_the_error_is_that_of_repeated_measurements(closed_form, measured):
    # Two sizes: each prediction is a sum of two measured times, whose errors are known.
    rate = closed_form(0.2)
    curve = fit_curve(measured(rate, [4, 8], steps=25, deviation=0.05))
    # t(16) = 1.5 t(8) - 0.5 t(4), each with 1 % of error.
    expected = ((1.5 / rate(8)) ** 2 + (0.5 / rate(4)) ** 2) ** 0.5 * 0.01 * rate(16)
    assert curve.error(curve.direction(16)) == approx(expected, rel=1e-3)
    assert curve.error(curve.direction(4)) == approx(0.01, rel=1e-3)


def test_nothing_measured_is_refused():
    with pytest.raises(InputError, match="no step"):
        fit_curve(Observations())
