"""Where an agent finds its controller: in the folder of this machine, or where it has joined."""

import json
import ssl
from typing import NamedTuple, Protocol

import psutil

from rota.folder import Folder


class Address(NamedTuple):
    """A controller's WebSocket, the token to show there, and whom to trust; None: no TLS."""

    url: str
    token: str
    context: ssl.SSLContext | None = None


class Endpoint(Protocol):
    """An agent's view of its controller.

    ``stays``: an agent without jobs waits for its controller for ever, is not ended with the
    cluster, and can lose its place there: then its token counts no longer.
    """

    stays: bool

    def address(self) -> Address:
        """Where the controller is now. Raises OSError, ValueError, KeyError."""

    def is_gone(self) -> bool:
        """True if there is no controller any more, as far as can be seen without a connection."""


class FolderEndpoint:
    """The controller of a state folder: a process of this machine, or with None another's."""

    stays = False

    def __init__(self, folder: Folder, controller_pid: int | None) -> None:
        self._folder, self._controller_pid = folder, controller_pid

    def address(self) -> Address:
        """Where the folder says that the controller listens."""
        server = json.loads(self._folder.server.read_text())
        token = self._folder.agent_token.read_text().strip()
        if self._controller_pid is not None:  # that of before, or the one after it
            self._controller_pid = server["pid"]
        return Address(server["url"].replace("http", "ws", 1) + "/agent/v1", token)

    def is_gone(self) -> bool:
        """True unless the controller's process lives; of another machine's nothing is seen."""
        pid = self._controller_pid
        return pid is None or not psutil.pid_exists(pid)


class JoinedEndpoint:
    """The controller of a cluster that this machine has joined, by its address and its CA."""

    stays = True

    def __init__(self, url: str, token: str, authority: str) -> None:
        """``url`` begins with https://; ``authority`` has the CA's certificate, as PEM."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # a lab's own may be no root
        context.load_verify_locations(cadata=authority)
        self._address = Address(url.replace("https", "wss", 1) + "/agent/v1", token, context)

    def address(self) -> Address:
        """Where the controller was when this machine joined."""
        return self._address

    def is_gone(self) -> bool:
        """False: a controller that does not answer may come back."""
        return False
