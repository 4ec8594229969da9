import pytest

from rota.experiment import tiresias_dimensions
from rota.experiment.tiresias_dimensions import POLICIES, compared, measure, run


@pytest.fixture
def outcome(monkeypatch):
    monkeypatch.setattr(tiresias_dimensions, "SEEDS", [0, 1])
    return run()


def test_leaving_a_dimension_out_does_not_help_on_the_workload(outcome):
    assert outcome.holds, [figure for figure in outcome.figures if not figure.ok]


def test_but_it_does_on_the_trio(outcome):
    figures = {figure.name: figure.ours for figure in outcome.figures}
    assert figures["trio: srtf over srsf"] == pytest.approx(26 / 28)
    assert figures["trio: average JCT, smallest-first (GPUs alone)"] == pytest.approx(34 / 3)


@pytest.mark.parametrize(
    ("policy", "stands_in_for"),
    [("smallest-first", "srsf"), ("yarn-cs", "srtf")],
    ids=["an order by both that is worse", "an order by one that is far worse"],
)
def test_the_bounds_would_catch(policy, stands_in_for):
    runs = {name: [measure(name, 1)] for name in POLICIES}
    assert all(figure.ok for figure in compared(runs))
    assert not all(figure.ok for figure in compared(runs | {stands_in_for: [measure(policy, 1)]}))
