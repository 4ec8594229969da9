"""The axes of a sweep's figures: of values, of steps, and of each parameter."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import ceil, floor, inf, isfinite, log10
from typing import Any, NamedTuple

from rota.report.sweep import SweepStory, value_text

FAR_APART = 1000.0  # values whose ends differ by more are drawn on a logarithmic axis
EARLY_PART = 5.0  # steps are, too, where half of the curves end in so early a part of the axis
HUGE = 1e300  # larger values are drawn there
MOST_OUT = 0.05  # the part of the values, the worst ones, that may be left out of an axis ...
MUCH_LONGER = 3.0  # ... if they made it that many times as long
ROOM = 0.04  # beyond the last value
NEAR = 0.08  # the part of an axis that two words need between them
TICKS = 5
LETTERS = 14  # of a choice
EVEN = (1.0, 2.0, 5.0, 10.0)


class Axis(NamedTuple):
    """An axis from ``low`` to ``high``, with its ticks.

    If it is ``log``, ends and places are powers of ten.
    """

    low: float
    high: float
    ticks: tuple[tuple[float, str], ...] = ()
    log: bool = False

    def place(self, value: float) -> float:
        """Position of a value; it may be beyond the ends."""
        value = min(max(value, -HUGE), HUGE)
        if not self.log:
            return value
        return log10(value) if value > 0 else -inf

    def part_of(self, place: float) -> float:
        """Position of a place, from 0 at the low end to 1 at the high end."""
        return (place - self.low) / (self.high - self.low)

    def part(self, value: float) -> float:
        """Position of a value, from 0 to 1; values beyond the ends are clipped."""
        return min(1.0, max(0.0, self.part_of(self.place(value))))


def value_axis(values: Sequence[float], maximize: bool) -> Axis:
    """An axis for values of a metric; if the worst few are far away, it ends before them."""
    if not values:
        return _with_ticks(0.0, 1.0)
    log = min(values) > 0 and max(values) / min(values) >= FAR_APART
    raw = Axis(0.0, 1.0, log=log)
    rising = sorted(map(raw.place, values))
    low, high = rising[0], rising[-1]
    keep = ceil(len(rising) * (1 - MOST_OUT))
    if keep:
        if maximize and high - low > MUCH_LONGER * (high - rising[-keep]) > 0:
            low = rising[-keep]
        if not maximize and high - low > MUCH_LONGER * (rising[keep - 1] - low) > 0:
            high = rising[keep - 1]
    return _padded(low, high, log)


def step_axis(lasts: Sequence[float], least: float) -> Axis:
    """An axis for steps; ``lasts`` are the ends of the curves, ``least`` their first step."""
    if not lasts:
        return _with_ticks(0.0, 1.0)
    most = max(lasts)
    if (
        least > 0
        and most >= EARLY_PART * sorted(lasts)[len(lasts) // 2]
        and most >= EARLY_PART * least
    ):
        return _with_ticks(log10(least), log10(most), log=True, whole=True)
    low = min(0.0, least)
    return _with_ticks(low, most if most > low else low + 1.0, whole=True)


def parameter_axis(name: str, story: SweepStory, values: Sequence[Any]) -> tuple[Axis, list[float]]:
    """The axis of a parameter, and the place of each of ``values`` on it.

    A parameter that the space does not describe has an axis by its values. None stands for no
    value.
    """
    fields = story.space.get(name, {})
    numbers = [value for value in values if value is not None]
    plain = all(isinstance(v, int | float) and not isinstance(v, bool) for v in numbers)
    if "choice" in fields or not plain or len(numbers) < len(values):
        return _choices(fields, values)
    kind = next((key for key in ("log", "range", "int") if _is_range(fields.get(key))), None)
    ends = [*(fields[kind] if kind else ()), *numbers] or [0.0, 1.0]
    log = (kind == "log" or fields.get("log") is True) and min(ends) > 0
    raw = Axis(0.0, 1.0, log=log)
    places = [raw.place(value) for value in ends]
    low, high = min(places), max(places)
    if low == high:
        return _padded(low, high, log), [raw.place(value) for value in numbers]
    whole = all(float(value).is_integer() for value in ends)
    axis = _with_ticks(low, high, log, whole=whole)
    return _with_ends(axis), [raw.place(value) for value in numbers]


def _with_ends(axis: Axis) -> Axis:
    """The axis with ticks at its ends, too, where there is room for them."""
    near = (axis.high - axis.low) * NEAR
    ticks = list(axis.ticks)
    for place in (axis.low, axis.high):
        if all(abs(place - other) > near for other, _ in ticks):
            ticks.append((place, value_text(10**place if axis.log else place)))
    return axis._replace(ticks=tuple(sorted(ticks)))


def _is_range(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) == 2


def _choices(fields: Mapping[str, Any], values: Sequence[Any]) -> tuple[Axis, list[float]]:
    """Axis of choices. As JSON, the number 1 differs from true and from the text "1"."""
    known = list(dict.fromkeys(json.dumps(choice) for choice in fields.get("choice", ())))
    known += sorted({json.dumps(value) for value in values} - set(known))
    place = {choice: float(index) for index, choice in enumerate(known)}
    ticks = tuple((place[choice], shortened(json.loads(choice))) for choice in known)
    axis = Axis(-0.2, len(known) - 0.8, ticks)
    return axis, [place[json.dumps(value)] for value in values]


def shortened(value: Any, letters: int = LETTERS) -> str:
    """The text of a value; the middle of a long one is left out."""
    text = value_text(value)
    half = (letters - 2) // 2
    return text if len(text) <= letters else f"{text[:half]}..{text[-half:]}"


def _padded(low: float, high: float, log: bool) -> Axis:
    if high <= low:
        more = 0.5 if log else abs(low) * 0.1 or 0.5
        return _with_ticks(low - more, high + more, log)
    more = (high - low) * ROOM
    return _with_ticks(low - more, high + more, log)


def _with_ticks(low: float, high: float, log: bool = False, *, whole: bool = False) -> Axis:
    places = _powers(low, high) if log else []
    if len(places) < 2:  # a logarithmic axis may lie between two powers of ten
        places = [(place, 10**place if log else place) for place in _even(low, high)]
    if whole:
        places = [(place, value) for place, value in places if log or value == int(value)]
    return Axis(low, high, tuple((place, value_text(value)) for place, value in places), log)


def _powers(low: float, high: float) -> list[tuple[float, float]]:
    """(place, value) of powers of ten; of 2 and 5 times them, too, where there are few."""
    decades = high - low
    if not decades > 0:
        return []
    every = max(1, round(decades / TICKS))
    digits = (1, 2, 5) if decades < 2.5 else (1,)
    found = []
    for power in range(floor(low), floor(high) + 1):
        for digit in digits if power % every == 0 else ():
            place = power + log10(digit)
            if low - 1e-9 <= place <= high + 1e-9 and abs(place) < 300:
                found.append((place, digit * 10.0**power))
    return found


def _even(low: float, high: float) -> list[float]:
    """A few round numbers between the two."""
    rough = (high - low) / TICKS
    if not (isfinite(rough) and rough > 0):
        return [low]
    power = 10.0 ** floor(log10(rough))
    step = next((digit * power for digit in EVEN if digit * power >= rough * 0.999), rough)
    first = ceil(low / step - 1e-9)
    count = floor((high - first * step) / step + 1e-9) + 1
    return [round((first + n) * step, 12 - floor(log10(step))) for n in range(min(count, 20))]
