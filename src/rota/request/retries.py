"""The field ``retries`` of a job file: after which failures a job starts anew, and how often."""

import re
from typing import Any

from rota.errors import closest
from rota.model.job import CAUSES, Retries
from rota.request.values import check_keys, refuse, seconds_of, whole_within

FIELDS = ("max", "on", "backoff")
MAX_RETRIES = 1000

_EXIT = re.compile(r"exit-([0-9]{1,3})\Z")


def retries_of(value: Any) -> Retries | None:
    """The retries that are asked for: a number, or a mapping of FIELDS. Raises JobFileError."""
    if value is None:
        return None
    if not isinstance(value, dict):
        value = {"max": value}
    check_keys(value, FIELDS, "retries.")
    if "max" not in value:
        refuse("retries", value, "max is missing: say how often it may start anew, such as max: 3")
    most = whole_within("retries.max", value["max"], 0, MAX_RETRIES)
    retries = Retries(most)
    if value.get("on") is not None:
        retries = retries._replace(on=_causes(value["on"]))
    if value.get("backoff") is not None:
        retries = retries._replace(backoff_s=seconds_of("retries.backoff", value["backoff"]))
    return retries if most else None


def retries_fields(retries: Retries) -> dict[str, Any]:
    """The JSON-able field from which :func:`retries_of` makes these very retries."""
    return {"max": retries.most, "on": list(retries.on), "backoff": retries.backoff_s}


def _causes(value: Any) -> tuple[str, ...]:
    listed = value if isinstance(value, list) else [value]
    if not listed:
        refuse("retries.on", value, f"name causes, such as [{', '.join(CAUSES)}], or leave it out")
    return tuple(dict.fromkeys(map(_cause, listed)))


def _cause(value: Any) -> str:
    if value in CAUSES:
        return str(value)
    if type(value) is int:
        value = f"exit-{value}"
    match = _EXIT.match(value) if isinstance(value, str) else None
    if match and 1 <= int(match[1]) <= 255:
        return f"exit-{int(match[1])}"
    close = closest(value, CAUSES) if isinstance(value, str) else None
    known = f"write {', '.join(CAUSES)}, or an exit code from exit-1 to exit-255"
    refuse("retries.on", value, f"did you mean {close}?" if close else known)
