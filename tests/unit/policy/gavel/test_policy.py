from itertools import pairwise

import pytest

from rota.errors import PolicySettingError, SimulationError
from rota.model.cluster import parse_cluster
from rota.model.events import JobFinished, ResumeRequested, SuspendRequested
from rota.model.job import JobState
from rota.model.reason import Reason
from rota.policy.gavel.policy import FinishTimeFairness, MaxMinFairness
from rota.policy.gavel.rounds import GpuTypes, Record
from rota.policy.ordering.fifo import FifoBackfill
from rota.policy.registry import create
from rota.sim.machine import FREE
from rota.sim.simulation import Simulation
from rota.sim.speeds import CatalogSpeeds
from rota.testing.builders import job, trace
from rota.testing.policy_contract import steps
from support.driven import DrivenCluster

BOTH_TYPES = "1x1:v100,1x1:k80"
TWICE = (("v100", 1.0), ("k80", 0.5))
HARDLY = (("v100", 1.0), ("k80", 0.05))
ONLY_V100 = (("v100", 1.0), ("k80", 0.0))


def simulation(policy, *jobs, cluster="1x1"):
    nodes = parse_cluster(cluster)
    speeds = CatalogSpeeds(nodes, "v100")
    return Simulation(trace(*jobs), nodes, policy, FREE, speeds=speeds)


def times_by_type(sim):
    """Seconds that each job held GPUs of each type, over a whole simulation."""
    state, spent, before_s = sim.state, {}, 0.0
    held = {}
    for _ in steps(sim):
        for key in held.values():
            spent[key] = spent.get(key, 0.0) + sim.engine.now_s - before_s
        before_s, types = sim.engine.now_s, GpuTypes(state.nodes)
        held = {
            row: (state.spec[row].job_id, types.of(target))
            for row, target in enumerate(state.target)
            if target is not None
        }
    return spent


def test_equal_jobs_take_turns_of_one_round():
    sim = simulation(MaxMinFairness(round_s=10), job("a", lasts=20), job("b", lasts=20))
    state = sim.run().state
    assert list(state.finish_s) == [30.0, 40.0]
    assert list(state.preemptions) == [1, 1]


def test_priorities_are_weights():
    jobs = job("a", lasts=1000, priority=25), job("b", lasts=1000, priority=75)
    sim = simulation(MaxMinFairness(round_s=10), *jobs)
    while sim.engine.now_s < 800:
        sim.step()
    state = sim.state
    assert state.service(0, 800.0) == pytest.approx(200, abs=20)
    assert state.service(1, 800.0) == pytest.approx(600, abs=20)


def test_the_job_that_gains_most_gets_the_fast_type_for_longer():
    jobs = job("a", lasts=2000, speeds=HARDLY), job("b", lasts=2000)
    sim = simulation(MaxMinFairness(round_s=10, fill_idle="no"), *jobs, cluster=BOTH_TYPES)
    while sim.engine.now_s < 1000:
        sim.step()
    assert sim.state.work(0, 1000.0) > 500
    agnostic = MaxMinFairness("agnostic", round_s=10, fill_idle="no")
    sim = simulation(agnostic, *jobs, cluster=BOTH_TYPES)
    while sim.engine.now_s < 1000:
        sim.step()
    assert sim.state.work(0, 1000.0) == pytest.approx(525, abs=25)


def test_a_job_never_runs_on_a_type_on_which_it_can_not():
    jobs = [job(i, lasts=50, speeds=ONLY_V100) for i in range(3)]
    spent = times_by_type(simulation(MaxMinFairness(round_s=10), *jobs, cluster=BOTH_TYPES))
    assert {kind for _, kind in spent} == {"v100"}


def test_a_policy_that_puts_a_job_where_it_can_not_run_is_told_so():
    jobs = [job(i, lasts=50, speeds=ONLY_V100) for i in range(2)]
    with pytest.raises(SimulationError, match="job 1 on k80 GPUs"):
        simulation(FifoBackfill(), *jobs, cluster=BOTH_TYPES).run()


@pytest.mark.parametrize("heterogeneity", ["aware", "agnostic"])
def test_a_gang_runs_on_one_type_at_a_time(heterogeneity):
    jobs = [job(i, 2, lasts=35, speeds=TWICE) for i in range(4)]
    policy = MaxMinFairness(heterogeneity, round_s=10)
    spent = times_by_type(simulation(policy, *jobs, cluster="2x2:v100,3x1:k80"))
    assert {kind for _, kind in spent} == {"v100", "k80"}


def test_a_gang_larger_than_any_type_never_fits_and_stops_nobody():
    sim = simulation(MaxMinFairness(), job("large", 3), job("small", 1), cluster="1x2:a,1x2:b")
    with pytest.raises(SimulationError, match="NEVER_FITS"):
        sim.run()
    assert sim.state.finish_s[1] == 60.0


def test_gpus_that_fall_idle_in_a_round_are_given_out_at_once_or_wait():
    jobs = job("a", lasts=5), job("b", lasts=100), job("c", lasts=20)
    filled = simulation(MaxMinFairness(round_s=50), *jobs, cluster="1x2").run().state
    assert filled.finish_s[2] == 25.0
    waits = simulation(MaxMinFairness(round_s=50, fill_idle="no"), *jobs, cluster="1x2")
    assert waits.run().state.finish_s[2] == 70.0


def test_a_job_that_arrives_in_a_round_waits_for_its_turn_unless_gpus_are_free():
    policy = MaxMinFairness(round_s=50, fill_idle="no")
    sim = simulation(policy, job("a", lasts=200), job("b", at=10, lasts=20))
    sim.step()
    sim.step()
    assert sim.engine.now_s == 10.0
    assert sim.state.reason[1] == Reason.SLICE_WAITING_TURN
    assert sim.state.target[0] is not None


def test_a_round_ends_early_when_nothing_runs_any_more():
    policy = MaxMinFairness(round_s=50, fill_idle="no")
    state = simulation(policy, job("a", lasts=5), job("b", lasts=20)).run().state
    assert list(state.finish_s) == [5.0, 25.0]


def test_nobody_is_preempted_when_all_jobs_fit_on_one_type():
    sim = simulation(MaxMinFairness(round_s=10), job("a", 2, lasts=95), job("b", 2), cluster="2x2")
    result = sim.run()
    assert sum(result.state.preemptions) == 0
    assert result.decisions <= 4


def test_new_jobs_have_no_share_before_shares_are_found_anew():
    jobs = job("a", lasts=500), job("b", at=15, lasts=500)
    sim = simulation(MaxMinFairness(round_s=10, solve_every_s=100, fill_idle="no"), *jobs)
    while sim.engine.now_s < 90:
        sim.step()
    assert sim.state.first_start_s[1] < 0
    while sim.engine.now_s < 130:
        sim.step()
    assert sim.state.first_start_s[1] == 115.0


def test_marks_change_with_shares_and_types_and_not_with_time():
    sim = simulation(MaxMinFairness(round_s=10), *(job(i, lasts=100) for i in range(3)))
    marks = []
    for _ in steps(sim):
        marks.append(list(sim.state.marks))
    changes = sum(before != after for before, after in pairwise(marks))
    # One when each of three first runs, and one at each end; some thirty rounds go by.
    assert changes <= 6


def test_finish_time_fairness_gives_a_short_job_no_less_than_its_third():
    jobs = job(0, lasts=1000), job(1, lasts=1000), job("2", at=500, lasts=50)
    state = simulation(FinishTimeFairness(round_s=10), *jobs).run().state
    assert state.finish_s[2] - state.submit_s[2] < 3.2 * 50


def test_finish_time_fairness_is_an_oracle_and_max_min_is_none():
    assert FinishTimeFairness.needs_duration
    assert not getattr(MaxMinFairness, "needs_duration", False)


def stopped_across_types(policy):
    """A job whose processes were stopped on a V100 and a K80, and another that waits."""
    cluster = DrivenCluster(job("stopped", 2), job("waits"), cluster="2x1")
    cluster.state.nodes[:] = cluster.state.offered[:] = parse_cluster(BOTH_TYPES)
    cluster.settle()
    cluster.happens(SuspendRequested, 0)
    for command in cluster.send():
        cluster.confirm(command)
    cluster.state.movable[0] = False
    cluster.happens(ResumeRequested, 0)
    cluster.policy = policy
    return cluster


@pytest.mark.parametrize("kind", [MaxMinFairness, FinishTimeFairness])
def test_a_job_that_was_stopped_across_types_goes_on_there_to_its_end(kind):
    cluster = stopped_across_types(kind(round_s=10))
    for _ in range(3):
        cluster.settle()
        cluster.state.validate()
        cluster.passes(10.0)
    assert cluster.state.held[0].nodes() == (0, 1)
    cluster.happens(JobFinished, 0, JobState.SUCCEEDED)
    cluster.settle()
    assert cluster.state.held[1] is not None


@pytest.mark.parametrize("name", ["max-min-fairness", "finish-time-fairness"])
def test_settings_are_checked(name):
    assert create(name, {"fill_idle": "no", "heterogeneity": "agnostic"})
    with pytest.raises(PolicySettingError, match="it must be one of aware, agnostic"):
        create(name, {"heterogeneity": "blind"})
    with pytest.raises(PolicySettingError, match="round_s='0'"):
        create(name, {"round_s": "0"})


class TestRecord:
    def test_time_counts_for_the_type_that_the_job_runs_on(self):
        record = Record(None)
        record.run_on("v100", 0.0)
        record.run_on("k80", 70.0)
        assert record.received_s("v100", 100.0) == 70.0
        assert record.received_s("k80", 100.0) == 30.0

    def test_what_a_share_left_open_is_owed(self):
        record = Record({"share": {"v100": 0.5}, "solved_s": 0.0})
        record.run_on("v100", 0.0)
        record.renew({"v100": 1.0}, now_s=100.0, attained_s=20.0, since_s=0.0)
        assert record.owed_s == {"v100": 30.0}
        assert record.received_s("v100", 25.0) == 5.0

    def test_a_share_that_was_not_the_last_is_owed_nothing(self):
        record = Record({"share": {"v100": 0.5}, "solved_s": 0.0})
        record.renew({}, now_s=100.0, attained_s=0.0, since_s=50.0)
        assert record.owed_s == {"v100": 0.0}

    def test_it_survives_its_mark(self):
        record = Record({"share": {"v100": 0.5}, "on": "k80", "at_s": 3.0, "more": {"x": 1.0}})
        assert Record(record.mark()).mark() == record.mark()
