"""Routes by which machines join the cluster and leave it."""

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse

from rota.errors import InputError
from rota.server import jobs
from rota.server.auth import shown_in
from rota.server.calls import Caller, json_body
from rota.server.guard import AUTHORITY_PATH, JOIN_PATH
from rota.server.tls import Listener


def member_routes(controller: Any, listener: Listener | None) -> APIRouter:
    """Routes for administrators, and those that machines call which want to join."""
    router = APIRouter()

    @router.post("/api/v1/invitations")
    async def invite(user: Caller) -> JSONResponse:
        """Make a join token, good once, and tell what a machine needs beside it."""
        if listener is None:
            raise InputError(
                "this cluster listens to its own machine alone; start its controller with an "
                "address for other machines: rota up --listen HOST:PORT"
            )
        token, until_s = controller.node_api.invite()
        told = {"token": token, "until_s": until_s}
        return JSONResponse(told | {"url": listener.url, "certificate": listener.authority}, 201)

    @router.post("/api/v1/nodes/{name}/remove")
    async def remove(name: str, user: Caller, force: bool = False) -> JSONResponse:
        """Revoke the token of a machine that has joined; with force also if it has jobs."""
        left_s = controller.node_api.remove(name, force=force)
        found = [each for each in controller.record.nodes() if each["name"] == name]
        told = found[0] if found else {"name": name}
        return JSONResponse(jobs.finite(told | {"removed_in_s": left_s}), 202)

    @router.get(AUTHORITY_PATH)
    async def authority() -> JSONResponse:
        """The certificate by which callers from other machines check this server; it is open."""
        return JSONResponse({"certificate": None if listener is None else listener.authority})

    @router.post(JOIN_PATH)
    async def join(request: Request) -> JSONResponse:
        """Give a machine, for a join token, the token of a node."""
        body = await json_body(request)
        told = body if isinstance(body, dict) else {}
        node = told.get("node")
        token = shown_in(request.headers.get("authorization"))
        is_known = controller.node_api.is_known(node, told.get("current"))
        own = controller.node_api.join(token, node, is_known=is_known)
        return JSONResponse({"node": node, "token": own, "is_known": is_known}, 201)

    return router
