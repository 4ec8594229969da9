"""Interactive figures of simulated runs."""

from __future__ import annotations

from collections.abc import Sequence
from math import nan
from typing import TYPE_CHECKING, Any

from rota.report.comparison import BY_KEY, Entry
from rota.report.curves import bin_groups, colour_of_piece, completion, over_point, stairs
from rota.report.page import colour_of, dash_of, labelled
from rota.report.sketch import SEVERAL, Piece, Sketch

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

MANY_PIECES = 4000  # beyond, the graphics processor draws them


def completion_chart(entries: Sequence[Entry]) -> Figure:
    """The share of jobs that had completed within a time of their submission, by entry."""
    figure = _lines((entry.label, *completion(entry)) for entry in entries)
    figure.update_layout(height=440)
    figure.update_xaxes(type="log", dtick=1)
    figure.update_yaxes(tickformat=".0%", range=[0, 1.02])
    return labelled(figure, "", "job completion time in seconds", "jobs completed")


def course_chart(entries: Sequence[Entry], column: str, y_title: str, share: bool) -> Figure:
    """A column of each entry's course over time, of its first seed."""
    figure = _lines(
        (entry.label, *stairs(entry.sketches[0].course, column))
        for entry in entries
        if entry.sketches
    )
    figure.update_layout(height=380)
    if share:
        figure.update_yaxes(tickformat=".0%", range=[0, 1.05])
    figure.update_yaxes(rangemode="tozero")
    return labelled(figure, "", "hours", y_title)


def bins_chart(entries: Sequence[Entry], key: str, y_title: str) -> Figure:
    """A figure by job-size bin: one group for each bin, one bar for each entry."""
    from plotly.graph_objects import Bar, Figure

    figure = Figure()
    for index, entry in enumerate(entries):
        names, means, widths = bin_groups(entry, key)
        figure.add_trace(
            Bar(
                name=entry.label,
                x=names,
                y=means,
                error_y=_whiskers(widths),
                marker={"color": colour_of(index)},
            )
        )
    figure.update_layout(barmode="group", height=400)
    figure.update_yaxes(type="log")
    return labelled(figure, "", "", y_title)


def sweep_chart(entries: Sequence[Entry], axis: str, key: str) -> Figure:
    """A figure over the values of ``axis``, one line for each policy and each other point."""
    figure = _lines(over_point(entries, axis, key), markers=True)
    figure.update_layout(height=400)
    figure.update_yaxes(rangemode="tozero")
    return labelled(figure, "", axis, BY_KEY[key].heading)


def gpus_chart(entries: Sequence[Entry]) -> Figure:
    """Who held which GPU in the first seed: one line for each GPU; a menu chooses the entry.

    Colours repeat; pieces in grey are several short turns in a row.
    """
    from plotly.graph_objects import Figure

    figure = Figure()
    drawn = [entry for entry in entries if entry.sketches and entry.sketches[0].pieces]
    owner: list[int] = []
    for index, entry in enumerate(drawn):
        for trace in _piece_traces(entry.sketches[0]):
            figure.add_trace(trace.update(visible=index == 0))
            owner.append(index)
    names = drawn[0].sketches[0].gpu_names if drawn else []
    figure.update_layout(height=min(900, 170 + 14 * max(len(names), 8)), showlegend=False)
    labelled(figure, "", "hours", "")
    step = max(1, -(-len(names) // 40))
    figure.update_yaxes(
        tickvals=list(range(0, len(names), step)),
        ticktext=names[::step],
        range=[len(names) - 0.4, -0.6],
        showgrid=False,
        zeroline=False,
    )
    if len(drawn) > 1:
        figure.update_layout(
            updatemenus=[
                {
                    "buttons": [
                        {
                            "label": entry.label,
                            "method": "update",
                            "args": [{"visible": [index == of for of in owner]}],
                        }
                        for index, entry in enumerate(drawn)
                    ],
                    "x": 0,
                    "xanchor": "left",
                    "y": 1.0,
                    "yanchor": "bottom",
                }
            ]
        )
    return figure


def _piece_traces(sketch: Sketch) -> list[Any]:
    import numpy as np
    from plotly.graph_objects import Scatter, Scattergl

    kind = Scattergl if len(sketch.pieces) > MANY_PIECES else Scatter
    width = max(1.0, min(11.0, 560 / max(1, len(sketch.gpu_names))))
    by_colour: dict[str, list[Piece]] = {}
    for piece in sketch.pieces:
        colour = colour_of_piece(piece)
        by_colour.setdefault(colour, []).append(piece)
    traces = []
    for colour, pieces in sorted(by_colour.items()):
        x: list[float] = []
        y: list[float] = []
        text: list[str] = []
        for piece in pieces:
            x += [piece.start_s / 3600, piece.end_s / 3600, nan]
            y += [piece.gpu, piece.gpu, nan]
            job = "several jobs" if piece.row == SEVERAL else f"job {sketch.job_ids[piece.row]}"
            words = f"{job}: {piece.start_s:.0f}-{piece.end_s:.0f} s"
            text += [words, words, ""]
        traces.append(
            kind(
                # As arrays they take a quarter of the place in the page.
                x=np.array(x),
                y=np.array(y, dtype=np.float32),
                text=text,
                mode="lines",
                hoverinfo="text",
                line={"color": colour, "width": width},
            )
        )
    return traces


def _whiskers(widths: Sequence[float]) -> dict[str, Any] | None:
    """Half widths of intervals as error bars; None if all are zero or unknown."""
    return {"type": "data", "array": widths, "thickness": 1, "width": 4} if any(widths) else None


def _lines(curves: Any, *, markers: bool = False) -> Figure:
    from plotly.graph_objects import Figure, Scatter

    figure = Figure()
    for index, (name, x, y, *widths) in enumerate(curves):
        figure.add_trace(
            Scatter(
                name=name,
                x=x,
                y=y,
                error_y=_whiskers(widths[0]) if widths else None,
                mode="lines+markers" if markers else "lines",
                line={
                    "color": colour_of(index),
                    "width": 2,
                    "dash": dash_of(index),
                    "shape": "linear" if markers else "hv",
                },
            )
        )
    return figure
