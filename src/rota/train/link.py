"""A worker's connection to its node's agent: it never delays a step, and reconnects."""

import contextlib
import os
import select
import socket
import sys
import time

from rota.errors import AgentError
from rota.live.wire import Message, encode, split
from rota.live.wire.unixpath import short

RECONNECT_EVERY_S = 0.5
TELL_AFTER_S = 60.0  # without an agent; it is started again sooner when it dies


class Link:
    """Messages to and from the agent over a Unix socket.

    Losing the agent is no error: training continues, and the link tries again every half second.
    Each connection begins with the latest hello given to :meth:`introduce`.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._socket: socket.socket | None = None
        self._buffer = bytearray()
        self._inbox: list[Message] = []
        self._retry_at = 0.0
        self._owner = 0  # the process that connected
        self._alone_since: float | None = None  # when no agent answered first
        self._told = False  # that none does
        self._hello: Message = {}
        self.connections = 0  # number of connections so far: a new agent knows nothing

    @property
    def connected(self) -> bool:
        """True if an agent listens at the moment, as far as is known."""
        return self._socket is not None

    def introduce(self, hello: Message) -> None:
        """Set the hello that the next connection begins with."""
        self._hello = hello

    def connect(self) -> bool:
        """Try to reach the agent, at most every half second. True if connected now."""
        if self._socket is not None:
            return True
        now = time.monotonic()
        if now < self._retry_at:
            return False
        self._retry_at = now + RECONNECT_EVERY_S
        link = socket.socket(socket.AF_UNIX)
        try:
            with short(self._path) as path:
                link.connect(path)
            link.sendall(encode(self._hello))
        except OSError as error:
            link.close()
            self._tell_if_long_alone(now, error)
            return False
        self._socket, self._owner, self._alone_since = link, os.getpid(), None
        self.connections += 1
        self._buffer.clear()
        self._inbox.clear()
        return True

    def _tell_if_long_alone(self, now: float, error: OSError) -> None:
        """Say once in the job's output that it has no agent, if it has had none for a while."""
        self._alone_since = now if self._alone_since is None else self._alone_since
        if not self._told and now - self._alone_since >= TELL_AFTER_S:
            self._told = True
            print(
                f"rota: no agent answers at {self._path} ({error.strerror or error}); the program "
                "goes on without one: it reports no progress, and is suspended like a program "
                "without rota.train",
                file=sys.stderr,
                flush=True,
            )

    def poll(self) -> list[Message]:
        """Messages received so far, without waiting."""
        if self._socket is None:
            self.connect()
            return []
        self._receive(socket.MSG_DONTWAIT)
        messages, self._inbox = self._inbox, []
        return messages

    def has(self, kind: str, wait_s: float) -> bool:
        """Whether a message of this type has come, which stays; waits at most so long for one."""
        if not self.connect():
            time.sleep(wait_s)
            return False
        if not any(message["type"] == kind for message in self._inbox):
            assert self._socket is not None
            poll = select.poll()
            poll.register(self._socket, select.POLLIN)
            if poll.poll(1000 * wait_s):
                self._receive(socket.MSG_DONTWAIT)
        return any(message["type"] == kind for message in self._inbox)

    def wait(self) -> Message | None:
        """The next message, waiting for it. None if there is none yet, or the agent was lost."""
        if not self._inbox and self._socket is not None:
            self._receive(0)
        elif not self._inbox and not self.connect():
            time.sleep(RECONNECT_EVERY_S / 5)
        return self._inbox.pop(0) if self._inbox else None

    def send(self, message: Message) -> bool:
        """Send a message that must arrive. False if the agent was lost: a hello will follow."""
        if self._socket is None:
            return False
        try:
            self._socket.sendall(encode(message))
        except OSError:
            self._drop()
            return False
        return True

    def offer(self, message: Message) -> bool:
        """Send a message that may be dropped if there is no room. False if it was dropped."""
        if self._socket is None:
            return False
        data = encode(message)
        try:
            sent = self._socket.send(data, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            self._drop()
            return False
        if sent < len(data):  # the rest must follow, or the stream is broken
            with contextlib.suppress(OSError):
                self._socket.sendall(data[sent:])
        return True

    def close(self) -> None:
        """Close the connection for good."""
        self._drop()
        self._retry_at = float("inf")

    def _receive(self, flags: int) -> None:
        assert self._socket is not None
        try:
            data = self._socket.recv(65536, flags)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop()
            return
        self._buffer += data
        try:
            self._inbox += split(self._buffer)
        except AgentError:
            self._drop()

    def _drop(self) -> None:
        if self._socket is not None:
            if os.getpid() == self._owner:  # a process that it has forked may have it, too
                with contextlib.suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)
            self._socket.close()
            self._socket = None
