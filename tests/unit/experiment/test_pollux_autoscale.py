"""The experiment on rented nodes, on an invented model."""

from pathlib import Path

import pytest

from rota.errors import DataMissingError
from rota.experiment import pollux_autoscale
from rota.experiment.pollux_autoscale import (
    CHEAPER,
    Found,
    as_long,
    compared,
    found,
    large,
    on_nodes,
    run,
    throughput_utility,
)
from rota.experiment.runs import pollux
from rota.experiment.runs.pollux import measure
from rota.workload.measured import Epochs, Measured, Step

ENDS = tuple(50.0 * epoch for epoch in range(1, 101))
FIXED = Found(1000.0, 16.0, 0.3, 0.4, 0.0, 2.0)
RENTED = Found(1100.0, 12.0, 0.5, 0.8, 9.0, 3.0)


@pytest.fixture
def profile(monkeypatch):
    """The large model teaches by batches of 8 and 16, on up to 8 GPUs."""
    places = {(1,): 0.0, (2,): 0.1, (3,): 0.1, (4,): 0.1, (4, 4): 0.2, (4,) * 16: 1.0}
    steps = {
        place: {n: Step(n / 8 + sync_s, sync_s) for n in (2, 4, 8, 16)}
        for place, sync_s in places.items()
    }
    scaled = [((2, gpus, n), Step(n / 8 + 0.2, 0.2)) for gpus in range(2, 9) for n in (2, 16)]
    epochs = Epochs(ENDS, ENDS, (1.0,) * 100, (10.0,) * 100)
    profile = Measured("imagenet", steps, scaled, {8: epochs, 16: epochs})
    for module in (pollux, pollux_autoscale):
        monkeypatch.setattr(module, "profiles_of", lambda data, names: {"imagenet": profile})


def test_one_model_alone_costs_less_than_on_nodes_that_it_does_not_use(profile):
    rented, fixed = (
        found([measure(on_nodes(Path(), nodes, large), 0)]) for nodes in ((1, 16), (16, 16))
    )
    assert rented.node_hours < fixed.node_hours / 4
    assert rented.node_starts > 0 == fixed.node_starts
    assert rented.in_band > fixed.in_band == 0


def test_by_throughput_utility_is_that_of_full_gpus(profile):
    assert throughput_utility(Path()) == pytest.approx(2.0 / 3.0)


def test_fixed_nodes_that_take_as_long_are_between_those_that_were_simulated():
    fixed = [(100.0, 8.0), (400.0, 2.0)]
    assert as_long(fixed, 200.0) == pytest.approx(4.0)
    assert as_long(fixed, 50.0) == pytest.approx(8.0)
    assert as_long(fixed, 1000.0) == pytest.approx(2.0)


def test_rented_nodes_are_judged_by_what_they_cost_and_how_long_jobs_take():
    figures = {figure.name: figure for figure in compared("here", [FIXED], [RENTED], CHEAPER)}
    cost = figures["here: node-hours of a workload, over 16 nodes"]
    assert (cost.ours, cost.ok) == (0.75, True)
    time = figures["here: average JCT, over 16 nodes"]
    assert (time.ours, time.ok) == (1.1, True)
    band = figures["here: time in the band"]
    assert (band.baseline, band.ours, band.ok) == (0.4, 0.8, True)
    dear = compared("here", [FIXED], [FIXED], CHEAPER)
    assert not all(figure.ok for figure in dear)


@pytest.mark.parametrize("data", [None, Path("nowhere")])
def test_without_the_data_it_says_what_it_needs(data):
    with pytest.raises(DataMissingError, match="pollux"):
        run(data)
