"""Server-sent events, as tests read them."""

import json
from collections.abc import Iterable, Iterator
from typing import Any


def told(lines: Iterable[str]) -> Iterator[tuple[str, str | None, Any]]:
    """(kind, id, data) of each event of a stream's lines."""
    fields: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(": ")
        if line and name:
            fields[name] = value
        elif "data" in fields:
            yield fields["event"], fields.get("id"), json.loads(fields["data"])
            fields = {}
