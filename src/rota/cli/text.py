"""Words and numbers for a terminal: durations, sizes, and text that can't play tricks on it."""

import textwrap
import time
import unicodedata
from collections.abc import Callable

_ahead_s: Callable[[], float] = float


def printable(text: object, keep: str = "") -> str:
    """The text with every character that moves cursors, turns colours or hides written out."""
    return "".join(
        char if char in keep or not _is_tricky(char) else _escape(char) for char in str(text)
    )


def _is_tricky(char: str) -> bool:
    return unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp")


def _escape(char: str) -> str:
    return f"\\x{ord(char):02x}" if ord(char) < 256 else f"\\u{ord(char):04x}"


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


def follow(ahead_s: Callable[[], float]) -> None:
    """Let :func:`clock` read times of a cluster whose clock is so far ahead of this machine's."""
    global _ahead_s
    _ahead_s = ahead_s


def clock(at_s: float) -> str:
    """Local time, with the date if it is not today's."""
    local, today = time.localtime(at_s - _ahead_s()), time.localtime()
    is_today = (local.tm_year, local.tm_yday) == (today.tm_year, today.tm_yday)
    return time.strftime("%H:%M:%S" if is_today else "%Y-%m-%d %H:%M:%S", local)


def stamp(at_s: float) -> str:
    """Local time as ISO 8601 has it, to the second, read as :func:`clock` does."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(at_s - _ahead_s()))


def size_text(num_bytes: int) -> str:
    """Such as ``526.4 MiB``."""
    unit, size = "B", float(num_bytes)
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size >= 1024:
            unit, size = larger, size / 1024
    return f"{size:.4g} {unit}"


def number_text(value: object) -> str:
    """A number to five digits; anything else as it is."""
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def times(count: int) -> str:
    """``once``, ``3 times``."""
    return "once" if count == 1 else f"{count} times"


def folded(line: str, width: float, *, indent: int) -> str:
    """A line in as many as ``width`` demands, all but the first ``indent`` columns further in."""
    if len(line) <= width:
        return line
    broken = textwrap.wrap(line, int(width), subsequent_indent=" " * indent, break_on_hyphens=False)
    return "\n".join(broken)
