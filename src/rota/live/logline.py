"""Lines of logs: text for people, or one JSON object each for programs that collect logs."""

import json
import logging
from datetime import UTC, datetime
from typing import Any

TEXT, JSON = "text", "json"
FORMATS = (TEXT, JSON)

_USUAL = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonLines(logging.Formatter):
    """``time`` (RFC 3339, UTC), ``level``, ``logger``, ``message``, ``fields``; maybe ``error``.

    ``fields`` are those given here and what a call of the logger has as ``extra``; ``error`` is the
    traceback of the exception that the line is about. Whatever JSON lacks is told as text.
    """

    def __init__(self, **fields: str) -> None:
        super().__init__()
        self._fields = fields

    def format(self, record: logging.LogRecord) -> str:
        """The line, without a newline in it."""
        extra = {key: each for key, each in vars(record).items() if key not in _USUAL}
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        told: dict[str, Any] = {
            "time": time.replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            "fields": self._fields | extra,
        }
        if record.exc_info:
            told["error"] = self.formatException(record.exc_info)
        return json.dumps(told, default=str)


def formatter(kind: str, text: str, **fields: str) -> logging.Formatter:
    """A formatter of this kind of FORMATS; ``text`` is the format of lines of text."""
    return JsonLines(**fields) if kind == JSON else logging.Formatter(text)
