"""Faults written down in a file, as CSV or JSON."""

import csv
import io
import json
from math import inf
from pathlib import Path
from typing import Any

from rota.errors import InputError
from rota.sim.faults import Fault, What

# Field -> what it must be. A field that a kind of fault does not use stays empty or out.
FIELDS = {
    "at_s": "zero or more seconds",
    "what": "fail, crash or slow",
    "node": "a node of the cluster, for example node0",
    "for_s": "a number of seconds above zero, or empty for ever",
    "gpu": "the index of a GPU of the node, from 0",
    "speed": "a number above 0 and at most 1, of the node's own speed",
}
REQUIRED = ("at_s", "what", "node")
USED = {
    What.FAIL: {*REQUIRED, "for_s"},
    What.CRASH: {*REQUIRED, "gpu"},
    What.SLOW: {*REQUIRED, "for_s", "speed"},
}
NEEDED = {What.FAIL: REQUIRED, What.CRASH: (*REQUIRED, "gpu"), What.SLOW: (*REQUIRED, "speed")}


def read_faults(path: str | Path) -> tuple[Fault, ...]:
    """The faults of a ``.json`` file (a list of objects) or of a CSV file with a header.

    Raises InputError naming the line or the object, the field, its value and what it must be.
    """
    path = Path(path)
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise InputError(f"faults {path}: {error.strerror or error}; check the path") from None
    except UnicodeDecodeError as error:
        raise InputError(f"faults {path}: not UTF-8 text at byte {error.start}") from None
    read = _json_rows if path.suffix == ".json" else _csv_rows
    return tuple(_fault(place, fields) for place, fields in read(path.name, text))


def _csv_rows(name: str, text: str) -> list[tuple[str, dict[str, Any]]]:
    rows = csv.reader(io.StringIO(text), strict=True)
    found = []
    try:
        header = [column.strip() for column in next(rows, [])]
        missing = [column for column in REQUIRED if column not in header]
        if missing:
            raise InputError(
                f"{name}, line 1: column {missing[0]!r} is missing; the columns are "
                + ",".join(FIELDS)
            )
        if len(set(header)) != len(header):
            twice = next(column for column in header if header.count(column) > 1)
            raise InputError(f"{name}, line 1: column {twice!r} stands there twice; drop one")
        for row in rows:
            place = f"{name}, line {rows.line_num}"
            if len(row) > len(header):
                raise InputError(
                    f"{place}: {len(row)} fields where the header names {len(header)}; drop some"
                )
            if row:
                cells = (cell.strip() for cell in row)
                fields = {key: cell for key, cell in zip(header, cells, strict=False) if cell}
                found.append((place, fields))
    except csv.Error as error:
        raise InputError(f"{name}, line {rows.line_num}: not CSV: {error}") from None
    return found


def _json_rows(name: str, text: str) -> list[tuple[str, dict[str, Any]]]:
    try:
        rows = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{name}: not JSON: {error}") from None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise InputError(f"{name}: it must be a list of objects with the keys {','.join(FIELDS)}")
    return [
        (f"{name}, object {i}", {key: value for key, value in row.items() if value is not None})
        for i, row in enumerate(rows, start=1)
    ]


def _fault(place: str, fields: dict[str, Any]) -> Fault:
    try:
        what = What(fields.get("what", ""))
    except ValueError:
        raise _bad(place, fields, "what") from None
    for field in fields:
        if field not in FIELDS:
            raise InputError(f"{place}: there is no field {field!r}; known: {', '.join(FIELDS)}")
        if field not in USED[what]:
            raise InputError(f"{place}: {field} means nothing for {what}; leave it empty")
    for field in NEEDED[what]:
        if field not in fields:
            raise InputError(f"{place}: {field} is missing; give {FIELDS[field]}")
    if not isinstance(fields["node"], str):
        raise _bad(place, fields, "node")
    gpu = _number(place, fields, "gpu", 0.0)
    if gpu != int(gpu):
        raise _bad(place, fields, "gpu")
    for_s, speed = _number(place, fields, "for_s", inf), _number(place, fields, "speed", 1.0)
    if for_s == 0:
        raise _bad(place, fields, "for_s")
    if not 0 < speed <= 1:
        raise _bad(place, fields, "speed")
    at_s = _number(place, fields, "at_s", 0.0)
    return Fault(at_s, what, fields["node"], for_s, int(gpu), speed)


def _number(place: str, fields: dict[str, Any], field: str, default: float) -> float:
    """A finite number of at least zero, or the default if it is not there. Raises InputError."""
    if field not in fields:
        return default
    value = fields[field]
    try:
        number = -1.0 if isinstance(value, bool) else float(value)
    except (ValueError, TypeError, OverflowError):
        number = -1.0
    if not 0 <= number < inf:
        raise _bad(place, fields, field)
    return number


def _bad(place: str, fields: dict[str, Any], field: str) -> InputError:
    value = str(fields.get(field, ""))[:80]
    return InputError(f"{place}: {field} is {value!r}; it must be {FIELDS[field]}")
