"""Text of jobs and users made harmless to read, lengths of time in brief, the order of names."""

import re
import unicodedata

_HIDING = frozenset(("Cc", "Cf", "Cs", "Zl", "Zp"))


def printable(text: object, keep: str = "") -> str:
    """The text with every character that moves cursors, turns colours or hides written out."""
    whole = str(text)
    if whole.isascii() and whole.isprintable():
        return whole
    return "".join(char if char in keep else _visible(char) for char in whole)


def duration(seconds: float | None) -> str:
    """Such as 45s, 3m20s, 2h05m, 1d03h; a dash for None."""
    if seconds is None:
        return "-"
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02}h"


def _visible(char: str) -> str:
    if unicodedata.category(char) not in _HIDING:
        return char
    return f"\\x{ord(char):02x}" if ord(char) < 256 else f"\\u{ord(char):04x}"


def natural(name: str) -> list[tuple[str, int]]:
    """The key that puts names into the order that people expect: gpu2 comes before gpu10."""
    pieces = re.findall(r"(\D*)(\d{0,18})", name.lower())
    return [(word, int(number or -1)) for word, number in pieces]
