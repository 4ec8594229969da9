"""Trials of background jobs, judged by reports on the steps of the foreground."""

import json
from math import inf, nan

import pytest

from rota.model.events import FillMeasured
from rota.policy.fill.trial import (
    ALONE,
    ENOUGH_PAIRS,
    KEPT,
    PATIENCE,
    PROBE,
    STARVED_S,
    UNDONE,
    UNTOLD,
    Trial,
    due_s,
    is_starved,
    judged,
    read,
)

BEGAN_S, TRIAL_S = 100.0, 30.0


def trial(verdict=PROBE, beside=(3,), **more):
    return Trial(0, (1,), beside, BEGAN_S, 0.4, verdict, **more)


def told(slowdown, *, after=5.0, beside=3, harvest=0.4, off=0.0, pairs=9):
    """A report so many seconds after the trial began, whose interval goes ``off`` so far."""
    interval = slowdown - off, slowdown + off, pairs
    return FillMeasured(BEGAN_S + after, 9, beside, slowdown, harvest, *interval)


def verdict(report, *, now=5.0, limit=1.1, runs_s=BEGAN_S, of=None):
    found = judged(of or trial(), report, limit, runs_s, BEGAN_S + now, TRIAL_S)
    return found.verdict


OF_A_PROBE = {
    "nothing was told yet": ((None, {}), PROBE),
    "a report within the limit is too early to keep it": ((told(1.05), {}), PROBE),
    "within the limit for long enough it is kept": ((told(1.05), {"now": TRIAL_S}), KEPT),
    "at the limit itself it is kept": ((told(1.1), {"now": TRIAL_S}), KEPT),
    "an interval all beyond the limit undoes it at once": (
        (told(1.35, off=0.2), {}),
        UNDONE,
    ),
    "one that has the limit in it is measured on": (
        (told(1.35, off=0.3), {"now": 100 * TRIAL_S}),
        PROBE,
    ),
    "also if the estimate is within": ((told(1.05, off=0.1), {"now": TRIAL_S}), PROBE),
    "until enough pairs could not show that it is beyond": (
        (told(1.35, off=0.3, pairs=ENOUGH_PAIRS), {"now": TRIAL_S}),
        KEPT,
    ),
    "which takes the time of a trial at least": (
        (told(1.05, off=0.1, pairs=ENOUGH_PAIRS), {"now": TRIAL_S - 1}),
        PROBE,
    ),
    "enough pairs may show that it is beyond": ((told(1.2, pairs=ENOUGH_PAIRS), {}), UNDONE),
    "without an interval nothing is judged": (
        (FillMeasured(BEGAN_S + 5.0, 9, 3, 1.35, 0.4), {"now": TRIAL_S}),
        PROBE,
    ),
    "the foreground's own limit counts": ((told(1.14), {"limit": 1.2, "now": 40}), KEPT),
    "a stricter limit counts": ((told(1.09), {"limit": 1.05}), UNDONE),
    "a report of before it says nothing": ((told(9.0, after=-1.0), {}), PROBE),
    "a report of before it ran there says nothing": ((told(9.0), {"runs_s": 110.0}), PROBE),
    "a report on another foreground says nothing": ((told(9.0, beside=4), {}), PROBE),
    "nothing is judged while it does not run": ((told(9.0), {"runs_s": -1.0}), PROBE),
    "a slowdown that is no number says nothing": ((told(nan), {"now": TRIAL_S}), PROBE),
    "an infinite slowdown says nothing": ((told(inf), {"now": TRIAL_S}), PROBE),
    "a slowdown of nought says nothing": ((told(0.0), {"now": TRIAL_S}), PROBE),
    "without reports it ends untold": ((None, {"now": PATIENCE * TRIAL_S}), UNTOLD),
    "without steps it ends untold": ((told(nan), {"now": PATIENCE * TRIAL_S}), UNTOLD),
    "patience counts from when it runs": (
        (None, {"now": PATIENCE * TRIAL_S, "runs_s": 150.0}),
        PROBE,
    ),
}


@pytest.mark.parametrize("case", OF_A_PROBE)
def test_a_probe_is_judged_by_the_steps_of_the_foreground(case):
    (report, more), expected = OF_A_PROBE[case]
    assert verdict(report, **more) == expected


OF_OTHERS = {
    "a job that is alone is not judged": (trial(ALONE, ()), told(9.0), 5.0, ALONE),
    "a kept pair may be beyond, as far as is known": (trial(KEPT), told(1.2, off=0.2), 5.0, KEPT),
    "a kept pair that is known to be beyond is undone": (
        trial(KEPT),
        told(1.2, off=0.05),
        5.0,
        UNDONE,
    ),
    "a kept pair of which nothing is told is kept": (trial(KEPT), None, 1e6, KEPT),
    "an untold one is kept once steps are told": (trial(UNTOLD), told(1.0), 400.0, KEPT),
    "an untold one is undone once steps are beyond": (trial(UNTOLD), told(1.2), 400.0, UNDONE),
}


@pytest.mark.parametrize("case", OF_OTHERS)
def test_later_reports_count_too(case):
    of, report, now, expected = OF_OTHERS[case]
    assert verdict(report, of=of, now=now) == expected


def test_a_job_that_gets_nothing_for_long_starves():
    first = judged(trial(KEPT), told(1.0, harvest=0.0), 1.1, BEGAN_S, BEGAN_S + 5, TRIAL_S)
    assert first.starved_s == BEGAN_S + 5
    assert not is_starved(first, BEGAN_S + STARVED_S)
    assert is_starved(first, BEGAN_S + 5 + STARVED_S)
    fed = judged(first, told(1.0, after=9.0), 1.1, BEGAN_S, BEGAN_S + 9, TRIAL_S)
    assert fed.starved_s is None


DUE = {
    "a probe may be kept after its time": (trial(), BEGAN_S + 1, BEGAN_S + TRIAL_S),
    "a probe then waits to the end of patience": (
        trial(),
        BEGAN_S + TRIAL_S,
        BEGAN_S + PATIENCE * TRIAL_S,
    ),
    "nothing is due of a job that is alone": (trial(ALONE, ()), BEGAN_S + 1, None),
    "nothing is due of a pair that was kept": (trial(KEPT), BEGAN_S + 1, None),
    "a starving job is due": (
        trial(KEPT, starved_s=BEGAN_S),
        BEGAN_S + 2,
        BEGAN_S + STARVED_S,
    ),
}


@pytest.mark.parametrize("case", DUE)
def test_time_alone_is_due_only_where_it_changes_something(case):
    of, now_s, expected = DUE[case]
    assert due_s(of, BEGAN_S, now_s, TRIAL_S) == expected


def test_a_probe_of_a_job_that_does_not_run_yet_is_looked_at_when_patience_would_end():
    ends_s = BEGAN_S + PATIENCE * TRIAL_S
    assert due_s(trial(), -1.0, BEGAN_S, TRIAL_S) == ends_s
    assert due_s(trial(), -1.0, ends_s, TRIAL_S) is None
    assert due_s(trial(KEPT), -1.0, BEGAN_S, TRIAL_S) is None


def test_a_trial_comes_back_from_its_mark():
    for each in (trial(), trial(KEPT, (3, 5), starved_s=2.5), trial(ALONE, ())):
        assert read(json.loads(json.dumps(each.mark()))) == each
    of_an_older_log = [0, 1, [3], BEGAN_S, 0.4, "kept", None, 2.5]
    assert read(of_an_older_log) == trial(KEPT, starved_s=2.5)
