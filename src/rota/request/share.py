"""The field ``share`` of a job file: a job's layer, and the weight of a flow job."""

from typing import Any

from rota.model.job import BACKGROUND, FLOW, FOREGROUND, MAX_SLOWDOWN, WEIGHTS, Adapt, Share
from rota.request.values import check_keys, is_number, refuse

FIELDS = ("role", "max_slowdown", "weight")
ROLES = (BACKGROUND, FOREGROUND)
MOST_SLOWDOWN = 100.0


def share_of(
    value: Any, least: int, most: int, adapt: Adapt | None, processes: str = "gpu"
) -> Share | None:
    """The layer and the weight that are asked for; None without wishes. Raises JobFileError.

    ``least`` and ``most`` are the numbers of GPUs that the job asks for.
    """
    if value is None:
        return None
    example = "write a mapping, for example: {role: background}"
    check_keys(value, FIELDS, "share.", example)
    role = value.get("role", FOREGROUND)
    if role not in ROLES:
        refuse("share.role", role, f"write {BACKGROUND} or {FOREGROUND}")
    slowdown, weight = value.get("max_slowdown"), _weight(value.get("weight"), processes)
    if role == BACKGROUND:
        _check_background(slowdown, least, most, adapt, processes)
        return Share(BACKGROUND, weight=weight)
    if slowdown is None and weight is not None:
        return Share(FOREGROUND, None, weight)
    if slowdown is None:
        slowdown = MAX_SLOWDOWN
    if not is_number(slowdown) or not 1.0 <= slowdown <= MOST_SLOWDOWN:
        fix = f"write a factor from 1.0 (no slower at all), such as {MAX_SLOWDOWN}"
        refuse("share.max_slowdown", slowdown, fix)
    return Share(FOREGROUND, float(slowdown), weight)


def _weight(value: Any, processes: str) -> float | None:
    if value is None:
        return None
    if processes != FLOW:
        refuse("share.weight", value, f"only flow jobs have one: add processes: {FLOW} (--flow)")
    least, most = WEIGHTS
    if not is_number(value) or not least <= value <= most:
        fix = f"write a number from {least:g} to {most:.0f}, such as 4"
        refuse("share.weight", value, fix)
    return float(value)


def _check_background(
    slowdown: Any, least: int, most: int, adapt: Adapt | None, processes: str
) -> None:
    if slowdown is not None:
        fix = f"it is a foreground job's: leave it out, or write role: {FOREGROUND}"
        refuse("share.max_slowdown", slowdown, fix)
    if least != most or (processes == FLOW and most > 1):
        asked = least if least == most else f"{least}..{most}"
        fix = f"a background job has one size: ask for gpus: {least}, or leave share out"
        if processes == FLOW:
            fix = "a flow job in the background has exactly one GPU: ask for gpus: 1"
        refuse("resources.gpus", asked, fix)
    if adapt is not None:
        fix = "a background job trains with its own batches: leave batch out, or leave share out"
        refuse("share.role", BACKGROUND, fix)


def share_fields(share: Share) -> dict[str, Any]:
    """The JSON-able field from which :func:`share_of` makes this very share."""
    return {key: value for key, value in share._asdict().items() if value is not None}
