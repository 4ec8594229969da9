"""Text from jobs and users, made harmless to read: no control characters, and cut to a length."""

import re
import unicodedata

MOST_CHARS = 200  # of a name, a reason or a message
MOST_LINE_CHARS = 2000  # of a line of output

_ESCAPES = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~])?"
)
_HIDING = frozenset(("Cc", "Cf", "Cs", "Zl", "Zp"))


def plain(value: object, most: int = MOST_CHARS) -> str:
    """The text in one line of at most ``most`` characters.

    Characters that move cursors, turn the direction of writing or hide are written out.
    """
    text = str(value)
    cut = text[:most]
    if not cut.isascii() or not cut.isprintable():
        cut = "".join(_visible(char) for char in cut)[: 2 * most]
    return f"{cut}…" if len(text) > most else cut


def log_line(line: str) -> str:
    """A line of output without its terminal escapes, as :func:`plain` otherwise; tabs stay."""
    line = _ESCAPES.sub("", line[: 4 * MOST_LINE_CHARS]) if "\x1b" in line else line
    line = line.rpartition("\r")[2] or line.strip("\r")  # a bar of progress is its last state
    return "\t".join(plain(part, MOST_LINE_CHARS) for part in line.split("\t")[:MOST_LINE_CHARS])[
        : 2 * MOST_LINE_CHARS
    ]


def duration(seconds: float | None) -> str:
    """Such as 45s, 3m20s, 2h05m, 1d03h; a dash for None."""
    if seconds is None:
        return "–"
    whole = int(max(0.0, seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02}h"


def number(value: object) -> str:
    """A number to four digits; anything else as :func:`plain` has it."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return plain(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def _visible(char: str) -> str:
    if unicodedata.category(char) not in _HIDING:
        return char
    return f"\\x{ord(char):02x}" if ord(char) < 256 else f"\\u{ord(char):04x}"
