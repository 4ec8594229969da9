"""Figures that two independent implementations agree on."""

import pytest

from rota.policy.registry import create
from rota.report.metrics import summarise
from rota.sim.machine import FREE
from rota.testing.builders import run, toy_trio, twenty_jobs

KEYS = ("avg_jct_s", "median_jct_s", "p95_jct_s", "makespan_s", "avg_queue_s", "preemptions")
LAS = {"promote_knob": "0"}


def figures(name, settings, costs=FREE):
    state, decisions = run(twenty_jobs(), create(name, settings), "1x8", costs)
    state.validate()
    summary = summarise(state, decisions=decisions, policy=name)
    return tuple(summary[key] for key in KEYS)


@pytest.mark.parametrize(
    ("name", "settings", "expected"),
    [
        ("fifo", {}, (2082.0, 2055, 3630, 4350, 1668.0, 0)),
        ("fifo-backfill", {}, (1074.0, 660, 2850, 3660, 660.0, 0)),
        ("smallest-first", {}, (1150.5, 660, 3030, 3840, 736.5, 2)),
        ("srtf", {}, (1033.5, 690, 2670, 3900, 619.5, 13)),
        ("srsf", {}, (985.5, 630, 2370, 3630, 571.5, 5)),
        ("tiresias", LAS | {"thresholds": "600"}, (1254.0, 1080, 2925, 3660, 840.0, 13)),
        ("tiresias", LAS | {"thresholds": "600,1800"}, (1302.0, 1080, 3120, 3660, 888.0, 18)),
    ],
    ids=[
        "fifo",
        "fifo with backfill",
        "sf",
        "srtf",
        "srsf",
        "2d-las at 600",
        "2d-las at 600 and 1800",
    ],
)
def test_twenty_jobs_on_eight_gpus(name, settings, expected):
    assert figures(name, settings) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("within", ["entry", "first-start"])
def test_twenty_jobs_with_a_minute_charged_at_each_resume(within):
    # Queueing excludes the charges: 15 preemptions x 60 s / 20 jobs = 45 s less than the 994.5 s
    # of an implementation that counts them in.
    expected = (1408.5, 1455, 3345, 4140, 949.5, 15)
    settings = LAS | {"thresholds": "600", "within": within, "min_run_time_s": "0"}
    assert figures("tiresias", settings, FREE._replace(resume_s=60.0)) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("name", "settings", "completions"),
    [
        ("srsf", {}, [2.0, 10.0, 16.0]),
        ("las", {"quantum_s": "1"}, [5.0, 14.0, 16.0]),
        ("srtf", {}, [2.0, 16.0, 8.0]),
        ("smallest-first", {}, [10.0, 8.0, 16.0]),
        ("tiresias", LAS | {"thresholds": "4"}, [2.0, 12.0, 16.0]),
        ("tiresias", LAS | {"thresholds": "8"}, [2.0, 10.0, 16.0]),
        ("tiresias", LAS | {"thresholds": ""}, [2.0, 10.0, 16.0]),
    ],
    ids=["srsf", "las", "srtf", "sf", "2d-las at 4", "2d-las at 8", "2d-las with one queue"],
)
def test_the_toy_trio_completes_as_worked_out_by_hand(name, settings, completions):
    state, _ = run(toy_trio(), create(name, settings), "1x2")
    assert list(state.finish_s) == completions


def test_thresholds_that_no_job_reaches_make_tiresias_fifo_with_backfill():
    settings = {"thresholds": "1000000"}
    tiresias, _ = run(twenty_jobs(), create("tiresias", settings), "1x8")
    backfill, _ = run(twenty_jobs(), create("fifo-backfill"), "1x8")
    assert tiresias.finish_s == backfill.finish_s


@pytest.mark.parametrize(
    ("minutes_before", "minutes", "ratio"),
    [(134.1, 134.1, 1.0), (2489.1, 543.1, 4.583), (5296.7, 935.4, 5.662)],
)
def test_the_published_minutes_of_the_search_for_configurations(minutes_before, minutes, ratio):
    """Gandiva (OSDI 2018), until a configuration of more than 70, 80 and 90 % accuracy.

    For 80 % the slides print a speed-up of 5.25, which their own minutes do not give.
    """
    assert minutes_before / minutes == pytest.approx(ratio, abs=5e-4)
    assert minutes_before / minutes != pytest.approx(5.25, abs=0.3)
