"""Reports that can't be: what policies make of them, and how users come to know."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rota.cli.simoutput import tell_warnings
from rota.explain.why import explain
from rota.model.decide.decision import take_decision
from rota.model.events import JobSubmitted, NodeJoined
from rota.model.job import Elastic
from rota.model.measured.reports import BatchRange, GradientNoise, StepPoint
from rota.model.state.state import ClusterState
from rota.policy.registry import create
from rota.predict.step_points import Point, is_usable
from rota.testing.builders import job

GOOD = (StepPoint(1, 1, 8, 0.2, 0.2), StepPoint(1, 1, 16, 0.3, 0.3), StepPoint(1, 2, 8, 0.2, 0.25))
BAD = StepPoint(1, 1, 8, 0.1, math.nan)
RANGE = BatchRange(8, 64, 1, 32)
NOISE = GradientNoise(1.0, 10.0)


class Reports:
    """By row: measured, noise, range."""

    def __init__(self, *told):
        self.told = told

    def measured(self, row):
        return self.told[row][0]

    def noise(self, row, now_s):
        return self.told[row][1]

    def batch_range(self, row):
        return self.told[row][2]

    def learned(self, row, now_s):
        return None


def decided(*told, policy="pollux", types=("",), models=None, **settings):
    """A state whose jobs, all of a kind if ``models`` has none, tell this; decided on once.

    It has one node with 8 GPUs of each type.
    """
    state = ClusterState()
    for number, kind in enumerate(types):
        state.apply(NodeJoined(0.0, f"node{number}", 8, gpu_type=kind))
    elastic = Elastic((1, 2, 4, 8), by_restart=True)
    for row in range(len(told)):
        model = models[row] if models else "kind"
        state.apply(JobSubmitted(0.0, job(row, model=model, batch=16, elastic=elastic)))
    state.reports = Reports(*told)
    take_decision(state, create(policy, settings), 0.0)
    return state


def gpus(state):
    return [0 if target is None else target.num_gpus for target in state.target]


def warnings(state, row=0):
    return explain(state, row, 0.0)["warnings"]


def test_the_warning_is_the_jobs_who_told_what_can_not_be():
    state = decided(((BAD,), NOISE, RANGE), (GOOD, NOISE, RANGE))
    assert warnings(state, 0) == [
        "measurements left out: 1 GPU on 1 node, batch 8: the step took nan s"
    ]
    assert warnings(state, 1) == []


def test_what_can_not_be_is_a_warning_where_another_job_has_told_of_the_same_place():
    state = decided((GOOD, NOISE, RANGE), ((BAD,), NOISE, RANGE))
    assert [bool(warnings(state, row)) for row in range(2)] == [False, True]


def test_what_one_has_told_wrongly_stands_in_nobodys_way():
    told = decided(((BAD,), NOISE, RANGE), (GOOD, NOISE, RANGE))
    right = decided(((), NOISE, RANGE), (GOOD, NOISE, RANGE))
    assert told.target == right.target
    assert told.target[1].batch is not None


@pytest.mark.parametrize("later", [GOOD, (BAD, *GOOD)])
def test_a_warning_goes_once_nothing_is_wrong_any_more(later):
    state = decided(((BAD,), NOISE, RANGE))
    state.reports = Reports((later, NOISE, RANGE))
    take_decision(state, create("pollux", {}), 60.0)
    assert bool(warnings(state)) == (BAD in later)
    assert [line for _, line in state.story(0)] == [
        "submitted",
        "warning: measurements left out: 1 GPU on 1 node, batch 8: the step took nan s",
    ]


@pytest.mark.parametrize(
    ("told", "says"),
    [
        ((GOOD, NOISE, BatchRange(8, 4, 1, 4)), "most batch: 4 is below the initial batch of 8"),
        ((GOOD, NOISE, BatchRange(8, 64, 1, 0)), "most_per_gpu batch: 0 is no whole number above"),
        ((GOOD, NOISE, BatchRange(8, 10**400, 1, 8)), "is too large; give at most 2^53"),
        ((GOOD, GradientNoise(math.nan, 1.0), RANGE), "gradient noise left out"),
        ((GOOD, GradientNoise(1e200, 1.0), RANGE), "gradient noise left out"),
    ],
)
def test_limits_and_noise_that_can_not_be_are_warnings(told, says):
    state = decided(told, (GOOD, NOISE, RANGE))
    assert says in warnings(state)[0]
    assert all(gpus(state))


def test_a_job_that_only_tells_what_can_not_be_counts_as_one_that_tells_nothing():
    nothing, hostile = (None, None, None), ((BAD,), GradientNoise(-math.inf, 0.0), None)
    for policy in ("pollux", "optimus"):
        told = decided(hostile, hostile, policy=policy)
        assert gpus(told) == gpus(decided(nothing, nothing, policy=policy)), policy


def test_a_job_whose_model_is_of_no_use_grows_no_further_than_one_of_which_nothing_is_known():
    seen = (*GOOD, StepPoint(1, 8, 8, 0.2, 0.3))
    state = decided((seen, NOISE, BatchRange(8, 4, 1, 4)))
    assert gpus(state) == [4]


def test_points_that_contradict_each_other_are_a_warning_for_all_of_the_kind():
    twins = [StepPoint(1, 1, n, s, s) for n, s in ((8, 1e-3), (16, 1e3), (32, 1e-3), (64, 1e3))]
    state = decided((tuple(twins), NOISE, RANGE), ((), NOISE, RANGE))
    assert warnings(state, 0) == warnings(state, 1) != []
    assert "contradict each other" in warnings(state, 0)[-1]


TYPES = ("slow", "fast")
seconds = st.sampled_from([math.nan, math.inf, -1.0, 0.0, 1e-300, 1e-6, 0.1, 1.0, 86_400.0, 1e300])
count = st.sampled_from([-1, 0, 1, 1, 1, 2, 8, 10**30])
hostile_points = st.lists(
    st.builds(StepPoint, count, count, count, seconds, seconds, st.sampled_from([*TYPES, "gone"])),
    max_size=6,
).map(tuple)
number = st.sampled_from([math.nan, math.inf, -1.0, 0.0, 1.0, 1e300])
hostile_noise = st.none() | st.builds(GradientNoise, number, number)
hostile_range = st.none() | st.builds(BatchRange, count, count, count, count)


def on_types(points):
    return tuple(point._replace(gpu_type=kind) for kind in TYPES for point in points)


@given(
    st.lists(st.tuples(hostile_points, hostile_noise, hostile_range), min_size=1, max_size=3),
    st.sampled_from(["service", "length", "pollux"]),
    st.sampled_from(["kind", "job"]),
)
@settings(deadline=None, max_examples=60)
def test_nothing_told_of_several_types_stops_a_decision(hostile, objective, fits):
    told = [*hostile, (on_types(GOOD), NOISE, RANGE)]
    models = ["hostile"] * len(hostile) + ["sound"]
    state = decided(*told, types=TYPES, models=models, objective=objective, fits=fits)
    state.validate()
    assert all(gpus(state))
    for row, (points, _, _) in enumerate(hostile):
        wrong = [str(Point(*point)) for point in points if not is_usable(point)]
        assert all(f"{each}: " in " ".join(warnings(state, row)) for each in wrong[:1])
    assert warnings(state, len(hostile)) == []


@pytest.mark.parametrize("fits", ["kind", "job"])
def test_on_several_types_too_the_warning_is_the_jobs_who_told_what_can_not_be(fits):
    bad = BAD._replace(gpu_type="fast")
    sound = (on_types(GOOD), NOISE, RANGE)
    state = decided(sound, ((bad,), NOISE, RANGE), sound, types=TYPES, fits=fits)
    assert [bool(warnings(state, row)) for row in range(3)] == [False, True, False]


def test_warnings_are_told_after_a_simulation_with_the_first_few_jobs(capsys):
    state = decided(*[((BAD,), NOISE, RANGE)] * 8)
    tell_warnings(state)
    assert capsys.readouterr().err == (
        "warning: jobs 0, 1, 2, 3, 4 and 3 more: measurements left out: "
        "1 GPU on 1 node, batch 8: the step took nan s\n"
    )


def ratios(number):
    """Points of which one is out of line, by another factor for each number."""
    fits = [StepPoint(1, 1, n, 0.01 * n, 0.01 * n) for n in (8, 12, 16, 20, 24, 28, 32)]
    return (*fits, StepPoint(1, 1, 48, 40.0 + 3 * number, 40.0 + 3 * number))


def test_a_warning_whose_figures_change_is_told_once_and_changes_no_mark(caplog):
    state = decided((ratios(0), NOISE, RANGE))
    policy, first = create("pollux", {}), warnings(state)
    assert "times as long as the others make likely" in first[0]
    for number in range(1, 6):
        state.reports = Reports((ratios(number), NOISE, RANGE))
        event = take_decision(state, policy, 60.0 * number)
        assert 0 not in event.marks
    assert [line for _, line in state.story(0) if line.startswith("warning")] == [
        f"warning: {first[0]}"
    ]
    assert len(state.notes.warned[0]) == 1


def test_other_measurements_that_are_left_out_are_named_where_the_first_were():
    state = decided(((BAD,), NOISE, RANGE))
    worse = StepPoint(1, 2, 8, 0.1, math.inf)
    state.reports = Reports(((BAD, worse), NOISE, RANGE))
    take_decision(state, create("pollux", {}), 60.0)
    assert "2 GPUs on 1 node, batch 8: the step took inf s" in warnings(state)[0]
    assert len(state.story(0)) == 2, "one kind of warning is told once"
