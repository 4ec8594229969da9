"""The state of a suspended job leaves a drained node, and waits on another one, whoever is killed.

Each party is stopped at a named point (``scripts/stops``), killed there, and started again.
"""

import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from .conftest import Cluster, Stops, node_of, own_base, stoppable_cluster, until
from .states import equal, weights
from .test_migration import STEPS, leftovers, occupy
from .test_out_of_service import closed

# When a point is armed: as soon as the job is suspended.
POINTS = [
    ("source", "vacate-before"),
    ("source", "leave_processes-before"),
    ("source", "leave_processes-after"),
    ("source", "describe-after"),
    ("source", "read-before"),
    ("source", "read-after"),
    ("source", "drop-before"),
    ("source", "drop-after"),
    ("target", "fetch_state-before"),
    ("target", "fetch_state-after"),
    ("target", "write-before"),
    ("target", "write-after"),
    ("target", "put_in_place-before"),
    ("target", "put_in_place-after"),
    ("target", "settle-before"),
    ("target", "settle-after"),
    ("target", "stay-before"),
    ("target", "stay-after"),
    ("controller", "dispatch-before"),
    ("controller", "dispatch-after"),
    ("controller", "pass_on-before"),
    ("controller", "pass_on-after"),
    ("controller", "pass_piece_on-before"),
    ("controller", "pass_piece_on-after"),
    ("controller", "answered-before"),
    ("controller", "answered-after"),
    ("controller", "tell_drop-before"),
    ("controller", "tell_drop-after"),
]


class Leaving:
    """A job that its owner has suspended on one of two nodes; another job has the other node."""

    def __init__(self, cluster: Cluster, stops: Stops, alone: Path) -> None:
        self.cluster, self.stops, self.alone = cluster, stops, alone
        for node in cluster.node_names():
            cluster.client.enable(node)
        self.job = cluster.train("job", "--steps", STEPS, "--gate", 60)
        self.source = node_of(cluster.until_state(self.job, "RUNNING"))
        cluster.suspend_at(self.job, "job", 60)
        (self.target,) = (name for name in cluster.node_names() if name != self.source)
        cluster.client.cordon(self.source)
        self.filler = occupy(cluster, self.target)

    def name(self, party: str) -> str:
        return {"source": self.source, "target": self.target}.get(party, party)

    def stops_at(self, party: str, point: str) -> psutil.Process:
        """Drain its node; the party's process, once that has stopped at the point."""
        self.stops.arm(self.name(party), point)
        self.cluster.client.drain(self.source)
        return self.stops.until_at(point)

    def kill(self, party: str, process: psutil.Process) -> None:
        """Kill it, and have it started again."""
        cluster = self.cluster
        cluster.kill(process)
        if party == "controller":
            cluster.up()
        else:
            node = self.name(party)
            until(lambda: cluster.agent_of(node).pid != process.pid, "there is another agent")

    def is_there(self) -> None:
        """Assert that its state gets to the other node, and that nothing is left on the first."""
        cluster = self.cluster
        until(lambda: closed(cluster, self.source) == "drained", "its state has left")
        show = cluster.until_state(self.job, "SUSPENDED")
        assert (show["state_on"], show["attempt"]) == (self.target, 1)
        until(lambda: not leftovers(cluster, self.source, self.job), "nothing is left behind")

    def ends_well(self) -> None:
        """Assert that it trained as if undisturbed, each step once, and that nothing is left."""
        cluster = self.cluster
        self.is_there()
        cluster.client.resume(self.job)
        cluster.client.cancel(self.filler)
        show = cluster.ends(self.job)
        assert (show["attempt"], show["state_on"], show["migrations"]) == (1, None, 1)
        assert cluster.step("job") == STEPS
        assert equal(weights(cluster.base / "job"), weights(self.alone))
        self.leaves_no_arenas()

    def leaves_no_arenas(self) -> None:
        folders = [self.cluster.folder.arenas(node) for node in (self.source, self.target)]
        until(lambda: not [*folders[0].iterdir(), *folders[1].iterdir()], "no arena is left")


@pytest.fixture(scope="module")
def stoppable(tmp_path_factory):
    """A cluster of two nodes for all tests here, and what a job trains that nobody disturbs."""
    base = tmp_path_factory.mktemp("leaving")
    with stoppable_cluster(base, nodes=2, gpus=1) as (cluster, stops):
        cluster.ends(cluster.train("alone", "--steps", STEPS))
        yield cluster, stops, base / "alone"


@pytest.fixture
def leaving(stoppable, request):
    cluster, stops, alone = stoppable
    with own_base(cluster, request):
        yield Leaving(cluster, stops, alone)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("party", "point"), POINTS, ids=[":".join(pair) for pair in POINTS])
def test_a_state_is_never_lost_whoever_is_killed_while_it_leaves(leaving, party, point):
    process = leaving.stops_at(party, point)
    leaving.kill(party, process)
    leaving.ends_well()


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("party", "point"),
    [
        ("target", "write-after"),
        ("source", "read-before"),
        ("target", "settle-after"),
        ("target", "stay-after"),
        ("controller", "tell_drop-before"),
    ],
)
def test_a_state_is_never_lost_when_everything_is_killed_while_it_leaves(leaving, party, point):
    cluster = leaving.cluster
    process = leaving.stops_at(party, point)
    agents = [cluster.agent_of(node) for node in (leaving.source, leaving.target)]
    cluster.kill(process, *(p for p in (cluster.controller(), *agents) if p.pid != process.pid))
    cluster.up()
    leaving.ends_well()


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("party", "point"),
    [
        ("source", "vacate-before"),
        ("source", "read-after"),
        ("target", "write-before"),
        ("target", "settle-after"),
        ("target", "stay-after"),
    ],
)
def test_a_job_that_is_cancelled_while_its_state_leaves_ends(leaving, party, point):
    process = leaving.stops_at(party, point)
    leaving.cluster.client.cancel(leaving.job)
    process.send_signal(signal.SIGCONT)
    leaving.cluster.ends(leaving.job, "CANCELLED")
    until(lambda: not leaving.cluster.of_job(leaving.job), "no process is left")
    leaving.leaves_no_arenas()


@pytest.mark.sampled(1)
def test_a_node_without_room_refuses_a_state_which_stays_until_there_is(leaving):
    """A file system of a few pages lies over what the target writes to."""
    cluster, target = leaving.cluster, leaving.target
    folder = cluster.folder.node(target) / "jobs"
    command = ["mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("no right to mount a file system")
    try:
        cluster.client.drain(leaving.source)
        said = "No space left on device"
        until(lambda: said in str(cluster.show(leaving.job)["story"]), "it is refused")
        show = cluster.show(leaving.job)
        assert (show["state"], show["state_on"]) == ("SUSPENDED", leaving.source)
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
    leaving.ends_well()


@pytest.mark.live_path("park")
def test_a_training_that_gets_no_gpus_elsewhere_waits_there_when_its_node_is_drained(make_cluster):
    """Its node goes: the policy suspends it, its state leaves, and it ends on the other node."""
    cluster = make_cluster(nodes=2, gpus=2)
    alone = cluster.train("alone", "--steps", STEPS)
    cluster.ends(alone)
    job = cluster.train("job", "--steps", STEPS, "--gate", 60)
    source = node_of(cluster.until_state(job, "RUNNING"))
    cluster.client.cordon(source)
    others = [cluster.train(name, "--steps", 10**6) for name in ("one", "two")]
    for other in others:
        assert node_of(cluster.until_state(other, "RUNNING")) != source
    cluster.until_at("job", 60)
    cluster.client.drain(source)
    cluster.opens("job", 60)
    until(lambda: closed(cluster, source) == "drained", "its state has left")
    show = cluster.show(job)
    assert (show["state"], show["attempt"], show["migrations"]) == ("SUSPENDED", 1, 1)
    target = show["state_on"]
    assert target != source
    assert any("where its state is" in line["line"] for line in show["story"])
    assert cluster.client.explain(job)["reason"] == "WAIT_RESOURCES"
    until(lambda: not leftovers(cluster, source, job), "it has left nothing behind")

    cluster.client.cancel(others[0])
    assert node_of(cluster.until_state(job, "RUNNING")) == target
    assert cluster.ends(job)["attempt"] == 1
    assert cluster.step("job") == STEPS
    assert equal(weights(cluster.base / "job"), weights(cluster.base / "alone"))
    cluster.client.cancel(others[1])
