"""GPU time that jobs are said to have held is what they held, whatever sizes they had meanwhile."""

from itertools import pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rota.model.cluster import parse_cluster
from rota.model.job import Elastic, JobSpec
from rota.policy.registry import create
from rota.report.metrics import summarise
from rota.sim.faults import Faults
from rota.sim.machine import Costs
from rota.sim.simulation import Simulation
from rota.testing.builders import trace

GPUS = 8
COSTS = [Costs(3.0, 7.0, 11.0, 5.0, 30.0, 2.0), Costs(0.0, 30.0, 0.0, 30.0, 0.0, 30.0)]
FAULTS = st.builds(
    Faults,
    seed=st.integers(0, 100),
    mtbf_s=st.just(4000.0),
    mttr_s=st.just(100.0),
    worker_mtbf_s=st.just(20_000.0),
    straggler_every_s=st.just(300.0),
    straggler_for_s=st.just(60.0),
    straggler_speed=st.just(0.5),
    checkpoint_s=st.just(50.0),
    script=st.just(()),
)
MOST_STEPS = 20_000


class Curve:
    """Two GPUs are 1.6 times one, four of them 2.3 times."""

    def speed(self, spec, allocation, nodes):
        return 1 / (0.25 + 0.75 / allocation.num_gpus)


@st.composite
def jobs(draw, *, by_restart):
    specs, submit_s = [], 0.0
    for number in range(draw(st.integers(1, 6))):
        submit_s += draw(st.integers(0, 300))
        elastic = Elastic(tuple(range(1, draw(st.integers(2, GPUS)) + 1)), by_restart=by_restart)
        lasts = float(draw(st.integers(1, 2000)))
        specs.append(JobSpec(str(number + 1), 1, submit_s, lasts, elastic=elastic))
    return trace(*specs)


def played(jobs, policy, costs, faults=None):
    """The summary of a run, and what jobs held in GPU-seconds, counted instant by instant."""
    sim = Simulation(jobs, parse_cluster("2x4"), policy, costs, speeds=Curve(), faults=faults)
    state, moments = sim.state, []
    for _ in range(MOST_STEPS):
        moments.append((sim.engine.now_s, sum(held.num_gpus for held in state.held if held)))
        if not sim.step():
            break
    else:
        pytest.fail(f"no end after {MOST_STEPS} steps")
    moments.append((sim.engine.now_s, 0))
    held = sum(gpus * (then - now) for (now, gpus), (then, _) in pairwise(moments))
    summary = summarise(state, decisions=0, policy="x")
    assert summary["finished"] == len(jobs)
    return summary, held


@settings(max_examples=30, deadline=None)
@given(jobs(by_restart=True), st.sampled_from(COSTS), st.none() | FAULTS)
def test_of_jobs_that_change_their_size_by_restarts(jobs, costs, faults):
    summary, held = played(jobs, create("pollux"), costs, faults)
    assume(summary["makespan_s"])
    capacity = GPUS * summary["makespan_s"]
    assert summary["gpu_allocation"] <= 1 + 1e-9
    assert summary["gpu_allocation"] * capacity == pytest.approx(held)
    served = summary["gpu_utilisation"] * capacity
    assert summary["overhead_gpu_s"] == pytest.approx(held - served, abs=1e-6)


@settings(max_examples=20, deadline=None)
@given(jobs(by_restart=False), st.sampled_from(COSTS), st.none() | FAULTS)
def test_of_jobs_that_change_their_size_as_they_run(jobs, costs, faults):
    summary, held = played(jobs, create("elastic", {"look_s": "10"}), costs, faults)
    # What a job is to have beside what it runs on counts once it runs on it.
    assert summary["gpu_allocation"] <= 1 + 1e-9
    assert summary["gpu_allocation"] * GPUS * summary["makespan_s"] <= held + 1e-6
