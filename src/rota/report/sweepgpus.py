"""Interactive timeline of a sweep's GPUs: a line for each GPU, a bar for each turn."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from rota.report.curves import colour_of_piece
from rota.report.duration import unit_for
from rota.report.plotly_style import labelled
from rota.report.sketch import SEVERAL, Piece, thinned_pieces
from rota.report.sweep import SweepStory
from rota.report.sweepturns import MOST_BARS, MOST_NAMED, THINNEST

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

ROW = 0.86  # part of a line's height that its bars fill
MOST_NUMBERED = 1000  # bars with the number of their trial


def gpus_chart(story: SweepStory) -> Figure:
    """Timeline of GPUs: a line for each GPU that trials had, a bar for each turn.

    The bars of trials that share a GPU lie one above the other. Colours repeat; grey are several
    short turns in a row.
    """
    import numpy as np
    from plotly.graph_objects import Bar, Figure

    held = {gpu for trial in story.trials for turn in trial.ran for gpu in turn.gpus}
    names = sorted(held, key=_order)
    row = {name: index for index, name in enumerate(names)}
    pieces = thinned_pieces(
        [
            Piece(row[gpu], turn.start_s, turn.stop_s, trial.number)
            for trial in story.trials
            for turn in trial.ran
            for gpu in turn.gpus
        ],
        max(MOST_BARS, len(names)),
    )
    lanes = _lanes(pieces, story.end_s / THINNEST)
    widths = np.array([ROW / count for _, count in lanes], dtype=np.float32)
    unit = unit_for(story.end_s)
    starts = np.array([piece.start_s for piece in pieces]) / unit.seconds
    stops = np.array([piece.end_s for piece in pieces]) / unit.seconds
    figure = Figure(
        Bar(
            base=starts.astype(np.float32),
            x=(stops - starts).astype(np.float32),
            y=np.array([piece.gpu for piece in pieces])
            - ROW / 2
            + widths * (np.array([lane for lane, _ in lanes], dtype=np.float32) + 0.5),
            width=widths,
            orientation="h",
            marker={"color": [colour_of_piece(piece) for piece in pieces], "line": {"width": 0}},
            text=[_number(piece) for piece in pieces] if len(pieces) <= MOST_NUMBERED else None,
            textposition="inside",
            insidetextanchor="middle",
            textangle=0,
            hovertext=[f"{_who(piece)} on {escape(names[piece.gpu])}" for piece in pieces],
            hovertemplate="%{hovertext}<br>from %{base:.3f} to %{x:.3f} "
            f"{unit.sign}<extra></extra>",
        )
    )
    every = -(-len(names) // MOST_NAMED) or 1
    figure.update_yaxes(
        tickvals=list(range(0, len(names), every)),
        ticktext=[escape(name) for name in names[::every]],
        range=[len(names) - 0.4, -0.6],
        showgrid=False,
        zeroline=False,
    )
    figure.update_xaxes(range=[0, story.end_s / unit.seconds or 1.0])
    line_px = max(4.0, min(26.0, 900 / max(1, len(names))))
    figure.update_layout(
        barmode="overlay",
        hovermode="closest",
        height=140 + line_px * len(names),
        uniformtext={"mode": "hide", "minsize": 10},
    )
    return labelled(figure, "", f"{unit.name} since the submission", "")


def _order(gpu: str) -> list[str | int]:
    """Sort key by the numbers in the name: node2:0 before node10:0."""
    return [int(part) if part.isdecimal() else part for part in re.split("([0-9]+)", gpu)]


def _number(piece: Piece) -> str:
    return "" if piece.row == SEVERAL else str(piece.row)


def _who(piece: Piece) -> str:
    return "several trials" if piece.row == SEVERAL else f"trial {piece.row}"


def _lanes(pieces: Sequence[Piece], least_s: float) -> list[tuple[int, int]]:
    """(lane, number of lanes on its GPU) of each piece: longer overlaps need several lanes."""
    ends: dict[int, list[float]] = {}  # of the last piece in each lane of a GPU
    found = {}
    for piece in sorted(pieces, key=lambda piece: (piece.start_s, piece.end_s)):
        lanes = ends.setdefault(piece.gpu, [])
        free = (n for n, end_s in enumerate(lanes) if end_s <= piece.start_s + least_s)
        lane = next(free, len(lanes))
        lanes[lane : lane + 1] = [piece.end_s]
        found[piece] = lane
    return [(found[piece], len(ends[piece.gpu])) for piece in pieces]
