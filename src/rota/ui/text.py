"""Text of jobs and users on pages: in one line, and cut to a length."""

import re

from rota.report.text import printable

MOST_CHARS = 200  # of a name, a reason or a message
MOST_LINE_CHARS = 2000  # of a line of output

_ESCAPES = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~])?"
)


def plain(value: object, most: int = MOST_CHARS) -> str:
    """The text in one line of at most ``most`` characters.

    Characters that move cursors, turn the direction of writing or hide are written out.
    """
    text = str(value)
    cut = printable(text[:most])[: 2 * most]
    return f"{cut}…" if len(text) > most else cut


def log_line(line: str) -> str:
    """A line of output without its terminal escapes, as :func:`plain` otherwise; tabs stay."""
    line = _ESCAPES.sub("", line[: 4 * MOST_LINE_CHARS]) if "\x1b" in line else line
    line = line.rpartition("\r")[2] or line.strip("\r")  # a bar of progress is its last state
    return "\t".join(plain(part, MOST_LINE_CHARS) for part in line.split("\t")[:MOST_LINE_CHARS])[
        : 2 * MOST_LINE_CHARS
    ]


def number(value: object) -> str:
    """A number to four digits; anything else as :func:`plain` has it."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return plain(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
