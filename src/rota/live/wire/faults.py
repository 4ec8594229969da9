"""Holding a message against its declaration: which field is wrong, and what it must be."""

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
    """The first field of a message that is not as it is declared.

    ``field`` is its path: ``attempts[0].attempt``; ``wanted`` says what it must be.
    """

    field: str
    value: Any
    wanted: str


def fault_in(message: Any, kind: type[msgspec.Struct]) -> Fault | None:
    """What is wrong with a message that should be of this kind; None if nothing is.

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
        bare, described = _bare(declared, value)
        if described:
            break
        declared = bare
        if isinstance(step, int):
            field += f"[{step}]"
            value = value[step]
            declared = declared.item_type if isinstance(declared, ListType) else declared
        else:
            field += f".{step}" if field else step
            value = value.get(step)
            declared = _field(declared, step)
    return Fault(field, value, _wanted(declared, value))


def _bare(declared: Type, value: Any) -> tuple[Type, str]:
    """Without what is only said about it, and the description if there is one.

    Of several objects that a field may be it is the one that its type names.
    """
    described = ""
    while True:
        if isinstance(declared, Metadata):
            described = (declared.extra_json_schema or {}).get("description", "")
            declared = declared.type
        elif isinstance(declared, UnionType):
            kinds = [each for each in declared.types if not isinstance(each, NoneType)]
            if len(kinds) > 1 and not all(isinstance(each, StructType) for each in kinds):
                return declared, described
            tag = value.get("type") if isinstance(value, dict) else None
            declared = next((k for k in kinds if getattr(k, "tag", tag) == tag), kinds[0])
            if len(kinds) > 1 and getattr(declared, "tag", tag) != tag:
                return UnionType(tuple(kinds)), described
        else:
            return declared, described


def _field(declared: Type, name: str) -> Type:
    if isinstance(declared, UnionType):  # of objects, and nothing says which one: its type is wrong
        tags = tuple(each.tag for each in declared.types if isinstance(each, StructType))
        return LiteralType(tags)
    if isinstance(declared, DictType):
        return declared.value_type
    assert isinstance(declared, StructType)
    return next(each.type for each in declared.fields if each.encode_name == name)


def _wanted(declared: Type, value: Any) -> str:
    described = _description(declared)
    if described:
        return described
    bare, described = _bare(declared, value)
    if isinstance(bare, UnionType):
        return "an object"
    if isinstance(bare, LiteralType):
        return f"one of {', '.join(map(str, bare.values))}"
    return described or NAMES.get(type(bare), "a number")


def _description(declared: Type) -> str:
    """What is said about a field, or about what it is if it is not left out."""
    if isinstance(declared, UnionType):
        return next(filter(None, map(_description, declared.types)), "")
    if isinstance(declared, Metadata):
        return str((declared.extra_json_schema or {}).get("description", ""))
    return ""
