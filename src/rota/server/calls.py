"""Reads from a call what routes need: its body, its key, and its user."""

import hashlib
import json
from typing import Annotated, Any
from urllib.parse import unquote

from fastapi import Depends, Header, Request

from rota.errors import InputError
from rota.live.controller.cleaner import process_owner
from rota.request.values import seconds_of

MAX_KEY_CHARACTERS = 200
MAX_USER_CHARACTERS = 64


async def json_body(request: Request) -> Any:
    """The body as JSON. Raises InputError."""
    try:
        return json.loads(await request.body())
    except (ValueError, RecursionError) as error:
        raise InputError(f"the body is not JSON: {error}") from None


def checked_key(key: str | None) -> str | None:
    """The Idempotency-Key, if it can be stored. Raises InputError."""
    if key is None:
        return None
    if not 1 <= len(key) <= MAX_KEY_CHARACTERS or not key.isascii() or not key.isprintable():
        raise InputError(
            f"Idempotency-Key: {key!r:.80} can't be used; "
            f"send 1 to {MAX_KEY_CHARACTERS} printable ASCII characters"
        )
    return key


def within_of(body: Any) -> float | None:
    """The ``within_s`` of a body, a number of seconds from now; None without. InputError."""
    if not isinstance(body, dict) or body.keys() - {"within_s"}:
        raise InputError('the body must be {} or {"within_s": SECONDS}')
    value = body.get("within_s")
    return None if value is None else seconds_of("within_s", value)


def body_hash(fields: Any) -> str:
    """The same for the same JSON-able fields, in whatever order they were written."""
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


async def caller(rota_user: Annotated[str | None, Header()] = None) -> str:
    """The user who asks, as the header ``Rota-User`` says; without it, the owner of this process.

    There are no accounts: whoever has the token may give any name. Raises InputError.
    """
    if rota_user is not None:
        name = unquote(rota_user)
        if not 1 <= len(name) <= MAX_USER_CHARACTERS or not name.isprintable():
            raise InputError(
                f"Rota-User: {name!r:.80} can't be used; send 1 to {MAX_USER_CHARACTERS} "
                "printable characters, percent-encoded"
            )
        return name
    return process_owner()


Caller = Annotated[str, Depends(caller)]
