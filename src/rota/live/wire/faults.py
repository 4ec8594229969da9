"""Checks a message against its declaration: names the wrong field, and what it must be."""

import re
from functools import cache
from typing import Any, NamedTuple

import msgspec
from msgspec.inspect import (
    BoolType,
    DictType,
    ListType,
    LiteralType,
    Metadata,
    NoneType,
    StrType,
    StructType,
    Type,
    UnionType,
    type_info,
)

PLACE = re.compile(r" - at `(?:key` in `)?\$\.?([^`]*)`$")
MISSING = re.compile(r"missing required field `(\w+)`")
STEP = re.compile(r"(\w+)|\[(\d+)\]|\[\.\.\.\]")
NAMES: dict[type[Type], str] = {
    StrType: "text",
    BoolType: "true or false",
    ListType: "a list",
    StructType: "an object",
    DictType: "an object",
}


class Fault(NamedTuple):
    """The first field of a message that does not match its declaration.

    ``field`` is its path: ``attempts[0].attempt``; ``wanted`` says what it must be.
    """

    field: str
    value: Any
    wanted: str


def fault_in(message: Any, kind: type[msgspec.Struct]) -> Fault | None:
    """The fault of a message that should be of this kind; None if it has none.

    Where a declaration has a description, that says what the field must be, and nothing below it is
    named.
    """
    try:
        msgspec.convert(message, kind)
        return None
    except msgspec.ValidationError as error:
        path, missing = PLACE.search(str(error)), MISSING.search(str(error))
        steps: list[str | int] = []
        for name, index in STEP.findall(path[1] if path is not None else ""):
            if name or index:
                steps.append(name or int(index))
        if missing is not None:
            steps.append(missing[1])
        return _fault(message, _declared(kind), steps)


@cache
def _declared(kind: type[msgspec.Struct]) -> Type:
    return type_info(kind)


def _fault(value: Any, declared: Type, steps: list[str | int]) -> Fault:
    field = ""
    for step in steps:
        said, kinds = _open(declared)
        if said:
            break
        if isinstance(step, int):
            field += f"[{step}]"
            value = value[step]
            declared = kinds[0].item_type if isinstance(kinds[0], ListType) else kinds[0]
        else:
            field += f".{step}" if field else step
            declared = _field(kinds, value, step)
            value = value.get(step)
    return Fault(field, value, _wanted(declared))


def _open(declared: Type) -> tuple[str, list[Type]]:
    """The description of a value, or "", and the types it may have if it is present."""
    if isinstance(declared, Metadata):
        said, kinds = _open(declared.type)
        return (declared.extra_json_schema or {}).get("description", said), kinds
    if isinstance(declared, UnionType):
        every = [_open(each) for each in declared.types if not isinstance(each, NoneType)]
        said = next(filter(None, (said for said, _ in every)), "")
        return said, [kind for _, kinds in every for kind in kinds]
    return "", [declared]


def _field(kinds: list[Type], value: Any, name: str) -> Type:
    """The declared type of a field. Among several, the value's own ``type`` decides."""
    objects = [each for each in kinds if isinstance(each, StructType)]
    if len(objects) > 1:
        objects, every = [each for each in objects if each.tag == value.get("type")], objects
        if not objects:
            return LiteralType(tuple(each.tag for each in every))
    if isinstance(kinds[0], DictType):
        return kinds[0].value_type
    if name == objects[0].tag_field:
        return LiteralType((objects[0].tag,))
    return next(each.type for each in objects[0].fields if each.encode_name == name)


def _wanted(declared: Type) -> str:
    said, (kind, *others) = _open(declared)
    if said or others:
        return said or "an object"
    if isinstance(kind, LiteralType):
        return f"one of {', '.join(map(str, kind.values))}"
    return NAMES.get(type(kind), "a number")
