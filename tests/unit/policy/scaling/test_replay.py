import pytest
from pytest import approx

from rota.errors import InputError
from rota.policy.scaling import Choice, Resizing, replay


class Grow:
    """Goes to four workers as soon as it is asked."""

    def choose(self, job, memory=None):
        return Choice(4, {}, "")


def test_a_static_job_costs_its_steps(closed_form):
    found = replay(closed_form(0.2, tau=10), None, start=2, steps=100)
    assert found.jct_s == approx(100 * 10 * 0.6)
    assert found.gpu_s == approx(2 * found.jct_s)
    assert (found.sizes, found.resizes) == ((2,), 0)


def test_a_pause_is_paid_for_at_the_larger_size():
    found = replay(float, Grow(), start=2, steps=100, resizing=Resizing(pause_s=7.0))
    # The first step is not counted, so that it is asked after 11.
    assert found.sizes == (2, 4)
    assert found.jct_s == approx(11 / 2 + 7 + 89 / 4)
    assert found.gpu_s == approx(2 * 11 / 2 + 4 * 7 + 4 * 89 / 4)


def test_while_newcomers_warm_up_the_job_goes_on_and_they_are_paid_for():
    found = replay(float, Grow(), start=2, steps=100, resizing=Resizing(1.0, warm_up_s=10.0))
    assert found.jct_s == approx(11 / 2 + 10 + 1 + 69 / 4)
    assert found.gpu_s == approx(11 + 40 + 4 + 69)


def test_noise_is_the_same_for_the_same_seed():
    runs = [replay(float, None, start=2, steps=50, noise=0.1, seed=seed) for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]
    assert runs[0].jct_s == approx(25, rel=0.1)


@pytest.mark.parametrize("wrong", [{"steps": 0}, {"batch": 0}, {"noise": -1}, {"every": 0}])
def test_settings_that_make_no_sense_are_refused(wrong):
    with pytest.raises(InputError, match=next(iter(wrong))):
        replay(float, None, **{"start": 1, "steps": 1, **wrong})
