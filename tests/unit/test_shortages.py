"""A lack of descriptors, processes or memory is told in a line that names the limit and the fix."""

import asyncio
import errno
import logging
import os
import socket

import pytest

from rota.errors import InputError, shortage_of
from rota.folder import Folder
from rota.live.wire.shortages import Shortages
from support.shortage import no_descriptors


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.EMFILE, "x"), "raise ulimit -n"),
        (OSError(errno.ENFILE, "x"), "fs.file-max"),
        (OSError(errno.EAGAIN, "x"), "ulimit -u, or pids.max"),
        (RuntimeError("can't start new thread"), "ulimit -u, or pids.max"),
        (OSError(errno.ENOMEM, "x"), "no memory left"),
        (MemoryError(), "no memory left"),
    ],
)
def test_a_shortage_names_its_limit(error, words):
    assert words in shortage_of(error)


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOENT, "x"), RuntimeError("else"), ValueError("x")], ids=str
)
def test_what_is_no_shortage_is_none(error):
    assert shortage_of(error) is None


def test_a_state_folder_is_not_blamed_for_a_lack_of_descriptors(tmp_path):
    error = Folder(tmp_path).unusable(OSError(errno.EMFILE, os.strerror(errno.EMFILE)))
    assert isinstance(error, InputError)
    assert "raise ulimit -n" in str(error)
    assert "to a folder of yours" not in str(error)


def test_connections_that_can_not_be_accepted_are_told_once_and_accepted_later(caplog):
    caplog.set_level(logging.ERROR)

    async def main():
        loop = asyncio.get_running_loop()
        Shortages(logging.getLogger("rota.test")).watch(loop)
        greeted, refused = asyncio.Event(), asyncio.Event()

        async def serve(_, writer):
            greeted.set()
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        caller = socket.socket()
        handle = loop._exception_handler

        def note(of, context):
            handle(of, context)
            refused.set()

        loop.set_exception_handler(note)
        with no_descriptors():
            caller.connect(server.sockets[0].getsockname())
            await refused.wait()
        await greeted.wait()
        caller.close()
        server.close()

    asyncio.run(asyncio.wait_for(main(), 60))
    (line,) = caplog.messages
    assert line.startswith("a connection can't be accepted: no more file can be opened")
