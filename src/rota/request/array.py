"""The field ``array`` of a job file: many jobs of one command, as a search that tries each index.

``array: 0-9%3`` is short for a block ``sweep`` with the one parameter ``index``, which is tried in
order without a metric, three at once.
"""

import re
from collections.abc import Mapping
from typing import Any

from rota.request.searchspace import MAX_VALUES
from rota.request.values import check_keys, refuse, whole_within

ARRAY = "array"
INDEX = "index"  # the name of the parameter
IN_ORDER = "in_order"  # the algorithm that tries a grid's points one after another
INDEX_ENV = "ROTA_ARRAY_INDEX"
FIELDS = ("count", "indices", "parallel")
MAX_INDEX = 1_000_000
MAX_JOBS = 10_000
EXAMPLE = "write for example 0-9, 0-90:10, 1,3,7 or 0-9%3 for three at once"

_PART = re.compile(r"([0-9]{1,7})(?:-([0-9]{1,7})(?::([0-9]{1,7}))?)?\Z")


def sweep_block(value: Any) -> dict[str, Any]:
    """The fields of the block ``sweep`` that an array stands for. Raises JobFileError."""
    fields = value if isinstance(value, Mapping) else {"indices": value}
    check_keys(fields, FIELDS, "array.")
    if ("count" in fields) == ("indices" in fields):
        refuse("array", value, f"{EXAMPLE}, or {{count: 10, parallel: 3}}")
    parallel = fields.get("parallel")
    if "count" in fields:
        indices = list(range(whole_within("array.count", fields["count"], 1, MAX_JOBS)))
    else:
        field = "array.indices" if isinstance(value, Mapping) else "array"
        indices, at_once = _indices(field, fields["indices"])
        parallel = at_once if parallel is None else parallel
    block: dict[str, Any] = {
        "space": {INDEX: _dimension(value, indices)},
        "algorithm": IN_ORDER,
        "max_failures": MAX_JOBS,  # one that fails says nothing of the others
        "parallel": len(indices),
    }
    if parallel is not None:
        what = "how many jobs may be there at once"
        block["parallel"] = whole_within("array.parallel", parallel, 1, MAX_JOBS, what)
    return block


def is_array(sweep: Mapping[str, Any]) -> bool:
    """True if an accepted request's block ``sweep`` is an array's: its trials are tasks then."""
    algorithm = sweep.get("algorithm") or {}
    return algorithm.get("name") == IN_ORDER and list(sweep["space"]) == [INDEX]


def _dimension(value: Any, indices: list[int]) -> dict[str, Any]:
    """The indices as a parameter of a search."""
    step = indices[1] - indices[0] if len(indices) > 1 else 1
    if len(indices) > 1 and indices == list(range(indices[0], indices[-1] + 1, step)):
        return {"int": [indices[0], indices[-1]], "step": step}
    if len(indices) > MAX_VALUES:
        refuse("array", value, f"over {MAX_VALUES} indices must be evenly spaced, such as 0-9999:2")
    return {"choice": indices}


def _indices(field: str, value: Any) -> tuple[list[int], str | None]:
    """The indices, rising, and how many of their jobs may be there at once, if that is told."""
    text = ",".join(map(str, value)) if isinstance(value, list) else value
    if not isinstance(text, str):
        refuse(field, value, f"{EXAMPLE}, or {{count: 10}}")
    text, percent, at_once = text.replace(" ", "").partition("%")
    found: set[int] = set()
    for part in text.split(","):
        match = _PART.match(part)
        if match is None:
            refuse(field, value, EXAMPLE)
        first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        if first > last or not step or last > MAX_INDEX:
            fix = f"indices rise from 0 to {MAX_INDEX} at most, by 1 or more"
            refuse(field, value, fix)
        for index in range(first, last + 1, step):
            if index in found:
                refuse(field, value, f"index {index} stands there twice; name each index once")
            found.add(index)
        if len(found) > MAX_JOBS:
            refuse(field, value, f"these are over {MAX_JOBS} jobs; hand them in in parts")
    return sorted(found), at_once if percent else None
