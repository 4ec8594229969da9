"""The gradient noise scale against closed forms: problems whose signal and noise are known."""

import math
import random
import subprocess
import sys
from statistics import fmean

import pytest

from rota.predict.gradient_noise import GradientNoise, Squares, gain, pair

LENGTH = 50


def seen(parts, sizes, initial):
    """What is measured of these gradients of parts with so many samples."""
    total = sum(sizes)
    mean = [sum(n * g[i] for n, g in zip(sizes, parts, strict=True)) / total for i in range(LENGTH)]
    of_parts = sum(n * square(g) for n, g in zip(sizes, parts, strict=True)) / total
    return Squares(of_parts, square(mean), len(parts), total / initial)


def square(vector):
    return sum(x * x for x in vector)


def gradient(generator, signal, noise, samples):
    """Of so many samples, each with a covariance of this trace."""
    spread = math.sqrt(noise / LENGTH / samples)
    return [math.sqrt(signal / LENGTH) + generator.gauss(0, spread) for _ in range(LENGTH)]


@pytest.mark.parametrize(
    ("sizes", "initial"),
    [([8, 8], 8), ([4, 4, 4, 4], 8), ([16] * 8, 8), ([8, 8, 8, 5], 8), ([3, 20], 8)],
)
def test_signal_and_noise_of_several_gradients_are_the_true_ones(sizes, initial):
    generator, signal, noise = random.Random(0), 2.0, 80.0
    found = GradientNoise()
    for _ in range(6000):
        parts = [gradient(generator, signal, noise, n) for n in sizes]
        assert found.observe(seen(parts, sizes, initial))
    assert found.sqr == pytest.approx(signal, rel=0.06)
    assert found.var == pytest.approx(noise / initial, rel=0.04)


def test_gradients_of_single_batches_in_a_row_tell_the_same():
    generator, signal, noise, samples = random.Random(1), 2.0, 80.0, 8
    found, before = GradientNoise(), None
    for _ in range(6000):
        now = gradient(generator, signal, noise, samples)
        if before is not None:
            product = sum(a * b for a, b in zip(before, now, strict=True))
            found.observe(pair(square(before), square(now), product, 1.0, 1.0))
        before = now
    assert found.sqr == pytest.approx(signal, rel=0.06)
    assert found.var == pytest.approx(noise / samples, rel=0.06)


def test_two_batches_of_unequal_size_count_by_their_samples():
    generator, signal, noise, sizes = random.Random(2), 1.0, 40.0, (4, 12)
    found = GradientNoise()
    for _ in range(6000):
        one, other = (gradient(generator, signal, noise, n) for n in sizes)
        product = sum(a * b for a, b in zip(one, other, strict=True))
        found.observe(pair(square(one), square(other), product, 1.0, 3.0))
    assert found.sqr == pytest.approx(signal, rel=0.06)
    assert found.var == pytest.approx(noise / 4, rel=0.04)


def test_a_quadratic_loss_has_the_noise_that_its_curvature_gives_it():
    """Loss 1/2 sum h (w - x)^2 over normal x: G = h w, the covariance is diagonal with h^2 s^2."""
    generator = random.Random(3)
    curvature = [1 + i / 10 for i in range(LENGTH)]
    weight, spread, samples, count = 0.3, 2.0, 16, 4
    found = GradientNoise()
    for _ in range(3000):
        parts = [
            [h * (weight - generator.gauss(0, spread / math.sqrt(samples))) for h in curvature]
            for _ in range(count)
        ]
        found.observe(seen(parts, [samples] * count, samples))
    sqr = sum((h * weight) ** 2 for h in curvature)
    var = sum((h * spread) ** 2 for h in curvature) / samples
    assert found.sqr == pytest.approx(sqr, rel=0.03)
    assert found.var == pytest.approx(var, rel=0.03)
    assert found.gain(4.0) == pytest.approx((var + sqr) / (var / 4 + sqr), rel=0.03)


def test_averages_forget_by_the_initial_batches_that_went_by():
    found = GradientNoise()
    found.observe(Squares(1.0, 1.0, 2, 2.0))
    assert found.sqr == pytest.approx(1.0)  # corrected for its beginning
    found.observe(Squares(3.0, 3.0, 2, 100.0))
    one, other = 0.999**100 * (1 - 0.999**2), 1 - 0.999**100
    assert found.sqr == pytest.approx((one + 3 * other) / (one + other))


def test_what_was_told_by_single_gradients_is_forgotten_once_there_are_several():
    found = GradientNoise()
    for _ in range(50):
        found.observe(pair(9.0, 9.0, 9.0, 1.0, 1.0))
    assert found.sqr == pytest.approx(9.0)
    found.observe(Squares(2.0, 1.0, 2, 1.0))
    assert (found.sqr, found.var) == (0.0, pytest.approx(1.0))
    found.observe(Squares(4.0, 4.0, 2, 1.0))
    assert found.sqr == pytest.approx(2.0, rel=1e-3)


@pytest.mark.parametrize(
    "squares",
    [(math.inf, 1.0, 4), (math.nan, math.nan, 4), (1.0, math.inf, 2), (1.0, 1.0, 1)],
)
def test_an_overflow_and_a_single_gradient_are_no_measurement(squares):
    found = GradientNoise()
    found.observe(Squares(4.0, 1.0, 4, 1.0))
    before = found.state()
    assert not found.observe(Squares(*squares, 1.0))
    assert found.state() == before


def test_gains_lie_between_one_and_the_scale():
    assert GradientNoise().gain(8.0) == 1
    assert gain(1.0, 0.0, 8.0) == 1
    assert gain(0.0, 1.0, 8.0) == 8
    assert gain(0.0, 0.0, 8.0) == 1
    gains = [gain(1.0, 3.0, scale) for scale in (1, 2, 4, 8, 1e9)]
    assert gains == sorted(gains)
    assert gains[0] == 1
    assert gains[-1] == pytest.approx(4)  # one plus the noise over the signal, at most


def test_neither_is_below_what_it_can_be():
    found = GradientNoise()
    found.observe(Squares(1.0, 0.1, 2, 1.0))  # noise alone, and more than chance would have it
    assert found.sqr == 0
    other = GradientNoise()
    other.observe(Squares(1.0, 1.1, 2, 1.0))
    assert other.var == pytest.approx(1e-6 * other.sqr)


def test_a_loss_in_another_unit_has_the_same_gain():
    one, other = GradientNoise(), GradientNoise()
    generator = random.Random(5)
    for _ in range(20):
        of_mean = generator.uniform(1, 2)
        of_parts = of_mean + generator.uniform(0, 1)
        one.observe(Squares(of_parts, of_mean, 4, 1.0))
        other.observe(Squares(1e-12 * of_parts, 1e-12 * of_mean, 4, 1.0))
    assert one.gain(16.0) == pytest.approx(other.gain(16.0))


def test_another_one_goes_on_from_the_state():
    found, other = GradientNoise(), GradientNoise()
    found.observe(Squares(4.0, 1.0, 4, 1.0))
    other.load(found.state())
    for each in (found, other):
        each.observe(Squares(3.0, 1.0, 4, 2.0))
    assert other.state() == found.state()
    assert fmean([other.sqr, other.var]) > 0


def test_it_needs_the_standard_library_alone():
    code = (
        "import sys; before = set(sys.modules)\n"
        "import rota.predict.gradient_noise\n"
        "print(sorted(m for m in set(sys.modules) - before if m.startswith('rota')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    expected = ["rota", "rota.predict", "rota.predict.gradient_noise"]
    assert done.stdout.strip() == str(expected)
