import pytest

from rota.experiment import tiresias_example
from rota.experiment.tiresias_example import POLICIES, completions, run


def test_the_published_averages_come_out():
    outcome = run()
    assert outcome.holds, [figure for figure in outcome.figures if not figure.ok]
    averages = [figure for figure in outcome.figures if figure.name.endswith("average completion")]
    assert [round(figure.ours, 1) for figure in averages] == [9.3, 10.0, 11.7]
    assert [figure.published for figure in averages] == [9.3, 10.0, 11.7]


def test_every_job_completes_when_the_paper_has_it():
    assert completions("srsf", {}) == [2, 10, 16]
    assert completions("las", {"quantum_s": "1"}) == [5, 14, 16]
    assert completions("srtf", {}) == [2, 16, 8]
    assert completions("smallest-first", {}) == [10, 8, 16]


@pytest.mark.parametrize(("thresholds", "average"), [("4", 10.0), ("8", 28 / 3), ("", 28 / 3)])
def test_where_the_queues_end_decides_it(thresholds, average):
    found = completions("tiresias", {"thresholds": thresholds, "promote_knob": "0"})
    assert sum(found) / 3 == pytest.approx(average)


def test_a_wrong_policy_is_caught(monkeypatch):
    wrong = {"2D-LAS": ("srtf", {}, *POLICIES["2D-LAS"][2:])}
    monkeypatch.setattr(tiresias_example, "POLICIES", POLICIES | wrong)
    assert not run().holds
