"""Aligned plain text tables."""

import os
import shutil
import sys
import textwrap
from collections.abc import Sequence
from math import inf

GAP = 2


def width_of_terminal() -> float:
    """Columns of the terminal that stdout is, or what COLUMNS says; without end if it is none."""
    wide = shutil.get_terminal_size((0, 0)).columns
    on_terminal = sys.stdout is not None and sys.stdout.isatty()
    return wide if wide > 0 and (on_terminal or os.environ.get("COLUMNS")) else inf


def wide(header: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """Number of terminal columns that the table takes."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    return sum(widths) + GAP * (len(widths) - 1)


def fitting(text: str, width: float) -> str:
    """A sentence, in as many lines as ``width`` demands."""
    return text if len(text) <= width else "\n".join(textwrap.wrap(text, int(width)))


def in_parts(header: Sequence[str], rows: Sequence[Sequence[str]], width: float) -> str:
    """The rows in as many tables one under the other as ``width`` demands.

    Each begins with the first column, and has at least one other.
    """
    columns = list(zip(header, *rows, strict=True))
    widths = [max(map(len, column)) + GAP for column in columns]
    parts: list[list[int]] = []
    for index in range(1, len(columns)):
        if parts and sum(widths[i] for i in (0, *parts[-1], index)) - GAP <= width:
            parts[-1].append(index)
        else:
            parts.append([index])
    tables = []
    for part in parts:
        head, *body = zip(columns[0], *(columns[index] for index in part), strict=True)
        tables.append(render(head, body))
    return "\n\n".join(tables)


def render(header: Sequence[str], rows: Sequence[Sequence[str]], *, text_columns: int = 1) -> str:
    """The rows under their header: the first ``text_columns`` to the left, numbers to the right."""
    widths = [max(len(cell) for cell in column) for column in zip(header, *rows, strict=True)]
    lines = []
    for row in (header, *rows):
        cells = [
            cell.ljust(width) if index < text_columns else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append((" " * GAP).join(cells).rstrip())
    return "\n".join(lines)
