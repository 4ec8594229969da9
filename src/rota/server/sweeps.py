"""The routes of searches over hyper-parameters and of their trials.

Who proposes trials and judges them is no matter of the server's: the driver
(:mod:`rota.server.sweepdriver`) or a user's own program does it, through these routes.
"""

from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request
from fastapi import Path as InPath
from starlette.responses import JSONResponse, Response

from rota.live.controller.sweep_api import MOST_TRIALS
from rota.request.sweepfile import SweepRequest, parse_sweep, trial_job
from rota.request.values import check_keys
from rota.server import jobs
from rota.server.calls import Caller, body_hash, checked_key, json_body
from rota.server.job_list import MOST_AT_ONCE
from rota.server.sweepdriver import SweepDriver, require_optuna
from rota.server.written import written

TrialNumber = Annotated[int, InPath(ge=0, lt=MOST_TRIALS)]


def sweep_routes(controller: Any, driver: SweepDriver) -> APIRouter:
    """The routes under ``/sweeps``."""
    router = APIRouter()
    router.include_router(_searches(controller, driver))
    router.include_router(_trials(controller))
    return router


def _searches(controller: Any, driver: SweepDriver) -> APIRouter:
    router = APIRouter()
    searches = controller.record.searches

    @router.post("/sweeps")
    async def submit_sweep(
        request: Request,
        user: Caller,
        dry_run: bool = False,
        idempotency_key: Annotated[str | None, Header()] = None,
    ) -> JSONResponse:
        """Take a search, or with dry_run say what would be taken."""
        sweep = parse_sweep(await json_body(request), workdir="")
        require_optuna(sweep.algorithm)
        if dry_run:
            return JSONResponse(_planned(controller, sweep))
        key, hashed = checked_key(idempotency_key), body_hash(sweep.to_fields())
        name = await controller.sweeps.submit_sweep(sweep, user=user, key=key, body_hash=hashed)
        driver.look()
        warnings = await jobs.warnings(controller, sweep.job)
        return JSONResponse(_told(searches.tell(name, brief=True)) | {"warnings": warnings}, 201)

    @router.get("/sweeps")
    async def list_sweeps(
        all_: Annotated[bool, Query(alias="all")] = False,
        limit: Annotated[int | None, Query(ge=1, le=MOST_AT_ONCE)] = None,
        cursor: Annotated[int, Query(ge=0, le=1 << 60)] = 0,
    ) -> Response:
        """Searches that go on and those that ended within the hour, oldest first; or all."""
        since_s = None if all_ else controller.now_s() - jobs.RECENT_S
        told, after = searches.tell_page(since_s, after=cursor, limit=limit)
        page = {"sweeps": [_told(each) for each in told]}
        return await written(page | {"cursor": None if after is None else str(after)})

    @router.get("/sweeps/{name}")
    async def show_sweep(name: str, brief: bool = False, since: str | None = None) -> Response:
        """A search with all its trials, or with their numbers by state, or what is new."""
        return await written(_told(searches.tell(name, brief=brief, since=since)))

    @router.post("/sweeps/{name}/cancel")
    async def cancel_sweep(name: str, user: Caller) -> JSONResponse:
        """End a search and its trials. One that has ended stays as it is."""
        return await _end(name, "CANCELLED", f"{user} cancelled it")

    @router.post("/sweeps/{name}/end")
    async def end_sweep(name: str, request: Request) -> JSONResponse:
        """Say how a search has ended; its trials that still go on are stopped."""
        body = await json_body(request)
        check_keys(body, ("outcome", "message"), "")
        return await _end(name, body.get("outcome"), body.get("message", ""))

    async def _end(name: str, outcome: Any, message: Any) -> JSONResponse:
        changed = await controller.sweeps.end_sweep(name, outcome, message)
        driver.look()
        told = _told(searches.tell(name, brief=True)) | {"changed": changed}
        return JSONResponse(told, 202)

    def _told(sweep: dict[str, Any]) -> dict[str, Any]:
        error = driver.error if sweep["state"] == "RUNNING" else None
        return sweep | {"driver_error": error}

    return router


def _trials(controller: Any) -> APIRouter:
    router = APIRouter()

    @router.post("/sweeps/{name}/trials")
    async def submit_trial(
        name: str,
        request: Request,
        idempotency_key: Annotated[str | None, Header()] = None,
    ) -> JSONResponse:
        """Start a trial. A number that is there gives the trial that has it."""
        body = await json_body(request)
        check_keys(body, ("number", "params"), "")
        number, params = body.get("number"), body.get("params", {})
        key, hashed = checked_key(idempotency_key), body_hash([name, params])
        row = await controller.sweeps.submit_trial(name, number, params, key=key, body_hash=hashed)
        return JSONResponse(jobs.summary(controller, row), 201)

    @router.get("/sweeps/{name}/trials/{number}")
    async def show_trial(name: str, number: TrialNumber, since: str | None = None) -> JSONResponse:
        """One trial of a search, with its curve, or what is new of that."""
        return JSONResponse(controller.record.searches.tell_trial(name, number, since=since))

    @router.post("/sweeps/{name}/trials/{number}/stop")
    async def stop_trial(name: str, number: TrialNumber, request: Request) -> JSONResponse:
        """End a trial, and say why. One that has ended stays as it is."""
        body = await json_body(request)
        check_keys(body, ("why",), "")
        changed = await controller.sweeps.stop_trial(name, number, body.get("why"))
        row = controller.record.searches.row(name, number)
        return JSONResponse(jobs.summary(controller, row) | {"changed": changed}, 202)

    return router


def _planned(controller: Any, sweep: SweepRequest) -> dict[str, Any]:
    """The sweep as accepted, with an example of a trial's command. Raises NeverFitsError."""
    controller.jobs.check(sweep.job)
    params = {name: each.at(0) for name, each in sweep.space}
    # Without a space the parameters are whatever the user's program will say.
    job = trial_job(sweep, sweep.job.name, 0, params) if sweep.space else sweep.job
    trial = {"run": job.run, "params": params}
    free = controller.state.idle.count
    return {"sweep": sweep.to_fields(), "trial": trial, "free_gpus": free}
