import pytest

from rota.experiment import tiresias_dimensions
from rota.experiment.tiresias_dimensions import run


@pytest.fixture
def outcome(monkeypatch):
    monkeypatch.setattr(tiresias_dimensions, "SEEDS", [0, 1])
    return run()


def test_leaving_a_dimension_out_does_not_help_on_the_workload(outcome):
    assert outcome.holds, [figure for figure in outcome.figures if not figure.ok]
    ratios = [figure for figure in outcome.figures if figure.unit == "times" and figure.least]
    assert [figure.ours >= 1 for figure in ratios[:2]] == [True, True]


def test_but_it_does_on_the_trio(outcome):
    figures = {figure.name: figure.ours for figure in outcome.figures}
    assert figures["trio: srtf over srsf"] == pytest.approx(26 / 28)
    assert figures["trio: average JCT, smallest-first (GPUs alone)"] == pytest.approx(34 / 3)


def test_the_bounds_would_catch_an_order_that_ignores_both(monkeypatch):
    monkeypatch.setattr(tiresias_dimensions, "SEEDS", [0])
    orders = {"fifo": ("arrival", 28 / 3)}
    monkeypatch.setattr(tiresias_dimensions, "POLICIES", tiresias_dimensions.POLICIES | orders)
    monkeypatch.setattr(tiresias_dimensions, "HIGH", 3.0)
    assert not run().holds
