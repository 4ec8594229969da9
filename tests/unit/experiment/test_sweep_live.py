"""The figures of a search in three ways, from what the API told of each."""

import pytest

from rota.errors import SimulationError
from rota.experiment import sweep_live
from rota.experiment.sweep_live import (
    ARMS,
    ASHA,
    CONTEST,
    FIFO,
    OURS,
    TURNS,
    Race,
    figures_of,
    race_of,
)


def races(ours, fifo, asha):
    each = zip((OURS, TURNS, FIFO, ASHA), (ours, ours, fifo, asha), strict=True)
    return {arm: [Race(time_s, True, 4, 90) for time_s in times] for arm, times in each}


def figures(*times):
    return {figure.name: figure for figure in figures_of(races(*times))}


def trial(number, *curve, state="CANCELLED", begun_s=101.0):
    return {
        "number": number,
        "state": state,
        "message": "exit code 1",
        "first_start_s": begun_s,
        "curve": [[25 * (n + 1), at_s, value] for n, (at_s, value) in enumerate(curve)],
    }


def search(*trials, outcome="TARGET"):
    told = {"name": "sweep-live", "outcome": outcome, "message": "five failed"}
    return told | {"submit_s": 100.0, "finish_s": 140.0, "trials": list(trials)}


def test_each_order_is_compared_for_itself_and_the_median_is_judged():
    found = figures([20.0, 25.0, 10.0], [40.0, 30.0, 8.0], [25.0, 25.0, 10.0])
    gain = found["run to completion over Gandiva with rungs"]
    assert (gain.least, gain.ours, gain.most) == (0.8, 1.2, 2.0)
    assert not gain.ok  # by its median; one order of bad luck is no matter
    over = found["Gandiva with rungs over ASHA"]
    assert (over.least, over.ours, over.most) == (0.8, 1.0, 1.0)
    assert over.ok
    assert found["order 2, run to completion: time to target"].ours == 30.0
    time = found["Gandiva: time to target"]
    assert (time.baseline, time.least, time.ours, time.most) == (30.0, 10.0, 20.0, 25.0)


def test_a_search_that_is_slower_than_asha_does_not_hold():
    found = figures([20.0], [60.0], [18.0])
    assert found["run to completion over Gandiva with rungs"].ok
    assert not found["Gandiva with rungs over ASHA"].ok


def test_the_target_is_reached_by_whichever_trial_reports_it_first():
    first = trial(0, (110.0, 0.5), (120.0, 0.92))
    second = trial(1, (112.0, None), (118.0, 0.91), (125.0, 0.95), state="SUCCEEDED")
    late, never = trial(2, begun_s=119.0), trial(3, begun_s=None)
    found = race_of(search(first, second, late, never), 0.91)
    assert found == Race(18.0, True, 2, 3)


def test_a_search_that_never_reaches_the_target_counts_until_it_is_over():
    found = race_of(search(trial(0, (110.0, 0.5), state="SUCCEEDED"), outcome="DONE"), 0.91)
    assert found == Race(40.0, False, 1, 1)
    missed = {OURS: [found], TURNS: [found], FIFO: [found], ASHA: [found]}
    reached = {figure.name: figure.ours for figure in figures_of(missed)}
    assert reached["ASHA: orders in which it was reached"] == 0.0


@pytest.mark.parametrize(
    ("told", "words"),
    [
        (search(outcome="FAILED"), "FAILED: five failed"),
        (search(trial(3, state="FAILED")), "trial 3: FAILED: exit code 1"),
    ],
    ids=["the search failed", "a trial crashed"],
)
def test_a_search_that_went_wrong_gives_no_figures(told, words):
    with pytest.raises(SimulationError, match=words):
        race_of(told, 0.91)


def test_all_ways_have_the_same_configurations_in_each_order(monkeypatch):
    raced = []

    def race(arm, contest, seed):
        raced.append((arm, contest, seed))
        return Race(9.0, True, 1, 1)

    monkeypatch.setattr(sweep_live, "race", race)
    outcome = sweep_live.run()
    assert raced == [(arm, CONTEST, seed) for seed in outcome.seeds for arm in ARMS.values()]
    assert outcome.settings["information"] == {"gandiva": "label", "fifo": "none"}
    assert not outcome.holds  # as fast as all others is not fast enough
