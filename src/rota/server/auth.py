"""Tokens: one that users show the controller, one that agents show it. Neither does for the other.

They are opaque random text in files that only their owner can read.
"""

import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from rota.errors import AuthError, InputError
from rota.folder import Folder

USER, AGENT = "user", "agent"
MAX_TOKEN_BYTES = 512


class Tokens(NamedTuple):
    """Token of each kind of caller."""

    user: str
    agent: str


def ensure_tokens(folder: Folder) -> Tokens:
    """The folder's tokens, made now if this is its first start.

    Two processes that start at once get the same ones. Raises InputError if a file can't be
    written or read, or if anybody but its owner could read it.
    """
    return Tokens(_ensure(folder.token, USER), _ensure(folder.agent_token, AGENT))


def check_token(header: str | None, kind: str, tokens: Tokens) -> None:
    """Hold an ``Authorization`` header against the token of this kind. Raises AuthError.

    Takes the same time wherever the first wrong character is.
    """
    shown = shown_in(header)
    if not shown:
        raise AuthError(
            "a token is needed: send 'Authorization: Bearer TOKEN' with the text of the file "
            f"{'token' if kind == USER else 'agent.token'} in the controller's state folder"
        )
    right, other = (tokens.user, tokens.agent) if kind == USER else (tokens.agent, tokens.user)
    is_right = secrets.compare_digest(shown.encode("utf-8", "replace"), right.encode())
    is_other = secrets.compare_digest(shown.encode("utf-8", "replace"), other.encode())
    if is_other:
        raise AuthError(f"this is not a token for {kind}s, but of the other kind")
    if not is_right:
        raise AuthError(
            "the token is wrong; ROTA_TOKEN or ROTA_HOME may belong to another controller"
        )


def shown_in(header: str | None) -> str:
    """The token that an ``Authorization`` header shows; "" if it shows none."""
    scheme, _, shown = (header or "").partition(" ")
    return shown.strip() if scheme.lower() == "bearer" else ""


def _ensure(path: Path, kind: str) -> str:
    try:
        _create(path, f"rota-{kind}-{secrets.token_urlsafe(32)}")
    except FileExistsError:
        pass
    except OSError as error:
        raise InputError(f"token file {path} can't be written: {error.strerror}") from None
    return _read(path)


def _create(path: Path, token: str) -> None:
    """Make the file with its content in one step, or raise FileExistsError."""
    draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(token + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.link(draft, path)
    finally:
        with suppress(FileNotFoundError):
            draft.unlink()


def _read(path: Path) -> str:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            token = file.read(MAX_TOKEN_BYTES + 1).decode("ascii", "replace").strip()
    except OSError as error:
        raise InputError(f"token file {path} can't be read: {error.strerror}") from None
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
        raise InputError(f"token file {path} is not a file of yours; remove it and start again")
    if stat.S_IMODE(status.st_mode) & 0o077:
        raise InputError(
            f"token file {path} can be read by others; remove it, and the next start makes a new "
            "one (or: chmod 600, if nobody has seen it)"
        )
    if not 20 <= len(token) <= MAX_TOKEN_BYTES:
        raise InputError(f"token file {path} holds no token; remove it, and start again")
    return token
