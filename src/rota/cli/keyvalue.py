"""``KEY=VALUE`` texts on the command line: settings of policies."""

from collections.abc import Iterable

from rota.errors import PolicySettingError


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
