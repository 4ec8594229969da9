"""Plain values of a plan: times to be woken at, and marks that JSON preserves."""

from math import inf, isfinite
from typing import Any

from rota.errors import PlanError

NUMBERS = frozenset((int, float))


def check_wake(wake_at_s: float | None, now_s: float) -> None:
    """Raise PlanError unless a plan wants to be woken later than now, or never."""
    if wake_at_s is not None and not (
        isinstance(wake_at_s, int | float) and now_s < wake_at_s < inf
    ):
        raise PlanError(
            f"the plan wants to be woken at {wake_at_s!r} s, which is no time after now ({now_s} s)"
        )


def is_plain(value: Any) -> bool:
    """True if JSON preserves the value: numbers, text, lists and mappings from text."""
    if isinstance(value, list):
        try:  # marks are lists of numbers: see to these without a call for each
            if NUMBERS.issuperset(map(type, value)) and isfinite(sum(value)):
                return True
        except OverflowError:  # an integer that no float can hold
            pass
        return all(is_plain(each) for each in value)
    if isinstance(value, float):
        return isfinite(value)
    if isinstance(value, dict):
        return all(isinstance(key, str) and is_plain(each) for key, each in value.items())
    return value is None or isinstance(value, str | int)
