"""The sockets on which workers find their agent."""

import asyncio
import contextlib
import os
import resource
import shutil
import socket

import pytest

from rota.errors import InputError
from rota.folder import Folder
from rota.live.agent.sockets import KEPT_FILES, Sockets
from rota.live.wire.unixpath import is_short
from rota.train.link import Link
from support.shortage import no_descriptors


@pytest.fixture
def runtime(tmp_path, monkeypatch):
    place = tmp_path / "run"
    place.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(place))
    return place


def folder_in(place):
    folder = Folder(place)
    folder.node("here").mkdir(parents=True)
    return folder


async def hears(path, heard):
    """Let a worker say hello to what listens at a path; True if it was heard."""
    link = Link(str(path))
    link.introduce({"type": "hello"})
    if not await asyncio.to_thread(link.connect):
        return False
    await heard.get()
    link.close()
    return True


def with_sockets(folder, story):
    async def main():
        heard = asyncio.Queue()

        async def serve(reader, writer):
            heard.put_nowait(await reader.readline())
            writer.close()

        sockets = Sockets(folder, "here", serve)
        try:
            await sockets.open()
            await story(sockets, heard)
        finally:
            sockets.close()
        assert not folder.socket("here").exists()

    asyncio.run(main())


@pytest.mark.parametrize("length", [10, 116, 250])
def test_workers_find_their_agent_however_long_paths_are(tmp_path, monkeypatch, length):
    long = tmp_path / ("x" * length)
    long.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(long))
    folder = folder_in(long / "home")

    async def story(sockets, heard):
        for path in (sockets.path, folder.socket("here"), folder.outside_socket("here")):
            assert await hears(path, heard)

    with_sockets(folder, story)


def test_programs_are_given_the_path_that_any_can_connect_to(tmp_path, runtime):
    folder = folder_in(tmp_path / ("x" * 116))

    async def story(sockets, heard):
        assert sockets.path == str(folder.outside_socket("here"))
        assert is_short(sockets.path)

    with_sockets(folder, story)


@pytest.mark.parametrize("gone", ["the runtime folder", "the folder in it", "both sockets"])
def test_what_is_removed_is_made_anew(tmp_path, runtime, gone):
    folder = folder_in(tmp_path / "home")

    async def story(sockets, heard):
        own, outside = folder.socket("here"), folder.outside_socket("here")
        if gone == "the runtime folder":
            shutil.rmtree(runtime)
            assert await hears(sockets.path, heard), "jobs do not notice"
            assert sockets.path == str(own)
            await sockets.look()
            runtime.mkdir()
        elif gone == "the folder in it":
            shutil.rmtree(outside.parent)
        else:
            own.unlink()
            outside.unlink()
            assert not await hears(own, heard)
        await sockets.look()
        for path in (own, outside):
            assert await hears(path, heard)

    with_sockets(folder, story)


def test_a_file_system_without_sockets_leaves_the_other_place(tmp_path, runtime):
    folder = folder_in(tmp_path / "home")
    folder.socket("here").mkdir()  # nothing can be bound there

    async def story(sockets, heard):
        assert sockets.path == str(folder.outside_socket("here"))
        assert await hears(sockets.path, heard)
        folder.socket("here").rmdir()

    with_sockets(folder, story)


def test_without_any_place_the_agent_says_so_with_paths_and_fix(tmp_path, runtime):
    folder = folder_in(tmp_path / "home")
    folder.socket("here").mkdir()
    runtime.rmdir()
    with pytest.raises(InputError) as refused:
        asyncio.run(Sockets(folder, "here", lambda *_: None).open())
    for words in (str(folder.socket("here")), str(runtime), "set XDG_RUNTIME_DIR to a folder"):
        assert words in str(refused.value)


def test_connections_leave_descriptors_to_the_agent(tmp_path, runtime, caplog):
    async def story(sockets, heard):
        callers = []
        with no_descriptors(left=100):
            most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            for _ in range(100):
                with contextlib.suppress(OSError):
                    callers.append(socket.socket(socket.AF_UNIX))
                    callers[-1].settimeout(60)
                    callers[-1].connect(str(sockets.path))
                    if callers[-1].fileno() > most - KEPT_FILES:
                        assert await asyncio.to_thread(callers[-1].recv, 1) == b""
                        break
                await asyncio.sleep(0)
            os.close(os.open(os.devnull, os.O_RDONLY))
        for caller in callers:
            caller.close()

    with_sockets(folder_in(tmp_path / "state"), story)
    assert [each for each in caplog.messages if "raise ulimit -n" in each]
