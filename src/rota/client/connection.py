"""One connection to a controller: its address, the token, and calls that are repeated."""

import contextlib
import getpass
import json
import os
import ssl
import time
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

import rota.errors
from rota.errors import (
    AgentAwayError,
    BusyError,
    CursorError,
    InputError,
    RotaError,
    ServerError,
    ShortageError,
    UnreachableError,
)
from rota.folder import Folder
from rota.model.presence import Presence

PATIENCE_S = 5.0  # how long a call is repeated while the controller restarts
FOLLOW_PATIENCE_S = 60.0  # the same for callers that wait for a job
POLL_S = 0.25
MOST_PAUSE_S = 0.5  # between two tries
TIMEOUT_S = 30.0
NEGLIGIBLE_S = 2.0  # clocks may seem to differ by the time that an answer takes


class Connection:
    """The common part of all calls to a controller; see :class:`rota.client.client.Client`."""

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        folder: Folder | str | Path | None = None,
        ca: str | None = None,
    ) -> None:
        self._ca = ca or os.environ.get("ROTA_CA")
        self._fixed_url = _checked(url or os.environ.get("ROTA_SERVER"))
        self._fixed_token = token or os.environ.get("ROTA_TOKEN")
        self._folder = folder if isinstance(folder, Folder) else Folder(folder)
        self.user = _own_name()
        self.met = False  # whether a controller has answered: one that went away may come back
        self.ahead_s = 0.0  # by which the cluster's clock is ahead of this machine's
        self.notice: Callable[[str], object] | None = None  # called once: a stream has no place
        self.cursor: str | None = None  # the place in the event log that the last answer is of

    @cached_property
    def trust(self) -> ssl.SSLContext | bool:
        """The trust in certificates: the given CA or ``$ROTA_CA``, else those of httpx."""
        if not self._ca:
            return True
        from rota.client.trust import trusted_by

        return trusted_by(self._ca, self._fixed_url)

    @cached_property
    def _http(self) -> httpx.Client:
        # A proxy for the outside world has no business between us and this machine.
        return httpx.Client(timeout=TIMEOUT_S, trust_env=False, verify=self.trust)

    def close(self) -> None:
        """Close the connection."""
        if "_http" in self.__dict__:
            self._http.close()

    def call(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        json_body: Any = None,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        patience_s: float = PATIENCE_S,
        timeout_s: float = TIMEOUT_S,
    ) -> dict[str, Any]:
        """One call, repeated while nobody answers, an agent that would have to is away, or the
        controller lacks what it needs to answer: every call of ours can be made twice.

        Parameters that are None are left out.
        """
        presence = Presence(MOST_PAUSE_S)  # a process that was stopped asks once more at least
        deadline = presence.at(time.monotonic()) + patience_s
        pause_s = 0.05
        content, kind = body, "application/octet-stream"
        if body is None:
            content, kind = None if json_body is None else _encoded(json_body), "application/json"
        given = {name: value for name, value in (params or {}).items() if value is not None}
        while True:
            try:
                url = self.url()
                response = self._http.request(
                    method,
                    f"{url}/api/v1{path}",
                    params=given,
                    content=content,
                    timeout=timeout_s,
                    headers=self.headers() | {"Content-Type": kind} | dict(headers or {}),
                )
                self.met = True
                self._note_time(response)
                return answer_of(response)
            except (UnreachableError, AgentAwayError, ShortageError):
                # Who has been there may be on its way back, and what lacks may come soon.
                now_s = presence.at(time.monotonic(), timeout_s)
                if not self.met or now_s + pause_s > deadline:
                    raise
            except (httpx.TransportError, httpx.InvalidURL) as error:
                retry = isinstance(error, httpx.NetworkError | httpx.RemoteProtocolError)
                if isinstance(error, httpx.ReadTimeout | httpx.WriteTimeout):
                    raise UnreachableError(
                        f"the controller at {url} has not answered within {timeout_s:.0f} s; what "
                        "it was asked for may still be done: look with rota ps before asking again"
                    ) from None
                now_s = presence.at(time.monotonic(), timeout_s)
                if not retry or now_s + pause_s > deadline:
                    raise UnreachableError(
                        f"no controller answers at {url} ({_cause(error)}); {self.remedy(error)}"
                    ) from None
            time.sleep(pause_s)
            presence.at(time.monotonic())
            pause_s = min(2 * pause_s, MOST_PAUSE_S)

    def remedy(self, error: Exception) -> str:
        """The fix for an address where nobody answers."""
        if self._fixed_url is None:
            return "start one with: rota up"
        if "WRONG_VERSION_NUMBER" in str(error):
            return f"it speaks http there: set ROTA_SERVER=http{self._fixed_url[len('https') :]}"
        return "is ROTA_SERVER right, and does `rota up` run there?"

    def now_s(self) -> float:
        """The cluster's time, by the controller's last answer."""
        return time.time() + self.ahead_s

    def _note_time(self, response: httpx.Response) -> None:
        with contextlib.suppress(KeyError, ValueError):
            ahead_s = float(response.headers["rota-time"]) - time.time()
            self.ahead_s = ahead_s if abs(ahead_s) > NEGLIGIBLE_S else 0.0
        self.cursor = response.headers.get("rota-cursor", self.cursor)

    def headers(self) -> dict[str, str]:
        """Headers of any call: the token, and the user who asks. Raises AuthError."""
        user = {"Rota-User": quote(self.user, safe="")} if self.user else {}
        return {"Authorization": f"Bearer {self._token()}"} | user

    def url(self) -> str:
        """The controller's address, as it is now. Raises UnreachableError."""
        if self._fixed_url:
            return self._fixed_url.rstrip("/")
        try:
            url = json.loads(self._folder.server.read_text())["url"]
        except FileNotFoundError:
            raise UnreachableError(
                f"no controller runs on {self._folder.path}; start one with: rota up"
            ) from None
        except PermissionError:
            raise UnreachableError(
                f"{self._folder.server} can't be read by you; its owner can tell you what to set "
                "ROTA_SERVER and ROTA_TOKEN to, or set ROTA_HOME to a folder of yours"
            ) from None
        except (OSError, ValueError, KeyError, TypeError):
            raise UnreachableError(
                f"{self._folder.server} can't be read; start the controller again with: rota up"
            ) from None
        return str(url)

    def _token(self) -> str:
        try:
            token = (self._fixed_token or self._folder.token.read_text()).strip()
            if not token.isascii() or not token.isprintable():
                raise ValueError("it is no token")
            return token
        except (OSError, ValueError) as error:
            raise rota.errors.AuthError(
                f"the token {self._folder.token} can't be read ({error}); "
                "set ROTA_HOME to the controller's folder, or ROTA_TOKEN"
            ) from None


def _checked(url: str | None) -> str | None:
    """A controller's address; raises InputError without http:// or https:// before it."""
    if not url or url.startswith(("http://", "https://")):
        return url or None
    host = url.rpartition(":")[0] or url
    scheme = "http" if host in ("localhost", "127.0.0.1", "[::1]") else "https"
    fix = "" if "://" in url else f"; write {scheme}://{url}"
    raise InputError(
        f"ROTA_SERVER: {url!r} begins with neither http:// nor https://, as an address does{fix}"
    )


def _own_name() -> str:
    """The name of this process's user, by $LOGNAME or its id; empty if it has none."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""


def _encoded(body: Any) -> bytes:
    try:
        return json.dumps(body, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"this can't be sent as JSON: {error}; use finite plain values") from None


def answer_of(response: httpx.Response) -> dict[str, Any]:
    """The JSON of a good answer. Raises the error named by a bad one."""
    try:
        body = response.json()
    except ValueError:
        body = None
    if response.is_success and isinstance(body, dict):
        return body
    if isinstance(body, dict) and "code" in body:
        more: dict[str, Any] = {}
        if "begin" in body:
            more["begin"] = str(body["begin"])
        with contextlib.suppress(KeyError, ValueError):
            more["retry_after_s"] = float(response.headers["retry-after"])
        raise error_of(str(body["code"]), str(body.get("detail", "")), **more)
    raise ServerError(
        f"{response.url.host}:{response.url.port} answered {response.status_code} in a way that "
        "no Rota controller does; is ROTA_SERVER right?"
    )


def error_of(code: str, detail: str, **more: Any) -> RotaError:
    """The error that a controller names; ``more`` are arguments of those that take any."""
    kind = getattr(rota.errors, code, ServerError)
    if not (isinstance(kind, type) and issubclass(kind, RotaError)):
        kind = ServerError
    if kind is CursorError:
        return CursorError(detail, more.get("begin", ""))
    if kind is BusyError and "retry_after_s" in more:
        return BusyError(detail, more["retry_after_s"])
    return kind(detail)


def _cause(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
