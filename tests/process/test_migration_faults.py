"""Whatever is killed while a job moves, it goes on from its state, once, and leaves nothing behind.

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
    ("target", "fork-before"),
    ("target", "fork-after"),
    ("target", "came-before"),
    ("target", "came-after"),
    ("controller", "pass_on-before"),
    ("controller", "pass_on-after"),
    ("controller", "pass_piece_on-before"),
    ("controller", "pass_piece_on-after"),
    ("controller", "answered-before"),
    ("controller", "answered-after"),
    ("controller", "tell_drop-before"),
    ("controller", "tell_drop-after"),
]


class Moving:
    """A job on its way from the first of two nodes to the second, until a party stops."""

    def __init__(self, cluster: Cluster, stops: Stops, alone: Path) -> None:
        self.cluster, self.stops, self.alone = cluster, stops, alone
        self.job = cluster.train("job", "--steps", STEPS, "--gate", 60)
        self.source = node_of(cluster.until_state(self.job, "RUNNING"))
        cluster.suspend_at(self.job, "job", 60)
        self.blocker = occupy(cluster, self.source)
        (self.target,) = (name for name in cluster.node_names() if name != self.source)

    def name(self, party: str) -> str:
        return {"source": self.source, "target": self.target}.get(party, party)

    def stops_at(self, party: str, point: str) -> psutil.Process:
        """Let it move; the party's process, once that has stopped at the point."""
        self.stops.arm(self.name(party), point)
        self.cluster.client.resume(self.job)
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

    def ends_well(self) -> None:
        """Assert that it trained as if undisturbed, each step once, and that nothing is left."""
        cluster = self.cluster
        show = cluster.ends(self.job)
        assert show["attempt"] == 1
        assert cluster.step("job") == STEPS
        assert equal(weights(cluster.base / "job"), weights(self.alone))
        cluster.client.cancel(self.blocker)
        cluster.ends(self.blocker, "CANCELLED")
        self.leaves_nothing()

    def leaves_nothing(self) -> None:
        """Assert that no arena is left, and of the job only what the last node has of it."""
        cluster = self.cluster

        def untidy() -> list[str]:
            arenas = [
                str(file)
                for node in (self.source, self.target)
                for file in cluster.folder.arenas(node).iterdir()
            ]
            folders = [bool(leftovers(cluster, n, self.job)) for n in (self.source, self.target)]
            return arenas + ["on both nodes"] * all(folders)

        until(lambda: not untidy(), f"nothing is left of {untidy()}")


@pytest.fixture(scope="module")
def stoppable(tmp_path_factory):
    """A cluster of two nodes for all tests here, and what a job trains that nobody disturbs."""
    base = tmp_path_factory.mktemp("moving")
    with stoppable_cluster(base, nodes=2, gpus=1) as (cluster, stops):
        cluster.ends(cluster.train("alone", "--steps", STEPS))
        yield cluster, stops, base / "alone"


@pytest.fixture
def moving(stoppable, request):
    cluster, stops, alone = stoppable
    with own_base(cluster, request):
        yield Moving(cluster, stops, alone)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("party", "point"), POINTS, ids=[":".join(pair) for pair in POINTS])
def test_a_job_goes_on_once_whoever_is_killed_while_it_moves(moving, party, point):
    process = moving.stops_at(party, point)
    moving.kill(party, process)
    moving.ends_well()


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("party", "point"), [("source", "read-before"), ("target", "write-after")])
def test_a_party_that_is_stopped_for_a_while_goes_on_where_it_was(moving, party, point):
    process = moving.stops_at(party, point)
    moving.cluster.kill_controller()
    moving.cluster.up(connected=False)
    process.send_signal(signal.SIGCONT)
    moving.ends_well()


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("party", "point"),
    [
        ("source", "vacate-before"),
        ("source", "read-after"),
        ("target", "write-before"),
        ("target", "settle-after"),
        ("target", "came-before"),
    ],
)
def test_a_job_that_is_cancelled_while_it_moves_ends_and_leaves_nothing(moving, party, point):
    process = moving.stops_at(party, point)
    moving.cluster.client.cancel(moving.job)
    until(lambda: moving.cluster.show(moving.job)["state"] != "MIGRATING", "it is stopping")
    process.send_signal(signal.SIGCONT)
    moving.cluster.ends(moving.job, "CANCELLED")
    until(lambda: not moving.cluster.of_job(moving.job), "no process is left")
    moving.leaves_nothing()


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("party", "point"),
    [
        ("target", "write-after"),
        ("source", "read-before"),
        ("target", "settle-after"),
        ("target", "came-after"),
        ("controller", "tell_drop-before"),
    ],
)
def test_a_job_goes_on_once_when_everything_but_its_processes_is_killed(moving, party, point):
    """Both nodes and the controller come back in the middle of the move."""
    cluster = moving.cluster
    process = moving.stops_at(party, point)
    agents = [cluster.agent_of(node) for node in (moving.source, moving.target)]
    cluster.kill(process, *(p for p in (cluster.controller(), *agents) if p.pid != process.pid))
    cluster.up()
    moving.ends_well()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("full", ["memory", "disk"])
def test_a_node_without_room_refuses_a_job_which_goes_on_when_there_is(moving, full):
    """A file system of a few pages lies over what the target writes to."""
    cluster, target = moving.cluster, moving.target
    folders = {
        "memory": cluster.folder.arenas(target),
        "disk": cluster.folder.node(target) / "jobs",
    }
    folder = folders[full]
    folder.mkdir(exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("no right to mount a file system")
    try:
        cluster.client.resume(moving.job)
        if full == "disk":
            said = "No space left on device"
            until(lambda: said in str(cluster.show(moving.job)["story"]), "it is refused")
            assert cluster.show(moving.job)["state"] == "SUSPENDED"
        else:  # then its state is kept on the disk there
            until(lambda: node_of(cluster.show(moving.job)) == target, "it has come")
            cluster.ends(moving.job)
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
    moving.ends_well()
