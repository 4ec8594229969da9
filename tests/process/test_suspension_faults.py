"""Whatever is killed while a job is suspended, spilled or resumed on its node, it goes on once.

Each party is stopped at a named point (``scripts/stops``), killed there, and started again.
"""

import contextlib
import signal
import threading
from pathlib import Path

import psutil
import pytest

from rota.errors import RotaError

from .conftest import DEADLINE_S, Cluster, Stops, own_base, stoppable_cluster, until
from .states import equal, weights

STEPS, GATE = 100, 20
LATE = 90  # a gate that opens when all is over: until then the job can be suspended

# The order of each list is that of the operation.
SUSPENDING = [
    ("controller", "write_down-before"),
    ("controller", "dispatch-before"),
    ("agent", "suspend-before"),
    ("agent", "suspend-after"),
    ("agent", "suspended-before"),
    ("agent", "suspended-after"),
    ("controller", "answered-before"),
    ("controller", "answered-after"),
]
RESUMING = [
    ("controller", "write_down-before"),
    ("controller", "dispatch-before"),
    ("controller", "dispatch-after"),
    ("agent", "resume-before"),
    ("agent", "resume-after"),
    ("agent", "resumed-after"),
    ("controller", "answered-before"),
    ("controller", "answered-after"),
]
SPILLING = [
    "leave_processes-before",
    "leave_processes-after",
    "spill-before",
    "draft-before",
    "draft-after",  # written and synced, with another name
    "copy-after",  # whole, and not used yet
    "moved-before",
    "moved-after",  # used, and still in memory as well
    "spill-after",
]
READING_BACK = [
    "verify-before",
    "verify-after",
    "fork-after",
    "came-before",
    "came-after",
]


class Paused:
    """A job that is to be suspended after step ``GATE``, on a cluster of one node."""

    def __init__(self, cluster: Cluster, stops: Stops, alone: Path, gpus: int = 1) -> None:
        self.cluster, self.stops, self.alone, self.gpus = cluster, stops, alone, gpus
        self.job = cluster.train("job", "--steps", STEPS, "--gate", GATE, "--gate", LATE, gpus=gpus)
        cluster.until_at("job", GATE)

    def asks(self, call: str) -> threading.Thread:
        """Suspend or resume it, by a controller that may be stopped or killed meanwhile."""

        def ask() -> None:
            with contextlib.suppress(RotaError, OSError):
                getattr(self.cluster.client, call)(self.job)

        thread = threading.Thread(target=ask, daemon=True)
        thread.start()
        return thread

    def suspends(self) -> None:
        """Suspend it, and wait until that is so."""
        self.cluster.suspend_at(self.job, "job", GATE)

    def spilled(self) -> bool:
        """Whether its state is on the disk, and no process is left."""
        memory = self.cluster.show(self.job)["memory"] or {}
        return memory.get("where") == "disk" and not self.cluster.of_job(self.job)

    def arenas(self) -> list[Path]:
        """Its state in files, wherever they are."""
        folder, (node,) = self.cluster.folder, self.cluster.node_names()
        found = [*folder.arenas(node).iterdir(), *folder.node(node).glob("jobs/*/*/*.arena*")]
        return [file for file in found if file.name.startswith(f"{self.job}-")]

    def stops_at(self, party: str, point: str) -> psutil.Process:
        """The party's process, once it has stopped there."""
        process = self.stops.until_at(point)
        assert (process.pid == self.cluster.controller().pid) == (party == "controller")
        return process

    def arm(self, party: str, point: str) -> None:
        (node,) = self.cluster.node_names()
        self.stops.arm(node if party == "agent" else party, point)

    def kill(self, party: str, process: psutil.Process, *, both: bool = False) -> None:
        """Kill it, or controller and agent, and have what was killed started again."""
        cluster = self.cluster
        agent = cluster.agent()
        if both:
            cluster.kill(cluster.controller(), agent)
        else:
            cluster.kill(process)
        if both or party == "controller":
            cluster.up()
        if both or party == "agent":
            until(lambda: cluster.agent().pid != agent.pid, "there is another agent")
            until(lambda: cluster._connected(), "it is connected")

    def ends_well(self, attempt: int = 1) -> None:
        """Assert that it trained as if undisturbed, each step once, and that nothing is left."""
        self.cluster.opens("job", LATE)
        assert self.cluster.ends(self.job)["attempt"] == attempt
        for rank in range(self.gpus):
            begun = self.cluster.step("job", rank)
            assert begun == STEPS if attempt == 1 else STEPS < begun < 2 * STEPS
        assert equal(weights(self.cluster.base / "job"), weights(self.alone))
        until(lambda: not self.arenas(), "no arena is left")
        until(lambda: not self.cluster.of_job(self.job), "no process is left")

    def alive(self) -> list[psutil.Process]:
        """The processes that run its program: one for each rank, at most."""
        found = self.cluster.of_job(self.job)
        assert len(found) <= self.gpus, found
        return found


@pytest.fixture(scope="module")
def stoppable(tmp_path_factory):
    """A cluster for all tests in place, and what a job trains that nobody disturbs."""
    base = tmp_path_factory.mktemp("pausing")
    with stoppable_cluster(base, gpus=2) as (cluster, stops):
        cluster.ends(cluster.train("alone", "--steps", STEPS))
        yield cluster, stops, base / "alone"


@pytest.fixture(scope="module")
def spilling(tmp_path_factory):
    """The same, whose suspended jobs go to the disk at once."""
    base = tmp_path_factory.mktemp("spilling")
    with stoppable_cluster(base, gpus=2, options=("--host-memory", "0")) as (cluster, stops):
        cluster.ends(cluster.train("alone", "--steps", STEPS))
        yield cluster, stops, base / "alone"


@pytest.fixture
def paused(stoppable, request):
    with own_base(stoppable[0], request):
        yield Paused(*stoppable)


@pytest.fixture
def spilled(spilling, request):
    with own_base(spilling[0], request):
        yield Paused(*spilling)


def names(cases: list[tuple[str, str]]) -> list[str]:
    return [":".join(case) for case in cases]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("party", "point"), SUSPENDING, ids=names(SUSPENDING))
def test_a_job_is_suspended_once_whoever_is_killed_meanwhile(paused, party, point):
    paused.arm(party, point)
    paused.asks("suspend")
    if point.startswith(("suspended", "answered")):
        paused.cluster.opens("job", GATE)
    process = paused.stops_at(party, point)
    paused.kill(party, process)
    if paused.cluster.show(paused.job)["state"] == "RUNNING":
        paused.cluster.client.suspend(paused.job)  # nobody had heard of it
    paused.cluster.opens("job", GATE)
    paused.cluster.until_state(paused.job, "SUSPENDED")
    assert len(paused.alive()) == 1
    paused.cluster.client.resume(paused.job)
    paused.ends_well()


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("party", "point"), RESUMING, ids=names(RESUMING))
def test_a_suspended_job_goes_on_once_whoever_is_killed_meanwhile(paused, party, point):
    paused.suspends()
    paused.arm(party, point)
    paused.asks("resume")
    process = paused.stops_at(party, point)
    paused.alive()
    paused.kill(party, process)
    with contextlib.suppress(RotaError):  # perhaps nobody had heard of it
        paused.cluster.client.resume(paused.job)
    paused.ends_well()


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "point", ["suspend-before", "suspended-before", "suspended-after", "resume-before"]
)
def test_a_worker_killed_while_it_is_suspended_starts_anew_and_loses_no_more(paused, point):
    if point == "resume-before":
        paused.suspends()
    paused.arm("agent", point)
    paused.asks("resume" if point == "resume-before" else "suspend")
    if point != "suspend-before":
        paused.cluster.opens("job", GATE)
    agent = paused.stops_at("agent", point)
    paused.cluster.kill(paused.cluster.pids(paused.job)["worker"])
    agent.send_signal(signal.SIGCONT)
    until(lambda: paused.cluster.show(paused.job)["state"] != "SUSPENDING", "it is known")
    if point != "resume-before":
        until(lambda: paused.cluster.show(paused.job)["state"] == "HELD", "it is held")
        paused.cluster.client.resume(paused.job)
    paused.cluster.opens("job", GATE)
    paused.ends_well(attempt=2)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("both", [False, True], ids=["agent", "both"])
@pytest.mark.parametrize("point", SPILLING)
def test_a_state_on_its_way_to_the_disk_survives_whoever_is_killed(spilled, point, both):
    spilled.arm("agent", point)
    spilled.asks("suspend")
    spilled.cluster.opens("job", GATE)
    agent = spilled.stops_at("agent", point)
    spilled.kill("agent", agent, both=both)
    until(spilled.spilled, "it is on the disk")
    assert {file.parent.parent.name for file in spilled.arenas()} == {spilled.job}
    assert len(spilled.arenas()) == 1
    spilled.cluster.client.resume(spilled.job)
    spilled.ends_well()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("both", [False, True], ids=["agent", "both"])
@pytest.mark.parametrize("point", READING_BACK)
def test_a_state_on_its_way_back_from_the_disk_survives_whoever_is_killed(spilled, point, both):
    spilled.suspends()
    until(spilled.spilled, "it is on the disk")
    spilled.arm("agent", point)
    spilled.asks("resume")
    agent = spilled.stops_at("agent", point)
    spilled.alive()
    spilled.kill("agent", agent, both=both)
    spilled.ends_well()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("point", ["draft-before", "copy-after", "verify-before", "came-before"])
def test_a_cluster_taken_down_while_a_state_moves_leaves_nothing(make_cluster, tmp_path, point):
    stops = Stops(tmp_path / "stops")
    options = ("--host-memory", "0")
    cluster = make_cluster(gpus=1, environment=stops.environment, options=options)
    spilled = Paused(cluster, stops, cluster.base)
    reads = point in READING_BACK
    if reads:
        spilled.suspends()
        until(spilled.spilled, "it is on the disk")
    spilled.arm("agent", point)
    spilled.asks("resume" if reads else "suspend")
    cluster.opens("job", GATE)
    agent = spilled.stops_at("agent", point)
    (node,) = cluster.node_names()
    cluster.client._call("POST", "/shutdown")
    agent.send_signal(signal.SIGCONT)
    assert cluster.process is not None
    cluster.process.wait(DEADLINE_S)
    until(lambda: not cluster.processes(), "no process is left")
    assert list(cluster.folder.node(node).glob("jobs/*/*/*.arena*")) == []
    assert not cluster.folder.arenas(node).exists() or not list(
        cluster.folder.arenas(node).iterdir()
    )
