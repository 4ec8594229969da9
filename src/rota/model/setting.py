"""Settings of policies as text."""

from typing import Any


def setting_text(value: Any) -> str:
    """A setting as users give it: 60, not 60.0, and 1,16 for several values."""
    if isinstance(value, tuple | list):
        return ",".join(map(setting_text, value))
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return str(value)
