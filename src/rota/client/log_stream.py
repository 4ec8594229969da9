"""A job's output as it is printed, followed through restarts of the controller and of agents."""

import random
import time
from collections.abc import Iterator, Mapping
from typing import Any

import httpx
import msgspec

from rota.client.connection import FOLLOW_PATIENCE_S, Connection, answer_of, error_of
from rota.client.events import FIRST_PAUSE_S, HTTP, MOST_PAUSE_S
from rota.client.outputs import LogPiece
from rota.errors import AgentAwayError, BusyError, UnreachableError


def follow_output(
    connection: Connection, path: str, params: Mapping[str, Any]
) -> Iterator[LogPiece]:
    """Pieces of an output until its end. ``path`` is that of the job's ``logs/stream``.

    Raises UnreachableError, AgentAwayError or BusyError after FOLLOW_PATIENCE_S without a
    controller, the job's agent, or a place; and what the controller names.
    """
    from httpx_sse import EventSource

    place, pause_s, since_s = "", FIRST_PAUSE_S, time.monotonic()
    given = {name: value for name, value in params.items() if value is not None}
    with httpx.Client(**HTTP) as http:
        while True:
            headers = connection.headers() | ({"Last-Event-ID": place} if place else {})
            try:
                url = f"{connection.url()}/api/v1{path}"
                with http.stream("GET", url, params=given, headers=headers) as response:
                    if not response.is_success:
                        response.read()
                        answer_of(response)
                    for told in EventSource(response).iter_sse():
                        data = msgspec.json.decode(told.data) if told.data else {}
                        if told.event == "away":
                            if time.monotonic() > since_s + FOLLOW_PATIENCE_S:
                                raise AgentAwayError(data["detail"])
                            continue
                        pause_s, since_s = FIRST_PAUSE_S, time.monotonic()
                        if told.event == "error":
                            raise error_of(data["code"], data["detail"])
                        if told.event == "end":
                            return
                        if told.event == "piece":
                            place = told.id
                            yield LogPiece(*(data[name] for name in LogPiece._fields))
                            since_s = time.monotonic()
                raise UnreachableError("the controller ended the stream")
            except (AgentAwayError, BusyError, UnreachableError, httpx.TransportError) as error:
                wait_s = pause_s * random.uniform(0.5, 1.0)
                if isinstance(error, BusyError):
                    wait_s = max(wait_s, error.retry_after_s)
                if time.monotonic() + wait_s > since_s + FOLLOW_PATIENCE_S:
                    if isinstance(error, httpx.TransportError):
                        raise UnreachableError(
                            f"no controller answers ({error}); start one with: rota up"
                        ) from None
                    raise
            time.sleep(wait_s)
            pause_s = min(2 * pause_s, MOST_PAUSE_S)
