"""The figures of two jobs on one node, from the times of their steps; and no Slurm."""

import os
from pathlib import Path

import pytest

from rota.errors import InputError
from rota.experiment.engines_timeslice import Pair, figures_of, run

STEP_S = 0.1
STEPS = 200
ALONE = Pair(
    [STEP_S * step for step in range(STEPS)], [30.0 + STEP_S * step for step in range(STEPS)]
)


def turns(lost_s: float = 0.0) -> Pair:
    """Two jobs that take turns of a second, each turn ``lost_s`` late."""
    times: tuple[list[float], list[float]] = ([], [])
    for turn in range(2 * STEPS):
        done = times[turn % 2]
        done += [turn + lost_s + STEP_S * step for step in range(round((1 - lost_s) / STEP_S))]
    return Pair(times[0][:STEPS], times[1][:STEPS])


def test_turns_are_held_against_jobs_one_after_the_other():
    figures = figures_of([ALONE], [turns()])
    assert all(figure.ok for figure in figures), figures
    assert [figure.judged for figure in figures] == [True, False, True, False, True, True]
    share, wait, sooner, early, *_, full = figures
    assert (share.baseline, share.ours) == (0.0, pytest.approx(0.95))
    assert (wait.baseline, wait.ours) == (30.0, 1.0)
    assert sooner.ours == 30.0
    assert early.baseline == pytest.approx(39.9)
    assert early.ours == pytest.approx(19.9)
    assert full.ours == pytest.approx(1.0, rel=0.01)


def test_a_job_that_waits_until_the_other_has_ended_does_not_hold():
    figures = [figure for figure in figures_of([ALONE], [ALONE]) if figure.judged]
    assert not any(figure.ok for figure in figures[:3])


def test_turns_that_lose_a_fifth_of_the_time_do_not_hold():
    *_, full = figures_of([ALONE], [turns(lost_s=0.2)])
    assert full.ours == pytest.approx(0.8, rel=0.02)
    assert not full.ok


def test_without_slurm_it_says_where_to_run(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(InputError, match=r"there is no Slurm: .*run it where Slurm's commands are"):
        run()


@pytest.mark.parametrize(
    ("says", "told"),
    [
        ("echo 'n1|gpu|(null)|'", "no idle node with GPUs of partition gpu; `sinfo -N"),
        ("", "no idle node with GPUs of partition gpu; .* give another --partition"),
        ("echo down >&2; exit 1", "Slurm does not answer: down; try again when `sinfo` does"),
    ],
    ids=["no GPUs", "no idle node", "no answer"],
)
def test_without_a_node_it_says_what_is_missing(
    says: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = tmp_path / "sinfo"
    command.write_text(f"#!/bin/sh\n{says}\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    with pytest.raises(InputError, match=told):
        run(partition="gpu")
