"""What is read out of the document of a sweep: trials, their standing, the best so far."""

from itertools import pairwise

import pytest

from rota.report.sweep import (
    CANCELLED,
    DONE,
    FAILED,
    RUNNING,
    STOPPED,
    WAITING,
    Point,
    best_so_far,
    counts,
    ranked,
    read_sweep,
    thinned,
    value_text,
)
from rota.report.sweepfacts import facts, trials_table
from support.searches import SUBMIT_S, recorded_sweep


def read(document, after_s=0.0):
    return read_sweep(document, SUBMIT_S + after_s)


@pytest.fixture(scope="module")
def document():
    """A search of 24 trials with rungs, at its end."""
    return recorded_sweep()


def one_trial(**changed):
    """A document with one trial that is changed so."""
    document = recorded_sweep(trials=1, reports=3)
    document["trials"][0] |= changed
    return document


def test_times_count_from_the_submission(document):
    story = read(document)
    assert story.end_s == pytest.approx(document["finish_s"] - SUBMIT_S)
    first = story.trials[0]
    assert first.submit_s == 0
    assert 0 < first.ran[0][0] < first.ran[0][1] <= first.finish_s <= story.end_s
    assert first.curve[0].at_s > first.ran[0][0]


def test_what_goes_on_is_drawn_until_now():
    document = recorded_sweep(until_s=60.0)
    story = read(document, 75.0)
    assert story.end_s == 75.0
    running = [trial for trial in story.trials if trial.standing == RUNNING]
    assert running
    assert all(trial.ran[-1][1] == 75.0 for trial in running)


def test_a_clock_that_is_behind_hides_nothing_that_was_heard():
    story = read(recorded_sweep(until_s=60.0), -1000.0)
    assert story.end_s >= max(point.at_s for trial in story.trials for point in trial.curve)


def test_the_best_trial_is_first_and_those_without_a_value_last():
    document = recorded_sweep(until_s=60.0)
    story = read(document, 60.0)
    order = ranked(story)
    assert order[0].number == document["best"]["number"] == story.best.number
    values = [trial.best.value for trial in order if trial.best is not None]
    assert values == sorted(values, reverse=True)
    assert order[-1].best is None
    assert len(order) == 24


def test_where_less_is_better_the_least_is_first():
    story = read(recorded_sweep(trials=6, maximize=False, eta=None))
    values = [trial.best.value for trial in ranked(story)]
    assert values == sorted(values)
    assert values[0] == story.best.best.value
    falling = [value for _, value, _ in best_so_far(story)]
    assert all(one > other for one, other in pairwise(falling))


def test_the_best_so_far_rises_to_the_best(document):
    story = read(document)
    found = best_so_far(story)
    assert all(one[0] <= other[0] and one[1] < other[1] for one, other in pairwise(found))
    assert found[-1][1:] == (document["best"]["value"], document["best"]["number"])


@pytest.mark.parametrize(
    ("changed", "standing"),
    [
        ({"state": "PENDING"}, WAITING),
        ({"state": "HELD"}, WAITING),
        ({"state": "SUSPENDED"}, WAITING),
        ({"state": "STARTING"}, RUNNING),
        ({"state": "MIGRATING"}, RUNNING),
        ({"state": "SUCCEEDED"}, DONE),
        ({"state": "FAILED"}, FAILED),
        ({"state": "TIMEOUT"}, FAILED),
        ({"state": "CANCELLED", "why": "not among the best"}, STOPPED),
        ({"state": "CANCELLED"}, CANCELLED),
        ({"state": "SUCCEEDED", "curve": []}, FAILED),
        ({"state": "CANCELLED", "why": "x", "curve": [[1, SUBMIT_S + 1, None]]}, FAILED),
    ],
)
def test_trials_stand_as_the_search_sees_them(changed, standing):
    assert counts(read(one_trial(**changed))) == {standing: 1}


def test_a_failure_that_nobody_explains_is_told_of():
    def why(**changed):
        return read(one_trial(**changed)).trials[0].why

    assert why(state="SUCCEEDED", curve=[]) == "it never reported val_acc"
    assert why(state="FAILED") == "`rota logs recorded.0` tells"
    assert why(state="FAILED", message="out of memory") == "out of memory"
    assert why(state="SUCCEEDED") == ""


def test_a_report_that_is_no_number_is_no_value():
    curve = [[1, SUBMIT_S + 1, float("nan")], [2, SUBMIT_S + 2, 0.5], [3, SUBMIT_S + 3, None]]
    (trial,) = read(one_trial(curve=curve)).trials
    assert [point.value for point in trial.curve] == [None, 0.5, None]
    assert trial.best == Point(2, 2.0, 0.5)


def test_a_sweep_without_trials_has_no_best():
    story = read(recorded_sweep(trials=0))
    assert story.best is None
    assert ranked(story) == best_so_far(story) == []
    assert dict(facts(story))["best"] == "no trial has reported val_acc yet"


def test_a_thin_curve_keeps_its_ends_and_extremes():
    curve = [Point(n, float(n), float(n == 777) - float(n == 333)) for n in range(1000)]
    thin = thinned(curve, 20)
    assert len(thin) <= 24
    assert {0, 333, 777, 999} <= {point.step for point in thin}
    assert [point.step for point in thin] == sorted(point.step for point in thin)
    assert thinned(curve[:20], 20) == curve[:20]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (float("nan"), "-"),
        (True, "true"),
        (64, "64"),
        (64.0, "64"),
        (0.123456, "0.1235"),
        (1e-9, "1e-09"),
        (1.5e300, "1.5e+300"),
        (10**30, "1e+30"),
        ("adam", "adam"),
    ],
)
def test_values_take_few_letters(value, text):
    assert value_text(value) == text


def test_facts_tell_the_end_the_budget_and_the_target(document):
    search = document["request"]["sweep"] | {"target": 0.95, "gpu_hours": 0.5}
    changed = document | {"request": document["request"] | {"sweep": search}}
    told = dict(facts(read(changed)))
    assert told["state"].startswith("ENDED as DONE after 4 min")
    assert "all 24 trials have ended" in told["state"]
    assert told["best"].startswith(f"val_acc {document['best']['value']} by trial 0, at step")
    assert "learning_rate 0.003846" in told["with"]
    assert told["goal"] == "maximize val_acc to 0.95"
    assert "of GPU time, of a budget of 30 min;" in told["used"]
    assert told["trials"].startswith("24 of 24: 1 done, ")
    assert "trouble" not in told


def test_of_a_search_by_a_program_it_is_told_who_stops_trials(document):
    search = document["request"]["sweep"] | {"algorithm": {"name": "manual"}}
    changed = document | {"request": document["request"] | {"sweep": search}}
    assert dict(facts(read(changed)))["search"].startswith("by a program of the user's")


def test_what_keeps_a_search_from_going_on_is_told():
    document = recorded_sweep(trials=1, reports=2) | {"driver_error": "optuna is not installed"}
    assert dict(facts(read(document)))["trouble"] == "optuna is not installed"


def test_a_row_has_every_parameter_and_a_dash_for_those_a_trial_has_not():
    document = recorded_sweep(trials=2, reports=2, eta=None)
    document["trials"][1]["params"] = {"extra": 1}
    story = read(document)
    header, rows = trials_table(story, story.trials)
    assert header[4:-2] == [*document["request"]["sweep"]["space"], "extra"]
    second = dict(zip(header, rows[1], strict=True))
    assert (second["extra"], second["learning_rate"], second["WHY"]) == ("1", "-", "-")


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({"state": "RUNNING"}, "RUNNING"),
        ({"state": "TIMEOUT"}, "TIMEOUT"),
        ({"state": "CANCELLED", "why": "not among the best"}, "STOPPED"),
        ({"state": "CANCELLED", "why": "x", "curve": [[1, SUBMIT_S, None]]}, "FAILED"),
        ({"state": "SUCCEEDED", "curve": []}, "FAILED"),
    ],
)
def test_the_table_says_what_a_state_is_for_the_search(changed, word):
    story = read(one_trial(**changed))
    _, (row,) = trials_table(story, story.trials)
    assert row[1] == word
