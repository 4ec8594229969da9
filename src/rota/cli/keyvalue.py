"""Texts on the command line that stand for values: ``KEY=VALUE`` settings, and sizes."""

from collections.abc import Iterable

from rota.errors import InputError, PolicySettingError, closest

SIZES = {"KiB": 10, "MiB": 20, "GiB": 30, "TiB": 40}


def parse_policy(text: str, more: Iterable[str] = ()) -> tuple[str, dict[str, str]]:
    """``name:key=value:...`` and further ``key=value`` texts as (name, settings).

    Raises PolicySettingError.
    """
    name, *parts = text.split(":")
    return name, parse_settings(name, (*parts, *more))


def parse_settings(policy: str, texts: Iterable[str]) -> dict[str, str]:
    """``key=value`` texts as settings of a policy. Raises PolicySettingError for other forms."""
    given: dict[str, str] = {}
    for text in texts:
        key, equals, value = (part.strip() for part in text.partition("="))
        if not (key and equals):
            raise PolicySettingError(
                f"policy {policy}: the setting {text!r} is not of the form KEY=VALUE; "
                + _example(policy, key)
            )
        if key in given:
            raise PolicySettingError(
                f"policy {policy}: the setting {key!r} is given twice; drop one"
            )
        given[key] = value
    return given


def _example(policy: str, key: str) -> str:
    """An example of the policy's setting that ``key`` resembles, or else of its first setting.

    Raises PolicySettingError if there is no such policy.
    """
    from rota.policy.registry import settings  # here: it loads the policy

    known = settings(policy)
    if not known:
        return "it takes no settings"
    meant = closest(key, known) or next(iter(known))
    default = known[meant].default
    values = default if isinstance(default, tuple) else (default,)
    words = (f"{value:g}" if isinstance(value, float) else str(value) for value in values)
    return f"write for example {meant}={','.join(words)}"


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
