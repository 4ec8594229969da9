"""Links between ranks: latency and bandwidth from times of messages."""

import numpy as np
import pytest

from rota.burst.layers.network import line_through, measured_network
from rota.burst.planner.costs import Costs
from rota.errors import InputError
from rota.model.layer_graph import Network
from support.layers import graph

SIZES = np.array([1e3, 1e4, 1e5, 1e6, 1e7])


def test_latency_and_bandwidth_of_a_line_are_found():
    latency, bandwidth = line_through(SIZES, 2e-4 + SIZES / 1e9)
    assert latency == pytest.approx(2e-4) and bandwidth == pytest.approx(1e9)


def test_small_messages_count_as_much_as_large_ones():
    noisy = (2e-4 + SIZES / 1e9) * np.array([1.0, 1.0, 1.0, 1.0, 1.2])
    latency, _ = line_through(SIZES, noisy)
    assert latency == pytest.approx(2e-4, rel=0.1)


def test_no_latency_is_negative_and_no_bandwidth_without_end():
    latency, bandwidth = line_through(SIZES, SIZES / 1e9 * np.array([0.5, 0.7, 1.0, 1.1, 1.3]))
    assert latency == 0.0 and 0.5e9 < bandwidth < 2e9
    latency, bandwidth = line_through(SIZES, np.array([3e-3, 2.5e-3, 2e-3, 1.5e-3, 1e-3]))
    assert latency == pytest.approx(1e-3) and bandwidth == pytest.approx(1e10)


def test_reductions_have_their_own_figures():
    links = Network(1e9, 1e-4, 5e8, 3e-4)
    costs = Costs(graph("ab"), 12, 4, links)
    held = costs.reduce_bytes(0)
    assert costs.reduce_s(0, 4) == pytest.approx(3e-4 + 1.5 * held / 5e8)
    assert costs.reduce_s(0, 1) == 0.0
    assert Costs(graph("ab"), 12, 4, Network(1e9, 1e-4)).reduce_s(0, 4) == 1.5 * held / 1e9


def test_the_links_of_a_profile_are_those_of_its_costs():
    measured = graph("ab")
    measured.network = Network(7e9, 1e-5)
    assert Costs(measured, 12, 4).network is measured.network
    assert Costs(measured, 12, 4, Network(1e9, 0.0)).network == Network(1e9, 0.0)


@pytest.mark.parametrize(
    ("ranks", "backend", "message"),
    [
        (1, "gloo", "ranks is 1; links are measured between 2 or more"),
        (2, "mpi", "backend is 'mpi'; it is gloo or nccl"),
        (4096, "nccl", "ranks is 4096 and there are . GPUs"),
    ],
)
def test_links_that_cannot_be_measured_are_told(ranks, backend, message):
    with pytest.raises(InputError, match=message):
        measured_network(ranks, backend=backend)
