from itertools import islice, pairwise

import pytest

from rota.errors import InputError, SimulationError
from rota.model.cluster import parse_cluster
from rota.model.commands import Launch
from rota.model.decide.departures import VACATE_S, closing_times
from rota.model.events import (
    AttemptLost,
    CommandSent,
    JobParked,
    JobSuspended,
    NodeClosed,
    NodeDeadlineChanged,
    NodeJoined,
    NodeLost,
    SpeedChanged,
)
from rota.policy.gandiva.policy import Gandiva
from rota.policy.ordering.fifo import Fifo, FifoBackfill
from rota.policy.ordering.shortest import ShortestRemaining
from rota.policy.registry import create
from rota.sim.faults import Fault, Faults, What, checkpointed_s
from rota.sim.machine import FREE, Costs
from rota.sim.simulation import Simulation
from rota.testing.builders import job, random_trace, trace

COSTS = Costs(suspend_s=1.0, resume_s=2.0, migrate_s=4.0, cold_start_s=8.0)
DOWN = Faults(mtbf_s=500.0, mttr_s=100.0, worker_mtbf_s=3000.0, checkpoint_s=50.0, seed=7)


def simulation(jobs, faults, cluster="1x4", policy=None, costs=FREE, speeds=None):
    jobs = trace(*jobs)
    policy = policy or FifoBackfill()
    nodes = parse_cluster(cluster)
    sim = Simulation(jobs, nodes, policy, costs, speeds=speeds, faults=faults)
    sim.state.log = []
    return sim


def outcome(jobs, faults, *args, **more):
    return simulation(jobs, faults, *args, **more).run().state


def scripted(*faults, **more):
    return Faults(script=faults, **more)


def fails(at_s, node="node0", for_s=10.0):
    return Fault(at_s, What.FAIL, node, for_s)


def slow(at_s, for_s, speed=0.5, node="node0"):
    return Fault(at_s, What.SLOW, node, for_s, speed=speed)


def happened(state, kind):
    return [event for event in state.log if isinstance(event, kind)]


# -- node failures ---------------------------------------------------------------------------------


def test_without_checkpoints_a_job_on_a_failed_node_starts_from_nothing():
    state = outcome([job(lasts=100)], scripted(fails(60)))
    assert state.finish_s[0] == 60 + 10 + 100
    assert state.lost_s[0] == 60
    assert state.service_s[0] == 160
    assert state.attempt[0] == 2


def test_with_checkpoints_it_loses_what_it_did_since_the_last_one():
    state = outcome([job(lasts=100)], scripted(fails(60), checkpoint_s=25))
    assert state.lost_s[0] == 10
    assert state.finish_s[0] == 60 + 10 + 50


def test_checkpoints_are_multiples_of_all_work_whatever_attempt_did_it():
    faults = scripted(fails(60), fails(100), checkpoint_s=25)
    # 50 s are kept at 60; it goes on at 70, has 80 at 100, of which 75 are kept.
    state = outcome([job(lasts=100)], faults)
    assert state.lost_s[0] == 10 + 5
    assert state.finish_s[0] == 110 + 25


def test_a_restart_costs_a_cold_start():
    state = outcome([job(lasts=100)], scripted(fails(60), checkpoint_s=26), costs=COSTS)
    assert state.finish_s[0] == 60 + 10 + 8 + 100 - 52
    assert state.overhead_s[0] == 16


def test_a_job_that_finishes_when_its_node_fails_has_finished():
    state = outcome([job(lasts=60), job(1, lasts=70)], scripted(fails(60)))
    assert state.finish_s[0] == 60
    assert list(state.lost_s) == [0, 60]


def test_the_loss_is_told_before_the_node_is_lost():
    state = outcome([job(0, 2), job(1, 2), job(2, 4, at=1)], scripted(fails(30)), "1x4")
    kinds = [type(e) for e in happened(state, AttemptLost | NodeLost | NodeJoined)]
    assert kinds == [AttemptLost, AttemptLost, NodeLost, NodeJoined]


def test_a_gang_that_spans_nodes_is_lost_with_any_of_them():
    state = outcome([job(0, 8, lasts=100)], scripted(fails(40, "node1")), "2x4")
    assert state.lost_s[0] == 40
    assert state.finish_s[0] == 50 + 100


def test_what_a_suspended_job_left_on_a_node_is_lost_with_it():
    jobs = [job("long", 4, lasts=100), job("short", 4, at=30, lasts=50)]
    state = outcome(
        jobs, scripted(fails(40, for_s=1.0), checkpoint_s=20), policy=ShortestRemaining()
    )
    assert list(state.lost_s) == [10, 10]
    assert list(state.finish_s) == [41 + 50 + 80, 41 + 50]


def test_a_suspended_job_whose_state_lies_elsewhere_loses_nothing():
    jobs = [job("long", 4, lasts=100), job("short", 4, at=30, lasts=50)]
    faults = scripted(Fault(40.0, What.CRASH, "node0", gpu=2), checkpoint_s=20)
    state = outcome(jobs, faults, policy=ShortestRemaining())
    assert list(state.lost_s) == [0, 10]


def test_a_job_that_is_starting_loses_its_start_alone():
    state = outcome([job(lasts=100)], scripted(fails(5)), costs=COSTS)
    assert state.lost_s[0] == 0
    assert state.finish_s[0] == 5 + 10 + 8 + 100


def test_a_job_that_is_being_suspended_does_no_work_meanwhile():
    jobs = [job("long", 4, lasts=100), job("short", 4, at=30, lasts=50)]
    costs = COSTS._replace(suspend_s=4.0, cold_start_s=0.0)
    state = outcome(jobs, scripted(fails(32)), policy=ShortestRemaining(), costs=costs)
    assert list(state.lost_s) == [30, 0]
    assert state.service_s[0] == 130
    assert state.overhead_s[0] == 2
    assert [event.stopped_s for event in happened(state, JobSuspended)] == [30]


def test_a_job_that_is_resuming_loses_its_attempt_and_the_resumption_never_comes():
    jobs = [job("long", 4, lasts=100), job("short", 4, at=30, lasts=50)]
    costs = FREE._replace(resume_s=6.0)
    faults = scripted(fails(83), checkpoint_s=20)
    state = outcome(jobs, faults, policy=ShortestRemaining(), costs=costs)
    assert state.lost_s[0] == 10
    assert state.finish_s[0] == 83 + 10 + 80


@pytest.mark.parametrize("name", ["fifo", "gandiva", "max-min-fairness", "pollux", "tiresias"])
def test_a_node_that_is_known_to_fail_is_left_before_under_any_policy(name):
    """Without the notice each of its jobs would have lost its work."""
    jobs = [job(str(number), 2, lasts=2000) for number in range(2)]
    jobs += [job("late", 2, at=830, lasts=100)]
    policy = create(name)
    lost = Fault(1000.0, What.FAIL, "node0", notice_s=900.0)
    state = outcome(jobs, scripted(lost), cluster="1x4,1x6", policy=policy)
    assert max(state.lost_s) == 0
    closed = [(event.at_s, event.drains) for event in happened(state, NodeClosed)]
    last_turn_s, left_s = closing_times(1000.0, policy.turn_s)
    assert closed == [(last_turn_s, False), (left_s, True)]
    starts = [e.command for e in happened(state, CommandSent) if isinstance(e.command, Launch)]
    (late,) = [each for each in starts if state.spec[each.row].job_id == "late"]
    assert 0 not in late.allocation.nodes()
    unknown = outcome(
        jobs, scripted(lost._replace(notice_s=0.0)), cluster="1x4,1x6", policy=create(name)
    )
    assert max(unknown.lost_s) > 0


def test_a_suspended_job_that_gets_no_gpus_elsewhere_keeps_its_work_on_another_node():
    """Both nodes are full: the state of the one that has to leave waits on the other one."""
    jobs = [job("stays", 4, lasts=2000), job("leaves", 4, lasts=2000)]
    costs = FREE._replace(suspend_s=1.0, migrate_s=5.0, resume_s=2.0)
    lost = Fault(1000.0, What.FAIL, "node1", notice_s=900.0)
    state = outcome(jobs, scripted(lost), "2x4", costs=costs)
    (parked,) = happened(state, JobParked)
    left_s = 1000.0 - VACATE_S
    assert (parked.row, parked.at_s) == (1, left_s + 1.0 + 5.0)
    assert list(state.lost_s) == [0, 0]
    assert (state.attempt[1], state.migrations[1], state.restarts[1]) == (1, 1, 1)
    assert list(state.finish_s) == [2000, 2000 + 2.0 + 2000 - left_s]


def test_a_notice_after_the_last_job_is_none():
    lost = Fault(1000.0, What.FAIL, "node0", notice_s=500.0)
    assert not happened(outcome([job(lasts=100)], scripted(lost)), NodeDeadlineChanged)


def test_a_node_that_comes_back_takes_jobs_again():
    """Until the next failure is near, which was known before the first one."""
    faults = [Fault(at_s, What.FAIL, "node0", 10.0, notice_s=at_s) for at_s in (500.0, 1000.0)]
    state = outcome([job(lasts=300), job(at=600, lasts=100), job(at=850)], scripted(*faults))
    assert list(state.first_start_s) == [0, 600, 1010]


def test_jobs_too_large_for_what_is_left_wait_for_the_repair():
    state = outcome([job(0, 8, at=5, lasts=10)], scripted(fails(1, for_s=50)), "2x4")
    assert state.first_start_s[0] == 51


def test_the_queue_goes_on_on_the_nodes_that_are_left():
    jobs = [job(i, 4, lasts=10) for i in range(4)]
    state = outcome(jobs, scripted(fails(0, for_s=1000.0)), "2x4")
    assert sorted(state.finish_s) == [10, 20, 30, 40]


def test_a_node_that_is_never_repaired_makes_large_jobs_an_error():
    with pytest.raises(SimulationError, match="1 jobs have not finished"):
        outcome([job(0, 8, lasts=100)], scripted(fails(40, for_s=float("inf"))), "2x4")


def test_a_job_that_can_never_get_through_is_an_error_and_not_endless():
    faults = Faults(mtbf_s=10.0, mttr_s=1.0, checkpoint_s=5000.0)
    with pytest.raises(SimulationError, match=r"lost 1001 attempts .* at 0 of its 9000 s of work"):
        outcome([job(lasts=9000)], faults)
    assert outcome([job(lasts=9000)], faults._replace(checkpoint_s=2.0)).finish_s[0] > 9000


def test_a_gang_that_faults_never_let_start_is_an_error_and_not_endless():
    jobs = [job("small", lasts=100), job("all", 16, lasts=600)]
    faults = Faults(mtbf_s=60.0, mttr_s=600.0)
    with pytest.raises(SimulationError, match=r"10,000 faults .* job all \(16 GPUs\)"):
        outcome(jobs, faults, "16x1")


def test_faults_before_the_first_arrival_are_not_held_against_a_job():
    faults = Faults(mtbf_s=0.05, mttr_s=0.01)
    state = outcome([job(at=1000.0, lasts=0.001)], faults)
    assert len(happened(state, NodeLost)) > 10_000
    assert state.finish_s[0] > 1000


def test_overlapping_outages_end_when_all_have_ended():
    state = outcome([job(lasts=100)], scripted(fails(10, for_s=50), fails(30, for_s=10)))
    assert state.finish_s[0] == 60 + 100
    assert len(happened(state, NodeLost)) == 1


def test_a_repaired_node_is_what_it_was():
    nodes = "2x8:a100:rack=2:island=4"
    state = outcome([job(lasts=100)], scripted(fails(10)), nodes)
    assert state.nodes == parse_cluster(nodes)


# -- crashes ---------------------------------------------------------------------------------------


def test_a_crash_hits_the_job_on_the_gpu_and_no_other():
    jobs = [job(0, 2, lasts=100), job(1, 2, lasts=100)]
    faults = scripted(Fault(60.0, What.CRASH, "node0", gpu=3), checkpoint_s=50)
    state = outcome(jobs, faults, costs=COSTS)
    assert list(state.lost_s) == [0, 2]
    assert list(state.finish_s) == [108, 60 + 8 + 50]


def test_a_crash_on_an_idle_gpu_changes_nothing():
    state = outcome([job(0, 2, lasts=100)], scripted(Fault(60.0, What.CRASH, "node0", gpu=3)))
    assert state.finish_s[0] == 100
    assert not happened(state, AttemptLost)


def test_a_job_that_starts_and_crashes_at_one_instant_does_not_end_early():
    costs = FREE._replace(resume_s=5.0)
    jobs = [job("long", 4, lasts=100), job("short", 4, at=30, lasts=50)]
    # long: resumed at 85 with 70 s left, and at that very moment set back to its start.
    faults = scripted(Fault(85.0, What.CRASH, "node0"))
    state = outcome(jobs, faults, policy=ShortestRemaining(), costs=costs)
    assert state.finish_s[0] == 85 + 100


# -- stragglers ------------------------------------------------------------------------------------


def test_a_running_job_goes_on_slower_while_its_node_is_slow():
    state = outcome([job(lasts=100)], scripted(slow(20, 40)))
    assert state.finish_s[0] == 20 + 40 + (100 - 20 - 40 * 0.5)
    assert state.service_s[0] == 120
    assert state.lag_s[0] == 20
    assert state.lost_s[0] == 0


def test_a_job_that_starts_on_a_slow_node_is_slow():
    state = outcome([job(at=30, lasts=10)], scripted(slow(20, 40)))
    assert state.finish_s[0] == 30 + 20


def test_a_job_that_is_starting_when_its_node_falls_behind_starts_slow():
    state = outcome([job(lasts=100)], scripted(slow(4, 54)), costs=COSTS)
    assert state.finish_s[0] == 58 + 75


def test_a_job_that_starts_at_the_very_moment_is_slow_and_does_not_end_early():
    state = outcome([job(lasts=100)], scripted(slow(8, 1000)), costs=COSTS)
    assert state.finish_s[0] == 8 + 200


def test_a_gang_is_as_slow_as_the_slowest_of_its_nodes():
    faults = scripted(slow(0, 1000, 0.5), slow(0, 1000, 0.25, "node1"), slow(0, 9, 0.1, "node2"))
    state = outcome([job(0, 8, lasts=100)], faults, "3x4", Fifo())
    assert state.finish_s[0] == 400


def test_spells_that_overlap_leave_the_slowest():
    # 0-10 at 1, 10-20 at 0.5, 20-30 at 0.25, 30-50 at 0.5: 10 + 5 + 2.5 + 10 of 100 s are done.
    state = outcome([job(lasts=100)], scripted(slow(10, 40), slow(20, 10, 0.25)))
    assert state.finish_s[0] == 50 + 72.5


def test_a_slow_node_multiplies_the_speed_of_the_placement():
    class Doubled:
        def speed(self, spec, allocation, nodes):
            return 2.0

    state = outcome([job(lasts=100)], scripted(slow(10, 10)), speeds=Doubled())
    assert state.finish_s[0] == 20 + (100 - 20 - 10) / 2


def test_jobs_on_other_nodes_notice_nothing():
    jobs = [job(0, 4, lasts=100), job(1, 4, lasts=100)]
    state = outcome(jobs, scripted(slow(10, 10, node="node1")), "2x4")
    assert sorted(state.finish_s) == [100, 105]
    assert {event.row for event in happened(state, SpeedChanged)} == {1}


# -- what is drawn at random -----------------------------------------------------------------------


def first(faults, count=40, cluster="3x4"):
    return [list(islice(stream, count)) for stream in faults.streams(parse_cluster(cluster))]


def test_the_same_seed_draws_the_same_faults_and_another_one_others():
    assert first(DOWN) == first(DOWN)
    assert first(DOWN) != first(DOWN._replace(seed=8))


def test_a_node_of_the_same_name_has_the_same_faults_in_a_larger_cluster():
    assert first(DOWN, cluster="5x4")[:7] == first(DOWN)


def test_streams_rise_and_have_the_asked_means():
    faults = Faults(
        mtbf_s=500.0,
        mttr_s=100.0,
        worker_mtbf_s=3000.0,
        straggler_every_s=50.0,
        straggler_for_s=20.0,
        straggler_speed=0.25,
    )
    _, down, crashes, spells = first(faults, 4000, "1x4")
    assert all(one.at_s < other.at_s for one, other in pairwise(crashes))
    for stream in (down, spells):
        assert all(one.at_s + one.for_s < other.at_s for one, other in pairwise(stream))
    assert down[-1].at_s / len(down) == pytest.approx(600, rel=0.05)
    assert sum(fault.for_s for fault in down) / len(down) == pytest.approx(100, rel=0.05)
    assert crashes[-1].at_s / len(crashes) == pytest.approx(3000 / 4, rel=0.05)
    assert {fault.gpu for fault in crashes} == {0, 1, 2, 3}
    assert spells[-1].at_s / len(spells) == pytest.approx(70, rel=0.05)
    assert {fault.speed for fault in spells} == {0.25}


def test_the_policy_does_not_change_what_fails_when():
    def losses(policy):
        state = outcome(random_trace(1, max_gpus=4), DOWN, "3x4", policy)
        return [(e.at_s, e.name) for e in happened(state, NodeLost)]

    one, other = losses(Fifo()), losses(Gandiva(quantum_s=30.0))
    least = min(len(one), len(other))
    assert least > 3
    assert one[:least] == other[:least]


def test_faults_stop_when_all_jobs_have_ended():
    sim = simulation([job(lasts=10)], DOWN._replace(mtbf_s=1000.0))
    last_s = max(sim.run().state.finish_s)
    assert sim.step() is False
    assert sim.state.log[-1].at_s <= last_s


def test_faults_go_on_while_jobs_are_to_come():
    state = outcome([job(0, lasts=10), job(1, at=1e5, lasts=10)], DOWN)
    assert len(happened(state, NodeLost)) > 50
    assert state.finish_s[1] >= 1e5 + 10


def test_one_object_serves_many_simulations():
    jobs = random_trace(3, max_gpus=4)
    once, again = (outcome(jobs, DOWN, "3x4") for _ in range(2))
    assert repr(once.log) == repr(again.log)


def test_checkpoints_do_not_suffer_from_rounding():
    assert checkpointed_s(0.1 + 0.2 - 1e-16, 0.1) == pytest.approx(0.3)
    assert checkpointed_s(29.9, 10.0) == 20.0
    assert checkpointed_s(1e9, None) == 0.0


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (fails(3, "node7"), r"at 3 s, fail: node is 'node7'; .* node0 to node1"),
        (Fault(4.0, What.CRASH, "node1", gpu=4), "gpu is 4; node1 has the GPUs 0 to 3"),
    ],
)
def test_a_script_for_another_cluster_is_refused(fault, says):
    with pytest.raises(InputError, match=says):
        outcome([job()], scripted(fault), "2x4")


@pytest.mark.parametrize(
    ("faults", "says"),
    [
        (Faults(mtbf_s=0.0), "mtbf_s is 0; give from 0.001 to 10,000,000,000 seconds"),
        (Faults(worker_mtbf_s=float("nan")), "worker_mtbf_s is nan"),
        (Faults(mtbf_s=9.0, checkpoint_s=-1.0), "checkpoint_s is -1"),
        (
            Faults(straggler_every_s=9.0, straggler_speed=0.0),
            "speed is 0; give a number from 0.001 to 1",
        ),
        (scripted(slow(1, 5, speed=2.0)), "speed is 2"),
        (scripted(fails(-1)), "at_s is -1; give from 0 to 10,000,000,000"),
        (scripted(fails(1, for_s=0.0)), "for_s is 0; .* seconds, or none for ever"),
        (scripted(fails(1e11)), "at_s is 1e"),
        (scripted(fails(1, for_s=1e11)), "for_s is 1e"),
        (Faults(mtbf_s=1e-320), "mtbf_s is 9.99989e-321; give from"),
        (Faults(mtbf_s=9.0, checkpoint_s=1e-320), "checkpoint_s is 9.9"),
        (Faults(straggler_every_s=9.0, straggler_for_s=1e11), "straggler_for_s is 1e"),
    ],
)
def test_numbers_out_of_range_are_refused(faults, says):
    with pytest.raises(InputError, match=says):
        outcome([job()], faults)


def test_no_jobs_have_no_faults():
    state = outcome([], DOWN)
    assert not happened(state, NodeLost)
