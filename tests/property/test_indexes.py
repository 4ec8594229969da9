"""Indexes that policies keep between decisions change speed only."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rota.model.events import AttemptLost, NodeJoined, NodeLost, ResumeRequested, SuspendRequested
from rota.model.job import JobState
from rota.model.reason import Reason
from rota.policy.base import Policy
from rota.policy.ordering.fifo import Fifo, FifoBackfill
from rota.policy.stages.selection import place
from rota.policy.tiresias.policy import Tiresias
from rota.sim.machine import FREE, Costs
from rota.testing.builders import job, simulation
from rota.workload.trace import Trace
from support.strategies import traces

SLOW = Costs(suspend_s=0.5, resume_s=2.0, migrate_s=4.0, cold_start_s=8.0)


class PlainFifo(Policy):
    """FIFO as one would write it, looking at every job at every decision."""

    identity = "plain"
    strict = True

    def decide(self, view):
        what_if = view.what_if()
        for row in sorted(row for row in view.active if view.target[row] is None):
            if view.num_gpus[row] > view.total_gpus:
                what_if.wait(row, Reason.NEVER_FITS)
            elif not place(what_if, row) and self.strict:
                break
        return what_if.plan()


class PlainBackfill(PlainFifo):
    strict = False


class PlainTiresias(Tiresias):
    """Tiresias that arranges its queues itself, so that it looks at all jobs every time."""

    identity = "plain"

    def arrange(self, view, marks, queue, rows):
        return list(rows)


def tiresias(kind, thresholds, promote_knob):
    policy = kind(thresholds, promote_knob)
    policy.identity = "plain"
    return policy


def named(policy):
    policy.identity = "plain"
    return policy


PAIRS = {
    "fifo": lambda: (named(Fifo()), PlainFifo()),
    "fifo-backfill": lambda: (named(FifoBackfill()), PlainBackfill()),
    "tiresias": lambda: tuple(tiresias(k, (50.0, 400.0), 4.0) for k in (Tiresias, PlainTiresias)),
    "tiresias without promotion": lambda: tuple(
        tiresias(k, (20.0, 90.0, 300.0), 0.0) for k in (Tiresias, PlainTiresias)
    ),
    "tiresias promoting early": lambda: tuple(
        tiresias(k, (30.0,), 0.5) for k in (Tiresias, PlainTiresias)
    ),
    "tiresias promoting from two queues": lambda: tuple(
        tiresias(k, (24.0, 96.0), 1.0) for k in (Tiresias, PlainTiresias)
    ),
}
# Few different times, so that much happens at one instant, and jobs that end as they begin.
CROWDED = st.lists(
    st.builds(
        job,
        gpus=st.integers(1, 8),
        at=st.sampled_from([0, 12, 24, 48]),
        lasts=st.sampled_from([0, 0, 12, 24, 60, 120]),
    ),
    max_size=16,
).map(lambda jobs: Trace([spec._replace(job_id=f"{i:02}") for i, spec in enumerate(jobs)]))
# What an owner or a fault does to whatever job or node: (number of the step, what, which).
MEDDLING = st.lists(
    st.tuples(
        st.integers(0, 60),
        st.sampled_from(["suspend", "resume", "idle", "call", "lose", "fail", "repair"]),
        st.integers(0, 9),
    ),
    max_size=8,
)

WIDE = Trace([job("00", 8, at=0.0, lasts=6.375), job("01", 1, at=0.125, lasts=0.0)])


def events(policy, jobs, costs, meddling=(), forget=()):
    """Every event of a simulation in which somebody meddles, and the policy forgets its indexes."""
    alike = [spec._replace(priority=50) for spec in jobs]  # else all jobs are walked anyway
    sim = simulation(alike, policy, "1x4,2x2", costs)
    state = sim.state
    state.log = []
    step = 0
    while sim.step() and step < 5000:
        for _, what, which in [each for each in meddling if each[0] == step]:
            meddle(sim, what, which)
        if step in forget:
            state.plan = None
        step += 1
    return state.log


def meddle(sim, what, which):
    state, now_s = sim.state, sim.engine.now_s
    row, node = which % max(1, len(state.spec)), state.nodes[which % len(state.nodes)]
    if what == "fail" and node.alive:
        state.apply(NodeLost(now_s, node.name))
    elif what == "repair" and not node.alive:
        state.apply(NodeJoined(now_s, node.name, node.num_gpus))
    if row >= len(state.spec) or state.state[row] >= JobState.SUCCEEDED:
        return
    by_itself = what in ("idle", "call")
    if what == "suspend" or (what == "idle" and state.state[row] == JobState.RUNNING):
        state.apply(SuspendRequested(now_s, row, by_itself=by_itself))
    elif what in ("resume", "call"):
        state.apply(ResumeRequested(now_s, row, by_itself=by_itself))
    elif what == "lose" and state.has_processes(row):
        state.apply(AttemptLost(now_s, row, state.attempt[row], "it crashed"))


@pytest.mark.parametrize("name", PAIRS)
@given(jobs=traces(), costs=st.sampled_from([FREE, SLOW]))
@settings(max_examples=30, deadline=None)
def test_a_policy_with_indexes_gives_the_events_of_one_that_looks_at_every_job(name, jobs, costs):
    indexed, plain = PAIRS[name]()
    assert events(indexed, jobs, costs) == events(plain, jobs, costs)


@pytest.mark.parametrize("name", PAIRS)
@given(jobs=traces(), costs=st.sampled_from([FREE, SLOW]), meddling=MEDDLING)
@example(jobs=WIDE, costs=FREE, meddling=[(2, "fail", 0)])  # the wide one will never fit again
@settings(max_examples=30, deadline=None)
def test_so_it_is_when_owners_suspend_jobs_and_nodes_fail(name, jobs, costs, meddling):
    indexed, plain = PAIRS[name]()
    assert events(indexed, jobs, costs, meddling) == events(plain, jobs, costs, meddling)


@pytest.mark.parametrize("name", PAIRS)
@given(
    jobs=CROWDED,
    costs=st.sampled_from([FREE, SLOW]),
    forget=st.frozensets(st.integers(0, 40), max_size=8),
)
@settings(max_examples=30, deadline=None)
def test_so_it_is_when_several_decisions_fall_on_one_instant(name, jobs, costs, forget):
    indexed, plain = PAIRS[name]()
    assert events(indexed, jobs, costs, forget=forget) == events(plain, jobs, costs)
