"""Elastic jobs in the simulator: sizes change while jobs run, and nothing is lost."""

import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rota.model.cluster import parse_cluster
from rota.model.events import (
    CommandSent,
    JobFinished,
    JobLaunched,
    JobResized,
    NodeJoined,
    NodeLost,
)
from rota.model.job import Elastic, JobSpec, JobState
from rota.policy.registry import create
from rota.sim.machine import FREE, Costs
from rota.sim.simulation import Simulation
from rota.store.codec import decode, encode
from rota.testing.builders import trace

SLOW = Costs(3.0, 7.0, 11.0, 5.0, 30.0, 2.0)
MOST_STEPS = 20_000


class Curve:
    """Speed by size: t_k = a + (1 - a) / k for every job."""

    def __init__(self, serial: float) -> None:
        self.serial = serial

    def speed(self, spec, allocation, nodes):
        return 1 / (self.serial + (1 - self.serial) / allocation.num_gpus)


@st.composite
def jobs(draw):
    specs, submit_s = [], 0.0
    for number in range(draw(st.integers(1, 6))):
        submit_s += draw(st.integers(0, 300))
        least = draw(st.integers(1, 3))
        more = draw(st.lists(st.integers(least + 1, 4), max_size=3, unique=True))
        elastic = Elastic((least, *sorted(more))) if more else None
        duration_s = float(draw(st.integers(1, 2000)))
        specs.append(JobSpec(str(number + 1), least, submit_s, duration_s, elastic=elastic))
    return trace(*specs)


def run(jobs, costs, serial, scaler, *, rebuild=False, lose=None):
    policy = {"look_s": "10", "scaler": scaler}
    speeds = Curve(serial)
    sim = Simulation(jobs, parse_cluster("2x4"), create("elastic", policy), costs, speeds=speeds)
    state = sim.state
    state.log = []
    for step in range(MOST_STEPS):
        if lose == step:
            state.apply(NodeLost(sim.engine.now_s, "node0"))
            state.apply(NodeJoined(sim.engine.now_s, "node0", 4))
        if not sim.step():
            return state
        state.validate()
        if rebuild:
            sim.policy = create("elastic", policy)
            state.marks = json.loads(json.dumps(state.marks))
    pytest.fail(f"no end after {MOST_STEPS} steps")


def gpu_seconds(state, row):
    """From the events: what the job held between its start and its end."""
    sizes, gpus, total = [], 0, 0.0
    for event in state.log:
        if isinstance(event, CommandSent) and event.command.row == row:
            gpus = getattr(event.command, "allocation", None) or gpus
        elif isinstance(event, JobLaunched) and event.row == row:
            sizes.append((event.at_s, gpus.num_gpus))
        elif isinstance(event, JobResized) and event.row == row:
            sizes.append((event.at_s, event.allocation.num_gpus))
        elif isinstance(event, JobFinished) and event.row == row:
            sizes.append((event.at_s, 0))
    for (start_s, size), (end_s, _) in pairwise(sizes):
        total += size * (end_s - start_s)
    return total


@settings(max_examples=60, deadline=None)
@given(jobs(), st.sampled_from([FREE, SLOW]), st.floats(0, 1), st.sampled_from(["fit", "probe"]))
def test_every_job_does_its_whole_work_and_its_gpu_seconds_add_up(jobs, costs, serial, scaler):
    state = run(jobs, costs, serial, scaler)
    for row, spec in enumerate(jobs):
        assert state.state[row] == JobState.SUCCEEDED
        assert state.preemptions[row] == 0
        assert state.work(row, state.finish_s[row]) == pytest.approx(spec.duration_s)
        held = state.service_s[row] * state.num_gpus[row] + state.extra_gpu_s[row]
        assert held == pytest.approx(gpu_seconds(state, row), abs=1e-6)
        assert spec.elastic is None or state.num_gpus[row] in spec.elastic.sizes


@settings(max_examples=30, deadline=None)
@given(jobs(), st.sampled_from([FREE, SLOW]), st.floats(0, 1))
def test_a_rebuilt_policy_decides_alike_and_events_come_back_through_json(jobs, costs, serial):
    kept = run(jobs, costs, serial, "fit")
    again = run(jobs, costs, serial, "fit", rebuild=True)
    assert again.log == kept.log
    assert [decode(json.loads(json.dumps(encode(event)))) for event in kept.log] == kept.log


@settings(max_examples=30, deadline=None)
@given(jobs(), st.sampled_from([FREE, SLOW]), st.integers(1, 40))
def test_a_node_that_is_lost_during_a_resize_leaves_no_gpu_behind(jobs, costs, step):
    state = run(jobs, costs, 0.1, "fit", lose=step)
    assert set(state.state) == {JobState.SUCCEEDED}
    assert state.idle.count == state.assumed.count == 8


def test_alone_a_job_gets_the_size_that_its_curve_is_worth():
    """With t_k = a + (1 - a) / k it is the first k with (1 - a) / (1 + a k) <= S."""
    spec = JobSpec("1", 1, 0.0, 50_000.0, elastic=Elastic(tuple(range(1, 17))))
    for serial, best in ((0.2, 16), (0.5, 8), (0.9, 1)):
        policy = create("elastic", {"threshold": "0.1"})
        sim = Simulation(trace(spec), parse_cluster("1x16"), policy, FREE, speeds=Curve(serial))
        assert sim.run().state.num_gpus[0] == best
