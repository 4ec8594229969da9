"""What an agent's account of its node must be before anything of it counts."""

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple, NoReturn

from rota.errors import AgentError
from rota.live.wire import MAX_COUNT, MAX_SECONDS, Message, is_metric_report, is_progress
from rota.model.job import Suspension

MAX_NODE_GPUS = 4096
KINDS = ("cpu", "cuda")
SUSPENSIONS = tuple(kind.name.lower() for kind in Suspension)


class _Field(NamedTuple):
    """What a field has to be, and how that is said; who may leave it out may also write null."""

    sound: Callable[[Any], bool]
    wanted: str
    needed: bool = True


def check_hello(hello: Message, nodes: Collection[str]) -> None:
    """Refuse a hello that is not as agents of these nodes send it, whatever of it may be sound.

    Raises AgentError, which names the field, its value and what it must be.
    """
    if hello["type"] != "hello":
        _refuse("type", hello["type"], "hello, after curves")
    _check(hello, _HELLO, "")
    if hello["node"] not in nodes:
        _refuse("node", hello["node"], f"a node of this cluster: {', '.join(sorted(nodes))}")
    for number, attempt in enumerate(hello["attempts"]):
        place = f"attempts[{number}]"
        if not isinstance(attempt, dict):
            _refuse(place, attempt, "an object")
        _check(attempt, _OF_ALL, f"{place}.")
        _check(attempt, _ATTEMPTS[attempt["type"]], f"{place}.")


def check_curve(curve: Message) -> None:
    """Refuse what an agent tells of a trial's metric if it is not well-formed. AgentError."""
    _check(curve, _CURVE, "")


def _check(message: Mapping[str, Any], fields: Mapping[str, _Field], prefix: str) -> None:
    for name, field in fields.items():
        value = message.get(name)
        if (value is None and not field.needed) or (value is not None and field.sound(value)):
            continue
        _refuse(f"{prefix}{name}", value, field.wanted)


def _refuse(field: str, value: Any, wanted: str) -> NoReturn:
    raise AgentError(f"{field}: {value!r:.80} can't be used; it must be {wanted}")


def _whole(least: int, most: int) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and least <= value <= most


def _is_seconds(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value <= MAX_SECONDS


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _are_reports(value: Any) -> bool:
    return isinstance(value, list) and all(map(is_metric_report, value))


_TEXT, _NOTE = _Field(_is_text, "text"), _Field(_is_text, "text", needed=False)
_FLAG, _MARK = (_Field(_is_flag, "true or false", needed=needed) for needed in (True, False))
_AT = _Field(_is_seconds, "seconds since 1970")
_COUNT = _Field(_whole(0, MAX_COUNT), "a whole number from 0", needed=False)
_PROGRESS = _Field(
    lambda value: isinstance(value, dict) and is_progress(value), "a report", needed=False
)
_HELLO = {
    "node": _Field(lambda value: _is_text(value) and bool(value), "the name of a node"),
    "num_gpus": _Field(_whole(1, MAX_NODE_GPUS), f"a whole number from 1 to {MAX_NODE_GPUS}"),
    "kind": _Field(lambda value: value in KINDS, f"one of {', '.join(KINDS)}"),
    "gpu_type": _NOTE,
    "memory_gb": _Field(_is_seconds, "a number from 0", needed=False),
    "agent": _NOTE,
    "attempts": _Field(lambda value: isinstance(value, list), "a list"),
}
_ATTEMPTS: dict[str, dict[str, _Field]] = {
    "alive": {
        "suspension": _Field(lambda v: v in SUSPENSIONS, f"one of {', '.join(SUSPENSIONS)}"),
        "movable": _FLAG,
        "resizable": _MARK,
        "portable": _MARK,
        "most_ranks": _COUNT,
        "why": _NOTE,
    },
    "arriving": {},
    "ended": {
        "at_s": _AT,
        "exit_code": _Field(lambda value: type(value) is int, "a whole number"),
        "message": _TEXT,
        "stop_asked": _MARK,
        "progress": _PROGRESS,
    },
    "lost": {
        "error": _TEXT,
        "started": _FLAG,
        "goes_on": _MARK,
        "rebooted": _MARK,
        "checkpointed": _MARK,
        "at_s": _AT._replace(needed=False),
        "progress": _PROGRESS,
    },
}
_OF_ALL = {
    "type": _Field(
        lambda value: _is_text(value) and value in _ATTEMPTS, f"one of {', '.join(_ATTEMPTS)}"
    ),
    "job_id": _TEXT,
    "attempt": _Field(_whole(1, MAX_COUNT), "a whole number from 1"),
    "launch": _NOTE,
}
_CURVE = {
    "job_id": _TEXT,
    "attempt": _Field(_whole(1, MAX_COUNT), "a whole number from 1"),
    "launch": _NOTE,
    "since": _Field(_whole(0, MAX_COUNT), "a whole number from 0"),
    "reports": _Field(_are_reports, "a list of reports: step, time, value, whether it is first"),
}
