from math import inf
from random import Random

import pytest

from rota.experiment import gandiva_automl
from rota.experiment.gandiva_automl import (
    ACCURACIES,
    CONFIGURATIONS,
    Subject,
    _placed,
    first_passed_s,
    run,
    times_min,
)
from rota.model.cluster import parse_cluster
from rota.policy.registry import create
from rota.sim.machine import FREE
from rota.sim.simulation import Simulation
from rota.testing.builders import job
from rota.workload.learning_curves import Run, load
from rota.workload.trace import Trace

SEARCH = "digits-resnet"


def passed(jobs, curves, goals, policy="fifo", cluster="1x1"):
    named = {each.job_id: curve for each, curve in zip(jobs, curves, strict=True)}
    nodes = parse_cluster(cluster)
    sim = Simulation(Trace(jobs), nodes, create(policy), FREE, curves=named)
    return first_passed_s(sim, named, goals)


def test_a_goal_is_passed_at_the_end_of_the_first_report_above_it():
    jobs = [job(0, lasts=40), job(1, lasts=20)]
    curves = [(0.1, 0.3, 0.2, 0.4), (0.35, 0.9)]
    # 0 reports every 10 s; 1 every 10 s, too, from 40 s on.
    assert passed(jobs, curves, [0.25, 0.3, 0.5, 0.95]) == [20.0, 40.0, 60.0, inf]


def test_in_turns_goals_are_passed_by_the_time_that_each_has_run():
    jobs = [job(0, lasts=600), job(1, lasts=600)]
    curves = [(0.1,) * 5 + (0.3,), (0.1, 0.2, 0.3, 0.4, 0.5, 0.6)]
    # Turns of 60 s on one GPU: 1 makes its second report, after 200 s, in its fourth turn.
    assert passed(jobs, curves, [0.15], "gandiva") == [pytest.approx(440.0)]


def runs(accuracies):
    return [Run(n, (), 1.0, None, (0.1, best)) for n, best in enumerate(accuracies)]


@pytest.mark.parametrize("seed", range(20))
def test_good_ones_are_placed_in_the_waves_of_the_paper(seed):
    chance = Random(seed)
    best = [0.01 * n for n in range(CONFIGURATIONS)]
    chance.shuffle(best)
    order = _placed(runs(best), [0.835, 0.965, 0.985], chance)
    assert sorted(each.number for each in order) == list(range(CONFIGURATIONS))
    first = [
        min(n for n, each in enumerate(order) if each.accuracies[1] > goal)
        for goal in (0.835, 0.965, 0.985)
    ]
    assert [n // 16 for n in first] == [0, 3, 6]


def test_early_feedback_finds_rare_configurations_sooner():
    fifo, ours = (times_min(Subject(SEARCH, policy, True), 0) for policy in ("fifo", "gandiva"))
    assert ours[4] < fifo[4] / 2  # passed by 3 of 100
    assert ours[5] < fifo[5] / 2  # by one


def test_it_does_not_hold_without_early_feedback(monkeypatch):
    monkeypatch.setattr(gandiva_automl, "names", lambda: (SEARCH,))
    monkeypatch.setattr(gandiva_automl, "SEEDS", [0, 1])
    monkeypatch.setattr(gandiva_automl, "POLICIES", ("fifo", "fifo"))
    outcome = run()
    assert not outcome.holds
    judged = [figure for figure in outcome.figures if figure.judged]
    assert len(judged) == 6
    assert {figure.ours for figure in judged} == {1.0}


def test_each_seed_is_another_order_of_recorded_runs():
    first, second = (times_min(Subject(SEARCH, "fifo"), seed) for seed in (0, 1))
    assert first != second
    assert first == times_min(Subject(SEARCH, "fifo"), 0)
    assert len(first) == 2 * len(ACCURACIES)
    assert len(load(SEARCH).runs) >= CONFIGURATIONS
