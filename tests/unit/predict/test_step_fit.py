import pytest

from rota.predict.step_fit import StepFit, fit_steps


def test_steps_that_follow_the_model_are_found_again():
    truth = StepFit(8.0, 0.5, 0.1)
    fitted = fit_steps(tuple((gpus, truth.step_s(gpus)) for gpus in (1, 2, 4, 8, 16)))
    assert fitted == pytest.approx(truth)


def test_one_size_is_taken_to_be_shared():
    assert fit_steps(((2, 3.0), (2, 5.0))).step_s(4) == pytest.approx(
        fit_steps(((2, 3.0), (2, 5.0))).step_s(2) / 2
    )


def test_no_term_is_below_zero():
    # Faster than shared: a fit with a fixed term would need one below zero.
    assert min(fit_steps(((1, 10.0), (2, 4.0), (4, 1.0)))) >= 0


def test_nothing_can_be_fitted_to_nothing():
    with pytest.raises(ValueError, match="nothing to fit"):
        fit_steps(())
