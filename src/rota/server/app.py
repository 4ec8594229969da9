"""The routes of the API. Errors become problems, and the guard has looked at every call before."""

import logging
from contextlib import suppress
from itertools import islice
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, FastAPI, Header, Query, Request
from starlette.responses import JSONResponse, Response
from starlette.websockets import WebSocket, WebSocketDisconnect

from rota import __version__
from rota.errors import RotaError
from rota.explain.why import explain
from rota.folder import Folder
from rota.live.controller import core_curve, goodput
from rota.live.wire.frames import MOST_FRAME_BYTES
from rota.live.wire.questions import MOST_ANSWER_BYTES
from rota.model.setting import setting_text
from rota.model.state.state import ClusterState
from rota.report.gauges import gauges, queue_rows, standing
from rota.request.jobfile import parse_job, program_of
from rota.request.values import MAX_DURATION_S
from rota.server import jobs, plans, problems, profiles, roles
from rota.server.auth import ensure_tokens
from rota.server.calls import Caller, body_hash, checked_key, json_body, within_of
from rota.server.events import Streams, event_routes
from rota.server.guard import Guard
from rota.server.job_list import JobQuery, job_page, job_query
from rota.server.log_stream import MOST_PLACE_CHARS, LogStream, Wanted, piece
from rota.server.members import member_routes
from rota.server.metrics import Metrics, Snapshot
from rota.server.notify.notifier import Notifier
from rota.server.notify.routes import hook_routes
from rota.server.queue_order import QueueOrder
from rota.server.snapshots import snapshot_routes
from rota.server.streams import StreamAnswer
from rota.server.sweepdriver import SweepDriver
from rota.server.sweeps import sweep_routes
from rota.server.threads import in_thread
from rota.server.timeheader import TimeHeader
from rota.server.tls import Listener
from rota.server.twin import copied
from rota.server.written import written

MAX_PIECE_BYTES = 1 << 20  # that may be asked for; an answer may hold less
MOST_REASON_BYTES = 123  # of the end of a WebSocket
# Reasons why an agent's connection has ended, by the WebSocket's code, if none was given.
CLOSED = {
    1000: "the agent closed it",
    1001: "the agent has ended",
    1005: "the agent closed it",
    1006: "it broke, or the agent was killed",
    1009: f"a message of the agent was larger than {MOST_FRAME_BYTES:,} bytes",
    1011: "the agent did not answer a ping",
}

log = logging.getLogger("rota.server")


def create_app(
    controller: Any,
    folder: Folder,
    driver: SweepDriver,
    notifier: Notifier,
    listener: Listener | None = None,
) -> FastAPI:
    """The API of one controller, with the tokens of ``folder``, made if they are not there yet.

    The controller is a :class:`rota.live.controller.loop.Controller`, running in the same event
    loop, as is the ``driver`` of its searches; ``notifier`` tells its hooks; ``listener`` is where
    other machines call.
    """
    app = FastAPI(
        title="Rota",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.include_router(_job_routes(controller), prefix="/api/v1")
    streams = app.state.streams = Streams(controller)
    app.include_router(_reading_routes(controller, streams), prefix="/api/v1")
    app.include_router(sweep_routes(controller, driver), prefix="/api/v1")
    app.include_router(hook_routes(controller, folder, notifier), prefix="/api/v1")
    app.include_router(_cluster_routes(controller, driver), prefix="/api/v1")
    app.include_router(member_routes(controller, listener))
    if listener is not None:
        controller.agents.own_reach = listener.reach
    app.include_router(snapshot_routes(controller.snapshots))
    app.include_router(_process_routes(controller))
    app.include_router(event_routes(streams), prefix="/api/v1")
    problems.install(app)
    app.add_middleware(TimeHeader, now_s=controller.now_s, cursor=streams.now)
    app.add_middleware(
        Guard,
        tokens=ensure_tokens(folder),
        members=controller.members,
        now_s=controller.now_s,
        host="" if listener is None else listener.host,
    )
    return app


def _job_routes(controller: Any) -> APIRouter:
    """Routes that change jobs."""
    router = APIRouter()

    @router.post("/jobs")
    async def submit(
        request: Request,
        user: Caller,
        dry_run: bool = False,
        idempotency_key: Annotated[str | None, Header()] = None,
    ) -> JSONResponse:
        """Take a job, or with dry_run say what would be taken."""
        job = parse_job(await json_body(request), workdir="")
        if dry_run:
            controller.jobs.check(job)
            await controller.jobs.resumed_from(job)
            plan = {"job": job.to_fields(), "free_gpus": controller.state.idle.count}
            plan["warnings"] = await jobs.warnings(controller, job)
            return JSONResponse(plan | {"python": jobs.python_of(program_of(job))})
        key, hashed = checked_key(idempotency_key), body_hash(job.to_fields())
        row = await controller.jobs.submit(job, user=user, key=key, body_hash=hashed)
        python = jobs.python_of(program_of(job))
        more = {"python": python, "warnings": await jobs.warnings(controller, job)}
        return JSONResponse(jobs.summary(controller, row) | more, 201)

    @router.post("/plans")
    async def plan(request: Request, user: Caller) -> JSONResponse:
        """Say where and when a job would start, by one decision on a copy of the state."""
        job = parse_job(await json_body(request), workdir="")
        spec = controller.jobs.preview_spec(job, user)
        await controller.jobs.resumed_from(job)
        state = await copied(controller.state)
        now_s = controller.now_s()
        # A decision may take long, and the controller decides on this loop.
        told = await in_thread(plans.plan, controller, state, spec, now_s)
        return JSONResponse({"job": job.to_fields()} | jobs.finite(told))

    @router.post("/jobs/{job_id}/suspend")
    async def suspend(job_id: str, user: Caller) -> JSONResponse:
        """Take the job off its GPUs until it is resumed."""
        row = controller.record.row(job_id)
        return _steered(controller, row, await controller.jobs.suspend(row, user))

    @router.post("/jobs/{job_id}/resume")
    async def resume(job_id: str, user: Caller) -> JSONResponse:
        """Let the job go on when the policy gives it GPUs."""
        row = controller.record.row(job_id)
        return _steered(controller, row, await controller.jobs.resume(row, user))

    @router.post("/jobs/{job_id}/cancel")
    async def cancel(job_id: str, user: Caller, now: bool = False) -> JSONResponse:
        """End the job, with now without its grace. A job that was cancelled before stays so."""
        row = controller.record.row(job_id)
        return _steered(controller, row, await controller.jobs.cancel(row, user, now=now))

    @router.post("/jobs/{job_id}/clean")
    async def clean(
        job_id: str, user: Caller, keep_checkpoints: bool = False, dry_run: bool = False
    ) -> JSONResponse:
        """Remove what a job that has ended has left, or with dry_run tell how much that is."""
        row = controller.record.row(job_id)
        num_bytes = await controller.cleaner.clean(
            row, user, keeps_checkpoints=keep_checkpoints, dry_run=dry_run
        )
        return JSONResponse(jobs.summary(controller, row) | {"num_bytes": num_bytes})

    return router


def _steered(controller: Any, row: int, changed: bool) -> JSONResponse:
    """The job, and whether the call has changed anything about it."""
    return JSONResponse(jobs.summary(controller, row) | {"changed": changed}, 202)


_Number = Annotated[int | None, Query(ge=0, le=1 << 20)]


def _reading_routes(controller: Any, streams: Streams) -> APIRouter:
    """Routes that read jobs."""
    router, order = APIRouter(), QueueOrder(controller)

    @router.get("/jobs")
    async def list_jobs(query: Annotated[JobQuery, Depends(job_query)]) -> Response:
        """Active jobs and those that ended within the hour, oldest first; or others, in pages."""
        return await written(await job_page(controller, query, order))

    @router.get("/queue")
    async def queue() -> Response:
        """The jobs that wait for GPUs, in the order in which the policy would start them."""
        rows = await order.positions()
        return await written({"jobs": controller.state.ids(sorted(rows, key=rows.__getitem__))})

    @router.get("/jobs/{job_id}")
    async def show(job_id: str) -> JSONResponse:
        """Everything about one job."""
        row = controller.record.row(job_id, newest=True)
        told = await jobs.detail(controller, row, await order.positions())
        known = goodput.told_by(controller.state, row, controller.now_s(), told["progress"])
        # A fit takes milliseconds, the first one more, and the controller decides on this loop.
        told["goodput"] = jobs.finite(await in_thread(goodput.describe, known))
        cores = core_curve.told_by(controller.state, row, controller.now_s())
        told["core_curve"] = jobs.finite(await in_thread(core_curve.describe, cores))
        return JSONResponse(told)

    @router.get("/jobs/{job_id}/explain")
    async def why(job_id: str) -> JSONResponse:
        """Why the job does not run: see :func:`rota.explain.why.explain`."""
        row = controller.record.row(job_id, newest=True)
        verdict = explain(
            controller.state,
            row,
            controller.now_s(),
            controller.record.history(row),
            resizes=controller.resizes,
            adapts=controller.adapts,
            fills=controller.fills,
            turns=controller.turns(row),
            ahead=controller.ahead(row),
            quota=controller.quota(row),
            awaited=controller.supply.awaited(),
            most_nodes=controller.supply.most_nodes(),
            shortage=controller.room.shortage() if controller.room.is_tight else None,
            progress=controller.record.progress(row),
        )
        verdict["warnings"] += jobs.disconnections(controller, row)
        verdict["eta"] = jobs.eta(controller, row)
        if verdict["position"] is not None:
            verdict["position"] = (await order.positions()).get(row)
        return JSONResponse(jobs.finite(verdict))

    @router.get("/jobs/{job_id}/events")
    async def events(job_id: str) -> JSONResponse:
        """The job's story, oldest first."""
        return JSONResponse(
            {"events": jobs.story(controller, controller.record.row(job_id, newest=True))}
        )

    @router.get("/jobs/{job_id}/logs")
    async def logs(
        job_id: str,
        rank: _Number = None,
        process: _Number = None,
        attempt: Annotated[int | None, Query(ge=1, le=1 << 30)] = None,
        offset: Annotated[int, Query(ge=0, le=1 << 60)] = 0,
        limit: Annotated[int, Query(ge=4, le=MAX_PIECE_BYTES)] = MOST_ANSWER_BYTES,
        tail: Annotated[int | None, Query(ge=0, le=1 << 30)] = None,
        since_s: Annotated[float | None, Query(ge=0, le=1e12)] = None,
        times: bool = False,
    ) -> JSONResponse:
        """A piece of one rank's output, from a byte offset or a time on, or the last lines.

        Without ``attempt`` it is the latest one's. ``complete``: nothing will ever follow.
        """
        row = controller.record.row(job_id, newest=True)
        number = attempt or controller.state.attempt[row]
        which = {"rank": rank, "process": process}
        where: dict[str, Any] = {"offset": offset, "limit": limit, "tail": tail}
        where |= {"since_s": since_s, "times": times}
        found = await controller.files.output(row, number, **which, **where)
        return JSONResponse(piece(controller, row, number, found))

    @router.get("/jobs/{job_id}/logs/stream")
    async def follow(
        job_id: str,
        user: Caller,
        rank: _Number | Literal["all"] = None,
        process: _Number = None,
        attempt: Annotated[int | None, Query(ge=1, le=1 << 30)] = None,
        offset: Annotated[int, Query(ge=0, le=1 << 60)] = 0,
        tail: Annotated[int | None, Query(ge=0, le=1 << 30)] = None,
        since_s: Annotated[float | None, Query(ge=0, le=1e12)] = None,
        times: bool = False,
        system: bool = False,
        once: bool = False,
        last_event_id: Annotated[str | None, Header(max_length=MOST_PLACE_CHARS)] = None,
    ) -> StreamAnswer:
        """Output of a rank or of all from an offset or a time on, and then as it is printed.

        With ``once`` it ends after what has been printed by now, and needs no place.
        """
        row = controller.record.row(job_id, newest=True)
        wanted = Wanted(rank, process, attempt, offset, tail, since_s, times, system, once)
        output = LogStream(controller, streams, row, wanted)
        if last_event_id:
            output.go_on_from(last_event_id)
        await output.begin()
        if once:
            return StreamAnswer(output.told_by_now(), lambda: None)
        return StreamAnswer(output.events(), streams.places.take(user))

    return router


def _cluster_routes(controller: Any, driver: SweepDriver) -> APIRouter:
    router = APIRouter()

    @router.get("/nodes")
    async def nodes(all_: Annotated[bool, Query(alias="all")] = False) -> JSONResponse:
        """Nodes that are there, were lost within the hour, or that a job waits for; or all."""
        told = {"nodes": jobs.finite(jobs.nodes(controller, everything=all_))}
        return JSONResponse(told | {"awaited": controller.supply.awaited()})

    @router.post("/nodes/{name}/cordon")
    async def cordon(name: str, user: Caller) -> JSONResponse:
        """Have a node take no new job; what runs there goes on."""
        return _closed(controller, name, controller.node_api.cordon(name, user))

    @router.post("/nodes/{name}/drain")
    async def drain(name: str, request: Request, user: Caller) -> JSONResponse:
        """Have a node's jobs leave it, within ``within_s`` seconds if that is given."""
        within_s = within_of(await json_body(request))
        return _closed(controller, name, controller.node_api.drain(name, within_s, user))

    @router.post("/nodes/{name}/enable")
    async def enable(name: str, user: Caller) -> JSONResponse:
        """Have a node that was cordoned or drained take jobs again."""
        return _closed(controller, name, controller.node_api.enable(name, user))

    @router.get("/profiles")
    async def list_profiles() -> JSONResponse:
        """The measurements of each kind of jobs."""
        return JSONResponse({"profiles": jobs.finite(profiles.kinds(controller.state))})

    @router.get("/policies")
    async def policies() -> JSONResponse:
        """The policy in force, its settings, the nodes that it asks for, and if it fails."""
        settings = {key: setting_text(value) for key, value in controller.policy_settings.items()}
        policy: dict[str, Any] = {"name": controller.policy_name, "settings": settings}
        wish = controller.state.notes.nodes
        policy["desired_nodes"] = None if wish is None else wish._asdict()
        policy["error"] = controller.policy_error
        policy["fallback"] = controller.state.fallback.by or None
        return JSONResponse({"policies": [policy]})

    @router.get("/gauges")
    async def stands() -> JSONResponse:
        """How the cluster stands: fragmentation, shares, preemptions, and the error of ETAs."""
        now = standing(controller.state)
        # With many jobs that takes its time, and the controller decides on this loop.
        rows = await in_thread(queue_rows, now)
        quotas = {name: controller.quota(row) for name, row in rows.items()}
        told = await in_thread(gauges, now, quotas)
        return JSONResponse(jobs.finite(told | {"eta": controller.record.past.errors()}))

    @router.get("/may")
    async def may() -> JSONResponse:
        """The actions that the caller's role allows."""
        mine = roles.allowed()
        return JSONResponse({"may": [action for action in roles.ACTIONS if action in mine]})

    @router.get("/report")
    async def report(
        last_s: Annotated[float | None, Query(gt=0, le=MAX_DURATION_S)] = None,
    ) -> JSONResponse:
        """Figures of all jobs, or of those of the last seconds, from the event log."""
        state = await copied(controller.state)
        now_s = controller.now_s()
        # The log may be long, and the controller decides on this loop.
        told = await in_thread(_report, controller, state, now_s, last_s)
        return JSONResponse(jobs.finite(told))

    @router.post("/shutdown")
    async def shutdown() -> JSONResponse:
        """End every job's processes, the agents, and then the controller; jobs stay queued."""
        controller.end_jobs()
        await driver.stop()
        return JSONResponse({"ending": True} | controller.waits_for(), 202)

    @router.get("/shutdown")
    async def ending() -> JSONResponse:
        """True if the cluster is being shut down, and which jobs and agents are still there."""
        return JSONResponse({"ending": controller.agents.ends_jobs} | controller.waits_for())

    return router


def _closed(controller: Any, name: str, changed: bool) -> JSONResponse:
    """The node, and whether the call has changed anything about it."""
    node = next(each for each in controller.record.nodes() if each["name"] == name)
    return JSONResponse(jobs.finite(node) | {"changed": changed}, 202)


def _process_routes(controller: Any) -> APIRouter:
    """Routes about the controller's process, and the one that agents call."""
    router = APIRouter()
    metrics = Metrics(controller)

    @router.get("/metrics")
    async def scrape(accept: Annotated[str, Header()] = "") -> Response:
        """The cluster in numbers, in the format of Prometheus or in OpenMetrics."""
        snapshot = metrics.snapshot()
        text, content_type = await in_thread(_render, snapshot, accept)
        return Response(text, headers={"content-type": content_type})

    @router.get("/healthz")
    async def healthz() -> JSONResponse:
        """Answers while the process runs; the only route without a token."""
        return JSONResponse({"status": "ok"})

    @router.get("/readyz")
    async def readyz() -> JSONResponse:
        """True if jobs can run: 503 as long as no node has joined."""
        alive = sum(node.alive for node in controller.state.nodes)
        return JSONResponse({"ready": bool(alive), "nodes": alive}, 200 if alive else 503)

    @router.get("/version")
    async def version() -> JSONResponse:
        """The version of the controller and of its API."""
        return JSONResponse({"version": __version__, "api": "v1"})

    @router.websocket("/agent/v1")
    async def agent(websocket: WebSocket) -> None:
        """An agent's connection: accepted here, then the controller's until it ends."""
        await websocket.accept()
        try:
            address = "" if websocket.client is None else websocket.client.host
            node = websocket.scope["state"]["node"]
            member = {} if node is None else {"member": node, "address": address}
            await controller.agents.serve_agent(AgentChannel(websocket), **member)
        except ConnectionError as error:
            log.info("an agent's connection has ended: %s", error)
        except RotaError as error:
            log.warning("an agent's connection was closed: %s", error)
            with suppress(RuntimeError):  # the connection may be gone already
                await websocket.close(1008, _reason(error))

    return router


def _render(snapshot: Snapshot, accept: str) -> tuple[bytes, str]:
    from rota.server.exposition import render  # here: a start takes longer, and few are scraped

    return render(snapshot, accept)


def _reason(error: RotaError) -> str:
    """The error, as much of it as the end of a WebSocket has room for."""
    return str(error).encode()[:MOST_REASON_BYTES].decode("utf-8", "ignore")


class AgentChannel:
    """An agent's connection: text frames as ``str``, binary ones as ``bytes``."""

    def __init__(self, websocket: WebSocket) -> None:
        self._websocket = websocket

    async def receive(self) -> str | bytes:
        """The next frame. Raises ConnectionError, with the reason, once there is none."""
        message = await self._websocket.receive()
        if message["type"] == "websocket.disconnect":
            code = message.get("code", 1005)
            raise ConnectionError(message.get("reason") or CLOSED.get(code, f"code {code}"))
        text: str | None = message.get("text")
        return text if text is not None else bytes(message["bytes"])

    async def send(self, data: str | bytes) -> None:
        """Send a frame; returns when there is room for the next one."""
        try:
            if isinstance(data, bytes):
                await self._websocket.send_bytes(data)
            else:
                await self._websocket.send_text(data)
        except WebSocketDisconnect:
            raise ConnectionError("it has ended") from None


def _report(
    controller: Any, state: ClusterState, now_s: float, last_s: float | None
) -> dict[str, Any]:
    from rota.report.lately import report  # here: few controllers are asked for one

    log = islice(controller.record.store.load(), state.events)
    since_s = None if last_s is None else now_s - last_s
    return {"policy": controller.policy_name} | report(state, log, now_s, since_s)
