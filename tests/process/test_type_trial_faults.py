"""Whoever is killed while jobs try each other's GPU type, they go on, and the trial has an end.

Each party is stopped at a named point (``scripts/stops``), killed there, and started again.
"""

import signal

import pytest

from .conftest import (
    PROMPT,
    Cluster,
    Stops,
    own_base,
    stoppable_cluster,
    until,
)
from .test_nodes import node_of
from .tried import STEP_S, Tried, tell, train, undisturbed

# A busy machine may hide that types differ: there are trials again soon after one that shows that.
SETTINGS = {"trial_s": 1.0, "quantum_s": 0.5, "least_gain": 0.3, "stay_s": 10.0, "pack": "off"}
OPTIONS = ("--gpu-types", "fast,slow")

# Those on whose way each party is; the order is that of the exchange.
POINTS = [
    ("fast", "suspend-before"),
    ("slow", "suspended-after"),
    ("slow", "fetch_state-before"),
    ("controller", "pass_on-after"),
    ("fast", "put_in_place-after"),
    ("slow", "came-after"),
    ("controller", "tell_drop-after"),
]


class Exchange(Tried):
    """Two jobs that should change places: a light one has the fast node, a heavy one the slow."""

    def __init__(self, cluster: Cluster, stops: Stops, expected: str) -> None:
        super().__init__(cluster, stops, expected)
        self.nodes = dict(zip(("fast", "slow"), self.names, strict=True))

    def begins(self) -> None:
        """Let both be there, and take what time they should there."""
        cluster = self.cluster
        jobs = {name: train(cluster, name, None) for name in ("one", "other")}
        places = {name: node_of(cluster.until_state(jobs[name], "RUNNING")) for name in jobs}
        assert set(places.values()) == set(self.names)
        for name, node in places.items():
            if node == self.nodes["fast"]:
                self.light = jobs[name]
            else:
                self.heavy = jobs[name]
            tell(cluster, name, STEP_S if node == self.nodes["fast"] else 0.25)

    def name(self, party: str) -> str:
        return self.nodes.get(party, party)

    def is_open(self) -> bool:
        return self.is_on_trial(self.light) and self.is_on_trial(self.heavy)

    def is_over(self, *jobs: str) -> None:
        """Assert that it has been measured what the trial is worth, for these jobs."""
        what = {self.light: "move to slow", self.heavy: "move to fast"}
        for job in jobs:
            until(lambda job=job: self.trials(job), "the trial is judged")
            assert self.trials(job)[0] == what[job]


@pytest.fixture(scope="module")
def two_types(tmp_path_factory):
    """Two nodes of one slot each, and what a job prints at its end that nobody disturbs."""
    base = tmp_path_factory.mktemp("types")
    more = {"nodes": 2, "gpus": 1, "options": OPTIONS, **SETTINGS}
    with stoppable_cluster(base, PROMPT, policy="gandiva", **more) as (cluster, stops):
        yield cluster, stops, undisturbed(cluster)


@pytest.fixture
def tried(two_types, request):
    cluster, stops, expected = two_types
    with own_base(cluster, request):
        yield Exchange(cluster, stops, expected)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("party", "point"), POINTS, ids=[":".join(pair) for pair in POINTS])
def test_two_jobs_change_places_once_whoever_is_killed_meanwhile(tried, party, point):
    tried.stops.arm(tried.name(party), point)
    tried.begins()
    tried.kill(tried.name(party), tried.stops.until_at(point))
    tried.lets_go("one", "other")
    tried.is_over(tried.light, tried.heavy)
    tried.ends_well(tried.light, tried.heavy)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("victim", ["controller", "fast", "slow"])
def test_a_trial_of_types_is_judged_after_whoever_is_killed(tried, victim):
    tried.begins()
    tried.until_moved("one", "other")
    assert tried.is_open()
    tried.kill(tried.name(victim))
    assert tried.is_open()
    tried.lets_go("one", "other")
    tried.is_over(tried.light, tried.heavy)
    tried.ends_well(tried.light, tried.heavy)


def test_a_job_whose_partner_is_killed_on_trial_is_judged_alone(tried):
    tried.begins()
    tried.until_moved("one", "other")
    tried.cluster.kill(tried.worker(tried.light))
    tried.cluster.ends(tried.light, "FAILED")
    tried.lets_go("one", "other")
    tried.is_over(tried.heavy)
    tried.ends_well(tried.heavy)
    tried.leave_nothing(tried.light)


def test_a_job_that_is_lost_as_it_is_to_leave_starts_anew_and_the_trial_is_over(tried):
    tried.stops.arm(tried.nodes["fast"], "suspend-before")
    tried.begins()
    agent = tried.stops.until_at("suspend-before")
    tried.cluster.kill(tried.worker(tried.light))
    agent.send_signal(signal.SIGCONT)
    until(lambda: tried.cluster.show(tried.light)["attempt"] == 2, "it starts anew")
    tried.lets_go("one", "other")
    until(lambda: not tried.is_on_trial(tried.light), "its trial is over")
    tried.is_over(tried.heavy)
    tried.ends_well(tried.light, attempt=2)
    tried.ends_well(tried.heavy)
