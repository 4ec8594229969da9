"""Efficiency, throughput and goodput of single jobs, against figures worked out by hand."""

import math
import subprocess
import sys

import pytest

from rota.errors import InputError
from rota.predict.goodput import UNKNOWN_NOISE, BatchChoice, BatchLimits, Goodput, Noise
from rota.predict.goodput_table import best_choice
from rota.predict.step_time import StepTime

# A second per step and 0.1 s per sample; 0.5 s of exchange that nothing hides, 2 s between nodes.
PLAIN = StepTime(1.0, 0.1, 0.5, 0.0, 2.0, 0.0, gamma=1.0)


def test_efficiency_is_that_of_the_gradient_noise_scale():
    noise = Noise(sqr=2.0, var=8.0)
    assert noise.scale(32) == 128
    for batch in (32, 64, 1000):
        assert noise.efficiency(batch, 32) == pytest.approx((128 + 32) / (128 + batch))


def test_without_noise_a_larger_batch_teaches_no_more():
    assert Noise(1.0, 0.0).efficiency(128, 32) == pytest.approx(1 / 4)
    assert Noise(0.0, 0.0).efficiency(128, 32) == pytest.approx(1 / 4)


def test_until_noise_is_known_every_sample_counts_in_full():
    assert UNKNOWN_NOISE.efficiency(10_000, 32) == 1
    assert UNKNOWN_NOISE.scale(32) == math.inf


def test_no_sample_teaches_more_than_at_the_initial_batch():
    assert Noise(1.0, 1.0).efficiency(16, 32) == 1


@pytest.mark.parametrize(("sqr", "var"), [(math.nan, 1.0), (1.0, math.inf), (-math.inf, 1.0)])
def test_gradient_statistics_that_are_no_numbers_are_none(sqr, var):
    assert Noise.measured(sqr, var) is None


def test_estimates_below_zero_are_held_to_it():
    assert Noise.measured(-3.0, 2.0) == Noise(0.0, 2.0)
    assert Noise.measured(3.0, -2.0) == Noise(3.0, 1e-6)


def test_throughput_counts_every_sample_of_every_gpu():
    model = Goodput(PLAIN, UNKNOWN_NOISE, BatchLimits(10, 1000))
    assert model.throughput(1, 1, 10) == pytest.approx(10 / 2.0)
    assert model.throughput(4, 1, 10) == pytest.approx(40 / 2.5)
    assert model.throughput(4, 2, 10) == pytest.approx(40 / 4.0)
    assert model.throughput(4, 2, 10, accumulation=3) == pytest.approx(160 / (3 * 2.0 + 4.0))


def test_goodput_is_throughput_times_efficiency():
    model = Goodput(PLAIN, Noise(1.0, 3.0), BatchLimits(10, 1000))
    assert model.goodput(4, 1, 10) == pytest.approx(40 / 2.5 * (30 + 10) / (30 + 40))


def test_the_best_batch_of_a_job_without_noise_is_the_initial_one():
    model = Goodput(PLAIN, Noise(1.0, 0.0), BatchLimits(12, 120, least_per_gpu=2))
    assert best_choice(model, 1, 1) == (pytest.approx(12 / 2.2), 12, 0)
    assert best_choice(model, 3, 1) == (pytest.approx(12 / 1.9), 4, 0)


def test_the_best_batch_of_a_job_of_endless_noise_is_the_largest():
    model = Goodput(PLAIN, UNKNOWN_NOISE, BatchLimits(12, 120, most_per_gpu=20))
    assert best_choice(model, 6, 1) == (pytest.approx(120 / 3.5), 20, 0)
    assert best_choice(model, 2, 1) == (pytest.approx(120 / (3.5 + 2 * 3.0)), 20, 2)


def test_one_gpu_goes_beyond_the_initial_batch_in_two_parts():
    model = Goodput(PLAIN, UNKNOWN_NOISE, BatchLimits(12, 120))
    assert best_choice(model, 1, 1)[1:] == (60, 1)


def test_no_batch_is_larger_than_the_largest():
    limits = BatchLimits(12, 384, least_per_gpu=4, most_per_gpu=12)
    model = Goodput(PLAIN, UNKNOWN_NOISE, limits)
    assert best_choice(model, 56, 14).batch == 6, "7 on each would be 392"


def test_more_gpus_than_the_largest_batch_can_feed_have_no_goodput():
    limits = BatchLimits(12, 384, least_per_gpu=4, most_per_gpu=12)
    assert limits.most_gpus == 96
    model = Goodput(PLAIN, UNKNOWN_NOISE, limits)
    assert best_choice(model, 96, 24).batch == 4
    assert best_choice(model, 97, 25) == BatchChoice(0.0, 0, 0)


def test_a_job_of_one_batch_size_keeps_it():
    limits = BatchLimits(32)
    assert (limits.most, limits.least_per_gpu, limits.most_per_gpu) == (32, 1, 32)
    model = Goodput(PLAIN, UNKNOWN_NOISE, limits)
    assert [best_choice(model, k, 1).batch for k in (1, 2, 4)] == [32, 16, 8]
    assert best_choice(model, 5, 1).batch == 6, "32 do not divide by 5, and 35 are too many"


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ({"initial": 128, "most": 64}, "most batch: 64 is below the initial batch of 128; give at"),
        ({"initial": 0}, "initial batch: 0 is no whole number above 0"),
        ({"initial": math.nan}, "initial batch: nan is no whole number above 0"),
        ({"initial": True}, "initial batch: True is no whole number above 0"),
        ({"initial": 8, "most": 16.0}, "most batch: 16.0 is no whole number above 0"),
        ({"initial": 8, "least_per_gpu": -1}, "least_per_gpu batch: -1 is no whole number above 0"),
        (
            {"initial": 8, "least_per_gpu": 8, "most_per_gpu": 4},
            "most_per_gpu batch: 4 is below the least_per_gpu of 8; give at least 8",
        ),
        (
            {"initial": 8, "most": 16, "least_per_gpu": 20},
            "least_per_gpu batch: 20 is above the whole batch of 16; give at most 16",
        ),
    ],
)
def test_limits_within_which_no_batch_lies_are_told(limits, said):
    with pytest.raises(InputError) as told:
        BatchLimits(**limits)
    assert said in str(told.value)


def test_importing_the_models_loads_neither_numpy_nor_scipy():
    modules = ("goodput", "goodput_table", "throughput_fit", "fit_error", "step_slopes")
    code = f"import sys, {', '.join('rota.predict.' + name for name in modules)}; "
    code += "print(sorted({'numpy', 'scipy'} & set(sys.modules)))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"
