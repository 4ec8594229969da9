"""Whatever jobs report of their training, policies give valid plans and never fail."""

import math

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rota.model.decide.decision import take_decision
from rota.model.decide.diff import diff
from rota.model.events import CommandSent, JobLaunched, JobSubmitted, NodeJoined
from rota.model.job import Elastic
from rota.model.measured.reports import BatchRange, GradientNoise, Learned, StepPoint
from rota.model.state.state import ClusterState
from rota.policy.registry import create
from rota.predict.goodput_curve import Told, goodput_curve
from rota.testing.builders import job

POLICIES = [
    ("pollux", {}),
    ("pollux", {"objective": "length", "fits": "job"}),
    ("pollux", {"objective": "pollux"}),
    ("optimus", {}),
]
ABSURD = [0.0, -1.0, math.nan, math.inf, -math.inf, 1e-300, 1e300, 1e-12, 1e9]
SECONDS = st.sampled_from(ABSURD) | st.floats(1e-4, 100.0)
COUNTS = st.sampled_from([-1, 0, 1 << 60, 10**400]) | st.integers(1, 64)
NUMBERS = st.sampled_from(ABSURD) | st.floats(0.0, 1e4)

POINTS = st.builds(StepPoint, st.integers(0, 3), COUNTS, COUNTS, SECONDS, SECONDS)
GOOD_POINTS = st.builds(
    lambda gpus, batch, s, more: StepPoint(1 + (gpus > 4), gpus, batch, s, s + more),
    *(st.integers(1, 8), st.integers(1, 64), st.floats(1e-6, 1e4), st.floats(0.0, 1e4)),
)
MEASURED = st.none() | st.lists(POINTS | GOOD_POINTS, max_size=5).map(tuple)
NOISES = st.none() | st.builds(GradientNoise, NUMBERS, NUMBERS)
GOOD_RANGES = st.builds(BatchRange, st.integers(1, 64), st.integers(64, 1 << 40), st.integers(1, 8),
                        st.integers(8, 1 << 30))  # fmt: skip
RANGES = st.none() | st.builds(BatchRange, COUNTS, COUNTS, COUNTS, COUNTS) | GOOD_RANGES
LEARNED = st.none() | st.builds(Learned, NUMBERS, NUMBERS, st.none() | NUMBERS)
ELASTIC = Elastic((1, 2, 4, 8), by_restart=True)
JOBS = st.tuples(MEASURED, NOISES, RANGES, LEARNED)
NUM_JOBS, DECISIONS = 4, 2
SILENT = ((None,) * 4,) * NUM_JOBS
OF_A_HUGE_BATCH = (
    (StepPoint(1, 1, 1, 1.0, 1.0),),
    None,
    BatchRange(10**400, -1, -1, -1),
    Learned(0.0, 0.0, 0.0),
)
TELLS = st.tuples(*[st.tuples(*[JOBS] * NUM_JOBS)] * DECISIONS)


class Reports:
    """What each job tells, by row."""

    def __init__(self, told):
        self.told = told

    def measured(self, row):
        return self.told[row][0]

    def noise(self, row, now_s):
        return self.told[row][1]

    def batch_range(self, row):
        return self.told[row][2]

    def learned(self, row, now_s):
        return self.told[row][3]


def cluster_of(told):
    """A state with jobs, of two kinds, that tell what they are given."""
    state = ClusterState()
    for node in range(2):
        state.apply(NodeJoined(0.0, f"node{node}", 4))
    for row in range(len(told)):
        spec = job(row, model="ab"[row % 2], batch=32, epochs=2, elastic=ELASTIC)
        state.apply(JobSubmitted(0.0, spec))
    state.reports = Reports(told)
    return state


def play(state, policy, tells):
    """Decide once for each of the reports; every plan is carried out at once where it can be."""
    for step, told in enumerate(tells):
        state.reports = Reports(told)
        take_decision(state, policy, 60.0 * step)
        state.validate()
        for command in diff(state):
            state.apply(CommandSent(60.0 * step, command))
            if type(command).__name__ == "Launch":
                state.apply(JobLaunched(60.0 * step, command.row, command.attempt))


@pytest.mark.parametrize(("name", "given_settings"), POLICIES, ids=lambda value: str(value))
@settings(deadline=None, max_examples=50)
@example(tells=(SILENT, (*SILENT[1:], OF_A_HUGE_BATCH)))
@given(tells=TELLS)
def test_whatever_is_reported_plans_are_valid(name, given_settings, tells):
    state = cluster_of(tells[0])
    play(state, create(name, given_settings), tells)
    waiting = [row for row in state.active if state.target[row] is None]
    assert not (waiting and state.assumed.count)  # a GPU is enough for any of them


@settings(deadline=None)
@given(JOBS)
def test_whatever_is_reported_has_a_curve_or_a_reason(told):
    measured, noise, limits, _ = told
    curve = goodput_curve(Told(measured or (), ((),), noise, limits, ((1, 1), (4, 1), (8, 2))))
    assert bool(curve.rows) != bool(curve.missing)
    assert all(row.goodput >= 0 and math.isfinite(row.goodput) for row in curve.rows)
    assert all(math.isfinite(row.error) for row in curve.rows)
