"""Scaling curves of known shape, and jobs that have measured them."""

import pytest

from rota.policy.scaling import Observations, Throughput


@pytest.fixture
def closed_form():
    """Samples per second by workers where a step takes tau (a + (1 - a) / k + c (k - 1))."""

    def make(a, tau=1.0, c=0.0):
        return lambda k: 1 / (tau * (a + (1 - a) / k + c * (k - 1)))

    return make


@pytest.fixture
def measured():
    """Observations of a curve at some sizes, the last of which is the present one."""

    def make(rate, sizes, *, steps=10, deviation=0.0):
        observations = Observations()
        for size in sizes:
            squares = (steps - 1) * (deviation * rate(size)) ** 2
            observations.add(size, Throughput(steps, rate(size), squares))
        return observations

    return make
