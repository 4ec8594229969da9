"""Events as JSON-able dicts, and back: the same event, to the bit.

An event is ``{"type": class name, field: value, ...}``, and so is the command in one. The declared
type of a field says how it is stored: enums by name, tuples as lists, named tuples as objects of
their fields, row-keyed mappings as objects with the row as text, allocations as ``[node, mask]``
pairs. A new kind of event or command needs nothing here.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin, get_type_hints

from rota.errors import StoreError
from rota.model.allocation import Allocation, of_parts
from rota.model.events import DecisionTaken, Event
from rota.model.job import JobSpec, Program
from rota.model.notes import DesiredNodes, Notes, Packed
from rota.model.probe import Probe
from rota.model.sweep import Report


class _Codec(NamedTuple):
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


AS_LISTS = (Report, Probe, Packed)  # stored as lists of their fields

# Stored without fields that are at their defaults. So these defaults belong to the format: with
# others an old log would be read as something else.
WITHOUT_DEFAULTS = (JobSpec, Program, Notes)


def encode(event: Event) -> dict[str, Any]:
    """The event as a dict that ``json.dumps`` takes and :func:`decode` turns back.

    Raises StoreError for an unknown kind of event, and for a mark or a progress report that JSON
    can't hold (tuples, keys that aren't text, objects).
    """
    record: dict[str, Any] = _EVENT.encode(event)
    return record


def decode(record: dict[str, Any]) -> Event:
    """The event from which :func:`encode` made ``record``. Raises StoreError."""
    name = record.get("type")
    if not isinstance(name, str) or name not in _NAMES:
        raise StoreError(f"{name!r} is not a kind of event that this version knows")
    try:
        event: Event = _EVENT.decode(record)
        if isinstance(event, DecisionTaken) and "notes" not in record:
            event = event._replace(notes=_notes_in_marks(event))
        return event
    except (TypeError, ValueError, KeyError, AttributeError, IndexError) as error:
        what = str(error).replace(f"{name}.__new__()", "it")
        raise StoreError(f"a {name} is not as this version writes them: {what}") from None


@cache
def codec_of(hint: Any) -> _Codec:
    """The codec of a declared type. Raises StoreError for a type that it does not know.

    Plain values are stored as they are, without a check; those declared as ``Any`` with one.
    """
    origin, args = get_origin(hint), get_args(hint)
    if hint is Allocation:
        return _Codec(_encode_allocation, _decode_allocation)
    if hint in (Any, dict[str, Any]):
        return _Codec(_json, lambda value: value)
    if hint in (str, int, float, bool):
        return _PLAIN
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _Codec(lambda member: hint(member).name, lambda name: hint[name])
    if isinstance(hint, type) and hasattr(hint, "_fields"):
        return _codec_of_fields(hint)
    if origin in (Union, UnionType):
        return _codec_of_union(args)
    if origin is tuple:
        return _codec_of_tuple(args)
    if origin is dict and args[0] is int:
        each = codec_of(args[1])
        return _Codec(
            lambda mapping: {str(row): each.encode(value) for row, value in mapping.items()},
            lambda record: {int(row): each.decode(value) for row, value in record.items()},
        )
    raise StoreError(f"the log has no form for a field of type {hint}; rota.store.codec has all")


def _codec_of_fields(kind: Any) -> _Codec:
    """The codec of a named tuple."""
    codecs = {name: codec_of(hint) for name, hint in get_type_hints(kind).items()}
    special = {name: codec for name, codec in codecs.items() if codec is not _PLAIN}
    defaults = kind._field_defaults if kind in WITHOUT_DEFAULTS else {}

    def encode(value: Any) -> dict[str, Any]:
        fields: dict[str, Any] = value._asdict()
        for name, default in defaults.items():
            if fields[name] == default and type(fields[name]) is type(default):
                del fields[name]
        for name, codec in special.items():
            if name in fields:
                fields[name] = codec.encode(fields[name])
        return fields

    def decode(record: dict[str, Any]) -> Any:
        fields = dict(record)
        fields.pop("type", None)
        for name, codec in special.items():
            if name in fields:
                fields[name] = codec.decode(fields[name])
        return kind(**fields)

    def decode_list(values: list[Any]) -> Any:
        known = zip(codecs.values(), values, strict=False)  # later fields may have defaults
        return kind(*(codec.decode(value) for codec, value in known), *values[len(codecs) :])

    if kind in AS_LISTS:
        return _Codec(lambda value: list(encode(value).values()), decode_list)
    return _Codec(encode, decode)


def _codec_of_union(kinds: tuple[Any, ...]) -> _Codec:
    """The codec of an optional value, of plain types, or of several named tuples."""
    if NoneType in kinds:
        kind = codec_of(Union[tuple(each for each in kinds if each is not NoneType)])  # noqa: UP007
        if kind is _PLAIN:
            return _PLAIN
        return _Codec(
            lambda value: None if value is None else kind.encode(value),
            lambda value: None if value is None else kind.decode(value),
        )
    codecs = {kind: codec_of(kind) for kind in kinds}
    if all(codec is _PLAIN for codec in codecs.values()):
        return _PLAIN
    by_name = {kind.__name__: codec for kind, codec in codecs.items()}

    def encode(value: Any) -> dict[str, Any]:
        name = type(value).__name__
        if type(value) not in codecs:
            raise StoreError(f"{name} is not a kind of event or command that the log knows")
        return {"type": name} | codecs[type(value)].encode(value)

    return _Codec(encode, lambda record: by_name[record["type"]].decode(record))


def _codec_of_tuple(args: tuple[Any, ...]) -> _Codec:
    """The codec of a tuple of any length or of a fixed one."""
    if args[-1] is Ellipsis:
        each = codec_of(args[0])
        if each is _PLAIN:
            return _Codec(list, tuple)
        return _Codec(
            lambda values: [each.encode(value) for value in values],
            lambda values: tuple(each.decode(value) for value in values),
        )
    codecs = [codec_of(arg) for arg in args]
    return _Codec(
        lambda values: [c.encode(v) for c, v in zip(codecs, values, strict=True)],
        lambda values: tuple(c.decode(v) for c, v in zip(codecs, values, strict=True)),
    )


def _json(value: Any) -> Any:
    """``value`` itself if JSON brings it back unchanged. Raises StoreError."""
    if value is None or isinstance(value, str | int | float):
        return value
    if type(value) is list:
        for item in value:
            _json(item)
        return value
    if type(value) is dict and all(type(key) is str for key in value):
        for item in value.values():
            _json(item)
        return value
    raise StoreError(
        f"{value!r:.200} can't be stored: marks and progress are made of None, text, numbers, "
        "lists, and dicts with text as keys"
    )


def _encode_allocation(allocation: Allocation) -> list[Any]:
    parts: list[Any] = [list(part) for part in allocation.parts]
    if allocation.shared:
        parts.append("shared")
    if allocation.background:
        parts.append("background")
    if allocation.batch is not None:
        parts.append({"batch": list(allocation.batch)})
    return parts


def _decode_allocation(parts: Any) -> Allocation:
    last = parts[-1]
    batch = _BATCH.decode(last["batch"]) if isinstance(last, dict) else None
    end = len(parts) - (batch is not None)
    background = parts[end - 1] == "background"
    end -= background
    shared = parts[end - 1] == "shared"
    pairs = [(node, mask) for node, mask in parts[: end - shared]]
    if not pairs:
        raise ValueError("an allocation has no GPUs")
    return of_parts(
        pairs, shared, batch, background
    )  # the very object that equal ones of one node are


def _notes_in_marks(decision: DecisionTaken) -> Notes | None:
    """The notes of a decision that was written before plans had notes.

    Policies kept them in their marks: ``why``, ``warnings``, ``pack``, and the last five probes,
    whose first five fields are in ``trials`` and the others, of as many of the last, in ``tried``.
    """
    notes = Notes({}, {}, {}, {}, None)
    for row, mark in decision.marks.items():
        told = mark if isinstance(mark, dict) else {}
        if isinstance(why := told.get("why"), str):
            notes.why[row] = why
        warnings = told.get("warnings")
        notes.warnings[row] = tuple(map(str, warnings)) if isinstance(warnings, list) else ()
        probes, more = told.get("trials", ()), told.get("tried", ())
        more = [()] * (len(probes) - len(more)) + list(more)
        if probes:
            pairs = zip(probes, more, strict=True)
            notes.probes[row] = tuple(_PROBE.decode([*probe, *rest]) for probe, rest in pairs)
        pack = told.get("pack")
        notes.packs[row] = Packed(tuple(pack[0]), pack[1]) if pack else None
    wish = decision.policy_mark.get("nodes") if isinstance(decision.policy_mark, dict) else None
    if wish is None and not decision.marks:
        return None
    return notes._replace(nodes=None if wish is None else DesiredNodes(**wish))


_PLAIN = _Codec(lambda value: value, lambda value: value)
_NAMES = {kind.__name__ for kind in get_args(Event)}
_BATCH, _PROBE, _EVENT = codec_of(tuple[int, int]), codec_of(Probe), codec_of(Event)
