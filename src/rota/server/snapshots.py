"""Routes by which clients hand snapshots in, and agents fetch them."""

import asyncio
from collections.abc import AsyncIterator

from fastapi import APIRouter, Request
from starlette.requests import ClientDisconnect
from starlette.responses import FileResponse, JSONResponse

from rota.errors import InputError
from rota.live.controller.snapshots import Snapshots
from rota.server.calls import Caller
from rota.server.guard import SNAPSHOTS_PATH

SILENCE_S = 30.0  # without a further piece of a body


def snapshot_routes(snapshots: Snapshots) -> APIRouter:
    """The routes of both; a snapshot is named by its digest."""
    router = APIRouter()

    @router.get(SNAPSHOTS_PATH + "{digest}")
    async def show(digest: str) -> JSONResponse:
        """Say that a snapshot is here, where it stays for an hour or as long as a job has it."""
        num_bytes = snapshots.find(digest).stat().st_size
        return JSONResponse({"digest": digest, "num_bytes": num_bytes})

    @router.put(SNAPSHOTS_PATH + "{digest}")
    async def receive(digest: str, request: Request, user: Caller) -> JSONResponse:
        """Take a snapshot; the body is its archive. Twice does no harm."""
        is_new = await snapshots.receive(digest, _pieces(request))
        num_bytes = snapshots.find(digest).stat().st_size
        told = {"digest": digest, "num_bytes": num_bytes, "changed": is_new}
        return JSONResponse(told, 201 if is_new else 200)

    @router.get("/agent/v1/snapshots/{digest}")
    async def fetch(digest: str) -> FileResponse:
        """The archive of a snapshot, for an agent."""
        return FileResponse(snapshots.find(digest), media_type="application/octet-stream")

    return router


async def _pieces(request: Request) -> AsyncIterator[bytes]:
    """The pieces of a body. Raises InputError if its sender is silent for long, or is gone."""
    stream = aiter(request.stream())
    while True:
        try:
            async with asyncio.timeout(SILENCE_S):
                piece = await anext(stream)
        except StopAsyncIteration:
            return
        except (TimeoutError, ClientDisconnect):
            raise InputError("snapshot: the archive ends too early; send it again") from None
        yield piece
