"""Lengths of time in words, and round values for the axes of figures."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, floor, log10
from typing import NamedTuple

MINUTE_S, HOUR_S, DAY_S = 60.0, 3600.0, 86_400.0
MOST_TICKS = 8
WORTH_A_LOG = 10.0  # an axis whose ends differ by less is linear


class Unit(NamedTuple):
    """A unit of time: its name, its sign, and how long it is."""

    name: str
    sign: str
    seconds: float


UNITS = (
    Unit("seconds", "s", 1.0),
    Unit("minutes", "min", MINUTE_S),
    Unit("hours", "h", HOUR_S),
    Unit("days", "d", DAY_S),
)
COARSE = tuple(
    number * unit.seconds
    for unit, numbers in zip(
        UNITS,
        ((0.001, 0.01, 0.1, 1, 10), (1, 10), (1, 10), (1, 10, 100, 1000, 10_000)),
        strict=True,
    )
    for number in numbers
)
FINE = tuple(
    number * unit.seconds
    for unit, numbers in zip(
        UNITS,
        (
            (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30),
            (1, 2, 5, 10, 20, 30),
            (1, 2, 5, 10),
            (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000),
        ),
        strict=True,
    )
    for number in numbers
)


def unit_for(longest_s: float) -> Unit:
    """The largest unit of which there are at least three in the longest time."""
    return [unit for unit in UNITS if unit.seconds * 3 <= longest_s or unit.seconds == 1][-1]


def written(seconds: float) -> str:
    """A length of time in its two largest units: ``3 h 20 min``, ``42.5 s``."""
    if seconds < MINUTE_S - 0.5:
        return f"{seconds:.3g} s"
    for unit, smaller in ((UNITS[3], UNITS[2]), (UNITS[2], UNITS[1]), (UNITS[1], UNITS[0])):
        parts = round(seconds / smaller.seconds)
        many, rest = divmod(parts, round(unit.seconds / smaller.seconds))
        if many:
            more = f" {rest} {smaller.sign}" if rest else ""
            return f"{many:,} {unit.sign}{more}"
    return f"{seconds:.3g} s"


def time_ticks(least_s: float, most_s: float) -> list[float]:
    """Round times between two, in seconds, for a logarithmic axis; with those just outside."""
    for steps in (FINE, COARSE):
        inside = [step for step in steps if least_s <= step <= most_s]
        if len(inside) <= MOST_TICKS:
            break
    below = [step for step in steps if step < least_s][-1:]
    above = [step for step in steps if step > most_s][:1]
    return [*below, *inside, *above]


def linear_ticks(most_s: float, unit: Unit) -> list[float]:
    """About six round times from zero to one, in seconds; whole numbers of the unit if it can."""
    rough = max(most_s, 1e-9) / unit.seconds / 6
    power = 10.0 ** floor(log10(rough))
    step = next(digit * power for digit in (1, 2, 5, 10) if digit * power >= rough) * unit.seconds
    return [step * count for count in range(int(most_s / step) + 1)]


def ratio_ticks(most: float) -> list[float]:
    """1, 2, 5, 10, ... up to the first that is not below ``most``; powers of 10 if it is far."""
    decades = max(1, ceil(log10(max(most, 1.0))))
    digits: Sequence[int] = (1, 2, 5) if decades <= 2 else (1,)
    steps = [float(digit * 10**power) for power in range(decades + 1) for digit in digits]
    return steps[: next((i for i, step in enumerate(steps) if step >= most), len(steps) - 1) + 1]


def plain(value: float) -> str:
    """A tick's number without powers of ten."""
    return f"{value:,.0f}" if value == floor(value) else f"{value:g}"
