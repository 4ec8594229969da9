"""Faults written down in a file, as CSV or JSON."""

import csv
import io
import json
from math import inf
from pathlib import Path
from typing import Any

from rota.errors import InputError, did_you_mean
from rota.sim.faults import LEAST_S, Fault, What
from rota.workload.readers.base import as_number
from rota.workload.readers.files import read_bytes
from rota.workload.trace import MAX_GPUS, MAX_S, SPEEDS

# Field -> what it must be. A field that a kind of fault does not use stays empty or out.
MOST_BYTES = 64 << 20
FIELDS = {
    "at_s": f"from 0 to {MAX_S:,.0f} seconds",
    "what": "fail, crash or slow",
    "node": "a node of the cluster, for example node0",
    "for_s": f"from {LEAST_S} to {MAX_S:,.0f} seconds, or empty for ever",
    "gpu": "the index of a GPU of the node, from 0",
    "speed": f"a number from {SPEEDS[0]} to 1, of the node's own speed",
    "notice_s": f"from 0 to {MAX_S:,.0f} seconds before it happens",
}
REQUIRED = ("at_s", "what", "node")
USED = {
    What.FAIL: {*REQUIRED, "for_s", "notice_s"},
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
        text = read_bytes(path, "faults", MOST_BYTES).decode("utf-8-sig")
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
            hint = did_you_mean(str(field), FIELDS)
            raise InputError(
                f"{place}: there is no field {field!r}{hint}; known: {', '.join(FIELDS)}"
            )
        if field not in USED[what]:
            raise InputError(f"{place}: {field} means nothing for {what}; leave it empty")
    for field in NEEDED[what]:
        if field not in fields:
            raise InputError(f"{place}: {field} is missing; give {FIELDS[field]}")
    if not isinstance(fields["node"], str):
        raise _bad(place, fields, "node")
    gpu = _number(place, fields, "gpu", 0.0, high=MAX_GPUS)
    if gpu != int(gpu):
        raise _bad(place, fields, "gpu")
    for_s = _number(place, fields, "for_s", inf, low=LEAST_S)
    speed = _number(place, fields, "speed", 1.0, low=SPEEDS[0], high=1.0)
    at_s = _number(place, fields, "at_s", 0.0)
    notice_s = _number(place, fields, "notice_s", 0.0)
    return Fault(at_s, what, fields["node"], for_s, int(gpu), speed, notice_s)


def _number(
    place: str,
    fields: dict[str, Any],
    field: str,
    default: float,
    low: float = 0.0,
    high: float = MAX_S,
) -> float:
    """A number from low to high, or the default if it is not there. Raises InputError."""
    if field not in fields:
        return default
    value = fields[field]
    try:
        number = as_number(value) if isinstance(value, str) else float(value)
    except (ValueError, TypeError, OverflowError):
        raise _bad(place, fields, field) from None
    if isinstance(value, bool) or not low <= number <= high:
        raise _bad(place, fields, field)
    return number


def _bad(place: str, fields: dict[str, Any], field: str) -> InputError:
    value = str(fields.get(field, ""))[:80]
    return InputError(f"{place}: {field} is {value!r}; it must be {FIELDS[field]}")
