"""Under Gandiva, jobs that lose work with each suspension have turns that are long enough."""

import pytest

from rota.model.job import JobState, Suspension
from rota.policy.registry import create
from rota.sim.machine import Costs
from rota.testing.builders import job, simulation

DAY = 86400.0
RESTART = Costs(suspend_s=10.0, resume_s=2.0, migrate_s=2.0, cold_start_s=2.0)


def ends(jobs, until_s, cluster="1x1", begins_anew=None, **settings):
    """The simulation after ``until_s``: rows that begin anew lose all work when they are stopped.

    All do, by default.
    """
    sim = simulation(jobs, create("gandiva", settings), cluster, RESTART)
    rows = range(len(jobs)) if begins_anew is None else begins_anew
    while sim.engine.now_s < until_s and sim.step():
        state = sim.state
        for row in rows:
            if row < len(state.spec):
                state.suspension[row] = Suspension.RESTART
                if state.state[row] == JobState.SUSPENDED:
                    state.lag_s[row] = state.service_s[row]
        state.validate()
    return sim


def test_jobs_that_are_complete_before_they_write_a_checkpoint_do_not_begin_for_ever():
    """Of 180 s of work a turn of a minute or two leaves nothing; they come to be long enough."""
    state = ends([job(0, lasts=180), job(1, lasts=180)], 3600.0).state
    assert min(state.finish_s) > 0
    assert max(state.finish_s) < 1000.0
    assert max(state.preemptions) <= 2


@pytest.mark.parametrize("lasts", [200.0, 1000.0, 3000.0])
def test_turns_double_until_the_job_is_complete(lasts):
    state = ends([job(0, lasts=lasts), job(1, lasts=DAY)], 12 * 3600.0, begins_anew=[0]).state
    assert 0 < state.finish_s[0] < 10 * lasts
    assert state.preemptions[0] <= 6


def test_turns_are_not_longer_than_the_setting_says():
    jobs = [job(0, lasts=1000), job(1, lasts=DAY)]
    state = ends(jobs, 12 * 3600.0, begins_anew=[0], restart_turn_s="240").state
    assert state.finish_s[0] < 0
    assert state.service(0, 12 * 3600.0) / state.preemptions[0] < 300.0


def test_who_takes_turns_with_a_job_whose_turns_are_long_has_as_much_time_as_that():
    sim = ends([job(0, lasts=DAY), job(1, lasts=DAY)], 6 * 3600.0, begins_anew=[0])
    times = [sim.state.service(row, 6 * 3600.0) for row in (0, 1)]
    assert times == pytest.approx([3 * 3600.0] * 2, abs=3600.0)


def test_jobs_that_lose_nothing_keep_to_the_quantum():
    sim = ends([job(0, lasts=DAY), job(1, lasts=DAY)], 6 * 3600.0, begins_anew=[])
    assert min(sim.state.preemptions) > 80  # of 360 quanta, less what suspensions take


def test_a_gang_does_not_cut_short_the_turn_of_a_single_job_that_would_lose_its_work():
    """Three single jobs and a gang of two on four GPUs: one of the three would make way for it."""
    jobs = [job("wide", 2, lasts=DAY), *(job(f"x{i}", lasts=200.0) for i in range(3))]
    state = ends(jobs, 3600.0, "1x4", begins_anew=[1, 2, 3]).state
    assert min(state.finish_s[1:]) > 0
    assert max(state.preemptions[1:]) <= 2
