import gzip
import json

import pytest

from rota.errors import DataMissingError
from rota.experiment import gandiva_packing
from rota.experiment.gandiva_packing import (
    LEAST_GAIN,
    RESNET,
    TABLE,
    VAE,
    pair_figures,
    run,
    together,
    try_pair,
)
from rota.workload.readers.gavel import Pair


def test_the_published_packs_are_found_and_the_bad_one_is_undone():
    outcome = run()
    assert outcome.holds, [figure for figure in outcome.figures if not figure.ok]
    ours = {figure.name: figure.ours for figure in outcome.figures}
    assert ours["five VAEs: packed over alone"] == pytest.approx(419.8 / 75.6, rel=0.001)
    assert ours["two ResNets: packs tried"] == 1


@pytest.mark.parametrize("setting", [{"pack": "off"}, {"least_gain": "5"}])
def test_it_does_not_hold_if_nothing_is_packed(monkeypatch, setting):
    monkeypatch.setattr(gandiva_packing, "SETTINGS", setting)
    assert not run().holds


def test_it_does_not_hold_if_a_bad_pack_is_kept(monkeypatch):
    monkeypatch.setattr(gandiva_packing, "RESNET", RESNET._replace(packed_per_s=1.1))
    failed = [figure.name for figure in run().figures if not figure.ok]
    assert "two ResNets: jobs packed" in failed


def test_speeds_are_such_that_the_published_sum_comes_out():
    assert VAE.num_jobs * VAE.speed ** (VAE.num_jobs - 1) == pytest.approx(VAE.gain)
    assert together("fifo", VAE).throughput == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("speeds", "tried", "kept"),
    [
        ((0.7, 0.6), True, True),
        ((0.9, 0.1 + LEAST_GAIN / 2), True, False),
        ((0.4, 0.5), True, False),
        ((0.0, 0.0), False, False),
    ],
    ids=["more work", "hardly more", "less", "no room for both"],
)
def test_a_pair_is_kept_if_it_does_enough_more_work(speeds, tried, kept):
    assert try_pair(speeds) == (tried, kept)


def test_what_became_of_each_pair_is_counted():
    pairs = [Pair(1, 10.0, 20.0, 6.0, 14.0), Pair(1, 10.0, 20.0, 4.0, 8.0), Pair(2, 1.0, 1.0, 0, 0)]
    ours = {(figure.name, figure.unit): figure.ours for figure in pair_figures(pairs)}
    assert ours["pairs listed", ""] == 3
    assert ours["pairs that ran together", ""] == 2
    assert ours["pairs that do more work together", ""] == 1
    assert ours["pairs kept", "% of those tried"] == 50
    assert ours["mean of those kept", "times"] == pytest.approx(1.3)
    assert ours["mean of those tried", "times"] == pytest.approx(1.05)


def test_pairs_that_the_policy_judges_wrongly_do_not_hold(monkeypatch):
    monkeypatch.setattr(gandiva_packing, "try_pair", lambda speeds: (True, sum(speeds) < 1))
    pairs = [Pair(1, 1.0, 1.0, 0.6, 0.7), Pair(1, 1.0, 1.0, 0.4, 0.4)]
    failed = {figure.name for figure in pair_figures(pairs) if not figure.ok}
    assert {"kept at 1.02 or less", "not kept at more than 1.02"} <= failed


def test_the_table_is_read_from_the_data_folder(tmp_path):
    with pytest.raises(DataMissingError, match=str(TABLE)):
        run(tmp_path)
    job, other = "('A', 1)", "('B', 1)"
    table = {"p100": {job: {"null": 4.0, other: [3.0, 1.0]}, other: {"null": 2.0}}}
    (tmp_path / TABLE).parent.mkdir()
    (tmp_path / TABLE).write_bytes(gzip.compress(json.dumps(table).encode()))
    best = next(figure for figure in run(tmp_path).figures if figure.name == "the best of them")
    assert best.ours == pytest.approx(3 / 4 + 1 / 2)
