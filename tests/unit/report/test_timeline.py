"""Timelines: segments and switches from events."""

from itertools import pairwise

import pytest

from rota.model.cluster import parse_cluster
from rota.model.events import JobSubmitted, NodeLost
from rota.model.job import JobSpec
from rota.policy.registry import create
from rota.report.timeline import Segment, Timeline
from rota.sim.machine import Costs
from rota.sim.simulation import Simulation
from rota.workload.trace import Trace
from support.driven import DrivenCluster


def simulate(durations, policy="gandiva", slots=2, costs=None, **settings):
    jobs = [JobSpec(str(i), 1, 0.0, duration) for i, duration in enumerate(durations)]
    simulation = Simulation(
        Trace(jobs), parse_cluster(f"1x{slots}"), create(policy, settings), costs or Costs()
    )
    simulation.state.log = []
    simulation.run()
    return Timeline(simulation.state.log)


def test_a_job_that_runs_alone_is_one_segment_on_one_gpu():
    timeline = simulate([30.0], costs=Costs(0, 0, 0, 0))
    assert timeline.segments == [Segment(0, ((0, 0),), 0.0, 30.0)]
    assert timeline.finish_s == {0: 30.0}


def test_segments_of_a_job_that_takes_turns_add_up_to_its_duration():
    timeline = simulate([50.0, 40.0, 60.0], quantum_s="5")
    for row, duration in enumerate((50.0, 40.0, 60.0)):
        assert timeline.device_s(row, 0.0, float("inf")) == pytest.approx(duration)
        assert len([s for s in timeline.segments if s.row == row]) > 1


def test_no_gpu_is_held_by_two_jobs_at_once():
    timeline = simulate([50.0, 40.0, 60.0, 10.0], quantum_s="5")
    for gpu in ((0, 0), (0, 1)):
        held = sorted((s.start_s, s.end_s) for s in timeline.segments if gpu in s.gpus)
        assert all(end <= start for (_, end), (start, _) in pairwise(held))


def test_switches_are_the_costs_that_were_charged():
    costs = Costs(suspend_s=0.5, resume_s=0.25, migrate_s=0, cold_start_s=1)
    timeline = simulate([50.0, 40.0, 60.0], costs=costs, quantum_s="5")
    switches = timeline.switches[0]
    assert switches.suspend_s
    assert all(seconds == pytest.approx(0.5) for seconds in switches.suspend_s)
    assert all(seconds == pytest.approx(0.25) for seconds in switches.resume_s)


def test_the_window_of_device_time_cuts_segments():
    timeline = simulate([30.0], costs=Costs(0, 0, 0, 0))
    assert timeline.device_s(0, 10.0, 15.0) == 5.0
    assert timeline.device_s(0, 40.0, 50.0) == 0.0


def test_time_at_service_skips_the_time_between_turns():
    timeline = simulate([10.0, 10.0], slots=1, costs=Costs(0, 0, 0, 0), quantum_s="4")
    assert timeline.time_at_service(0, 3.0) == 3.0
    assert timeline.time_at_service(0, 5.0) == 9.0
    assert timeline.time_at_service(0, 11.0) is None


def test_a_part_of_a_timeline_has_new_rows_and_nothing_of_the_others():
    timeline = simulate([30.0, 20.0, 10.0], policy="fifo", costs=Costs(0, 0, 0, 0))
    part = timeline.only([2])
    assert part.segments == [Segment(0, ((0, 1),), 20.0, 30.0)]
    assert part.finish_s == {0: 30.0}
    assert part.submit_s == [0.0]


def test_a_node_that_is_lost_ends_what_ran_there():
    cluster = DrivenCluster(cluster="2x1")
    cluster.state.log = []
    cluster.happens(JobSubmitted, JobSpec("0", 1, 0.0, 100.0))
    cluster.settle()
    cluster.passes(10.0)
    cluster.happens(NodeLost, "node0")
    cluster.passes(10.0)
    timeline = Timeline(cluster.state.log, parse_cluster("2x1"))
    assert timeline.num_gpus == 2
    assert timeline.segments == [Segment(0, ((0, 0),), 0.0, 10.0)]
