"""The space of a search: its parameters and their values, as a job file's ``sweep.space`` says."""

import math
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, NamedTuple

from rota.errors import JobFileError, did_you_mean
from rota.model.sweep import Value
from rota.request.values import check_keys, is_number, refuse, text_of, whole_number

KINDS = ("log", "range", "int", "choice")

MAX_DIMENSIONS = 100
MAX_VALUES = 1000  # of a choice
MAX_VALUE_BYTES = 500
MAX_WHOLE = 2**53  # larger whole numbers are not exact as floating-point numbers
MAX_NUMBER = 1e300
MAX_STEPS = 10**9

_PARAMETER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}\Z")
# YAML 1.1 takes 1e-4 for text, and only 1.0e-4 for a number.
_NUMBER = re.compile(r"[-+]?[0-9]{1,300}(\.[0-9]{0,300})?([eE][-+]?[0-9]{1,3})?\Z")
_POWER = re.compile(r"[-+]?[0-9]{1,300}(\.[0-9]{0,300})?[eE][-+]?[0-9]{1,3}\Z")
_EXAMPLE = "write for example: {log: [1.0e-4, 1.0e-1]}, {int: [16, 128]} or {choice: [sgd, adam]}"
_ALMOST = 1e-6  # of a step


class Numbers(NamedTuple):
    """Numbers from ``low`` to ``high``, both included.

    ``whole`` ones are ints, others floats. ``step`` is the distance of neighbours, None if any
    number between the two is possible (any whole one). With ``log``, each order of magnitude is
    equally likely.
    """

    low: float
    high: float
    step: float | None = None
    log: bool = False
    whole: bool = False

    def size(self) -> int | None:
        """Number of values; None if it is unlimited."""
        if self.step is None and not self.whole:
            return None
        return int((_exact(self.high) - _exact(self.low)) // _exact(self.step or 1)) + 1

    def at(self, index: int) -> Value:
        """The number with this index among those that :meth:`size` counts, the least first.

        If they are unlimited, index 0 is the least.
        """
        value = _exact(self.low) + index * _exact(self.step or 1)
        return int(value) if self.whole else min(float(value), float(self.high))

    def fields(self) -> dict[str, Any]:
        """The fields from which :func:`parse_space` makes this dimension."""
        kind = "int" if self.whole else "log" if self.log else "range"
        fields: dict[str, Any] = {kind: [self.low, self.high]}
        if self.step is not None:
            fields["step"] = self.step
        if self.whole and self.log:
            fields["log"] = True
        return fields

    def check(self, field: str, value: Any) -> Value:
        """The value in the dimension's type. Raises JobFileError."""
        kind = "a whole number" if self.whole else "a number"
        fits = is_number(value) and (not self.whole or _is_whole(value))
        if not fits or not self.low <= value <= self.high:
            refuse(field, value, f"write {kind} from {self.low} to {self.high}")
        if self.step is not None:
            steps = (value - self.low) / self.step
            if abs(steps - round(steps)) > _ALMOST:
                refuse(field, value, f"write {self.low} plus a number of steps of {self.step}")
        return int(value) if self.whole else float(value)


class Choice(NamedTuple):
    """One of these values, which have no order."""

    values: tuple[Value, ...]

    def size(self) -> int | None:
        """Number of values; None if it is unlimited."""
        return len(self.values)

    def at(self, index: int) -> Value:
        """The value with this index, in the order of the job file."""
        return self.values[index]

    def fields(self) -> dict[str, Any]:
        """The fields from which :func:`parse_space` makes this dimension."""
        return {"choice": list(self.values)}

    def check(self, field: str, value: Any) -> Value:
        """The value in the dimension's type. Raises JobFileError."""
        for known in self.values:
            if same(known, value):
                return known
        refuse(field, value, f"write one of {', '.join(map(repr, self.values[:10]))}")


Dimension = Numbers | Choice
Space = tuple[tuple[str, Dimension], ...]


def parse_space(fields: Any) -> Space:
    """The dimensions by parameter, in the job file's order. Raises JobFileError."""
    if fields is None:
        return ()
    if not isinstance(fields, Mapping):
        refuse("sweep.space", fields, "write parameters, one a line: lr: {log: [1.0e-4, 1.0e-1]}")
    if len(fields) > MAX_DIMENSIONS:
        raise JobFileError(
            f"sweep.space: {len(fields)} parameters are too many; at most {MAX_DIMENSIONS} work"
        )
    space = []
    for name, value in fields.items():
        check_name("sweep.space", name)
        space.append((name, _dimension(f"sweep.space.{name}", value)))
    return tuple(space)


def space_fields(space: Space) -> dict[str, Any]:
    """The JSON-able fields from which :func:`parse_space` makes this space."""
    return {name: dimension.fields() for name, dimension in space}


def grid_size(space: Space) -> int | None:
    """Number of points of the space; None if it is unlimited."""
    size = 1
    for _, dimension in space:
        values = dimension.size()
        if values is None:
            return None
        size *= values
    return size


def grid_point(space: Space, index: int) -> dict[str, Value]:
    """The point of that index, below :func:`grid_size`; the last parameter changes fastest."""
    values = []
    for _, dimension in reversed(space):
        size = dimension.size()
        assert size is not None, "a grid has an end"
        index, here = divmod(index, size)
        values.append(dimension.at(here))
    return dict(zip((name for name, _ in space), reversed(values), strict=True))


def check_params(space: Space, params: Any) -> tuple[tuple[str, Value], ...]:
    """A trial's parameters, in the order of the space. Raises JobFileError.

    Each parameter of the space must be there, with a value of its dimension, and no other. Without
    a space, any names and values are accepted.
    """
    if not isinstance(params, Mapping):
        refuse("params", params, "write a mapping of parameters to values: {lr: 0.1}")
    if not space:
        if len(params) > MAX_DIMENSIONS:
            raise JobFileError(f"params: at most {MAX_DIMENSIONS} parameters work")
        return tuple(
            (check_name("params", name), value_of(f"params.{name}", value))
            for name, value in params.items()
        )
    dimensions = dict(space)
    for name in params:
        if name not in dimensions:
            hint = did_you_mean(name, dimensions) if isinstance(name, str) else ""
            refuse("params", name, f"the sweep has no such parameter{hint}")
    for name in dimensions:
        if name not in params:
            refuse("params", dict(params), f"{name} is missing")
    return tuple((name, each.check(f"params.{name}", params[name])) for name, each in space)


def check_name(field: str, name: Any) -> str:
    """The name of a parameter, if it is valid. Raises JobFileError."""
    if not isinstance(name, str) or not _PARAMETER.match(name):
        fix = "names of parameters are 1 to 64 letters, digits and _, with no digit first"
        refuse(field, name, fix)
    return name


def value_of(field: str, value: Any) -> Value:
    """A value that a parameter may have: text, a number, true or false. Raises JobFileError."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        if _POWER.match(value):
            return number_of(field, value)
        return text_of(field, value, MAX_VALUE_BYTES)
    if is_number(value):
        return number_of(field, value)
    refuse(field, value, "write text, a number, true or false; put quotes around text")


def same(one: Value, other: Any) -> bool:
    """True if two values are one: 1 and 1.0 are, but neither is true or the text "1"."""
    kinds = {type(one), type(other)}
    return bool(one == other) and (len(kinds) == 1 or kinds == {int, float})


def _dimension(field: str, value: Any) -> Dimension:
    if not isinstance(value, Mapping):
        refuse(field, value, _EXAMPLE)
    kinds = [kind for kind in KINDS if kind in value]
    if kinds == ["log", "int"]:  # {int: [1, 64], log: true}
        kinds = ["int"]
    if len(kinds) != 1:
        if not kinds:
            check_keys(value, (*KINDS, "step"), f"{field}.")
        refuse(field, dict(value), f"give one of {', '.join(KINDS)}; {_EXAMPLE}")
    kind = kinds[0]
    known = {"log": (), "range": ("step",), "int": ("step", "log"), "choice": ()}[kind]
    check_keys(value, (kind, *known), f"{field}.")
    if kind == "choice":
        return _choice(f"{field}.choice", value["choice"])
    return _numbers(field, kind, value)


def _numbers(field: str, kind: str, value: Mapping[str, Any]) -> Numbers:
    whole = kind == "int"
    low, high = _limits(f"{field}.{kind}", value[kind], whole)
    log = kind == "log" or _flag(f"{field}.log", value.get("log", False))
    if log and low <= 0:
        refuse(f"{field}.{kind}", [low, high], "log takes numbers above 0: raise the first one")
    step = value.get("step")
    if step is not None:
        step = _whole(f"{field}.step", step) if whole else number_of(f"{field}.step", step)
        if log:
            refuse(f"{field}.step", step, "log has no steps: leave out the one or the other")
        if step <= 0:
            refuse(f"{field}.step", step, "write a number above 0")
        if step > high - low:
            refuse(f"{field}.step", step, f"it is larger than the range from {low} to {high}")
        if (high - low) / step > MAX_STEPS:
            refuse(f"{field}.step", step, f"at most {MAX_STEPS} steps work from {low} to {high}")
    return Numbers(low, high, step, log, whole)


def _limits(field: str, value: Any, whole: bool) -> tuple[float, float]:
    example = "[16, 128]" if whole else "[0.001, 0.1]"
    if not isinstance(value, list | tuple) or len(value) != 2:
        refuse(field, value, f"write the least and the greatest number, for example {example}")
    low, high = (_whole(field, each) if whole else number_of(field, each) for each in value)
    if low >= high:
        fix = "write the smaller number first; leave out a parameter that has one value only"
        refuse(field, [low, high], fix)
    return low, high


def _choice(field: str, value: Any) -> Choice:
    if not isinstance(value, list | tuple) or not value:
        refuse(field, value, "write the values, for example [sgd, adam]")
    if len(value) > MAX_VALUES:
        raise JobFileError(f"{field}: {len(value)} values are too many; at most {MAX_VALUES} work")
    values: list[Value] = []
    for each in value:
        checked = value_of(field, each)
        if any(same(known, checked) for known in values):
            refuse(field, each, "it is there twice: leave one out")
        values.append(checked)
    return Choice(tuple(values))


def number_of(field: str, value: Any) -> float:
    """The number in a value: an int stays one, and 1e-4, which YAML reads as text, becomes one.

    Raises JobFileError.
    """
    if isinstance(value, str) and _NUMBER.match(value):
        value = float(value)
    if not is_number(value) or not -MAX_NUMBER <= value <= MAX_NUMBER:
        refuse(field, value, "write a number, for example 0.001 or 1.0e-3")
    if isinstance(value, int) and abs(value) > MAX_WHOLE:
        refuse(field, value, f"write whole numbers up to {MAX_WHOLE}")
    return value  # type: ignore[no-any-return]


def _whole(field: str, value: Any) -> int:
    number = whole_number(value)
    if number is None and isinstance(value, float) and _is_whole(value):
        number = int(value)
    if number is None or abs(number) > MAX_WHOLE:
        refuse(field, value, f"write a whole number, up to {MAX_WHOLE}")
    return number


def _exact(value: float) -> Decimal:
    """The number as it is written, so that the third of 0.1, 0.2, ... is exactly 0.3."""
    return Decimal(str(value))


def _is_whole(value: float) -> bool:
    return isinstance(value, int) or (math.isfinite(value) and value == int(value))


def _flag(field: str, value: Any) -> bool:
    if not isinstance(value, bool):
        refuse(field, value, "write true or false")
    return value
