"""The dashboard's server: pages, their data, and the reader, in one event loop."""

import asyncio
import json
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import uvicorn
from fastapi import FastAPI
from nicegui import app as toolkit
from nicegui import ui
from starlette.requests import Request
from starlette.responses import Response
from starlette.staticfiles import StaticFiles

from rota.client.client import Client
from rota.errors import InputError
from rota.folder import Folder, hold_lock
from rota.ui.door import SIGN_IN, Door, DoorKeeper, cookie_name
from rota.ui.frame import Deck, Frame
from rota.ui.pages import cluster, decisions, job, people, queue, searches, timeline
from rota.ui.reader import Reader

STATIC = Path(__file__).with_name("static")
ICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16"><rect width="7" height="7" '
    'fill="#0072B2"/><rect x="9" width="7" height="7" fill="#E69F00"/><rect y="9" width="7" '
    'height="7" fill="#009E73"/><rect x="9" y="9" width="7" height="7" fill="#CC79A7"/></svg>'
)


def run(
    folder: Folder,
    connect: Callable[[], Client],
    token: str,
    port: int,
    told: Callable[[str], None],
) -> None:
    """Serve the dashboard on 127.0.0.1 until interrupted; ``told`` gets the first sign-in link.

    Port 0 takes a free one. Raises InputError if the port is taken, or another dashboard runs on
    the folder.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    folder.create()
    lock = hold_lock(folder.ui_lock)
    if lock is None:
        raise InputError(f"a dashboard runs on {folder.path} already; run rota ui for a link")
    with lock, _listening(port) as listener:
        port = listener.getsockname()[1]
        door = Door(token, time.monotonic)
        app = create_app(Reader(connect), door, port)
        url = f"http://127.0.0.1:{port}"
        config = uvicorn.Config(
            app,
            log_config=None,
            lifespan="on",
            access_log=False,
            server_header=False,
            ws_max_size=1 << 20,
            timeout_graceful_shutdown=1,
        )
        server = uvicorn.Server(config)
        folder.ui.write_text(json.dumps({"url": url, "pid": os.getpid()}))
        try:
            asyncio.run(
                _serve(server, listener, lambda: told(f"{url}{SIGN_IN}?link={door.new_link()}"))
            )
        finally:
            folder.ui.unlink(missing_ok=True)


def create_app(reader: Reader, door: Door, port: int) -> FastAPI:
    """The dashboard, as one ASGI app; it may be made once in a process."""
    cookie = cookie_name(port)
    deck = Deck(reader, door, cookie)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        reading = asyncio.create_task(reader.run())
        try:
            yield
        finally:
            reading.cancel()
            with suppress(asyncio.CancelledError):
                await reading

    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan)
    app.mount("/static", StaticFiles(directory=STATIC))

    @app.get("/data/timeline")
    async def pieces(job: str = "") -> Response:
        """What the timeline draws first."""
        told = timeline.whole(reader.holds, job, reader.now_s())
        return Response(told, media_type="application/json")

    _add_pages(deck)
    ui.run_with(
        app,
        title="Rota",
        favicon=ICON,
        dark=None,
        language="en-US",
        tailwind=False,
        reconnect_timeout=10.0,
        gzip_middleware_factory=None,
        show_welcome_message=False,
    )
    toolkit.config.quasar_config["loadingBar"] = {"skipHijack": True}
    app.add_middleware(DoorKeeper, door=door, port=port)
    return app


def _add_pages(deck: Deck) -> None:
    pages: dict[str, Callable[[Frame], None]] = {
        "/": cluster.build,
        "/queue": partial(queue.build, rows=queue.Rows()),
        "/timeline": timeline.build,
        "/decisions": decisions.build,
        "/searches": searches.build,
        "/people": people.build,
    }
    for path, build in pages.items():
        ui.page(path)(_page(deck, build))

    @ui.page("/job/{job_id}")
    def one_job(request: Request, job_id: str) -> None:
        job.build(Frame(deck, request), job_id)

    @ui.page("/search/{name}")
    def one_search(request: Request, name: str) -> None:
        searches.build_one(Frame(deck, request), name)


def _page(deck: Deck, build: Callable[[Frame], None]) -> Callable[[Request], None]:
    def page(request: Request) -> None:
        build(Frame(deck, request))

    return page


async def _serve(server: uvicorn.Server, listener: socket.socket, told: Callable[[], None]) -> None:
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    while not (server.started or serving.done()):
        await asyncio.sleep(0.02)
    if server.started:
        told()
    await serving


def _listening(port: int) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
    except OSError as error:
        listener.close()
        raise InputError(
            f"--port: {port} can't be used: {error.strerror}; choose another"
        ) from None
    return listener
