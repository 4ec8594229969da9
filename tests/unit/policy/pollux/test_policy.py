"""Pollux: who gets how many GPUs, where, and with which batch."""

import numpy as np
import pytest

from rota.model.cluster import parse_cluster
from rota.model.decide.decision import take_decision
from rota.model.events import JobSubmitted, NodeJoined
from rota.model.job import Adapt, Elastic, Program
from rota.model.state.state import ClusterState
from rota.model.view import View
from rota.policy.base import Policy
from rota.policy.pollux import value as pollux_value
from rota.policy.pollux.knapsack import solve
from rota.policy.pollux.models import Models
from rota.policy.pollux.value import (
    Jobs,
    as_published,
    by_length,
    by_service,
    charged_for_restarts,
    charged_for_stops,
    power_mean_values,
)
from rota.policy.registry import create
from rota.predict.goodput_table import best_choice
from rota.sim.machine import restarts
from rota.sim.measured import MeasuredSpeeds, played
from rota.sim.simulation import Simulation
from rota.testing.builders import job, trace
from rota.workload.measured import Epochs, Measured, Step

BATCHES = (8, 16, 32, 64, 128, 256)


def measured(name, *, exchange_s, var, epochs=4):
    """A step of n samples takes n/8 s and an exchange; the noise of a gradient is ``var``."""
    places = {(1,): 0.0, (2,): exchange_s, (3,): exchange_s, (4,): exchange_s, (4, 4): exchange_s}
    steps = {
        place: {n: Step(n / 8 + sync_s, sync_s) for n in (2, 4, 8, 16, 32)}
        for place, sync_s in places.items()
    }
    scaled = [
        ((nodes, gpus, n), Step(n / 8 + exchange_s, exchange_s))
        for nodes, gpus in ((2, 5), (2, 8))
        for n in (2, 32)
    ]
    ends = tuple(50.0 * epoch for epoch in range(1, epochs + 1))
    by_batch = {b: Epochs(ends, ends, (1.0,) * epochs, (var,) * epochs) for b in BATCHES}
    return Measured(name, steps, scaled, by_batch)


NOISY, CLEAR = (
    measured("noisy", exchange_s=0.01, var=50.0),
    measured("clear", exchange_s=2.0, var=0.01),
)
PROFILES = {"noisy": NOISY, "clear": CLEAR}


def simulation(*jobs, cluster="2x4", **settings):
    return Simulation(
        played(trace(*jobs), PROFILES),
        parse_cluster(cluster),
        create("pollux", settings),
        restarts(10.0),
        speeds=MeasuredSpeeds(PROFILES),
    )


def until(sim, at_s):
    while sim.engine.now_s < at_s and sim.step():
        pass
    return sim


def gpus(sim):
    return [held.num_gpus if held is not None else 0 for held in sim.state.held]


@pytest.mark.parametrize("objective", ["service", "length", "pollux"])
@pytest.mark.parametrize("fits", ["kind", "job"])
def test_all_jobs_end_under_every_objective(objective, fits):
    jobs = [job(i, model=("noisy", "clear")[i % 2], batch=8, at=40.0 * i) for i in range(6)]
    state = simulation(*jobs, objective=objective, fits=fits).run().state
    assert min(state.finish_s) > 0


def ends(*, models=("noisy",), epochs=4.0, **settings):
    """When six jobs of the same training end, under the models' names and declared epochs."""
    profiles = {"noisy": NOISY, "also noisy": NOISY}
    jobs = [job(i, model=models[i % len(models)], batch=8, at=40.0 * i) for i in range(6)]
    told = played(trace(*jobs), profiles)
    told = told.with_jobs(
        spec._replace(epochs=epochs * (1 + row % 2)) for row, spec in enumerate(told)
    )
    policy, speeds = create("pollux", settings), MeasuredSpeeds(profiles)
    nodes = parse_cluster("2x4")
    state = Simulation(told, nodes, policy, restarts(10.0), speeds=speeds).run().state
    return list(state.finish_s)


def test_what_it_is_not_told_of_lengths_changes_nothing():
    other = {"models": ("noisy", "also noisy")}
    assert ends(fits="job") == ends(fits="job", **other)
    assert ends(fits="kind") != ends(fits="kind", **other)
    assert ends(fits="job") == ends(fits="job", epochs=100.0)
    assert ends(objective="length") != ends(objective="length", epochs=0.1)


def test_gpus_go_to_those_that_learn_by_them_and_their_batches_grow():
    jobs = [job(1, model="noisy", batch=8), job(2, model="clear", batch=8)]
    sim = until(simulation(*jobs, cluster="1x4"), 100.0)
    assert gpus(sim) == [2, 1]
    noisy, clear = sim.state.held
    assert noisy.batch[0] * (noisy.batch[1] + 1) * noisy.num_gpus > 8
    assert clear.batch[0] * (clear.batch[1] + 1) * clear.num_gpus == 8


def test_a_job_grows_no_further_than_a_few_times_what_was_measured():
    sim = until(simulation(job(1, model="noisy", batch=8), fits="job"), 1.0)
    assert gpus(sim) == [4]
    assert gpus(until(sim, 61.0)) == [8]
    published = until(simulation(job(1, model="noisy", batch=8), objective="pollux"), 1.0)
    assert gpus(published) == [1]


def test_what_one_job_of_a_kind_has_measured_serves_the_next():
    early = job(1, model="noisy", batch=8)
    late = job(2, model="noisy", batch=8, at=300.0)
    sim = until(simulation(early, late), 301.0)
    assert sim.state.held[1].batch is not None
    alone = until(simulation(early, late, fits="job"), 301.0)
    assert alone.state.held[1].batch is None


def test_a_gang_of_a_size_that_is_none_of_the_usual_is_placed():
    sim = simulation(job(1, model="noisy", batch=8), cluster="1x4")
    plain = Simulation(
        trace(job(1, gpus=3), job(2, gpus=1)), parse_cluster("1x4"), create("pollux", {})
    )
    assert gpus(until(plain, 1.0)) == [3, 1]
    assert gpus(until(sim, 1.0)) == [4]


def test_its_user_is_told_why_a_job_has_its_gpus():
    sim = until(simulation(job(1, model="noisy", batch=8)), 1.0)
    assert "nothing is known of its kind yet" in sim.state.notes.why[0]
    until(sim, 61.0)
    assert "useful samples a second" in sim.state.notes.why[0]
    assert sim.state.notes.why[0].endswith("when this was decided")  # goodputs change meanwhile
    assert "times one GPU's" in sim.state.notes.why[0]


def test_one_gpu_is_not_held_against_one_gpu():
    sim = until(simulation(job(1, model="clear", batch=8), cluster="1x1"), 61.0)
    assert sim.state.notes.why[0].startswith("1 GPU: ")
    assert "times" not in sim.state.notes.why[0]


@pytest.mark.parametrize(
    ("adapt", "told"),
    [
        (None, "its batches are its own, so that its goodput is not known"),
        (Adapt(64), "nothing is known of its kind yet"),
    ],
    ids=["own batches", "chosen batches"],
)
def test_the_user_of_a_program_that_tells_no_batches_is_told_why_nothing_is_known(adapt, told):
    state = ClusterState()
    state.apply(NodeJoined(0.0, "here", 4))
    runs = {"program": Program("python train.py", "/tmp"), "elastic": Elastic((1, 2, 4))}
    state.apply(JobSubmitted(0.0, job(1, adapt=adapt, **runs)))
    take_decision(state, create("pollux"), 0.0)
    assert told in state.notes.why[0]


# -- what GPUs are worth ---------------------------------------------------------------------------


def jobs_of(
    speedups,
    *,
    current=None,
    attained=None,
    kind=None,
    left=None,
    age=None,
    restarted=None,
    shrinks=None,
):
    number = len(speedups)
    current = np.zeros(number, dtype=int) if current is None else np.array(current)
    return Jobs(
        np.array(speedups, dtype=float),
        current,
        current > 0,
        np.zeros(number) if attained is None else np.array(attained, dtype=float),
        np.arange(number),
        np.arange(number) if kind is None else np.array(kind),
        np.full(number, 600.0) if age is None else np.array(age, dtype=float),
        np.zeros(number) if restarted is None else np.array(restarted, dtype=float),
        np.full(number, np.nan) if left is None else np.array(left, dtype=float),
        np.ones(number),
        np.zeros(number, dtype=bool) if shrinks is None else np.array(shrinks),
    )


ALIKE = [[0.0, 1.0, 1.8, 3.0]] * 2
SIZES = [0, 1, 2, 4]


def chosen(values, capacity):
    return [SIZES[choice] for choice in solve(values, SIZES, capacity).choices]


def test_no_gpus_are_worth_nothing_under_any_power():
    speedups = np.array([[0.0, 1.0, 2.0]])
    for power in (-1.0, 0.5, 0.7):
        values = power_mean_values(speedups, power)
        assert values[0, 0] == 0
        assert values[0, 2] > values[0, 1] > 0


def test_who_had_less_service_gets_more_and_the_old_are_served_in_order():
    def by(attained):
        jobs = jobs_of(ALIKE, attained=attained)
        return chosen(by_service(jobs, limit_gpu_s=57_600.0, charged=jobs.speedups), 5)

    assert by([0, 7200]) == [4, 1]
    assert by([7200, 0]) == [1, 4]
    assert by([90_000, 60_000]) == [4, 1]


def test_of_jobs_of_one_kind_the_first_to_come_go_first():
    alone = [[0.0, 1.0, 1.8, 3.0]] * 4
    jobs = jobs_of(alone, kind=[0, 1, 1, 1])
    values = by_service(jobs, limit_gpu_s=np.inf, charged=jobs.speedups)
    assert values[:, 3] / values[0, 3] == pytest.approx([1, 1, 1 / 2, 1 / 3])


def test_who_has_less_left_gets_more():
    def by(left):
        jobs = jobs_of(ALIKE, left=left)
        return chosen(by_length(jobs, charged=jobs.speedups), 5)

    assert by([100, 5000]) == [4, 1]
    assert by([5000, 100]) == [1, 4]
    assert by([5000, np.nan]) == [1, 4]


@pytest.mark.parametrize("absurd", [1e40, 1e297, np.inf])
def test_who_tells_of_endless_work_still_weighs_something(absurd):
    jobs = jobs_of([ALIKE[0]] * 2, left=[absurd, 60.0])
    values = by_length(jobs, charged=jobs.speedups)
    assert 0 < values[1, 1] / values[0, 1] < 1000


def test_a_change_has_to_be_worth_its_pause():
    jobs = jobs_of([[0.0, 1.0, 1.1, 1.15]], current=[1])
    free = charged_for_restarts(jobs, restart_s=1e-9, horizon_s=150.0)
    dear = charged_for_restarts(jobs, restart_s=30.0, horizon_s=150.0)
    assert free[0] == pytest.approx(jobs.speedups[0])
    assert dear[0] == pytest.approx([0.0, 1.0, 0.88, 0.92])


@pytest.mark.parametrize(("shrinks", "goes"), [(False, [0, 1]), (True, [1, 0])])
def test_who_comes_takes_no_gpu_of_one_like_itself_that_could_make_room(shrinks, goes):
    def sizes(attained):
        cost = {"restart_s": 30.0, "horizon_s": 150.0}
        jobs = jobs_of(
            [[0.0, 1.0]] * 2, current=[1, 0], attained=[attained, 0], shrinks=[shrinks] * 2
        )
        charged = charged_for_restarts(jobs, **cost)
        values = by_service(jobs, limit_gpu_s=np.inf, charged=charged)
        values = charged_for_stops(jobs, values, **cost)
        return list(solve(values, [0, 1], 1).choices)

    assert sizes(600) == goes
    assert sizes(1200) == [0, 1], "the other has had so much less"


def test_the_published_objective_is_the_harmonic_mean_over_fair_shares_less_restarts():
    jobs = jobs_of([[0.0, 1.0, 1.8, 3.0]], current=[2], age=[270.0], restarted=[2])
    values = as_published(jobs, fair=np.array([1.0]), share=0.25, restart_s=30.0)
    factor = (270 - 30) / (270 + 30)
    speedups = np.array([0.0, 0.25 * factor, 0.45, 0.75 * factor])
    assert values[0] == pytest.approx(1e3 - 1 / (speedups + 1e-3))


def test_to_begin_is_a_change_but_no_restart_as_published():
    def of(restarted, current):
        jobs = jobs_of([[0.0, 1.0]], current=[current], age=[60.0], restarted=[restarted])
        return as_published(jobs, fair=np.array([1.0]), share=1.0, restart_s=30.0)[0, 1]

    assert of(0, current=0) == pytest.approx(1e3 - 1 / (60 / 90 + 1e-3))
    assert of(1, current=0) == pytest.approx(1e3 - 1 / (60 / 90 + 1e-3))
    assert of(2, current=0) == pytest.approx(1e3 - 1 / (30 / 90 + 1e-3))
    assert of(9, current=0) == 0
    assert of(9, current=1) == pytest.approx(1e3 - 1 / (1 + 1e-3))


def test_by_the_published_objective_all_are_as_far_above_their_fair_share_as_can_be():
    jobs = jobs_of([[0.0, 1.0, 2.0, 4.0], [0.0, 1.0, 1.1, 1.2]])
    values = as_published(jobs, fair=np.array([2.0, 1.1]), share=1.0, restart_s=1e-9)
    # Over the fair share of 2 GPUs: 0.5, 1, 2 and 0.91, 1, 1.09. The sum of their inverses is 3
    # with [1, 2] GPUs, 2.1 with [2, 1], 2 with [2, 2] and 1.6 with [4, 1].
    assert chosen(values, 4) == [2, 2]
    assert chosen(values, 5) == [4, 1]
    assert chosen(values, 2) == [1, 1]


def test_the_fair_share_is_on_one_node_and_counts_in_nodes_as_published(monkeypatch):
    seen, published, know = {}, pollux_value.as_published, Models.know

    def valued(jobs, **more):
        seen.update(more)
        return published(jobs, **more)

    def knew(*args, **more):
        seen["known"] = know(*args, **more)
        return seen["known"]

    monkeypatch.setattr(pollux_value, "as_published", valued)
    monkeypatch.setattr(Models, "know", knew)
    jobs = [job(i, model=("noisy", "clear", "clear")[i], batch=8) for i in range(3)]
    sim = until(simulation(*jobs, objective="pollux", fits="job"), 1.0)
    assert seen["share"] == 0.25
    assert list(seen["fair"]) == [3.0, 3.0, 3.0]  # nothing is known yet
    until(sim, 61.0)
    for fair, (model, *_) in zip(seen["fair"], seen["known"][0], strict=True):
        three, one = (best_choice(model, gpus, 1).goodput for gpus in (3, 1))
        assert fair == pytest.approx(three / one)


def test_under_the_published_objective_a_job_doubles_at_most():
    sim = simulation(job(1, model="noisy", batch=8), objective="pollux", fits="job")
    sizes = [gpus(until(sim, 1.0 + 60.0 * tick))[0] for tick in range(3)]
    assert sizes == [1, 2, 4]


# -- speed, which changes nothing ------------------------------------------------------------------


class Forgetful(Policy):
    """A policy that begins every decision with nothing but the view."""

    name = "pollux"
    identity = "pollux"

    def __init__(self, settings):
        self._settings = settings

    def decide(self, view):
        return create("pollux", self._settings).decide(view)


@pytest.mark.parametrize("fits", ["kind", "job"])
def test_what_a_policy_remembers_of_measurements_changes_none_of_its_decisions(fits):
    jobs = [job(i, model=("noisy", "clear")[i % 2], batch=8, at=60.0 * i) for i in range(9)]
    remembering = simulation(*jobs, fits=fits)
    remembering.policy.identity = "pollux"
    forgetting = simulation(*jobs, fits=fits)
    forgetting.policy = Forgetful({"fits": fits})
    one, other = remembering.run().state, forgetting.run().state
    assert list(one.finish_s) == list(other.finish_s)


def test_of_ended_jobs_only_those_are_looked_at_that_measured_something_new(monkeypatch):
    sim = simulation(*(job(i, model="noisy", batch=8, at=2000.0 * i) for i in range(8)))
    asked = []
    plain = View.measured
    monkeypatch.setattr(View, "measured", lambda self, row: asked.append(row) or plain(self, row))
    until(sim, 12_001.0)
    asked.clear()
    until(sim, 14_000.0)
    assert min(sim.state.finish_s[:7]) > 0
    assert 7 in asked
    assert len(set(asked)) < 8


@pytest.mark.parametrize(("objective", "sizes"), [("service", (8, 16)), ("pollux", (2, 4))])
def test_a_job_whose_least_size_is_large_begins_with_that(objective, sizes):
    spec = job(1, gpus=sizes[0])._replace(elastic=Elastic(sizes, by_restart=True))
    sim = Simulation(trace(spec), parse_cluster("2x8"), create("pollux", {"objective": objective}))
    assert gpus(until(sim, 1.0)) == [sizes[0]]


@pytest.mark.parametrize("interval_s", [0.1, 0.7, 1.1, 12.3])
def test_the_next_decision_is_later_than_this_one_whatever_the_interval(interval_s):
    state = simulation(job(1, model="noisy", batch=8), interval_s=str(interval_s)).run().state
    assert state.finish_s[0] > 0
