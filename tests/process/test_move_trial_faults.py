"""Whoever is killed while a job makes room for a gang, it moves once, and its trial has an end.

Here the policy orders the move of a job that runs; see ``test_migration_faults.py`` for the points
of a move. Each party is stopped at a named point, killed there, and started again.
"""

import json
import signal

import psutil
import pytest

from rota.model.events import WorkerReported

from .conftest import (
    PROMPT,
    Cluster,
    Stops,
    own_base,
    stoppable_cluster,
    until,
)
from .test_defragmentation import is_measured
from .test_nodes import node_of
from .tried import Tried, train, undisturbed

# No speed would make it go back.
SETTINGS = {"trial_s": 1.0, "quantum_s": 0.5, "least_gain": 1.0, "limit": 1, "pack": "off"}

# The order is that of the move.
POINTS = [
    ("controller", "dispatch-before"),
    ("source", "suspend-before"),
    ("source", "suspended-after"),
    ("controller", "answered-before"),
    ("source", "vacate-before"),
    ("source", "read-after"),
    ("target", "put_in_place-before"),
    ("target", "came-before"),
    ("controller", "tell_drop-before"),
]


class MakingRoom(Tried):
    """A job that shares its node with a free slot, as does one on the other that can't be moved."""

    def __init__(self, cluster: Cluster, stops: Stops, expected: str) -> None:
        super().__init__(cluster, stops, expected)
        self.job = train(cluster, "job")
        self.source = node_of(cluster.until_state(self.job, "RUNNING"))
        (self.target,) = (name for name in self.names if name != self.source)
        self.holds("short", self.source)
        self.holds("stays", self.target)
        until(self.has_told, "the policy knows how far it is when the next thing happens")
        (cluster.base / "short").touch()
        until(self.is_ready, "its speed is known")

    def holds(self, name: str, node: str) -> None:
        """A job that has a slot there until there is a file of this name."""
        job = self.submit(name)
        assert node_of(self.cluster.until_state(job, "RUNNING")) == node

    def submit(self, name: str, gpus: int = 1) -> str:
        run = f"while [ ! -e {name} ]; do sleep 0.02; done"
        return self.cluster.submit(run, gpus=gpus, processes="node")

    def has_told(self) -> bool:
        """Whether a report of the job is in the log."""
        row = int(self.job) - 1
        events = self.cluster.events()
        return any(isinstance(event, WorkerReported) and event.row == row for event in events)

    def is_ready(self) -> bool:
        """Whether the policy knows how fast it is, and each node has a free slot."""
        free = all(None in node["jobs"] for node in self.cluster.client.nodes())
        return free and is_measured(self.cluster, self.job)

    def stops_at(self, party: str, point: str) -> psutil.Process:
        """Let a gang come that needs the node; the party's process, once it has stopped."""
        self.stops.arm(self.name(party), point)
        self.gang = self.submit("gang", gpus=2)
        return self.stops.until_at(point)

    def name(self, party: str) -> str:
        return {"source": self.source, "target": self.target}.get(party, party)

    def forked(self) -> psutil.Process:
        """Its new process on the other node, which nobody but that node's agent knows yet."""
        files = self.cluster.folder.node(self.target).glob(f"jobs/{self.job}/1/*.pid")
        latest = max(files, key=lambda file: file.stat().st_mtime_ns)
        return psutil.Process(json.loads(latest.read_text())["worker"])

    def takes_others(self, node: str) -> None:
        """Assert that other jobs can have a slot there."""
        self.holds("next", node)

    def has_made_room(self) -> None:
        """Assert that the job is on the other node, the gang on the first, and the trial over."""
        cluster = self.cluster
        self.lets_go("job")
        assert node_of(cluster.until_state(self.gang, "RUNNING")) == self.source
        until(lambda: self.trials(self.job), "the move is judged")
        assert self.trials(self.job) == [f"move to make room for job {self.gang}"]
        assert not self.is_on_trial(self.job)
        assert node_of(cluster.until_state(self.job, "RUNNING")) == self.target
        assert cluster.show(self.job)["migrations"] == 1


@pytest.fixture(scope="module")
def two_nodes(tmp_path_factory):
    """Two nodes of two slots, and what a job prints at its end that nobody disturbs."""
    base = tmp_path_factory.mktemp("moves")
    more = {"nodes": 2, "gpus": 2, **SETTINGS}
    with stoppable_cluster(base, PROMPT, policy="gandiva", **more) as (cluster, stops):
        yield cluster, stops, undisturbed(cluster)


@pytest.fixture
def tried(two_nodes, request):
    cluster, stops, expected = two_nodes
    with own_base(cluster, request):
        yield MakingRoom(cluster, stops, expected)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("party", "point"), POINTS, ids=[":".join(pair) for pair in POINTS])
def test_a_move_that_the_policy_ordered_is_made_once_whoever_is_killed(tried, party, point):
    process = tried.stops_at(party, point)
    tried.kill(tried.name(party), process)
    tried.has_made_room()
    tried.ends_well(tried.job)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("victim", ["controller", "source", "target"])
def test_a_move_on_trial_is_judged_after_whoever_is_killed(tried, victim):
    tried.gang = tried.submit("gang", gpus=2)
    tried.until_moved("job")
    assert tried.is_on_trial(tried.job)
    tried.kill(tried.name(victim))
    assert tried.is_on_trial(tried.job)
    tried.has_made_room()
    tried.ends_well(tried.job)


def test_a_worker_that_is_killed_on_its_way_is_not_missed(tried):
    """Its state is in its arena until it is there."""
    agent = tried.stops_at("target", "fork-after")
    tried.cluster.kill(tried.forked())
    agent.send_signal(signal.SIGCONT)
    tried.has_made_room()
    tried.ends_well(tried.job)


def test_a_worker_that_is_killed_as_it_is_to_leave_starts_anew_and_its_trial_is_over(tried):
    agent = tried.stops_at("source", "suspend-before")
    tried.cluster.kill(tried.worker(tried.job))
    agent.send_signal(signal.SIGCONT)
    until(lambda: tried.cluster.show(tried.job)["attempt"] == 2, "it starts anew")
    until(lambda: not tried.is_on_trial(tried.job), "its trial is over")
    tried.lets_go("job")
    assert node_of(tried.cluster.until_state(tried.gang, "RUNNING")) == tried.source
    tried.ends_well(tried.job, attempt=2)


def test_a_job_that_is_killed_on_trial_leaves_no_trial_behind(tried):
    tried.gang = tried.submit("gang", gpus=2)
    tried.until_moved("job")
    tried.cluster.kill(tried.worker(tried.job))
    assert tried.cluster.ends(tried.job, "FAILED")["message"] == "killed by SIGKILL"
    assert node_of(tried.cluster.until_state(tried.gang, "RUNNING")) == tried.source
    tried.leave_nothing(tried.job)
    tried.takes_others(tried.target)
