"""A job's output as it is printed, followed through restarts of the controller and of agents."""

from collections.abc import Mapping
from typing import Any

from rota.client.connection import FOLLOW_PATIENCE_S, Connection, error_of
from rota.client.outputs import LogPiece, StoryLine
from rota.client.stream import Stream
from rota.errors import AgentAwayError, BusyError, CursorError

ASKS = 10  # for output, until a place for a stream is asked for again

Printed = LogPiece | StoryLine


class Following(Stream[Printed]):
    """A followed output, until its end.

    Without a place for the stream the output is asked for every ASK_EVERY_S, and now and then for
    a place again.
    ``path`` is that of the job's ``logs/stream``, ``place`` the id of an event of an earlier one.
    """

    def __init__(
        self, connection: Connection, path: str, params: Mapping[str, Any], place: str = ""
    ) -> None:
        super().__init__(connection, path, params, place, FOLLOW_PATIENCE_S)
        self._asks_left = 0  # until it tries to follow again

    def _asked(self) -> dict[str, Any]:
        asked = super()._asked()
        if self._asks_left:
            asked["params"] = asked["params"] | {"once": "true"}
        return asked

    def _ended(self) -> None:
        if not self._asks_left:
            super()._ended()
        self._asks_left -= 1

    def _pause_without_place(self, error: BusyError) -> float:
        super()._pause_without_place(error)
        self._asks_left = ASKS
        return 0.0

    def _told(self, event: str, data: Any, place: str) -> Printed | None:
        if event == "away":
            if self._is_past_patience():
                raise AgentAwayError(data["detail"])
            return None
        self._is_well()
        if event == "error":
            raise error_of(data["code"], data["detail"])
        self._is_over = event == "end"
        self._place = place or self._place
        if event == "piece":
            return LogPiece(*(data[name] for name in LogPiece._fields))
        if event == "story":
            return StoryLine(data["at_s"], data["line"])
        return None

    def _failed(self, error: Exception) -> None:
        if isinstance(error, CursorError):
            raise error
