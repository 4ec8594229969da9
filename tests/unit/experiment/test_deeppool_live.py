"""The figures of a training by layer beside background jobs, from what was seen of both."""

import os

import pytest

from rota.errors import SimulationError
from rota.experiment import deeppool_live
from rota.experiment.deeppool_live import (
    ALONE,
    BACKGROUND,
    FAIR,
    LOOSE,
    MOST_DELAY,
    MOST_OTHERS,
    TURNS,
    Course,
    Span,
    compared,
    figures_of,
    is_disturbed,
)
from rota.experiment.runs.cores import Used, busy_s, cores_of, used

QUIET = Span([0.04] * 100, Used(1.5, 0.01), Used(0.0, 0.0), 0.01)
FILLED = Span([0.042] * 90 + [0.05] * 10, Used(1.45, 0.4), Used(0.45, 0.2), 0.01)
RUINED = Span([0.08] * 50, Used(1.0, 0.9), Used(1.0, 0.9), 0.01)


def course(beside=FILLED, repeats=5, rejected=0):
    repeat = {ALONE: QUIET, BACKGROUND: beside} | dict.fromkeys(LOOSE, RUINED)
    return Course([repeat] * repeats, rejected, {ALONE: QUIET, TURNS: RUINED})


def figures(*args, **more):
    return {figure.name: figure for figure in figures_of(course(*args, **more))}


def test_steps_are_held_against_those_alone_and_harvest_against_what_was_left():
    step, late, harvest = compared(QUIET, FILLED)
    assert step == pytest.approx(0.0428 / 0.04)
    assert late == pytest.approx(0.05 / 0.04)
    assert harvest == pytest.approx(0.45 / 0.5)
    found = figures()
    assert found[f"{BACKGROUND}: step over alone"].ok
    assert found[f"{BACKGROUND}: harvest of the CPU time left"].ours == pytest.approx(0.9)
    assert found["CPU time that it leaves of the slots"].ours == pytest.approx(0.25)
    assert (found[f"{FAIR}: step over alone"].ours, found[f"{TURNS}: step over alone"].ours) == (
        pytest.approx(2.0),
        pytest.approx(2.0),
    )


@pytest.mark.parametrize(
    ("beside", "fails"),
    [
        (FILLED._replace(steps_s=[0.045] * 100), "step over alone"),
        (FILLED._replace(back=Used(0.39, 0.0)), "harvest of the CPU time left"),
    ],
    ids=["a slowed foreground", "an idle background"],
)
def test_both_bounds_are_those_of_background_jobs_alone(beside, fails):
    bad = [figure.name for figure in figures(beside).values() if not figure.ok]
    assert bad == [f"{BACKGROUND}: {fails}"]


def test_too_few_repeats_do_not_hold():
    found = figures(repeats=2, rejected=7)
    assert [figure.name for figure in found.values() if not figure.ok] == ["repeats that count"]
    assert found["repeats that others disturbed"].ours == 7


def test_others_disturb_a_repeat_and_the_background_does_not():
    busy = FILLED._replace(others=2 * MOST_OTHERS)
    waited = QUIET._replace(front=Used(1.5, 3 * MOST_DELAY))
    assert FILLED.front.delay_s > MOST_DELAY * FILLED.front.cpu_s
    assert not is_disturbed(QUIET)
    assert not is_disturbed(QUIET, FILLED)
    assert is_disturbed(QUIET, busy)
    assert is_disturbed(waited)
    assert is_disturbed(QUIET._replace(others=2 * MOST_OTHERS), FILLED)


def test_without_a_repeat_that_counts_there_are_no_figures(monkeypatch):
    monkeypatch.setattr(deeppool_live, "measured", lambda folder: course(repeats=0, rejected=9))
    with pytest.raises(SimulationError, match="all of 9 repeats"):
        deeppool_live.run()


def test_the_settings_tell_what_counts_as_disturbed(monkeypatch):
    monkeypatch.setattr(deeppool_live, "measured", lambda folder: course())
    outcome = deeppool_live.run()
    assert outcome.holds
    assert outcome.settings["disturbed beyond: others, run delay"] == [MOST_OTHERS, MOST_DELAY]


def test_the_kernel_tells_of_this_process_and_of_its_cores():
    own, gone = os.getpid(), 2**22 + 1
    cores = cores_of([own])
    before, busy_before_s = used([own, gone]), busy_s(cores)
    while used([own]).cpu_s < before.cpu_s + 0.1:
        pass
    assert busy_s(cores) >= busy_before_s + 0.05
    assert used([gone]) == Used(0.0, 0.0)
    assert busy_s([]) == 0.0
