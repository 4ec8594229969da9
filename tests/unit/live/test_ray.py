"""Ray that can't be spoken with, claims of its nodes, and what keeps agents alive there."""

import asyncio
import fcntl
import os
import subprocess
from collections.abc import Callable, Collection, Coroutine
from pathlib import Path
from typing import Any

import pytest

from rota.errors import StoreFullError
from rota.live.provider.asked import Asked
from rota.live.provider.asking import AskingProvider
from rota.live.provider.book import Book
from rota.live.provider.ray import Groups, RayDriver, RayError, Started
from rota.live.provider.ray_driver import Keeper, claims, is_over


@pytest.mark.process
@pytest.mark.parametrize(
    ("module", "said"),
    [
        (
            "raise ImportError(\"No module named 'ray'\")",
            "No module named 'ray'; install it with: pip",
        ),
        ("__version__ = '2.55.1'", "ray 2.55.1 is installed here, and Rota needs ray>=2.60,<2.61"),
        (
            "__version__ = '2.60.0'\n"
            "def init(**words): raise RuntimeError('Version mismatch: Python: 3.10.4')",
            "Version mismatch: Python: 3.10.4; run rota with the cluster's Ray and Python",
        ),
    ],
)
def test_another_ray_or_python_is_refused_with_the_fix(module, said, tmp_path, monkeypatch):
    (tmp_path / "ray.py").write_text(module)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    driver = RayDriver("auto", None, "lab")
    with pytest.raises(RayError) as refused:
        driver.connect()
    assert str(refused.value).startswith(said)
    assert not refused.value.is_silence


@pytest.mark.process
@pytest.mark.parametrize(("option", "variable"), [(None, "local"), ("local", "10.0.0.1:6379")])
def test_a_ray_of_its_own_is_never_started(option, variable, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", variable)
    with pytest.raises(RayError, match=r"the address local .* would start a Ray of its own"):
        RayDriver(option, None, "lab").connect()


def test_a_node_keeps_its_host_and_what_lets_it_in_until_it_is_forgotten(tmp_path: Path):
    file = tmp_path / "ray-hosts.json"
    started = Started(file)
    started.add("lab-1", "host-a", "token-1")
    started.add("lab-2", "host-b", "token-2")
    assert file.stat().st_mode & 0o777 == 0o600
    started.keep(["lab-2", "lab-3"])
    again = Started(file)
    assert (again.hosts, again.admitted) == ({"lab-2": "host-b"}, {"lab-2": "token-2"})


def nodes(**resources: dict[str, float]) -> list[dict]:
    return [
        {"NodeID": name, "Alive": name != "dead", "Resources": each}
        for name, each in resources.items()
    ]


@pytest.mark.parametrize(
    ("found", "taken", "gpus", "claimed"),
    [
        (nodes(a={"CPU": 8}, b={"CPU": 4}), [], None, [{"CPU": 8}, {"CPU": 4}, {"CPU": 8}]),
        (nodes(a={"CPU": 8}, b={"CPU": 4}), ["a"], None, [{"CPU": 4}, {"CPU": 8}]),
        (nodes(a={"CPU": 8}, b={"CPU": 4, "GPU": 2}), [], None, [{"GPU": 2}, {"GPU": 2}]),
        (nodes(a={"CPU": 8, "GPU": 8}), [], 4, [{"GPU": 4}]),
        (nodes(a={"CPU": 8}), ["a"], 4, [{"CPU": 8}]),
        (nodes(a={"CPU": 2}, dead={"GPU": 8}), [], None, [{"CPU": 2}, {"CPU": 2}]),
        (nodes(), [], None, [{"CPU": 1}]),
    ],
)
def test_whole_nodes_are_claimed_the_largest_free_ones_first(found, taken, gpus, claimed):
    assert claims(found, taken, gpus) == claimed


@pytest.mark.process
def test_an_agent_is_kept_alive_once_until_it_ends_in_good_order(tmp_path):
    home = str(tmp_path / "home")
    keeper, place = Keeper(home, "lab-1"), tmp_path / "home" / "nodes" / "lab-1"
    gate = tmp_path / "gate"
    agent = ["-c", f"open('runs', 'a').write('x')\nopen({str(gate)!r}).read()"]
    os.mkfifo(gate)
    assert is_over(home, "lab-1")  # it was never here
    keeper.start("admitted", agent)
    keeper.start("another", agent)
    assert keeper.is_alive()
    assert (tmp_path / "home").stat().st_mode & 0o777 == 0o700
    assert not is_over(home, "lab-1")
    assert (place / "joined.json").read_text() == "admitted"
    gate.write_text("")  # returns when the agent reads it
    with open(place / "keeper.lock", "ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # returns when it has ended
    assert keeper.state() == {"is_alive": False, "code": 0, "words": ""}
    assert is_over(home, "lab-1")
    keeper.start("admitted", agent)
    assert not keeper.is_alive()
    assert (place / "runs").read_text() == "x"


@pytest.mark.process
def test_a_keeper_that_has_just_begun_is_killed_and_no_other_process(tmp_path):
    keeper, place = Keeper(str(tmp_path), "lab-1"), tmp_path / "nodes" / "lab-1"
    place.mkdir(parents=True)
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as other:
        (place / "keeper.pid").write_text(str(other.pid))  # an old one, which is another's now
        keeper.start("admitted", ["-c", "import time; time.sleep(60)"])
        assert keeper.kill()
        assert not keeper.is_alive()
        assert other.poll() is None
        other.kill()
    assert keeper.kill()  # there is nothing to kill


class Spoken:
    """In place of the process that speaks with Ray: groups are placed at once, agents live."""

    def __init__(self) -> None:
        self.groups: dict[str, dict[str, str]] = {}
        self.agents: dict[str, dict[str, Any]] = {}
        self.raises: dict[str, Exception] = {}
        self.why_none = ""  # why no actor can begin
        self.calls: list[str] = []

    def call(self, do: str, **words: Any) -> Any:
        self.calls.append(do)
        error = self.raises.get(do)
        told = getattr(self, do)(**words)
        if error is not None:
            raise error
        return told

    def close(self) -> None:
        pass

    def look(self, doubted: dict[str, str], home: str) -> dict[str, Any]:
        host = {"is_alive": True, "address": "10.0.0.1", "words": ""}
        told = {"groups": {**self.groups}, "agents": {**self.agents}}
        return told | {"hosts": {"host-a": host}, "over": []}

    def ask(self, names: list[str], gpus: int | None) -> bool:
        for name in names:
            own = {"id": name, "state": "CREATED", "words": "FINISHED", "host": "host-a"}
            self.groups.setdefault(name, own)
        return True

    def start(self, name: str, **words: Any) -> str:
        if not self.why_none:
            state = {"is_alive": True, "code": None, "words": ""}
            self.agents.setdefault(name, {"id": name, "state": state})
        return self.why_none

    def give_back(self, names: list[str]) -> None:
        if "give_back" not in self.raises:
            for name in names:
                self.groups.pop(name, None)
                self.agents.pop(name, None)


class Door:
    """Lets agents in; those of ``running`` are connected."""

    def __init__(self) -> None:
        self.running: set[str] = set()
        self.full = False

    def admit(self, node: str) -> str:
        if self.full:
            raise StoreFullError("rota.db can't be written: the disk is full")
        return "admitted"

    def keep(self, nodes: Collection[str]) -> None:
        """Connections stay, so that a test says when an agent ends."""

    def is_connected(self, node: str) -> bool:
        return node in self.running

    def may_run(self, node: str) -> bool:
        return node in self.running

    def has_jobs(self, node: str) -> bool:
        return False


class Lab:
    """A provider of at most three nodes that speaks with ``ray``."""

    def __init__(self, home: Path) -> None:
        self.ray, self.door, self.told = Spoken(), Door(), list[str]()
        self.asked = Asked(home / "ray.json", "lab")
        book = Book("Ray", self.asked, (1, 3), self.door)
        groups = Groups(book, self.ray, [], str(home), home / "ray-hosts.json", pace_s=0.0)
        self.provider = AskingProvider(groups)

    def run(self, story: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async def whole() -> None:
            await self.provider.start()
            await story()
            await self.provider.stop()

        asyncio.run(asyncio.wait_for(whole(), 60))

    async def until(self, condition: Callable[[], Any]) -> None:
        while not condition():
            await asyncio.sleep(0.001)

    async def until_told(self, words: str) -> None:
        def is_told() -> bool:
            self.told += self.provider.errors()
            return any(words in text for text in self.told)

        await self.until(is_told)


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    monkeypatch.setattr("rota.live.provider.ray.AGAIN_S", 0.01)
    return Lab(tmp_path)


def test_a_refusal_to_take_nodes_back_is_told_once_and_tried_again(lab):
    async def story() -> None:
        await lab.until(lambda: "lab-1" in lab.ray.agents)
        lab.ray.raises["give_back"] = RayError("no such actor")
        lab.provider.release("lab-1")
        await lab.until_told("Ray can't take nodes back: no such actor")
        tries = lab.ray.calls.count("give_back")
        await lab.until(lambda: lab.ray.calls.count("give_back") > tries + 2)
        del lab.ray.raises["give_back"]
        await lab.provider.end()
        assert lab.provider.errors() == []
        assert lab.ray.groups == {}

    lab.run(story)


def test_ray_is_asked_on_after_a_disk_without_room(lab):
    lab.door.full = True

    async def story() -> None:
        await lab.until_told("Ray can't be asked: rota.db can't be written: the disk is full")
        lab.door.full = False
        await lab.until(lambda: "lab-1" in lab.ray.agents)

    lab.run(story)


@pytest.mark.process
def test_a_driver_that_dies_within_its_answer_is_silent(tmp_path, monkeypatch):
    (tmp_path / "half.py").write_text("import os, sys\nos.write(int(sys.argv[3]), b'{\"value\"')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr("rota.live.provider.ray.DRIVER", "half")
    with pytest.raises(RayError, match="the process that speaks with it has died") as refused:
        RayDriver("auto", None, "lab").connect()
    assert refused.value.is_silence


def test_what_a_silent_ray_may_have_is_given_back_at_the_end(lab):
    silence = RayError("no answer in 60 s", is_silence=True)
    lab.ray.raises |= {"ask": silence, "look": silence}

    async def story() -> None:
        await lab.until_told("Ray does not answer: no answer in 60 s")
        ending = asyncio.create_task(lab.provider.end())
        await asyncio.sleep(0)
        lab.ray.ask(["lab-7"], None)  # it was asked for by a controller before
        lab.ray.raises.clear()
        await ending
        assert lab.ray.groups == {}

    lab.run(story)


def test_what_a_silent_ray_does_not_have_is_asked_for_again(lab):
    silence = RayError("no answer in 60 s", is_silence=True)
    lab.ray.raises |= {"ask": silence, "look": silence}

    async def story() -> None:
        await lab.until_told("Ray does not answer: no answer in 60 s")
        lab.ray.groups.clear()
        lab.ray.raises.clear()
        await lab.until(lambda: lab.ray.agents.keys() == lab.ray.groups.keys() == {"lab-1"})

    lab.run(story)


def test_a_group_is_kept_while_jobs_may_run_though_its_agent_has_ended(lab):
    async def story() -> None:
        await lab.until(lambda: "lab-1" in lab.ray.agents)
        lab.door.running.add("lab-1")
        await lab.until(lambda: lab.provider.awaited() == [])
        lab.ray.agents["lab-1"]["state"] = {"is_alive": False, "code": 1, "words": "no disk"}
        await lab.until_told("its agent has ended with exit code 1: no disk")
        looks = lab.ray.calls.count("look")
        await lab.until(lambda: lab.ray.calls.count("look") > looks + 2)
        assert "give_back" not in lab.ray.calls
        lab.door.running.clear()
        await lab.until(lambda: lab.ray.groups == {})

    lab.run(story)


def test_an_actor_that_cannot_begin_is_told_and_its_group_goes_back(lab):
    lab.ray.why_none = "PermissionError: [Errno 13] Permission denied: '/home/lab'"

    async def story() -> None:
        await lab.until_told("(node lab-1): its actor can't begin: PermissionError: [Errno 13]")
        await lab.until(lambda: lab.ray.groups == {} and "give_back" in lab.ray.calls)

    lab.run(story)
