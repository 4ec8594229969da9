"""The routes of hooks, and of what each was told. No answer has a secret or a whole URL."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse

from rota.errors import NotFoundError, TransitionError, did_you_mean
from rota.folder import Folder
from rota.model.job import COMMAND, WEBHOOK
from rota.request.notify import HookRequest, hook_of, shown_url
from rota.request.values import refuse
from rota.server.calls import Caller, json_body
from rota.server.notify.notifier import Notifier
from rota.server.notify.program import checked
from rota.store.deliveries import STATES, Deliveries, Delivery, Hook

MOST_HOOKS = 32  # each has a try under way at most, so that none waits for another one
MOST_LISTED = 1000


def hook_routes(controller: Any, folder: Folder, notifier: Notifier) -> APIRouter:
    """The routes under ``/hooks``, and ``/deliveries``."""
    router = APIRouter()
    deliveries: Deliveries = controller.record.deliveries

    @router.get("/hooks")
    async def list_hooks() -> JSONResponse:
        """The hooks by name, with how many of their deliveries stand how."""
        told = await run_in_threadpool(_told_all, deliveries)
        return JSONResponse({"hooks": told})

    @router.post("/hooks")
    async def add_hook(request: Request, user: Caller) -> JSONResponse:
        """Add a hook. The same request again changes nothing; another one of its name is 409."""
        asked = hook_of(await json_body(request))
        if asked.kind == COMMAND:
            checked(folder, asked.target)
        hook = Hook(**asked._asdict(), user=user, at_s=controller.now_s())
        known = {each.name: each for each in deliveries.hooks()}
        if (same := known.get(hook.name)) is None:
            if len(known) >= MOST_HOOKS:
                raise TransitionError(
                    f"there are {MOST_HOOKS} hooks, and there can be no more; "
                    "`rota notify remove` removes one"
                )
            deliveries.add(hook)
            notifier.look()
        elif _asked(same) != asked:
            raise TransitionError(
                f"there is a hook {hook.name} already; choose another name, or remove that one "
                f"first: rota notify remove {hook.name}"
            )
        return JSONResponse(_told(deliveries, hook), 201)

    @router.delete("/hooks/{name}")
    async def remove_hook(name: str) -> JSONResponse:
        """Remove a hook with its deliveries; what waits is not delivered."""
        told = _told(deliveries, _find(deliveries, name))
        deliveries.remove(name)
        notifier.look()
        return JSONResponse(told)

    @router.post("/hooks/{name}/test")
    async def test_hook(name: str, user: Caller) -> JSONResponse:
        """Send a hook something now, once, and tell how that ended."""
        outcome = await notifier.test(_find(deliveries, name), user)
        return JSONResponse(outcome._asdict())

    @router.get("/deliveries")
    async def list_deliveries(
        hook: str | None = None,
        state: str | None = None,
        limit: Annotated[int, Query(ge=1, le=MOST_LISTED)] = 100,
    ) -> JSONResponse:
        """Deliveries to hooks, made and to be made; the newest last."""
        if state is not None and state not in STATES:
            refuse("state", state, f"use one of {', '.join(STATES)}")
        if hook is not None:
            _find(deliveries, hook)
        found = await run_in_threadpool(deliveries.list, hook, state, limit)
        return JSONResponse({"deliveries": list(map(_delivery, found))})

    return router


def _find(deliveries: Deliveries, name: str) -> Hook:
    known = {hook.name: hook for hook in deliveries.hooks()}
    if name not in known:
        hint = did_you_mean(name, known)
        raise NotFoundError(f"there is no hook {name!r:.80}{hint}; `rota notify list` lists them")
    return known[name]


def _asked(hook: Hook) -> HookRequest:
    """The request by which a hook was added."""
    return HookRequest(hook.name, hook.kind, hook.target, hook.on, hook.private, hook.secret)


def _told_all(deliveries: Deliveries) -> list[dict[str, Any]]:
    return [_told(deliveries, hook) for hook in deliveries.hooks()]


def _told(deliveries: Deliveries, hook: Hook) -> dict[str, Any]:
    return {
        "name": hook.name,
        "kind": hook.kind,
        "target": shown_url(hook.target) if hook.kind == WEBHOOK else hook.target,
        "on": list(hook.on),
        "allow_private": hook.private,
        "user": hook.user,
        "at_s": hook.at_s,
        **deliveries.counts(hook.name)._asdict(),
    }


def _delivery(delivery: Delivery) -> dict[str, Any]:
    told = delivery._asdict()
    return {
        "hook": told["hook"],
        "number": told["seq"],
        "event": told["word"],
        "job": told["job_id"],
        **{key: told[key] for key in ("at_s", "state", "tries", "next_at_s", "answer")},
    }
