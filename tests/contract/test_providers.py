"""The providers of nodes keep their contract, the one of the documentation among them."""

import asyncio
import contextlib
import itertools
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest

from rota.folder import Folder, is_locked
from rota.live.provider.allocation import Allocation, Steps
from rota.live.provider.asked import LATE_S, Asked
from rota.live.provider.asking import AskingProvider
from rota.live.provider.base import Provider
from rota.live.provider.book import Book
from rota.live.provider.joined import JoinedProvider
from rota.live.provider.kubernetes import Pods, end_all
from rota.live.provider.kubernetes_api import connect
from rota.live.provider.kubernetes_lease import Lease
from rota.live.provider.kubernetes_pods import HOME, Agents
from rota.live.provider.local import LocalNode, LocalProvider
from rota.live.provider.ray import Groups
from rota.live.provider.slurm import ArrayJobs, Pilots, options
from rota.live.provider.together import Together
from rota.testing.provider_contract import (
    DeadlineContract,
    GrowingContract,
    LosingContract,
)
from support import kubernetes as real_kubernetes
from support import ray as real_ray
from support import slurm as real
from support.slurm_commands import Commands

BEGINS_S = 0.02
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "providers.md"


def provider_of_the_page() -> Any:
    """The provider that the documentation shows."""
    (code,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(code, str(PAGE), "exec"), names)
    return names["BatchProvider"]


class Job(NamedTuple):
    number: int
    why: str = "Priority"
    runs: bool = False
    agent_lives: bool = False
    ends_s: float | None = None


class Batch:
    """A batch system without machines: jobs begin to run a moment after they were submitted."""

    def __init__(self) -> None:
        self._jobs: dict[str, Job] = {}
        self.submitted: list[str] = []

    def jobs(self) -> dict[str, Job]:
        return dict(self._jobs)

    def submit(self, name: str) -> None:
        self.submitted.append(name)
        self._jobs[name] = Job(len(self.submitted))
        self.later(name, runs=True, agent_lives=True)

    def cancel(self, name: str) -> None:
        self._jobs.pop(name, None)

    def change(self, name: str, **changes: Any) -> None:
        if name in self._jobs:
            self._jobs[name] = self._jobs[name]._replace(**changes)

    def later(self, name: str, **changes: Any) -> None:
        asyncio.get_running_loop().call_later(BEGINS_S, lambda: self.change(name, **changes))


class TestBatch(GrowingContract, LosingContract, DeadlineContract):
    """The provider of the documentation."""

    @pytest.fixture
    def provider(self, tmp_path: Path) -> Any:
        self.batch, self.file = Batch(), tmp_path / "asked.json"
        return self.again(None)

    def again(self, provider: Any) -> Any:
        return provider_of_the_page()(self.batch, Asked(self.file, "lab"), 1, 3)

    def end_agent(self, provider: Any, name: str) -> None:
        self.batch.cancel(name)

    lose = end_agent

    def kill_agent(self, provider: Any, name: str) -> None:
        self.batch.change(name, agent_lives=False)
        self.batch.later(name, agent_lives=True)

    def set_deadline(self, provider: Any, name: str, leaves_s: float) -> None:
        self.batch.change(name, ends_s=leaves_s)


class TestTogether(TestBatch):
    """Of a provider that adds nodes and a machine that has joined, the first keeps the contract."""

    def again(self, provider: Any) -> Any:
        return Together(super().again(provider), JoinedProvider(list))


def test_the_provider_of_the_documentation_has_thirty_lines():
    (code,) = re.findall(
        r"^class BatchProvider.*?^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL
    )
    assert 30 <= len([line for line in code.splitlines()[:-1] if line.strip()]) <= 39


def test_what_a_killed_controller_had_yet_to_ask_for_is_asked_for_under_another_name(tmp_path):
    """It may reach the engine late. Then there is one more than is wanted, for anybody to release,
    and none under the same name.
    """

    async def story() -> None:
        now_s, batch, file = 1000.0, Batch(), tmp_path / "asked.json"

        def asked() -> Asked:
            return Asked(file, "lab", lambda: now_s)

        assert asked().new() == "lab-1"  # and the controller is killed
        provider = provider_of_the_page()(batch, asked(), 1, 3)
        await provider.start()
        assert (batch.submitted, [node.name for node in provider.awaited()]) == ([], ["lab-1"])
        now_s += LATE_S
        provider.scale(1)
        assert batch.submitted == ["lab-2"]
        batch.submit("lab-1")
        batch.change("lab-1", runs=True)
        provider.scale(1)
        assert provider.names | {"lab-2"} == {"lab-1", "lab-2"}
        assert batch.submitted == ["lab-2", "lab-1"]

    asyncio.run(story())


class TestJoined(LosingContract):
    """Machines that have joined: nobody adds one, and one goes when it is removed."""

    @pytest.fixture
    def provider(self) -> JoinedProvider:
        self.members, self.connected = {"gpu1", "gpu2"}, {"gpu1", "gpu2"}
        provider = JoinedProvider(lambda: self.members)
        provider.is_connected = lambda name: name in self.connected
        return provider

    def end_agent(self, provider: JoinedProvider, name: str) -> None:
        self.connected.discard(name)

    def kill_agent(self, provider: JoinedProvider, name: str) -> None:
        self.connected.discard(name)
        asyncio.get_running_loop().call_later(BEGINS_S, self.connected.add, name)

    def lose(self, provider: JoinedProvider, name: str) -> None:
        self.members.discard(name)


def test_machines_that_have_joined_are_nodes_beside_the_others_and_never_asked_for(tmp_path):
    async def story() -> None:
        joined, batch = {"afar"}, Batch()
        grows = provider_of_the_page()(batch, Asked(tmp_path / "asked.json", "lab"), 1, 3)
        both = Together(grows, JoinedProvider(lambda: joined))
        await both.start()
        batch.change("lab-1", runs=True)
        assert both.names == {"lab-1", "afar"}
        assert both.bounds == (2, 4)
        assert [node.stays for node in both.nodes()] == [False, True]
        both.scale(3)
        assert batch.submitted == ["lab-1", "lab-2"]
        both.release("afar")
        assert "afar" in both.names
        joined.clear()
        assert "afar" not in both.names

    asyncio.run(story())


def test_the_end_waits_for_jobs_of_machines_that_are_connected_alone():
    async def story() -> None:
        others = JoinedProvider(lambda: ["gpu1", "gpu2"])
        busy = {"gpu1", "gpu2"}
        others.is_connected, others.has_jobs = {"gpu1"}.__contains__, busy.__contains__
        ending = asyncio.create_task(others.end())
        await asyncio.sleep(0)
        assert not ending.done()
        busy.remove("gpu1")
        await asyncio.wait_for(ending, 10)

    asyncio.run(story())


@pytest.mark.process
class TestLocal(GrowingContract):
    @pytest.fixture
    def provider(self, tmp_path, monkeypatch):
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
        self.folder = Folder(tmp_path / "home").create()
        return self.again(None)

    def again(self, provider: Provider | None) -> LocalProvider:
        nodes = [LocalNode(f"box-{number}", 1, number) for number in range(3)]
        return LocalProvider(self.folder, nodes, least=1)

    def end_agent(self, provider: LocalProvider, name: str) -> None:
        self.kill_agent(provider, name)

    def kill_agent(self, provider: LocalProvider, name: str) -> None:
        for process in psutil.Process().children():
            with contextlib.suppress(psutil.Error):
                if name in process.cmdline():
                    process.kill()


class TestSlurmsCommands(GrowingContract, LosingContract, DeadlineContract):
    """Slurm, with a stand-in for its commands."""

    @pytest.fixture
    def provider(self, tmp_path: Path) -> AskingProvider:
        self.commands, self.file = Commands(), tmp_path / "slurm.json"
        return self.again(None)

    def again(self, provider: Provider | None) -> AskingProvider:
        asked, words = Asked(self.file, "lab"), options("gpu")
        book = Book("Slurm", asked, (1, 3), self.commands)
        jobs = ArrayJobs(asked, words, [], "/home/me")
        return AskingProvider(Pilots(book, jobs, run=self.commands, pace_s=0.01))

    def end_agent(self, provider: AskingProvider, name: str) -> None:
        self.commands.end(name, "COMPLETED")

    def kill_agent(self, provider: AskingProvider, name: str) -> None:
        self.commands.connected.discard(name)
        asyncio.get_running_loop().call_later(BEGINS_S, self.commands.connect, name)

    def lose(self, provider: AskingProvider, name: str) -> None:
        self.commands.end(name, "CANCELLED")

    def set_deadline(self, provider: AskingProvider, name: str, leaves_s: float) -> None:
        self.commands.jobs[name]["ends"] = str(int(leaves_s))


class Locks:
    """Stands in for the cluster: an agent is connected while it holds the lock of its node."""

    def __init__(self, home: Path) -> None:
        self._home = home

    def admit(self, node: str) -> str:
        return "{}"

    def keep(self, nodes: Collection[str]) -> None:
        pass

    def is_connected(self, node: str) -> bool:
        lock = self._home / "nodes" / node / "lock"
        return lock.exists() and is_locked(lock)

    may_run = is_connected

    def has_jobs(self, node: str) -> bool:
        return False


@pytest.mark.process
@pytest.mark.cluster
class TestSlurm(GrowingContract, LosingContract):
    """A real Slurm; in place of agents programs hold locks until there is a file."""

    AGENT = (
        'echo $$ >pid; exec 9>lock; flock 9; until [ -e end ]; do sleep 0.1; done; : "$@"',
        "agent",
    )

    @pytest.fixture
    def provider(
        self, slurm: real.Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[AskingProvider]:
        for name, value in slurm.environment.items():
            monkeypatch.setenv(name, value)
        self.slurm, self.home = slurm, tmp_path
        yield self.again(None)
        slurm.end_jobs()

    def again(self, provider: Provider | None) -> AskingProvider:
        asked = Asked(self.home / "slurm.json", f"lab-{self.home.name.replace('_', '-')}")
        words, agent = options(partition="gpu", minutes=60), ("bash", "-c", *self.AGENT)
        book = Book("Slurm", asked, (1, 3), Locks(self.home))
        return AskingProvider(
            Pilots(book, ArrayJobs(asked, words, agent, str(self.home)), pace_s=0.1)
        )

    def end_agent(self, provider: AskingProvider, name: str) -> None:
        (self.home / "nodes" / name / "end").touch()

    def kill_agent(self, provider: AskingProvider, name: str) -> None:
        psutil.Process(int((self.home / "nodes" / name / "pid").read_text())).kill()

    def lose(self, provider: AskingProvider, name: str) -> None:
        (job,) = [
            each.about.split()[2].rstrip(",") for each in provider.nodes() if each.name == name
        ]
        self.slurm.run("scancel", job)


@pytest.mark.process
@pytest.mark.cluster
class TestAllocation(LosingContract):
    """Two nodes of a real Slurm that are allocated already; programs in place of agents."""

    @pytest.fixture
    def provider(
        self, slurm: real.Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[AskingProvider]:
        for name, value in slurm.environment.items():
            monkeypatch.setenv(name, value)
        self.slurm, self.home = slurm, tmp_path
        slurm.run("salloc", "--no-shell", "--nodelist=n1,n2", "--exclusive", "--mem=0", "--time=60")
        ((_, _, job, _),) = slurm.jobs("R")
        asked = Asked(tmp_path / "slurm.json", f"lab-{tmp_path.name.replace('_', '-')}")
        book = Book("Slurm", asked, (2, 2), Locks(tmp_path))
        steps = Steps(
            book,
            Allocation(job, ("n1", "n2"), real.GPUS),
            ("bash", "-c", *TestSlurm.AGENT),
            str(tmp_path),
            tmp_path / "srun.log",
            pace_s=0.1,
        )
        yield AskingProvider(Pilots(book, steps, pace_s=0.1))
        slurm.end_jobs()

    def end_agent(self, provider: AskingProvider, name: str) -> None:
        (self.home / "nodes" / name / "end").touch()

    def kill_agent(self, provider: AskingProvider, name: str) -> None:
        psutil.Process(int((self.home / "nodes" / name / "pid").read_text())).kill()

    def lose(self, provider: AskingProvider, name: str) -> None:
        told = self.slurm.run("squeue", "-h", "-s", "-o", "%j %i").splitlines()
        self.slurm.run("scancel", dict(line.split() for line in told)[name])


@pytest.mark.process
@pytest.mark.cluster
class TestRay(GrowingContract, LosingContract):
    """A real Ray; in place of agents programs hold locks until there is a file."""

    AGENT = """
import fcntl, os, pathlib, time
pathlib.Path("pid").write_text(str(os.getpid()))
lock = open("lock", "w")
fcntl.flock(lock, fcntl.LOCK_EX)
while not os.path.exists("end"):
    time.sleep(0.05)
"""

    @pytest.fixture
    def provider(
        self, ray: real_ray.Ray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[AskingProvider]:
        for name, value in ray.environment.items():
            monkeypatch.setenv(name, value)
        ray.mend()
        self.ray, self.home = ray, tmp_path
        yield self.again(None)
        assert not ray.clear("lab")

    def again(self, provider: Provider | None) -> AskingProvider:
        groups = Groups(
            Book("Ray", Asked(self.home / "ray.json", "lab"), (1, 2), Locks(self.home)),
            self.ray.driver("lab"),
            ["-c", self.AGENT],
            str(self.home),
            self.home / "ray-hosts.json",
            pace_s=0.05,
        )
        return AskingProvider(groups)

    def end_agent(self, provider: AskingProvider, name: str) -> None:
        (self.home / "nodes" / name / "end").touch()

    def kill_agent(self, provider: AskingProvider, name: str) -> None:
        psutil.Process(int((self.home / "nodes" / name / "pid").read_text())).kill()

    def lose(self, provider: AskingProvider, name: str) -> None:
        """A person removes the placement group, and the agent hears that it is not wanted."""
        self.ray.run(
            "lab",
            "from importlib import import_module\n"
            "groups = import_module('ray.util.placement_group')\n"
            f"groups.remove_placement_group(groups.get_placement_group({name!r}))",
        )
        self.end_agent(provider, name)


@pytest.mark.process
@pytest.mark.cluster
class TestKubernetes(GrowingContract, LosingContract):
    """A real API server, with a stand-in for kubelets; in place of agents programs hold locks."""

    NAMESPACES = (f"contract-{number}" for number in itertools.count())

    @pytest.fixture
    def provider(
        self,
        kubernetes: real_kubernetes.Kubernetes,
        monkeypatch: pytest.MonkeyPatch,
        tmp_path: Path,
    ) -> Iterator[AskingProvider]:
        for name, value in kubernetes.environment.items():
            monkeypatch.setenv(name, value)
        self.kubernetes, self.namespace = kubernetes, next(self.NAMESPACES)
        kubernetes.add_namespace(self.namespace)
        self.home, self.file = kubernetes.add_claim(self.namespace, "home"), tmp_path / "asked.json"
        yield self.again(None)
        kubernetes.clear(self.namespace)

    def again(self, provider: Provider | None) -> AskingProvider:
        api = connect(None, self.namespace)
        agents = Agents(
            cluster="lab",
            state="s1",
            namespace=self.namespace,
            image="busybox",
            agent=("bash", "-c", *TestSlurm.AGENT),
            grace_s=30,
            volumes=[("home", HOME)],
        )
        book = Book("Kubernetes", Asked(self.file, "lab"), (1, 3), Locks(self.home))
        return AskingProvider(Pods(book, api, agents, Lease(api, "lab", "one"), pace_s=0.05))

    def end_agent(self, provider: AskingProvider, name: str) -> None:
        (self.home / "nodes" / name / "end").touch()

    def kill_agent(self, provider: AskingProvider, name: str) -> None:
        for container in self.kubernetes.kubelets.containers(self.namespace, name):
            for process in container.processes()[1:]:
                with contextlib.suppress(psutil.Error):
                    process.kill()

    def lose(self, provider: AskingProvider, name: str) -> None:
        path = f"/api/v1/namespaces/{self.namespace}/pods/{name}"
        self.kubernetes.call("DELETE", path, {"gracePeriodSeconds": 1})

    def test_what_another_state_folder_has_by_the_same_name_is_left_alone(
        self, provider: AskingProvider
    ) -> None:
        """Its pods are no nodes, and neither an orderly end nor one by force takes anything."""
        api = connect(None, self.namespace)
        others = Agents("lab", "s2", self.namespace, "busybox", ("sleep", "600"), grace_s=30)
        uid = api.call("POST", api.path("pods"), others.pod("lab-7"))["metadata"]["uid"]
        api.call("POST", api.path("secrets"), others.secret("lab-7", "token", uid))

        async def story() -> None:
            await self.until(lambda: not provider.awaited())
            assert provider.names == {"lab-1"}
            await provider.end()

        self.run(provider, story)
        Lease(api, "lab", "two").hold()
        assert end_all(api, "lab", "s1", ["lab-1", "lab-7"]) == ""
        pod = api.find(api.path("pods", "lab-7"))
        assert pod["metadata"]["uid"] == uid
        assert "deletionTimestamp" not in pod["metadata"]
        assert api.find(api.path("secrets", "lab-7"))
        assert api.find(api.path("leases", "lab"))["spec"]["holderIdentity"] == "two"
        assert end_all(api, "lab", "s2", []) == ""
        assert api.find(api.path("pods", "lab-7")) is None
        assert api.find(api.path("secrets", "lab-7")) is None
        assert api.find(api.path("leases", "lab")) is None
