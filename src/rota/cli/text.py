"""Words and numbers for a terminal: times, sizes, and text in columns."""

import textwrap
import time
from collections.abc import Callable

_ahead_s: Callable[[], float] = float


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
