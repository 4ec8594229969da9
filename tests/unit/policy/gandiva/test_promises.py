from math import exp

import pytest

from rota.model.cluster import parse_cluster
from rota.model.job import Suspension
from rota.model.reason import Reason
from rota.model.sweep import Sweep, SweepTrial
from rota.model.view import View
from rota.policy.gandiva import promises as sweeps
from rota.policy.gandiva.promises import shares
from rota.policy.registry import create
from rota.sim.machine import FREE
from rota.sim.simulation import Simulation
from rota.testing.builders import job
from rota.workload.trace import Trace

REPORTS, REPORT_S = 32, 600.0
ACCURACY = Sweep("search", "val_acc")


def trials(number, sweep=ACCURACY, **more):
    """The trials of a search, which all come at once."""
    return [
        job(i, lasts=REPORTS * REPORT_S, trial=SweepTrial(sweep, i), **more) for i in range(number)
    ]


def rising(end, steep=0.3):
    return [0.1 + (end - 0.1) * (1 - exp(-steep * n)) for n in range(1, REPORTS + 1)]


def playing(jobs, curves, cluster="1x2", **settings):
    """A simulation in which these jobs' metrics take these courses."""
    named = {each.job_id: curve for each, curve in zip(jobs, curves, strict=False)}
    policy = create("gandiva", settings)
    return Simulation(Trace(jobs), parse_cluster(cluster), policy, FREE, curves=named)


def until(sim, at_s):
    """Let everything happen up to a time; the run time of each job."""
    state = sim.state
    while min(t for t in (sim.engine.next_time_s(), state.wake_at_s) if t is not None) <= at_s:
        sim.step()
    return [state.service(row, at_s) for row in range(len(state.spec))]


def test_every_trial_has_an_early_look_and_the_promising_one_the_time():
    ends = [0.4, 0.3, 0.9, 0.2, 0.5, 0.35]
    sim = playing(trials(6), [rising(end) for end in ends])
    had = until(sim, 16 * REPORT_S)
    assert min(had) >= REPORT_S
    assert max(had) == had[2]
    assert had[2] >= 10 * REPORT_S


def test_the_search_finds_the_best_sooner_than_by_running_one_after_another():
    curves = [rising(0.4)] * 9 + [rising(0.9)]
    sim = playing(trials(10), curves)
    had = until(sim, 30 * REPORT_S)
    assert curves[9][int(had[9] / REPORT_S) - 1] > 0.8
    # First in, first out it would not even have begun by then.
    assert 30 * REPORT_S < 4 * REPORTS * REPORT_S


def test_of_a_loss_less_is_better():
    loss = Sweep("search", "val_loss", maximize=False)
    curves = [[1 - value for value in rising(end)] for end in (0.3, 0.9, 0.3, 0.3)]
    had = until(playing(trials(4, loss), curves, "1x2"), 20 * REPORT_S)
    assert max(had) == had[1]


def test_those_behind_wait_and_say_why():
    sim = playing(trials(6), [rising(end) for end in (0.9, 0.85, 0.1, 0.1, 0.1, 0.1)])
    until(sim, 12 * REPORT_S)
    reasons = [sim.state.reason[row] for row in range(6)]
    assert reasons.count(Reason.TRIAL_BEHIND) == 4
    assert reasons[0] == reasons[1] == Reason.NONE


def test_a_search_of_a_hundred_trials_leaves_a_single_job_its_turn():
    single = job("other", lasts=3600.0, user="other")
    jobs = [*trials(100), single]
    sim = playing(jobs, [rising(0.5)] * 100, "1x2")
    until(sim, 3600.0 + 60.0)
    row = next(row for row, spec in enumerate(sim.state.spec) if spec.job_id == "other")
    assert sim.state.finish_s[row] <= 3600.0 + 60.0


def test_a_search_has_the_share_of_one_job_whatever_the_number_of_its_trials():
    others = [job(f"other-{i}", lasts=1e6) for i in range(4)]
    jobs = [*trials(40), *others]
    sim = playing(jobs, [rising(0.5)] * 40, "1x4", pack="off")
    had = until(sim, 600 * 60.0)
    assert len(sim.state.spec) == 44
    ours = sum(s for s, spec in zip(had, sim.state.spec, strict=True) if spec.trial is not None)
    # One of five shares of four GPUs, less what parts are rounded down by.
    assert ours / sum(had) == pytest.approx(0.2, abs=0.1)


def test_a_larger_priority_is_a_larger_share_of_the_whole_search():
    others = [job(f"other-{i}", lasts=1e6) for i in range(4)]
    had = {}
    for priority in (25, 100):
        jobs = [*trials(20, priority=priority), *others]
        sim = playing(jobs, [rising(0.5)] * 20, "1x4", pack="off")
        ran = until(sim, 600 * 60.0)
        spec = sim.state.spec
        had[priority] = sum(s for s, each in zip(ran, spec, strict=True) if each.trial is not None)
    assert had[100] > 1.5 * had[25]


def test_a_trial_that_tells_nothing_for_long_comes_last():
    curves = [[], rising(0.4), rising(0.5), rising(0.45)]
    had = until(playing(trials(4), curves, "1x1"), 40 * REPORT_S)
    assert had[0] <= 3600.0 + 2 * REPORT_S


def test_parts_are_of_those_that_promise_most_and_come_to_one():
    jobs = trials(6, ACCURACY._replace(reports=REPORTS))
    sim = playing(jobs, [rising(end) for end in (0.9, 0.8, 0.4, 0.1, 0.1, 0.1)])
    until(sim, 12 * REPORT_S)
    parts = shares(View(sim.state, 12 * REPORT_S, sim.policy), range(6), 3)
    assert sum(part > 0 for part in parts.values()) == 3
    assert parts[0] > parts[2]
    assert 0.8 <= sum(parts.values()) <= 1.001


def test_a_search_alone_keeps_every_gpu_at_work():
    jobs = trials(12)
    sim = playing(jobs, [rising(0.3 + 0.05 * i) for i in range(12)], "1x4")
    had = until(sim, 20 * REPORT_S)
    assert sum(had) == pytest.approx(4 * 20 * REPORT_S, rel=0.001)
    assert all(each >= 0 for each in sim.run().state.finish_s)  # and all end at last


@pytest.mark.parametrize("restarts", [False, True])
def test_a_trial_that_would_lose_its_work_has_its_turn_to_the_end(restarts):
    sim = playing(trials(2), [[0.1] * REPORTS, rising(0.9)], "1x1")
    sim.step()
    if restarts:  # after so many suspensions a turn lasts half an hour
        sim.state.suspension[0], sim.state.preemptions[0] = Suspension.RESTART, 5
    had = until(sim, 1500.0)
    assert had[0] == (1500.0 if restarts else REPORT_S)


def test_a_search_that_is_over_is_asked_nothing():
    jobs = trials(2)
    sim = playing(jobs, [rising(0.5)] * 2)
    state = sim.run().state
    assert shares(View(state, sim.engine.now_s, sim.policy), range(2), 2) == {}


def test_only_of_curves_that_have_grown_a_shape_is_made(monkeypatch):
    made, shape = [], sweeps.Shape
    monkeypatch.setattr(sweeps, "Shape", lambda curve: made.append(len(curve)) or shape(curve))
    sim = playing(trials(4), [rising(end) for end in (0.9, 0.8, 0.7, 0.6)], "1x4")
    at_s = 4.5 * REPORT_S
    until(sim, at_s)
    before = shares(View(sim.state, at_s, sim.policy), range(4), 4)
    made.clear()
    assert shares(View(sim.state, at_s, sim.policy), range(4), 4) == before
    assert made == []
    known = list(sim.state.curves.curve(2, at_s))
    monkeypatch.setitem(sim.state.curves._told, 2, [*known[:-1], 0.95])
    after = shares(View(sim.state, at_s, sim.policy), range(4), 4)
    assert made == [len(known)] and max(after, key=after.get) == 2
