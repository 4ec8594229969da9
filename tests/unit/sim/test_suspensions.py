"""Simulated jobs give their GPUs up as live ones of their kind do, whatever the policy plans."""

import pytest

from rota.model.cluster import parse_cluster
from rota.model.events import JobSuspended, NodeLost, joined
from rota.model.job import Suspension
from rota.policy.registry import BUILT_IN, create, policy_class
from rota.sim.machine import restarts
from rota.sim.simulation import Simulation
from rota.testing.builders import job
from rota.workload.synthetic import generate
from rota.workload.trace import Trace

PLAIN, RESTART = Suspension.PROCESS, Suspension.RESTART
# Others change the sizes of jobs, which needs jobs that can be resized.
PREEMPTIVE = [
    name
    for name in BUILT_IN
    if policy_class(name).preemptive and name not in ("optimus", "optimus-oracle", "pollux")
]


def run(trace, cluster, policy, restart_s=30.0):
    simulation = Simulation(trace, parse_cluster(cluster), create(policy), restarts(restart_s))
    simulation.state.log = []
    simulation.run()
    return simulation.state


def two_long_jobs(kind):
    return Trace([job(name, lasts=20_000.0)._replace(suspension=kind) for name in ("a", "b")])


@pytest.mark.parametrize("policy", PREEMPTIVE)
def test_plain_jobs_keep_their_gpus_until_they_end(policy):
    trace = generate("philly", num_jobs=120, num_gpus=32, load=1.1, seed=1)
    state = run(trace.suspended_as(PLAIN), "8x4", policy)
    assert sum(state.preemptions) == 0
    assert min(state.finish_s) >= 0


def test_nobody_is_suspended_for_a_job_that_then_gets_no_gpus():
    """Also where the policy has been asked as often as it may, and its plan is cut."""
    trace = generate("philly", num_jobs=300, num_gpus=32, load=0.95, seed=1)
    assert sum(run(trace.suspended_as(PLAIN), "8x4", "srtf").preemptions) == 0


def test_plain_jobs_live_where_gpus_are_not_kept_by_others():
    """Where nobody takes turns, gandiva is about as good as any order of arrival with backfill."""
    trace = generate("philly", num_jobs=300, num_gpus=32, load=0.95, seed=1).suspended_as(PLAIN)
    spent = {}
    for policy in ("fifo-backfill", "gandiva"):
        state = run(trace, "8x4", policy)
        spent[policy] = sum(state.finish_s) - sum(spec.submit_s for spec in state.spec)
    assert spent["gandiva"] < 1.1 * spent["fifo-backfill"]


def test_turns_of_jobs_that_restart_double_up_to_an_hour():
    state = run(two_long_jobs(RESTART), "1x1", "gandiva")
    ends = [event.at_s for event in state.log if isinstance(event, JobSuspended)]
    turns = [later - sooner for sooner, later in zip([0.0, *ends], ends, strict=False)]
    first = [60.0, 120.0, 240.0, 480.0, 960.0, 1920.0]
    # A turn ends with a quantum; both jobs have each length once.
    wanted = [turn for turn in first for _ in range(2)]
    assert turns[: len(wanted)] == pytest.approx(wanted, abs=60.0)
    assert max(turns) <= 3660.0
    assert sum(state.preemptions) < 30


def test_jobs_of_which_nothing_is_known_change_with_each_quantum():
    state = run(two_long_jobs(Suspension.UNKNOWN), "1x1", "gandiva", 0.0)
    assert sum(state.preemptions) == 40_000 // 60


def test_a_user_whose_jobs_are_larger_than_what_others_leave_waits_in_line():
    """The policy decides as if jobs that keep their GPUs were not there, nor these GPUs."""
    told = [("ada", 0, 8, 18_600), ("bo", 600, 4, 34_200), ("ada", 1800, 1, 130)]
    told += [("cy", 2100, 4, 4800), ("bo", 2400, 4, 14_400), ("ada", 3600, 8, 1500)]
    told += [("dee", 3900, 2, 720), ("dee", 4800, 2, 2400), ("bo", 7200, 1, 480)]
    jobs = [
        job(n, gpus, at=at, lasts=lasts)._replace(user=user)
        for n, (user, at, gpus, lasts) in enumerate(told)
    ]
    state = run(Trace(jobs).suspended_as(PLAIN), "2x8", "gandiva", 0.0)
    assert min(state.finish_s) > 0
    assert sum(state.preemptions) == 0


def test_jobs_of_a_log_are_plain_and_others_restart_unless_told_otherwise():
    jobs = [job("a", 1), job("b", 1)._replace(suspension=Suspension.BOUNDARY)]
    own, log = Trace(jobs), Trace(jobs, is_log=True)
    assert [spec.suspension for spec in own.suspended_as(None)] == [RESTART, Suspension.BOUNDARY]
    assert [spec.suspension for spec in log.suspended_as(None)] == [PLAIN, Suspension.BOUNDARY]
    assert {spec.suspension for spec in log.suspended_as(RESTART)} == {RESTART}


def test_a_job_that_a_fault_ended_is_suspended_as_before():
    trace = two_long_jobs(PLAIN)
    simulation = Simulation(trace, parse_cluster("1x1"), create("gandiva"), restarts(0.0))
    while not any(simulation.state.held):
        simulation.step()
    now_s, node = simulation.engine.now_s, simulation.state.nodes[0]
    simulation.state.apply(NodeLost(now_s, node.name))
    simulation.state.apply(joined(now_s, node))
    simulation.run()
    assert sum(simulation.state.preemptions) == 0
    assert set(simulation.state.suspension) == {PLAIN}
