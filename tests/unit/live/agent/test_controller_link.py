"""How long an agent without a job stays where there is no controller."""

import asyncio
import os
from types import SimpleNamespace

import pytest
from websockets import ConnectionClosedError
from websockets.frames import Close

from rota.folder import Folder
from rota.live.agent import controller_link
from rota.live.agent.controller_link import ControllerLink
from rota.live.agent.endpoint import FolderEndpoint


@pytest.mark.parametrize(
    ("controller_pid", "is_busy", "gives_up"),
    [(os.getpid(), False, False), (None, False, True), (None, True, False), (1 << 22, False, True)],
    ids=["lives", "elsewhere, idle", "elsewhere, busy", "has ended"],
)
def test_an_agent_stays_for_a_job_and_for_a_controller_of_its_machine_that_lives(
    tmp_path, monkeypatch, controller_pid, is_busy, gives_up
):
    async def story():
        ending = asyncio.Event()
        endpoint = FolderEndpoint(Folder(tmp_path), controller_pid)
        link = ControllerLink(endpoint, list, print, lambda: is_busy, ending)
        assert link._should_give_up() is False
        monkeypatch.setattr(controller_link, "LONELY_S", -1.0)
        assert link._should_give_up() is gives_up

    asyncio.run(story())


def test_the_time_without_a_controller_begins_anew_with_each_connection(tmp_path, monkeypatch):
    class Silent:
        def __aiter__(self):
            return self

        async def __anext__(self):
            raise StopAsyncIteration

    async def story():
        link = ControllerLink(
            FolderEndpoint(Folder(tmp_path), None), list, print, bool, asyncio.Event()
        )
        assert link._should_give_up() is False
        monkeypatch.setattr(controller_link, "LONELY_S", -1.0)
        await link._converse(Silent())
        assert link._lonely_since is None

    asyncio.run(story())


def test_why_the_controller_has_closed_the_connection_is_in_the_log(monkeypatch, caplog):
    closed = ConnectionClosedError(Close(1009, "a frame of 5 MiB"), None)

    class Closed:
        async def __aenter__(self):
            return self

        async def __aexit__(self, *_):
            ending.set()

        def __aiter__(self):
            return self

        async def __anext__(self):
            raise closed

    ending = asyncio.Event()
    monkeypatch.setattr(ControllerLink, "_connect", lambda *_: Closed())
    endpoint = SimpleNamespace(address=lambda: None, stays=False, is_gone=lambda: False)
    asyncio.run(ControllerLink(endpoint, list, print, bool, ending).run())
    told = "the connection to the controller has ended: received 1009 (message too big) a frame of"
    assert told in caplog.text
