"""The controller's process: bind, start, say where it listens, and go in good order."""

import asyncio
import contextlib
import ipaddress
import json
import logging
import os
import secrets
import signal
import socket
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import uvicorn

from rota.errors import InputError
from rota.folder import Folder
from rota.live.wire.frames import MOST_FRAME_BYTES
from rota.live.wire.shortages import Shortages
from rota.server.app import create_app
from rota.server.door import ACCEPTED_AT_ONCE, Connection, Door, Doorstep, usual_limits
from rota.server.notify.notifier import Notifier
from rota.server.sweepdriver import SweepDriver
from rota.server.tls import Listener

log = logging.getLogger("rota.server")

GRACE_S = 5  # for calls still being answered at the end
WAITING_TO_CONNECT = 1024  # in the kernel, until they are accepted


def run(
    controller: Any,
    folder: Folder,
    host: str = "127.0.0.1",
    port: int = 0,
    *,
    on_listen: Callable[[str], None] | None = None,
    listener: Listener | None = None,
) -> None:
    """Serve the controller until SIGTERM or SIGINT, in an event loop of its own; see serve()."""
    with asyncio.Runner() as runner:
        runner.run(serve(controller, folder, host, port, on_listen=on_listen, listener=listener))


async def serve(
    controller: Any,
    folder: Folder,
    host: str = "127.0.0.1",
    port: int = 0,
    *,
    on_listen: Callable[[str], None] | None = None,
    driver: SweepDriver | None = None,
    door: Door | None = None,
    listener: Listener | None = None,
) -> None:
    """Start the controller and serve its API until SIGTERM or SIGINT.

    The order: bind (port 0 takes a free one), ``controller.start()``, listen, write
    ``server.json``, begin to look after searches (``driver`` does that, by default the usual one)
    and to tell hooks, call ``on_listen(url)``. At the end, or when it is cancelled:
    ``server.json`` goes, no call is taken any more, the driver and the telling of hooks end,
    ``controller.stop()`` (agents can still hear), then connections are closed. ``door`` says how
    many there may be, by default what the number of open files allows. Raises InputError for an
    address that is not loopback or is taken; what the controller's start and stop raise comes
    through.
    """
    with contextlib.ExitStack() as stack:
        sock = stack.enter_context(bind(host, port))
        outer = None if listener is None else stack.enter_context(_bind_for_others(listener))
        url = _url(sock)
        Shortages(log).watch(asyncio.get_running_loop())
        driver = driver or SweepDriver(lambda: controller.record.searches.is_any_open, folder)
        controller.record.searches.on_news = driver.tell_news
        record = controller.record
        notifier = Notifier(record.deliveries, controller.state, controller.now_s, folder)
        app = create_app(controller, folder, driver, notifier, listener)
        door = door or Door(usual_limits())
        config = _config(app, door)
        server = _Server(config, controller, driver, notifier, folder, url, on_listen)
        if listener is not None and outer is not None:
            server.outer = outer, partial(Doorstep, door, listener.context)
        watch = asyncio.create_task(server.end_with(controller))
        try:
            await controller.start()
            await server.serve(sockets=[sock])
        except asyncio.CancelledError:
            await server.shutdown([sock])
            raise
        finally:
            watch.cancel()
            server.withdraw()
            await server.stop_controller()


class _Server(uvicorn.Server):
    """uvicorn's server, which says where it is and takes the controller down in order."""

    def __init__(
        self,
        config: uvicorn.Config,
        controller: Any,
        driver: SweepDriver,
        notifier: Notifier,
        folder: Folder,
        url: str,
        on_listen: Callable[[str], None] | None,
    ) -> None:
        super().__init__(config)
        self._controller = controller
        self._driver = driver
        self._notifier = notifier
        self._folder = folder
        self._url = url
        self._on_listen = on_listen
        self._stopped = False
        # Where others may call, and what meets them there, before a connection that it makes.
        self.outer: tuple[socket.socket, Callable[..., asyncio.Protocol]] | None = None
        self._end_streams = config.app.state.streams.close  # type: ignore[union-attr]

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, then tell."""
        await super().startup(sockets)
        if self.outer is not None:
            await self._listen_to_others(*self.outer)
        for sock in sockets or ():
            sock.listen(WAITING_TO_CONNECT)
        self._announce()
        self._driver.start()
        self._notifier.start()
        if self._on_listen:
            self._on_listen(self._url)

    async def _listen_to_others(
        self, sock: socket.socket, doorstep: Callable[..., asyncio.Protocol]
    ) -> None:
        """Serve the same API over TLS as well: uvicorn itself takes one kind of connection."""

        def connection() -> asyncio.Protocol:
            made: asyncio.Protocol = self.config.http_protocol_class(  # type: ignore[call-arg]
                config=self.config, server_state=self.server_state, app_state=self.lifespan.state
            )
            return made

        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            partial(doorstep, connection), sock=sock, backlog=ACCEPTED_AT_ONCE
        )
        sock.listen(WAITING_TO_CONNECT)
        self.servers.append(server)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take no more calls, stop the controller while agents can still hear it, close."""
        self.withdraw()
        if not self.started:
            return
        self.started = False
        for listener in self.servers:
            listener.close()
        await self.stop_controller()
        await super().shutdown(sockets)

    async def end_with(self, controller: Any) -> None:
        """Serve no longer once the controller can't go on."""
        await controller.journal.stopped.wait()
        self.should_exit = True

    async def stop_controller(self) -> None:
        """Stop it, once, and before it those who would call it or its store in vain."""
        if not self._stopped:
            self._stopped = True
            self._end_streams()
            await self._driver.stop()
            await self._notifier.stop()
            await self._controller.stop()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Take SIGTERM and SIGINT as the wish to end; uvicorn's own would die of them at last."""
        loop = asyncio.get_running_loop()
        taken = []
        for number in (signal.SIGTERM, signal.SIGINT):
            with contextlib.suppress(ValueError, RuntimeError):  # not in the main thread
                loop.add_signal_handler(number, self.handle_exit, number, None)
                taken.append(number)
        try:
            yield
        finally:
            for number in taken:
                loop.remove_signal_handler(number)

    def _announce(self) -> None:
        target = self._folder.server
        draft = target.with_name(f"{target.name}.{secrets.token_hex(8)}")
        try:
            descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "w") as file:
                json.dump({"url": self._url, "pid": os.getpid()}, file)
            draft.replace(target)
        finally:
            draft.unlink(missing_ok=True)

    def withdraw(self) -> None:
        """Remove server.json, if it is ours."""
        with contextlib.suppress(OSError, ValueError, AttributeError):
            if json.loads(self._folder.server.read_text()).get("url") == self._url:
                self._folder.server.unlink()


def _config(app: Any, door: Door) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=partial(Connection, door=door),  # type: ignore[arg-type]
        backlog=ACCEPTED_AT_ONCE,  # asyncio tries so often at once, also while no file is free
        access_log=False,
        log_config=None,
        lifespan="off",
        proxy_headers=False,
        server_header=False,
        ws_max_size=MOST_FRAME_BYTES,
        timeout_graceful_shutdown=GRACE_S,
    )


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens on a loopback address; InputError for another, or one that is taken."""
    address = "127.0.0.1" if host == "localhost" else host
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        parsed = None
    if parsed is None or not parsed.is_loopback:
        raise InputError(
            f"host: {host!r} is not a loopback address; use 127.0.0.1, and reach it from elsewhere "
            "through ssh -L"
        )
    family = socket.AF_INET6 if parsed.version == 6 else socket.AF_INET
    try:
        sock = socket.create_server((address, port), family=family)
    except (OSError, OverflowError) as error:
        raise InputError(
            f"port: {port} can't be used: {error}; leave it out to take a free one"
        ) from None
    # Its connections have that from it. Otherwise the body of each answer would wait for the
    # client's system to confirm the head, which takes its time: 40 ms for each call.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def _bind_for_others(listener: Listener) -> socket.socket:
    family = socket.AF_INET6 if ":" in listener.address else socket.AF_INET
    try:
        sock = socket.create_server((listener.address, listener.port), family=family)
    except OSError as error:
        raise InputError(
            f"--listen: {listener.address}:{listener.port} can't be used: {error.strerror}; give "
            "an address of this machine, and a free port"
        ) from None
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def _url(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
