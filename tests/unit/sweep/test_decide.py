"""What a search does next: its end, its rungs, its failures, and how many trials are open."""

import random

import pytest

from rota.request.sweepfile import parse_sweep
from rota.sweep.decide import End, Start, Stop

from .told import decided, search, sweep, trial


def stops(actions):
    return {action.number for action in actions if isinstance(action, Stop)}


def starts(actions):
    return [action.number for action in actions if isinstance(action, Start)]


# -- how many trials are open ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("block", "gpus", "trials", "started"),
    [
        ({"parallel": 3}, 2, [], [0, 1, 2]),
        ({"parallel": 3}, 2, [trial(0), trial(1, state="PENDING")], [2]),
        ({"parallel": 3}, 2, [trial(0), trial(1), trial(2), trial(3)], []),
        ({"parallel": 3}, 2, [trial(0, 0.5, state="SUCCEEDED"), trial(1)], [2, 3]),
        ({"parallel": 30}, 2, [], list(range(12))),
        ({"parallel": 2}, 2, [trial(1), trial(3, 0.1, state="SUCCEEDED")], [0]),
        ({"parallel": 2}, 2, [trial(0, state="CANCELLED")], [1, 2]),
        ({"parallel": 2, "max_trials": 2}, 2, [trial(0), trial(1, 0.1, state="SUCCEEDED")], []),
        # A trial that the search has told to stop is no longer open.
        ({"parallel": 1}, 2, [trial(0, 0.1, state="STOPPING", why="behind")], [1]),
        # auto: as many that haven't reported as the cluster runs at once, and 16 times that in all.
        ({}, 2, [], [0, 1]),
        ({}, 0, [], [0]),
        ({}, 2, [trial(0), trial(1, 0.5)], [2]),
        ({}, 2, [trial(0, 0.5), trial(1, 0.5)], [2, 3]),
        ({}, 2, [trial(0), trial(1)], []),
        ({"max_trials": 40}, 2, [trial(n, 0.5) for n in range(31)], [31]),
        ({"max_trials": 40}, 2, [trial(n, 0.5) for n in range(32)], []),
        ({"algorithm": "manual"}, 2, [], []),
    ],
)
def test_trials_start_as_there_is_room(block, gpus, trials, started):
    assert starts(decided(search(**block), sweep(*trials, gpus=gpus))) == started


def test_room_is_counted_in_gpus_of_a_trial():
    assert starts(decided(search(gpus=4), sweep(gpus=10))) == [0, 1]


# -- the end ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("goal", "target", "values", "ends"),
    [
        ("maximize", 0.9, [0.5, 0.9], True),
        ("maximize", 0.9, [0.95, 0.1], True),
        ("maximize", 0.9, [0.89], False),
        ("minimize", 0.1, [0.5, 0.1], True),
        ("minimize", 0.1, [0.11], False),
        ("minimize", 0.1, [None, None], False),
        ("maximize", 0.9, [0.95, None], True),
        ("maximize", 0.9, [], False),
    ],
)
def test_a_trial_that_reaches_the_target_ends_the_search(goal, target, values, ends):
    request = search(goal=goal, target=target)
    actions = decided(request, sweep(trial(0, 0.5), trial(1, *values)))
    outcomes = [action.outcome for action in actions if isinstance(action, End)]
    assert outcomes == (["TARGET"] if ends else [])
    if ends:
        assert len(actions) == 1 and "s.1 reached acc" in actions[0].message


def test_a_search_is_done_when_all_its_trials_have_ended():
    request = search(max_trials=3)
    ended = [trial(0, 0.5, state="SUCCEEDED"), trial(1, 0.1, state="CANCELLED", why="behind")]
    assert decided(request, sweep(*ended, trial(2, 0.1))) == []
    assert decided(request, sweep(*ended, trial(2, 0.1, state="CANCELLED"))) == [
        End("DONE", "3 trials have ended")
    ]
    # One that was told to stop, and has not yet.
    assert decided(request, sweep(*ended, trial(2, 0.1, state="STOPPING", why="behind"))) == []


def test_a_search_of_none_but_failures_has_failed_even_if_it_may_have_more():
    failed = [trial(n, state="FAILED", message=f"exit status {n}") for n in range(2)]
    (end,) = decided(search(max_trials=2), sweep(*failed))
    assert end.outcome == "FAILED"
    assert "none of 2 trials came to a value" in end.message
    assert "s.1 ended FAILED: exit status 1" in end.message


def test_trials_cancelled_by_their_user_are_no_failures_and_count():
    request = search(max_trials=2, max_failures=0)
    (end,) = decided(request, sweep(*(trial(n, state="CANCELLED") for n in range(2))))
    assert end == End("DONE", "2 trials have ended")


@pytest.mark.parametrize(("gpu_s", "ends"), [(3599.0, False), (3600.0, True), (9999.0, True)])
def test_the_budget_is_of_all_trials_together(gpu_s, ends):
    actions = decided(search(gpu_hours=1), sweep(trial(0, 0.5), gpu_s=gpu_s))
    assert (actions == [End("BUDGET", "its trials have used 1 GPU-hours")]) == ends


def test_a_search_that_has_ended_is_left_alone():
    request = search(target=0.1, rungs={"eta": 2, "first": 1})
    assert decided(request, sweep(trial(0, 0.5), trial(1, 0.1), state="ENDED")) == []


def test_a_program_of_the_user_s_may_propose_for_ever():
    request = search(algorithm="manual", max_trials=None)
    assert decided(request, sweep(trial(0, 0.5, state="SUCCEEDED"))) == []
    (end,) = decided(request._replace(max_trials=1), sweep(trial(0, 0.5, state="SUCCEEDED")))
    assert end.outcome == "DONE"


# -- failures --------------------------------------------------------------------------------------

FAILURES = [
    (trial(0, 0.5, state="FAILED", message="exit status 1"), "ended FAILED: exit status 1"),
    (trial(0, 0.5, state="TIMEOUT"), "ended TIMEOUT: see rota logs 1"),
    (trial(0, 0.5, state="LOST", message="the node went"), "ended LOST: the node went"),
    (trial(0, state="SUCCEEDED"), "without a report of acc: have it call s.report(acc=...)"),
    (trial(0, None, None, state="SUCCEEDED"), "no number (NaN or infinite)"),
    (trial(0, 0.5, None, state="SUCCEEDED"), "no number (NaN or infinite)"),
    (trial(0, None, state="CANCELLED", why="it reported"), "no number (NaN or infinite)"),
    (trial(0, None, state="RUNNING"), "no number (NaN or infinite)"),
]


@pytest.mark.parametrize(("failed", "words"), FAILURES)
def test_failures_end_the_search_when_they_are_too_many(failed, words):
    assert not any(
        isinstance(action, End) for action in decided(search(max_failures=1), sweep(failed))
    )
    (end,) = decided(search(max_failures=0), sweep(failed))
    assert end.outcome == "FAILED"
    assert end.message.startswith("1 trial failed; the last: s.0 ")
    assert words in end.message


@pytest.mark.parametrize(
    "fine",
    [
        trial(0, 0.5, state="SUCCEEDED"),
        trial(0, None, 0.5, state="SUCCEEDED"),
        trial(0, state="CANCELLED"),
        trial(0, None, state="CANCELLED"),
        trial(0, 0.5, state="CANCELLED", why="behind"),
        trial(0, state="RUNNING"),
    ],
)
def test_what_is_no_failure(fine):
    request = search(max_failures=0)
    assert not any(isinstance(action, End) for action in decided(request, sweep(fine)))


def test_the_example_fits_a_metric_that_is_no_name_in_python():
    (end,) = decided(search(metric="val/acc", max_failures=0), sweep(trial(0, state="SUCCEEDED")))
    assert "have it call s.report with 'val/acc'" in end.message


def test_what_was_reported_in_place_of_the_metric_is_named():
    silent = trial(0, state="SUCCEEDED", metrics=["loss", "accuracy"])
    (end,) = decided(search(max_failures=0), sweep(silent))
    assert "without a report of acc (but of accuracy, loss): have it call" in end.message


def test_a_trial_whose_last_report_is_no_number_stops_and_another_starts():
    request = search(parallel=2)
    actions = decided(request, sweep(trial(0, 0.5, None), trial(1, 0.5)))
    assert actions == [Stop(0, "it reported acc as no number (NaN or infinite)"), Start(2)]


def test_it_is_told_once():
    told = sweep(trial(0, None, state="STOPPING", why="it reported"), trial(1, 0.5))
    assert stops(decided(search(), told)) == set()


def test_one_that_has_recovered_goes_on():
    assert stops(decided(search(), sweep(trial(0, None, 0.5)))) == set()


def plain_search(**block):
    """A search whose trials report nothing."""
    fields = {"space": {"n": {"int": [0, 2]}}} | block
    return parse_sweep({"name": "s", "run": "sh x.sh", "sweep": fields}, workdir="/w")


def test_without_a_metric_trials_are_done_when_their_commands_succeed():
    request = plain_search()
    ended = [trial(number, state="SUCCEEDED") for number in range(3)]
    assert decided(request, sweep(*ended)) == [End("DONE", "3 trials have ended")]
    one = plain_search(max_trials=1)
    assert decided(one, sweep(ended[0])) == [End("DONE", "1 trial has ended")]
    failed = trial(2, state="FAILED", message="exit code 1")
    message = "3 trials have ended, 1 of them failed"
    assert decided(request, sweep(*ended[:2], failed)) == [End("DONE", message)]
    assert decided(request, sweep(*ended[:2], trial(2))) == []


def test_without_a_metric_a_search_fails_if_all_its_trials_do():
    all_failed = [trial(number, state="FAILED", message="exit code 1") for number in range(3)]
    (end,) = decided(plain_search(), sweep(*all_failed))
    assert end == End("FAILED", "all have failed; the last: s.2 ended FAILED: exit code 1")


# -- rungs -----------------------------------------------------------------------------------------


def at(*values, goal="maximize", rungs=None, **block):
    """Which of the trials stop that came to the first rung one after another."""
    request = search(goal=goal, rungs=rungs or {"eta": 3, "first": 1}, **block)
    trials = [trial(n, value, start_s=n) for n, value in enumerate(values)]
    return stops(decided(request, sweep(*trials)))


def test_the_best_third_of_those_that_came_so_far_goes_on():
    assert at(0.5) == set()
    assert at(0.5, 0.4) == {1}
    assert at(0.4, 0.5) == set()  # the first was alone, and the second was better
    assert at(0.5, 0.4, 0.6, 0.3, 0.45) == {1, 3, 4}
    # The sixth is the second best of six, of which two go on.
    assert at(0.5, 0.4, 0.6, 0.3, 0.45, 0.55) == {1, 3, 4}
    assert at(0.5, 0.4, 0.6, 0.3, 0.45, 0.45) == {1, 3, 4, 5}


def test_less_may_be_better():
    assert at(0.5, 0.4, 0.6, goal="minimize") == {2}
    assert at(0.5, 0.4, 0.6) == {1}


def test_equals_go_on_together():
    assert at(0.1, 0.1, 0.1, 0.1) == set()


def test_no_number_is_worse_than_any():
    request = search(rungs={"eta": 3, "first": 1})
    none = [trial(n, None, 0.9, start_s=n) for n in range(2)]
    assert stops(decided(request, sweep(*none))) == set()  # they are equals
    (stop,) = decided(
        request, sweep(*none, trial(2, -9.0, start_s=2), trial(3, None, 0.9, start_s=3))
    )[:1]
    assert stop == Stop(
        3,
        "at report 1 its best acc was no number, behind 1 of 4 trials so far, "
        "of which the best 1 went on",
    )


@pytest.mark.parametrize("eta", [2, 3, 4])
def test_rungs_are_eta_times_apart(eta):
    request = search(rungs={"eta": eta, "first": 2}, parallel=1)
    ahead = trial(0, *[0.5] * 40)
    for reports in range(1, 40):
        # It is better at first, and behind from its own report of that number on.
        behind = trial(1, *[0.4] * reports, start_s=1000)
        expected = {1} if reports >= 2 else set()
        assert stops(decided(request, sweep(ahead, behind))) == expected
    better_at_first = trial(1, *[0.6] * (2 * eta - 1), start_s=1000)
    assert stops(decided(request, sweep(ahead, better_at_first))) == set()


def test_a_later_rung_has_its_own_order():
    request = search(rungs={"eta": 3, "first": 1})
    slow_start = trial(0, 0.2, 0.3, 0.9)
    fast_start = trial(1, 0.5, 0.5, 0.5, start_s=100)
    (stop,) = [a for a in decided(request, sweep(slow_start, fast_start)) if isinstance(a, Stop)]
    assert stop.number == 1
    assert stop.why == (
        "at report 3 its best acc was 0.5, behind 1 of 2 trials so far, of which the best 1 went on"
    )


def test_a_trial_counts_by_its_best_so_far():
    request = search(rungs={"eta": 2, "first": 2})
    assert (
        stops(decided(request, sweep(trial(0, 0.5, 0.5), trial(1, 0.6, 0.1, start_s=9)))) == set()
    )


def test_who_has_ended_counts_and_is_not_stopped():
    request = search(rungs={"eta": 3, "first": 1})
    ended = [trial(0, 0.5, state="SUCCEEDED"), trial(1, 0.4, state="SUCCEEDED", start_s=1)]
    late = trial(2, 0.45, start_s=2)
    assert stops(decided(request, sweep(*ended, late))) == {2}


def test_who_comes_later_changes_nothing_for_who_was_there():
    """A driver that was away judges as one that was not."""
    rng = random.Random(1)
    for _ in range(50):
        request = search(rungs={"eta": rng.choice([2, 3]), "first": 1}, max_trials=100)
        curves = [[rng.random() for _ in range(rng.randint(1, 9))] for _ in range(20)]
        starts_s = [rng.uniform(0, 100) for _ in curves]
        whole = stops(
            decided(request, sweep(*map(told_by(curves, starts_s, 1e9), range(len(curves)))))
        )
        seen = set()
        for now_s in range(0, 200, 10):
            told = sweep(*map(told_by(curves, starts_s, now_s), range(len(curves))))
            now = stops(decided(request, told))
            assert seen <= now, "who was behind once is"
            seen = now
        assert seen == whole


def told_by(curves, starts_s, now_s):
    def told(number):
        before = [
            value
            for step, value in enumerate(curves[number], start=1)
            if starts_s[number] + 10 * step <= now_s
        ]
        return trial(number, *before, start_s=starts_s[number])

    return told


def test_the_last_report_is_no_rung():
    assert at(0.5, 0.4, rungs={"eta": 3, "first": 1}, reports=1) == set()
    assert at(0.5, 0.4, rungs={"eta": 3, "first": 1}, reports=2) == {1}


def test_without_rungs_nobody_is_left_behind():
    trials = [trial(n, 1.0 - n / 10, start_s=n) for n in range(8)]
    assert stops(decided(search(), sweep(*trials))) == set()


def test_rungs_hold_for_trials_that_the_user_s_program_proposes():
    assert at(0.5, 0.4, algorithm="manual") == {1}


def test_who_was_told_to_stop_is_not_told_again():
    request = search(rungs={"eta": 3}, parallel=1)
    told = sweep(trial(0, 0.5), trial(1, 0.4, start_s=1, state="STOPPING", why="behind"))
    assert decided(request, told) == []


def test_the_same_is_decided_whatever_the_order_that_trials_are_told_in():
    request = search(rungs={"eta": 3, "first": 1})
    trials = [trial(n, value, start_s=5) for n, value in enumerate([0.5, 0.4, 0.6, 0.3])]
    assert decided(request, sweep(*trials)) == decided(request, sweep(*reversed(trials)))
