"""The sizes of jobs that a user tells a policy: numbers, a file of them, or word to learn them.

Sizes are GPU-seconds: GPUs times run time.
"""

from dataclasses import dataclass
from math import inf, isfinite
from pathlib import Path

from rota.errors import InputError


@dataclass(frozen=True)
class Distribution:
    """The distribution of job sizes: the user's text, and the sizes in it."""

    text: str
    sizes: tuple[float, ...] = ()

    def __str__(self) -> str:
        return self.text


# It has no sizes of its own: they are those of the jobs that have ended so far.
LEARNED = Distribution("learned")


def parse_distribution(text: str) -> Distribution:
    """``learned``, GPU-seconds such as ``4,8,12``, or a file of them. ValueError."""
    if text == LEARNED.text:
        return LEARNED
    try:
        read = parse_sizes if _is_number(text.partition(",")[0]) else read_sizes
        return Distribution(text, tuple(read(text)))
    except InputError as error:
        raise ValueError(str(error)) from None


def parse_sizes(text: str) -> list[float]:
    """``4,8,12`` as sizes. Raises InputError."""
    return [_size(part, f"the distribution {text[:80]!r}") for part in text.split(",")]


def read_sizes(path: str | Path) -> list[float]:
    """The sizes in a file: one number a line, the last of its columns; the first may be a heading.

    Raises InputError that names the line.
    """
    path = Path(path)
    try:
        lines = path.read_text("utf-8-sig").splitlines()
    except OSError as error:
        raise InputError(
            f"distribution {path}: {error.strerror or error}; give a file of GPU-seconds, one a "
            "line, or the numbers themselves, comma-separated"
        ) from None
    except UnicodeDecodeError as error:
        raise InputError(
            f"distribution {path}: not UTF-8 text at byte {error.start}; give a text file of "
            "GPU-seconds, one a line"
        ) from None
    cells = [(number, line.split(",")[-1].strip()) for number, line in enumerate(lines, 1)]
    cells = [(number, cell) for number, cell in cells if cell]
    if cells and cells[0][0] == 1 and not _is_number(cells[0][1]):
        del cells[0]
    if not cells:
        raise InputError(f"distribution {path}: it has no numbers; one is needed on each line")
    return [_size(cell, f"distribution {path}, line {number}") for number, cell in cells]


def _size(text: str, where: str) -> float:
    value = float(text) if _is_number(text) else 0.0
    if not 0 < value < inf:
        raise InputError(f"{where}: {text.strip()[:80]!r} must be GPU-seconds, a number above zero")
    return value


def _is_number(text: str) -> bool:
    """True if the text is a number other than NaN and infinity."""
    try:
        return isfinite(float(text))
    except ValueError:
        return False
