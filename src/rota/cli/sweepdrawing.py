"""A sweep drawn with letters: its curves, and who ran when."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import click

from rota.report.duration import written
from rota.report.sweep import FAILED, RUNNING, SweepStory, TrialStory, thinned, values_of
from rota.report.sweepaxes import Axis, step_axis, value_axis
from rota.report.text import printable

HIGH = 10  # lines of a picture of curves
LEAST, MOST = 24, 100  # columns of a picture
MOST_POINTS = 200  # of a curve
# A Braille letter is two dots wide and four high; these are its dots' bits by column and line.
BLANK = 0x2800
DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
BARS, PLAIN_BARS = ("█", "▒", "·"), ("#", "+", ".")  # ran; ran for a part; waited
BEST = {"fg": "yellow", "bold": True}
COLOUR = {FAILED: {"fg": "red"}, RUNNING: {"fg": "green"}}


class Canvas:
    """Dots in two layers, of which the upper hides the lower; ``plain`` without Braille."""

    def __init__(self, columns: int, lines: int, plain: bool) -> None:
        self._columns, self._lines, self._plain = columns, lines, plain
        self._letter = (1, 1) if plain else (2, 4)
        self.wide, self.high = columns * self._letter[0], lines * self._letter[1]
        self._layers: tuple[dict[tuple[int, int], int], ...] = ({}, {})

    def line(self, start: tuple[float, float], end: tuple[float, float], layer: int) -> None:
        """Draw a line between two places, each from (0, 0) at the lower left to (1, 1)."""
        (x0, y0), (x1, y1) = (
            (round(x * (self.wide - 1)), round((1 - y) * (self.high - 1))) for x, y in (start, end)
        )
        steps = max(abs(x1 - x0), abs(y1 - y0), 1)
        for step in range(steps + 1):
            x, y = x0 + round((x1 - x0) * step / steps), y0 + round((y1 - y0) * step / steps)
            across, down = self._letter
            cell = (x // across, y // down)
            bit = DOTS[x % across][y % down]
            self._layers[layer][cell] = self._layers[layer].get(cell, 0) | bit

    def line_of(self, y: float) -> int:
        """Line of characters, from the top, at a height."""
        return round((1 - y) * (self.high - 1)) // self._letter[1]

    def rows(self) -> Iterator[str]:
        """The lines of letters, the upper layer in colour."""
        for line in range(self._lines):
            yield "".join(self._cell((column, line)) for column in range(self._columns))

    def _cell(self, cell: tuple[int, int]) -> str:
        below, above = (layer.get(cell, 0) for layer in self._layers)
        if above:
            return click.style("*" if self._plain else chr(BLANK | above), fg="yellow", bold=True)
        if below:
            return "." if self._plain else chr(BLANK | below)
        return " "


def curves_lines(story: SweepStory, width: float, *, plain: bool) -> list[str]:
    """A picture of the curves in ``width`` columns, the best one above the others.

    Nothing if no trial has a value.
    """
    curves = [trial for trial in story.trials if trial.best is not None]
    if not curves:
        return []
    lasts = [trial.curve[-1].step for trial in curves]
    across = step_axis(lasts, min(trial.curve[0].step for trial in curves))
    up = value_axis(list(values_of(story)), story.maximize)
    margin = max(len(text) for _, text in up.ticks) + 2
    canvas = Canvas(_columns(width - margin - 3), HIGH, plain)
    ticks = {canvas.line_of(up.part_of(place)): text for place, text in up.ticks}
    for trial in curves:
        layer = int(trial.number == story.winner)
        points = [
            (across.part(report.step), up.part(report.value))
            for report in thinned(trial.curve, MOST_POINTS)
            if report.value is not None
        ]
        for start, end in pairwise([*points[:1], *points]):  # a point alone is a line, too
            canvas.line(start, end, layer)
    side, corner = ("|", "+") if plain else ("┤", "└")
    rail = "|" if plain else "│"
    lines = [
        f"{ticks.get(n, ''):>{margin}} {side if n in ticks else rail}{row}".rstrip()
        for n, row in enumerate(canvas.rows())
    ]
    below = ("-" if plain else "─") * (canvas.wide // (1 if plain else 2))
    best = "" if story.winner is None else f"; the bright one is trial {story.winner}"
    return [
        f"{printable(story.metric)} by step{best}",
        *lines,
        " " * (margin + 1) + corner + below,
        " " * (margin + 2) + _words_below(across, len(below)),
    ]


def _words_below(axis: Axis, columns: int) -> str:
    """The words of an axis where they belong, as far as they don't meet."""
    text = ""
    for place, word in axis.ticks:
        start = max(0, round(axis.part_of(place) * (columns - 1)) - len(word) // 2)
        start = min(start, columns - len(word))
        if start >= len(text) + (2 if text else 0):
            text = text.ljust(start) + word
    return text


def turns_lines(
    story: SweepStory, trials: Sequence[TrialStory], width: float, *, plain: bool
) -> list[str]:
    """A line for each of ``trials``: where it ran, and where it waited. Nothing without time."""
    if story.end_s <= 0 or not any(trial.ran for trial in trials):
        return []
    margin = max(len(str(trial.number)) for trial in trials) + 2
    columns = _columns(width - margin - 2)
    lines = []
    for trial in trials:
        bar = _bar(story, trial, columns, PLAIN_BARS if plain else BARS)
        style = BEST if trial.number == story.winner else COLOUR.get(trial.standing)
        lines.append(f"{trial.number:>{margin}} {click.style(bar, **style) if style else bar}")
    end = written(story.end_s)
    full, some, waits = PLAIN_BARS if plain else BARS
    title = f"who ran when: {full} ran, {some} for a part of the time, {waits} waited"
    return [title, *lines, " " * (margin + 1) + "0" + end.rjust(columns - 1)]


def _bar(story: SweepStory, trial: TrialStory, columns: int, letters: Sequence[str]) -> str:
    cell_s = story.end_s / columns
    held_s = [0.0] * columns
    for start_s, stop_s, _ in trial.ran:
        for n in range(max(0, int(start_s / cell_s)), columns):
            if n * cell_s >= stop_s:
                break
            held_s[n] += max(0.0, min(stop_s, (n + 1) * cell_s) - max(start_s, n * cell_s))
    finish_s = story.end_s if trial.finish_s is None else trial.finish_s
    full, some, waits = letters
    cells = []
    for n, seconds in enumerate(held_s):
        alive = trial.submit_s < (n + 1) * cell_s and n * cell_s < finish_s
        empty = waits if alive else " "
        cells.append(full if seconds > cell_s / 2 else some if seconds > 0 else empty)
    return "".join(cells).rstrip()


def _columns(room: float) -> int:
    return int(min(MOST, max(LEAST, room)))
