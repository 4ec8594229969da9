"""The experiment on jobs that slow each other down, on invented data and on invented runs."""

import pytest

from rota.errors import DataMissingError
from rota.experiment import pollux_interference
from rota.experiment.pollux_interference import BOUNDS, figures, run
from rota.experiment.runs.pollux import Run

AVOIDED_S, OTHERS_S = 100.0, {0.0: 101.0, 0.25: 112.0, 0.5: 140.0}


def invented(avoided_s=AVOIDED_S, others_s=OTHERS_S, beside=0.0):
    """Runs of one workload with one seed, by case."""
    found = {("avoid", 0.5): [[Run([avoided_s], 1.0, 0, 0.0, beside)]]}
    for lost, each_s in others_s.items():
        found["ignore", lost] = [[Run([each_s], 1.0, 0, 0.0, 0.4)]]
    return found


def failing(found):
    return [figure.name for figure in figures(found) if not figure.ok]


@pytest.mark.parametrize(
    ("found", "names"),
    [
        (invented(), []),
        (invented(others_s=OTHERS_S | {0.25: 100.0}), ["not avoided, 25% lost: over avoided"]),
        (invented(beside=0.1), ["avoided: time beside another job on a node"]),
        (invented(avoided_s=85.0), [f"not avoided, {at:.0%} lost: over avoided" for at in BOUNDS]),
    ],
    ids=["as it should be", "nobody feels a quarter", "avoided, and yet beside", "a lot"],
)  # fmt: skip
def test_the_verdict_is_on_what_avoidance_saves(found, names):
    assert failing(found) == names


def test_a_single_seed_in_which_jobs_met_fails():
    good, bad = invented(), invented(beside=0.01)
    found = {case: good[case] * 2 + bad[case] for case in good}
    assert failing(found) == ["avoided: time beside another job on a node"]


def test_each_case_is_played_with_its_setting_and_its_loss(pollux_data, monkeypatch):
    asked = {}

    def run_all(subjects, seeds):
        asked.update(subjects, seeds=seeds)
        return invented()

    monkeypatch.setattr(pollux_interference, "run_all", run_all)
    assert run(pollux_data).holds
    assert asked.pop("seeds") == [0, 1, 2]
    assert len(asked) == 4
    for (interference, lost), subjects in asked.items():
        assert len(subjects) == 4
        for subject in subjects:
            assert subject.variant.settings["interference"] == interference
            assert subject.variant.settings["objective"] == "pollux"
            assert subject.links == lost


def test_it_runs_on_data(pollux_data, monkeypatch):
    monkeypatch.setattr(pollux_interference, "SEEDS", [0])
    ours = {figure.name: figure.ours for figure in run(pollux_data).figures}
    assert ours["avoided: time beside another job on a node"] == 0
    averages = [ours[f"not avoided, {lost}% lost: average JCT"] for lost in (0, 25, 50)]
    assert all(60.0 < average_s < 600.0 for average_s in averages)


def test_without_data_it_says_which_is_needed(tmp_path):
    with pytest.raises(
        DataMissingError, match=r"pollux/profiles and pollux/workloads lie as --data"
    ):
        run()
    with pytest.raises(DataMissingError, match=r"there is no .*profiles; give the folder"):
        run(tmp_path)
