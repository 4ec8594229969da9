"""Errors as RFC 9457 problems: one table from our exceptions to HTTP."""

import logging
import math
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse

from rota.errors import (
    AgentAwayError,
    AgentError,
    AuthError,
    BusyError,
    CursorError,
    InputError,
    NotAllowedError,
    NotFoundError,
    NotOwnerError,
    RotaError,
    ServerError,
    ShortageError,
    StoreError,
    StoreFullError,
    TransitionError,
    shortage_of,
)

log = logging.getLogger("rota.server")

MEDIA_TYPE = "application/problem+json"
STATUS = {
    AuthError: 401,
    CursorError: 410,
    BusyError: 429,
    NotOwnerError: 403,
    NotAllowedError: 403,
    NotFoundError: 404,
    TransitionError: 409,
    InputError: 422,
    AgentError: 502,
    AgentAwayError: 503,
    ShortageError: 503,
    StoreError: 503,
    StoreFullError: 507,
    RotaError: 500,
}


def problem(status: int, code: str, detail: str, **more: Any) -> JSONResponse:
    """One problem. ``code`` is the name of an exception of :mod:`rota.errors`."""
    body = more | {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
        "code": code,
    }
    headers = {"WWW-Authenticate": 'Bearer realm="rota"'} if status == 401 else None
    return JSONResponse(body, status, headers, MEDIA_TYPE)


def problem_of(error: RotaError) -> JSONResponse:
    """The problem that an error of ours is."""
    status = next(STATUS[kind] for kind in type(error).__mro__ if kind in STATUS)
    if isinstance(error, CursorError):
        return problem(status, type(error).__name__, str(error), begin=error.begin)
    answer = problem(status, type(error).__name__, str(error))
    if isinstance(error, BusyError):
        answer.headers["Retry-After"] = str(math.ceil(error.retry_after_s))
    return answer


def install(app: FastAPI) -> None:
    """Make every failure of ``app`` a problem."""
    app.add_exception_handler(RotaError, _rota_error)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http_error)
    for kind in (OSError, RuntimeError, MemoryError):
        app.add_exception_handler(kind, _short)
    app.add_exception_handler(Exception, _unexpected)


async def _rota_error(_: Request, error: Any) -> JSONResponse:
    if isinstance(error, StoreError):
        log.error("%s", error)
    return problem_of(error)


async def _invalid(_: Request, error: Any) -> JSONResponse:
    """Parameters that can't be used: each with its name, its value and the fix."""
    faults = [
        f"{'.'.join(str(part) for part in fault['loc'][1:])}: {fault['input']!r:.80} can't be "
        f"used; {fault['msg'].replace('Input should', 'it should')}"
        for fault in error.errors()[:5]
    ]
    return problem(422, InputError.__name__, "; ".join(faults))


async def _http_error(request: Request, error: Any) -> JSONResponse:
    path = f"{request.url.path!r:.200}"
    if error.status_code == 404:
        detail = f"there is nothing at {path}; /openapi.json lists what there is"
        return problem(404, NotFoundError.__name__, detail)
    if error.status_code == 405:
        takes = (error.headers or {}).get("Allow", "")
        detail = f"{request.method} can't be used at {path}; it takes {takes}"
        return problem(405, ServerError.__name__, detail)
    return problem(error.status_code, ServerError.__name__, str(error.detail))


async def _short(_: Request, error: Exception) -> JSONResponse:
    """Tell a caller which limit the controller met; whatever else went wrong is raised again."""
    shortage = shortage_of(error)
    if shortage is None:
        raise error
    detail = f"the controller can't answer: {shortage}"
    log.error("%s", detail)
    return problem_of(ShortageError(detail))


async def _unexpected(_: Request, error: Exception) -> JSONResponse:
    detail = f"the controller failed at this call ({type(error).__name__}); its log says more"
    return problem(500, ServerError.__name__, detail)
