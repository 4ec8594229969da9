"""How a machine joins a cluster: it trusts the CA, and exchanges a join token for a node's."""

import time
from typing import NamedTuple
from urllib.parse import urlsplit

import httpx

from rota.client.connection import answer_of
from rota.client.trust import called, trusting
from rota.errors import AuthError, InputError, UnreachableError

CLOCK_TIMEOUT_S = 5.0


class Joined(NamedTuple):
    """A node's token, and seconds by which the cluster's clock is ahead of this machine's.

    ``is_known`` says that the machine was that node already.
    """

    token: str
    ahead_s: float
    is_known: bool


def checked_url(text: str, name: str) -> str:
    """The address of a controller for other machines. Raises InputError, which begins with name."""
    parts = urlsplit(text)
    try:
        is_right = parts.scheme == "https" and bool(parts.hostname) and parts.port is not None
    except ValueError:
        is_right = False
    if not is_right or parts.path.strip("/") or parts.query or parts.username:
        raise InputError(
            f"{name}: {text!r:.200} is not of the form https://HOST:PORT; `rota node invite` "
            "prints the right one"
        )
    return text.rstrip("/")


def join(url: str, authority: str, token: str, node: str, current: str | None = None) -> Joined:
    """Use a join token up; ``current`` is the token that the machine has as this node, if it is it.

    Raises AuthError if the join token is not good, InputError for the node's name.
    """
    headers = {"Authorization": f"Bearer {token}"}
    body = {"node": node} | ({} if current is None else {"current": current})
    try:
        answer = called(
            "POST", f"{url}/agent/v1/join", trusting(authority), headers=headers, json=body
        )
    except UnicodeEncodeError:
        raise AuthError("the join token is none: copy the line of `rota node invite`") from None
    told = answer_of(answer)
    return Joined(str(told["token"]), _ahead_s(answer), bool(told.get("is_known")))


def clock_ahead_s(url: str, authority: str) -> float | None:
    """Seconds by which the cluster's clock is ahead of this machine's; None if nobody answers."""
    try:
        told = called("GET", f"{url}/healthz", trusting(authority), timeout=CLOCK_TIMEOUT_S)
        return _ahead_s(told)
    except (UnreachableError, AuthError, KeyError, ValueError):
        return None


def _ahead_s(answer: httpx.Response) -> float:
    return float(answer.headers["rota-time"]) - time.time()
