"""Events as JSON-able dicts, and back: the same event, to the bit.

An event is ``{"type": class name, field: value, ...}``. Enums travel by name, allocations as
``[node, mask]`` pairs, row-keyed mappings as objects with the row as text.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, get_args

from rota.errors import StoreError
from rota.model.allocation import Allocation, of_parts
from rota.model.commands import Command
from rota.model.events import (
    BatchRefused,
    CommandSent,
    DecisionTaken,
    Event,
    JobFinished,
    JobResized,
    JobRetuned,
    JobSubmitted,
    MetricReported,
    StopRequested,
    SweepSubmitted,
    WorkerRegistered,
    WorkerReported,
)
from rota.model.job import Adapt, Elastic, JobSpec, JobState, Program, Suspension
from rota.model.notes import DesiredNodes, Notes, Packed
from rota.model.probe import Probe
from rota.model.sweep import Report, Sweep, SweepTrial


class _Codec(NamedTuple):
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


def encode(event: Event) -> dict[str, Any]:
    """The event as a dict that ``json.dumps`` takes and :func:`decode` turns back.

    Raises StoreError for an unknown kind of event, and for a mark or a progress report that JSON
    can't hold (tuples, keys that aren't text, objects).
    """
    kind = type(event)
    if kind not in _FIELDS:
        raise StoreError(f"{kind.__name__} is not a kind of event that the log knows")
    return {"type": kind.__name__} | _encode_fields(event, _FIELDS[kind])


def decode(record: dict[str, Any]) -> Event:
    """The event that :func:`encode` made ``record`` of. Raises StoreError."""
    name = record.get("type")
    kind = _EVENTS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise StoreError(f"{name!r} is not a kind of event that this version knows")
    fields = {key: value for key, value in record.items() if key != "type"}
    try:
        event: Event = _decode_fields(kind, fields, _FIELDS[kind])
        if isinstance(event, DecisionTaken) and "notes" not in record:
            event = event._replace(notes=_notes_in_marks(event))
        return event
    except (TypeError, ValueError, KeyError, AttributeError, IndexError) as error:
        what = str(error).replace(f"{name}.__new__()", "it")
        raise StoreError(f"a {name} is not as this version writes them: {what}") from None


def _encode_fields(value: Any, special: dict[str, _Codec]) -> dict[str, Any]:
    fields: dict[str, Any] = value._asdict()
    for name, codec in special.items():
        fields[name] = codec.encode(fields[name])
    return fields


def _decode_fields(kind: Any, fields: dict[str, Any], special: dict[str, _Codec]) -> Any:
    for name, codec in special.items():
        if name in fields:
            fields[name] = codec.decode(fields[name])
    return kind(**fields)


def _without_defaults(value: Any) -> dict[str, Any]:
    """The fields that are not at their defaults. So defaults belong to the format: with others an
    old log would be read as something else."""
    defaults, fields = value._field_defaults, value._asdict()
    for name, default in defaults.items():
        if fields[name] == default and type(fields[name]) is type(default):
            del fields[name]
    return fields


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


def _encode_allocation(allocation: Allocation | None) -> Any:
    if allocation is None:
        return None
    parts: list[Any] = [list(part) for part in allocation.parts]
    if allocation.shared:
        parts.append("shared")
    if allocation.batch is not None:
        parts.append({"batch": list(allocation.batch)})
    return parts


def _decode_allocation(parts: Any) -> Allocation | None:
    if parts is None:
        return None
    last = parts[-1]
    batch = _decode_batch(last["batch"]) if isinstance(last, dict) else None
    end = len(parts) - (batch is not None)
    shared = parts[end - 1] == "shared"
    pairs = [(node, mask) for node, mask in parts[: end - shared]]
    return of_parts(pairs, shared, batch)  # the very object that equal ones of one node are


def _decode_batch(pair: Any) -> tuple[int, int] | None:
    if pair is None:
        return None
    size, accumulations = pair
    return (size, accumulations)


def _by_row(codec: _Codec) -> _Codec:
    """For a mapping from rows to what ``codec`` takes; its order is kept."""
    return _Codec(
        lambda mapping: {str(row): codec.encode(value) for row, value in mapping.items()},
        lambda record: {int(row): codec.decode(value) for row, value in record.items()},
    )


def _by_name(kind: Any) -> _Codec:
    return _Codec(lambda member: kind(member).name, lambda name: kind[name])


def _encode_program(program: Program | None) -> Any:
    if program is None:
        return None
    fields = _without_defaults(program)
    if "env" in fields:
        fields["env"] = [list(pair) for pair in program.env]
    return fields


def _decode_program(record: Any) -> Program | None:
    if record is None:
        return None
    pairs = tuple((name, value) for name, value in record.get("env", ()))
    return Program(**(record | {"env": pairs}))


def _encode_elastic(elastic: Elastic | None) -> Any:
    return None if elastic is None else elastic._asdict() | {"sizes": list(elastic.sizes)}


def _decode_elastic(record: Any) -> Elastic | None:
    return None if record is None else Elastic(**(record | {"sizes": tuple(record["sizes"])}))


def _encode_adapt(adapt: Adapt | None) -> Any:
    return None if adapt is None else adapt._asdict()


def _decode_adapt(record: Any) -> Adapt | None:
    return None if record is None else Adapt(**record)


def _encode_trial(trial: SweepTrial | None) -> Any:
    if trial is None:
        return None
    params = [list(pair) for pair in trial.params]
    return trial._asdict() | {"sweep": trial.sweep._asdict(), "params": params}


def _decode_trial(record: Any) -> SweepTrial | None:
    if record is None:
        return None
    params = tuple((name, value) for name, value in record["params"])
    return SweepTrial(Sweep(**record["sweep"]), record["number"], params)


def _encode_notes(notes: Notes | None) -> Any:
    if notes is None:
        return None
    probes = {row: [_as_lists(probe) for probe in probes] for row, probes in notes.probes.items()}
    packs = {
        row: None if packed is None else [list(packed.rows), packed.gain]
        for row, packed in notes.packs.items()
    }
    wish = notes.nodes
    fields = {
        "why": _by_row(_JSON).encode(notes.why),
        "warnings": {str(row): list(warnings) for row, warnings in notes.warnings.items()},
        "probes": _by_row(_JSON).encode(probes),
        "packs": _by_row(_JSON).encode(packs),
        "nodes": None if wish is None else wish._asdict(),
    }
    return {name: value for name, value in fields.items() if value}


def _as_lists(values: Any) -> Any:
    """Nested tuples as nested lists."""
    return [_as_lists(each) for each in values] if isinstance(values, tuple) else values


def _decode_notes(record: Any) -> Notes | None:
    if record is None:
        return None
    wish = record.get("nodes")
    return Notes(
        {int(row): why for row, why in record.get("why", {}).items()},
        {int(row): tuple(warnings) for row, warnings in record.get("warnings", {}).items()},
        {
            int(row): tuple(_probe(*probe) for probe in probes)
            for row, probes in record.get("probes", {}).items()
        },
        {
            int(row): None if packed is None else Packed(tuple(packed[0]), packed[1])
            for row, packed in record.get("packs", {}).items()
        },
        None if wish is None else DesiredNodes(**wish),
    )


def _probe(
    at_s: float,
    what: str,
    predicted: float,
    measured: float | None,
    kept: bool,
    mates: Any = (),
    on: Any = (),
    before: Any = (),
) -> Probe:
    places = [tuple((node, mask) for node, mask in pairs) for pairs in (on, before)]
    return Probe(at_s, what, predicted, measured, kept, tuple(mates), *places)


def _notes_in_marks(decision: DecisionTaken) -> Notes | None:
    """The notes of a decision that was written down before plans had notes.

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
            notes.probes[row] = tuple(_probe(*probe, *rest) for probe, rest in pairs)
        pack = told.get("pack")
        notes.packs[row] = Packed(tuple(pack[0]), pack[1]) if pack else None
    wish = decision.policy_mark.get("nodes") if isinstance(decision.policy_mark, dict) else None
    if wish is None and not decision.marks:
        return None
    return notes._replace(nodes=None if wish is None else DesiredNodes(**wish))


def _encode_spec(spec: JobSpec) -> dict[str, Any]:
    fields = _without_defaults(spec)
    for name in fields.keys() & _SPEC_FIELDS.keys():
        fields[name] = _SPEC_FIELDS[name].encode(fields[name])
    return fields


def _decode_spec(record: dict[str, Any]) -> JobSpec:
    return _decode_fields(JobSpec, dict(record), _SPEC_FIELDS)


def _encode_command(command: Command) -> dict[str, Any]:
    special = {name: _OF_COMMANDS[name] for name in _OF_COMMANDS if hasattr(command, name)}
    return {"type": type(command).__name__} | _encode_fields(command, special)


def _decode_command(record: dict[str, Any]) -> Command:
    fields = dict(record)
    kind = _COMMANDS[fields.pop("type")]
    return _decode_fields(kind, fields, _OF_COMMANDS)


_JSON = _Codec(_json, lambda value: value)
_INT = _Codec(int, lambda value: value)
_ALLOCATION = _Codec(_encode_allocation, _decode_allocation)
_BATCH = _Codec(lambda batch: None if batch is None else list(batch), _decode_batch)
_OF_COMMANDS = {"allocation": _ALLOCATION, "batch": _BATCH}
_STATE = _by_name(JobState)
_SPEC_FIELDS = {
    "program": _Codec(_encode_program, _decode_program),
    "speeds": _Codec(
        lambda pairs: [list(pair) for pair in pairs],
        lambda pairs: tuple((gpu_type, speed) for gpu_type, speed in pairs),
    ),
    "elastic": _Codec(_encode_elastic, _decode_elastic),
    "adapt": _Codec(_encode_adapt, _decode_adapt),
    "trial": _Codec(_encode_trial, _decode_trial),
}
_EVENTS: dict[str, Any] = {kind.__name__: kind for kind in get_args(Event)}
_COMMANDS: dict[str, Any] = {kind.__name__: kind for kind in get_args(Command)}

# The fields of each kind that are not plain JSON already.
_FIELDS: dict[Any, dict[str, _Codec]] = {kind: {} for kind in _EVENTS.values()} | {
    JobSubmitted: {"spec": _Codec(_encode_spec, _decode_spec)},
    StopRequested: {"outcome": _STATE},
    JobResized: {"allocation": _ALLOCATION},
    JobRetuned: {"batch": _BATCH},
    BatchRefused: {"batch": _BATCH},
    JobFinished: {"outcome": _STATE},
    WorkerRegistered: {"suspension": _by_name(Suspension)},
    WorkerReported: {"progress": _JSON},
    SweepSubmitted: {"request": _JSON},
    MetricReported: {
        "reports": _Codec(
            lambda reports: [list(report) for report in reports],
            lambda records: tuple(Report(*record) for record in records),
        )
    },
    CommandSent: {"command": _Codec(_encode_command, _decode_command)},
    DecisionTaken: {
        "allocations": _by_row(_ALLOCATION),
        "reasons": _by_row(_INT),
        "marks": _by_row(_JSON),
        "policy_mark": _JSON,
        "notes": _Codec(_encode_notes, _decode_notes),
    },
}
