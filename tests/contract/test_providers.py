"""The providers of nodes keep their contract."""

import asyncio
import contextlib
from collections.abc import Collection, Sequence

import psutil
import pytest

from rota.folder import Folder
from rota.live.provider.base import AwaitedNode, ProvidedNode, Provider
from rota.live.provider.joined import JoinedProvider
from rota.live.provider.local import LocalNode, LocalProvider
from rota.live.provider.together import Together
from rota.testing.provider_contract import ProviderContract

BEGINS_S = 0.02


class Desks(Provider):
    """A provider without machines: an agent lives a moment after its node was asked for."""

    def __init__(self, least: int, most: int) -> None:
        self.bounds: tuple[int, int] | None = (least, most)
        self._number = 0
        self._alive: dict[str, bool] = {}
        self._starting: set[str] = set()
        self._leaving: set[str] = set()
        self._errors: list[str] = []

    def nodes(self) -> Collection[ProvidedNode]:
        return [ProvidedNode(name, is_alive) for name, is_alive in self._alive.items()]

    def request(self, count: int) -> None:
        assert self.bounds is not None
        count = min(max(count, self.bounds[0]), self.bounds[1])
        kept = self._alive.keys() - self._leaving
        for _ in range(count - len(kept)):
            self._number += 1
            self._starting.add(f"desk{self._number}")
            self.begin(f"desk{self._number}")
        for name in sorted(self._starting)[: max(0, len(kept) - count)]:
            self._starting.remove(name)
            del self._alive[name]

    def release(self, name: str) -> None:
        if name in self._alive:
            self._leaving.add(name)
            self._starting.discard(name)

    def awaited(self) -> Sequence[AwaitedNode]:
        return [AwaitedNode(name, "its agent begins") for name in self._starting]

    def errors(self) -> Sequence[str]:
        errors, self._errors = self._errors, []
        return errors

    async def start(self) -> None:
        self.request(0)

    def begin(self, name: str) -> None:
        """Have an agent live, unless its node was given up."""
        self._alive[name] = False

        def begins() -> None:
            if name in self._alive:
                self._alive[name] = True
                self._starting.discard(name)

        asyncio.get_running_loop().call_later(BEGINS_S, begins)

    def ended(self, name: str) -> None:
        """An agent has ended."""
        if name in self._leaving:
            del self._alive[name]
            self._leaving.remove(name)
        else:
            self._errors.append(f"node {name}: its agent ended")
            self.begin(name)


class TestDesks(ProviderContract):
    @pytest.fixture
    def provider(self) -> Desks:
        return Desks(1, 3)

    def end_agent(self, provider: Desks, name: str) -> None:
        provider.ended(name)

    kill_agent = end_agent


class TestTogether(TestDesks):
    """Of a provider that adds nodes and a machine that has joined, the first keeps the contract."""

    @pytest.fixture
    def provider(self) -> Together:  # type: ignore[override]
        return Together(Desks(1, 3), JoinedProvider(list))

    def end_agent(self, provider: Together, name: str) -> None:  # type: ignore[override]
        provider._providers[0].ended(name)  # type: ignore[attr-defined]

    kill_agent = end_agent


def test_machines_that_have_joined_are_nodes_beside_the_others_and_never_asked_for():
    async def story() -> None:
        joined = {"afar"}
        desks, others = Desks(1, 3), JoinedProvider(lambda: joined)
        both = Together(desks, others)
        await both.start()
        assert both.names == {"desk1", "afar"}
        assert both.bounds == (2, 4)
        assert [node.stays for node in both.nodes()] == [False, True]
        both.request(3)
        assert len(desks.nodes()) == 2
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
class TestLocal(ProviderContract):
    @pytest.fixture
    def provider(self, tmp_path, monkeypatch):
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
        folder = Folder(tmp_path / "home").create()
        nodes = [LocalNode(f"box-{number}", 1, number) for number in range(3)]
        return LocalProvider(folder, nodes, least=1)

    def end_agent(self, provider: LocalProvider, name: str) -> None:
        self.kill_agent(provider, name)

    def kill_agent(self, provider: LocalProvider, name: str) -> None:
        for process in psutil.Process().children():
            with contextlib.suppress(psutil.Error):
                if name in process.cmdline():
                    process.kill()
