import pytest

from rota.experiment import sweep_packing
from rota.experiment.gandiva_packing import VAE
from rota.experiment.sweep_packing import KINDS, PACKED, TURNS, run, times_min


@pytest.fixture(autouse=True)
def few_configurations(monkeypatch):
    monkeypatch.setattr(sweep_packing, "CONFIGURATIONS", 24)


def test_a_good_configuration_comes_sooner_with_small_trials_that_gain_by_sharing():
    assert PACKED[0].kind is VAE
    turns, packed = times_min(TURNS, 0), times_min(PACKED[0], 0)
    assert packed[2] < turns[2] / 1.5


def test_it_does_not_hold_if_nobody_is_packed(monkeypatch):
    monkeypatch.setattr(sweep_packing, "SEEDS", [0])
    alone = [subject._replace(pack="off") for subject in PACKED]
    monkeypatch.setattr(sweep_packing, "PACKED", alone)
    outcome = run()
    failed = [figure.name for figure in outcome.figures if not figure.ok]
    assert failed == [f"top 3, {kind.model} packed: sooner by" for kind in KINDS[:2]]
