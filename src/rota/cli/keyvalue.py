"""Texts on the command line that stand for values: ``KEY=VALUE`` settings, and sizes."""

from collections.abc import Iterable

from rota.errors import InputError, PolicySettingError

SIZES = {"KiB": 10, "MiB": 20, "GiB": 30, "TiB": 40}


def parse_pairs(texts: Iterable[str], whose: str) -> dict[str, str]:
    """``key=value`` texts as a mapping. Raises PolicySettingError; ``whose`` begins its message."""
    given: dict[str, str] = {}
    for text in texts:
        key, equals, value = (part.strip() for part in text.partition("="))
        if not (key and equals):
            raise PolicySettingError(
                f"{whose}: the setting {text!r} is not of the form KEY=VALUE; "
                "write for example thresholds=600,1800"
            )
        if key in given:
            raise PolicySettingError(f"{whose}: the setting {key!r} is given twice; drop one")
        given[key] = value
    return given


def parse_policy(text: str, more: Iterable[str] = ()) -> tuple[str, dict[str, str]]:
    """``name:key=value:...`` and further ``key=value`` texts as (name, settings).

    Raises PolicySettingError.
    """
    name, *parts = text.split(":")
    return name, parse_pairs((*parts, *more), f"policy {name}")


def parse_size(option: str, text: str) -> int:
    """``8GiB`` in bytes. Raises InputError, which begins with the option."""
    number, shift = text.strip(), 0
    for unit, power in SIZES.items():
        if number.endswith(unit):
            number, shift = number.removesuffix(unit).strip(), power
    try:
        size = float(number) * 2**shift
        if 0 <= size < 2**60:
            return int(size)
    except ValueError:
        pass
    raise InputError(
        f"{option} {text!r} is not a size; write for example 8GiB or 512MiB, or a number of bytes"
    )
