"""No policy fails, whatever happens on a live cluster; nor does the fallback of one that fails.

``make test-plans DECISIONS=10000`` takes as many decisions with each policy.
"""

import os
import random

import pytest

from rota.errors import PlanError
from rota.model.job import BACKGROUND, FOREGROUND, Elastic, Share
from rota.model.sweep import Sweep, SweepTrial
from rota.policy.base import Policy, Setting
from rota.policy.fill.settings import fill_stage
from rota.policy.registry import BUILT_IN, create
from rota.sim.faults import Faults
from rota.sim.machine import FREE, Costs
from rota.testing.builders import job, simulation
from support.any_cluster import AnyCluster, policy_of
from virtual.restless import Restless

FIRST = int(os.environ.get("PLANS_FIRST", "0"))
DECISIONS = int(os.environ.get("PLANS_DECISIONS", "360"))
OF_A_STORY = 120
LIVE = [name for name in BUILT_IN if not create(name).needs_duration]


def stories():
    """The seeds of stories that come to so many decisions."""
    return range(FIRST, FIRST + -(-DECISIONS // OF_A_STORY))


def tell(name, seed, failed=None):
    policy = policy_of(name, random.Random(seed)) if isinstance(name, str) else name
    story = AnyCluster(policy, seed, failed)
    try:
        while story.decisions < OF_A_STORY:
            story.go_on()
    except Exception as error:
        where = f"story {seed} under {policy.identity}, after {story.decisions} decisions"
        raise AssertionError(f"{where}: {error}") from error


@pytest.mark.parametrize("name", LIVE)
def test_a_policy_never_fails(name):
    for seed in stories():
        tell(name, seed)


def simulated_jobs(chance):
    """Gangs, elastic jobs, trials, flow and background jobs that arrive one after another."""
    at_s, jobs = 0.0, []
    for number in range(14):
        at_s += chance.choice((0.0, 0.0, 10.0, 60.0))
        spec = job(number, chance.choice((1, 1, 2, 3)), at=at_s, lasts=chance.uniform(5.0, 300.0))
        kind = chance.choice(("gang", "elastic", "elastic", "trial", "flow", "behind"))
        if kind == "elastic":
            sizes = chance.choice(((1, 2), (1, 2, 4), (3, 4), (2, 4), (4, 5)))
            elastic = Elastic(sizes, by_restart=chance.random() < 0.3)
            spec = spec._replace(num_gpus=sizes[0], elastic=elastic)
        elif kind == "trial":
            spec = spec._replace(trial=SweepTrial(Sweep("s", "loss"), number))
        elif kind == "flow":
            spec = spec._replace(share=Share(FOREGROUND, weight=1.0), gpu_util=0.3)
        elif kind == "behind":
            spec = spec._replace(share=Share(BACKGROUND), num_gpus=1)
        jobs.append(spec._replace(priority=chance.choice((25, 50, 100))))
    return jobs


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_policy_never_fails_in_a_simulation_with_faults(name):
    for seed in stories():
        chance = random.Random(seed)
        policy = policy_of(name, chance)
        policy.fill = fill_stage({})
        faults = Faults(seed, mtbf_s=2000.0, mttr_s=100.0, worker_mtbf_s=4000.0, checkpoint_s=30.0)
        cluster = chance.choice(("2x4", "3x2", "1x8", "1x4,2x2"))
        more = {"faults": faults, "costs": chance.choice((FREE, Costs(3.0, 7.0, 11.0, 5.0)))}
        sim = simulation(simulated_jobs(chance), policy, cluster, **more)
        while sim.step() and sim.decisions < OF_A_STORY:
            sim.state.validate()


@pytest.mark.parametrize(("name", "seed"), [("elastic", 60)])
def test_stories_in_which_a_policy_has_failed(name, seed):
    """Cores were not taken from a job, as the command failed, and others had them already."""
    tell(name, seed)


def test_jobs_go_on_where_their_state_can_be_whatever_a_policy_wants():
    for seed in stories():
        tell(Restless(), seed)


class Fails(Policy):
    """A policy that fails at one decision in three, in one way or another."""

    identity = "fails"
    SETTINGS = {"among": Setting(str, "gandiva", "the policy that decides otherwise")}

    def __init__(self, among):
        self.settings = {"among": among}
        self._policy = Restless() if among == "restless" else create(among)
        self.resizes = self._policy.resizes

    def decide(self, view):
        if view.decision_seq % 3 == 2:
            if view.active and view.decision_seq % 2:
                raise PlanError("on purpose", [next(iter(view.active))])
            raise KeyError("on purpose")
        return self._policy.decide(view)


@pytest.mark.parametrize("name", ["gandiva", "elastic", "tiresias", "restless"])
def test_a_fallback_decides_whatever_the_policy_leaves(name):
    for seed in stories():
        errors = []
        tell(Fails(name), seed, errors.append)
        assert errors
        assert all("on purpose" in str(error) for error in errors), errors
