"""The agent's link to the host of flow jobs, whose folder somebody may remove."""

import asyncio

import pytest

from rota.errors import AgentError
from rota.live.agent.island_link import IslandLink


class Removed(IslandLink):
    """A link to a host whose folder is gone; what is done with the host is noted."""

    def __init__(self, folder, seats):
        super().__init__(folder, folder / "log", 1, 1, "cpu", print)
        self._seated, self.done = seats, []

    @property
    def connected(self):
        return "end" not in self.done

    async def _end(self):
        self.done.append("end")

    async def _ensure(self):
        self.done.append("ensure")

    async def _ask(self, message, within_s):
        self.done.append("ask")


def test_a_host_that_nobody_finds_any_more_is_replaced_if_it_has_no_seats(tmp_path):
    link = Removed(tmp_path / "gone", set())
    asyncio.run(link.seat("new"))
    assert link.done == ["end", "ensure", "ask"]


def test_a_flow_job_is_told_that_it_waits_for_those_whose_folder_was_removed(tmp_path):
    link = Removed(tmp_path / "gone", {"other"})
    with pytest.raises(AgentError, match=r"removed the folder .*gone: those that run go on"):
        asyncio.run(link.seat("new"))
    assert link.done == []
