"""The field ``notify`` of a job file, and requests for hooks: who is told of which news."""

import base64
import binascii
import re
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple
from urllib.parse import SplitResult, urlsplit

from rota.errors import closest
from rota.model.job import COMMAND, WEBHOOK, Notice
from rota.model.news import CLUSTER_NEWS, JOB_NEWS
from rota.request.values import check_keys, refuse, text_of

FIELDS = ("on", WEBHOOK, COMMAND)
EXAMPLE = "write a list such as [{on: [failed, succeeded], webhook: team-hook}]"
MAX_NOTICES = 16
HOOK_FIELDS = ("name", WEBHOOK, COMMAND, "on", "allow_private", "secret")
HOOK_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")
MAX_URL_BYTES = 2000
SECRET_PREFIX = "whsec_"  # noqa: S105 - what every secret begins with
SECRET_BYTES = (24, 64)  # from, to

_PRINTABLE = re.compile(r"[\x21-\x7e]+\Z")


def notices_of(value: Any) -> tuple[Notice, ...]:
    """The hooks that a job file names, and the news of the job for each. Raises JobFileError."""
    if value is None:
        return ()
    if not isinstance(value, list) or not 1 <= len(value) <= MAX_NOTICES:
        refuse("notify", value, f"{EXAMPLE}, of at most {MAX_NOTICES}, or leave it out")
    return tuple(map(_notice, value))


def notices_field(notices: tuple[Notice, ...]) -> list[dict[str, Any]]:
    """The JSON-able field from which :func:`notices_of` makes these very notices."""
    return [{"on": list(each.on), each.kind: each.hook} for each in notices]


def _notice(value: Any) -> Notice:
    check_keys(value, FIELDS, "notify.", EXAMPLE)
    kind = _kind(value, "notify")
    hook = value[kind]
    if isinstance(hook, str) and ("://" in hook or "/" in hook):
        fix = "name a hook that `rota notify list` shows; `rota notify add` makes one"
        refuse(f"notify.{kind}", "an address", fix)  # which may hold a secret
    return Notice(_hook_name(f"notify.{kind}", hook), _news("notify.on", value, JOB_NEWS), kind)


class HookRequest(NamedTuple):
    """A well-formed request for a hook.

    ``target`` is the URL of a webhook, or the name of a command. ``on`` are the news that it is
    told of, whatever job they are about. ``private``: the URL may lead to a loopback, private or
    link-local address. ``secret`` signs what a webhook is sent; a command has none.
    """

    name: str
    kind: str
    target: str
    on: tuple[str, ...]
    private: bool
    secret: str


def hook_of(fields: Any) -> HookRequest:
    """The hook that is asked for. Raises JobFileError, which never holds the URL or the secret."""
    check_keys(fields, HOOK_FIELDS, "", "write a mapping with a name and a webhook or a command")
    name = _hook_name("name", fields.get("name"))
    kind = _kind(fields, "hook")
    on = _news("on", fields, JOB_NEWS + CLUSTER_NEWS) if fields.get("on") else ()
    private = fields.get("allow_private", False)
    if not isinstance(private, bool):
        refuse("allow_private", private, "write true or false")
    if kind == COMMAND:
        target = _hook_name(COMMAND, fields[COMMAND])
        if fields.get("secret") is not None or private:
            refuse(COMMAND, target, "secret and allow_private are a webhook's: leave them out")
        return HookRequest(name, kind, target, on, False, "")
    return HookRequest(name, kind, _url(fields[WEBHOOK], private), on, private, _secret(fields))


def key_of(secret: str) -> bytes:
    """The key of a secret. Raises ValueError for text that is none."""
    key = base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    if not secret.startswith(SECRET_PREFIX) or not SECRET_BYTES[0] <= len(key) <= SECRET_BYTES[1]:
        raise ValueError("it is no secret of a webhook")
    return key


def shown_url(url: str) -> str:
    """A URL without what may be secret in it: its scheme and host."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}" + (
        "/..." if parts.path.strip("/") or parts.query else ""
    )


def _kind(fields: Mapping[str, Any], what: str) -> str:
    given = [kind for kind in (WEBHOOK, COMMAND) if fields.get(kind) is not None]
    if len(given) != 1:
        shown = " and ".join(given) or "nothing"
        refuse(what, shown, f"give one of {WEBHOOK} and {COMMAND}")
    return given[0]


def _hook_name(field: str, value: Any) -> str:
    if isinstance(value, str) and HOOK_NAME.match(value):
        return value
    refuse(field, value, "use 1 to 64 of A-Z a-z 0-9 . _ - that begin with a letter or digit")


def _news(field: str, fields: Mapping[str, Any], known: Collection[str]) -> tuple[str, ...]:
    value = fields.get("on")
    words = value if isinstance(value, list) else [value]
    if not words:
        refuse(field, value, f"write some of {', '.join(known)}")
    for word in words:
        if not isinstance(word, str) or word not in known:
            close = closest(word, known) if isinstance(word, str) else None
            refuse(field, word, f"did you mean {close}?" if close else f"use {', '.join(known)}")
    return tuple(dict.fromkeys(words))


def _url(value: Any, private: bool) -> str:
    url = text_of(WEBHOOK, value, MAX_URL_BYTES)
    example = "write for example https://host.example/path"
    try:
        parts: SplitResult | None = urlsplit(url)
        assert parts is not None
        is_whole = bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        parts, is_whole = None, False
    if parts is None or not is_whole or not _PRINTABLE.match(url):
        refuse(WEBHOOK, "it", example)
    if parts.username is not None or parts.password is not None or parts.fragment:
        refuse(WEBHOOK, shown_host(parts), f"leave out user, password and fragment; {example}")
    if parts.scheme != "https" and not (private and parts.scheme == "http"):
        fix = "use https; http is for private addresses alone, with --allow-private"
        refuse(WEBHOOK, f"{parts.scheme}://{parts.hostname}", fix)
    return url


def shown_host(parts: SplitResult) -> str:
    """Scheme and host of a URL, without user and password."""
    return f"{parts.scheme}://{parts.hostname}"


def _secret(fields: Mapping[str, Any]) -> str:
    secret = fields.get("secret")
    try:
        key_of(secret if isinstance(secret, str) else "")
    except (ValueError, binascii.Error):
        least, most = SECRET_BYTES
        fix = f"send {SECRET_PREFIX} and the base64 of {least} to {most} random bytes"
        refuse("secret", "what was sent", fix)
    return str(secret)
