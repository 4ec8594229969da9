"""Interactive timeline of GPUs: a line for each GPU, a bar for each turn."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import ceil, nan
from typing import TYPE_CHECKING, Any

from rota.report.comparison import Entry
from rota.report.curves import colour_of_piece, named, nodes_of
from rota.report.duration import Unit, unit_for, written
from rota.report.plotly_style import labelled
from rota.report.sketch import SEVERAL, Piece, Sketch

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

MANY_PIECES = 4000  # beyond, the graphics processor draws them, as lines
MOST_NAMES = 30
MOST_RULES = 64
STRETCHES = 60  # a line can be pointed at in so many places along the figure


def gpus_chart(entries: Sequence[Entry]) -> Figure:
    """Timeline of the GPUs in the first seed, by node; a menu chooses the entry.

    Colours repeat; pieces in grey are several short turns in a row.
    """
    from plotly.graph_objects import Figure

    figure = Figure()
    drawn = [entry for entry in entries if entry.sketches and entry.sketches[0].pieces]
    if not drawn:
        return figure
    sketches = [entry.sketches[0] for entry in drawn]
    unit = unit_for(max(sketch.end_s for sketch in sketches))
    owner: list[int] = []
    for index, entry in enumerate(drawn):
        for trace in _traces(entry, unit):
            figure.add_trace(trace.update(visible=index == 0))
            owner.append(index)
    shown = [[index == of for of in owner] for index in range(len(drawn))]
    axes = [_gpu_axis(sketch) for sketch in sketches]
    rows = max(len(sketch.gpu_names) for sketch in sketches)
    figure.update_layout(height=min(900, 190 + 14 * max(rows, 8)), showlegend=False)
    figure.update_layout(barmode="overlay", hovermode="closest", hoverdistance=30)
    labelled(figure, "", unit.name, "")
    figure.update_xaxes(range=[0, max(sketch.end_s for sketch in sketches) / unit.seconds])
    figure.update_layout(yaxis=axes[0])
    if len(drawn) > 1:
        buttons = [
            {
                "label": entry.label,
                "method": "update",
                "args": [{"visible": visible}, {"yaxis": axis}],
            }
            for entry, visible, axis in zip(drawn, shown, axes, strict=True)
        ]
        place = {"x": 0, "xanchor": "left", "y": 1.0, "yanchor": "bottom"}
        figure.update_layout(updatemenus=[{"buttons": buttons, "bgcolor": "white", **place}])
        figure.update_layout(margin={"t": 60})
    return figure


def _gpu_axis(sketch: Sketch) -> dict[str, Any]:
    """An axis that names nodes, and separates them if there are not too many."""
    nodes = nodes_of(sketch)
    some = named(nodes, MOST_NAMES)
    parted = [node.first - 0.5 for node in nodes[1:]] if len(nodes) <= MOST_RULES else []
    return {
        "tickvals": [node.middle for node in some],
        "ticktext": [node.name for node in some],
        "range": [len(sketch.gpu_names) - 0.4, -0.6],
        "showgrid": False,
        "zeroline": False,
        "automargin": True,
        "minor": {"tickvals": parted, "showgrid": True},
    }


def _traces(entry: Entry, unit: Unit) -> list[Any]:
    sketch = entry.sketches[0]
    words = [_words(piece, sketch, entry.label) for piece in sketch.pieces]
    if len(sketch.pieces) > MANY_PIECES:
        return _lines(sketch, words, unit)
    import numpy as np
    from plotly.graph_objects import Bar

    pieces = sketch.pieces
    return [
        Bar(
            base=np.array([piece.start_s / unit.seconds for piece in pieces]),
            x=np.array([(piece.end_s - piece.start_s) / unit.seconds for piece in pieces]),
            y=np.array([piece.gpu for piece in pieces], dtype=np.int32),
            width=0.86,
            orientation="h",
            marker={"color": [colour_of_piece(p) for p in pieces], "line": {"width": 0}},
            hovertext=words,
            hoverinfo="text",
        )
    ]


def _lines(sketch: Sketch, words: Sequence[str], unit: Unit) -> list[Any]:
    """Pieces as lines, one trace for each colour; long lines have points to hover over."""
    import numpy as np
    from plotly.graph_objects import Scattergl

    width = max(1.0, min(11.0, 560 / max(1, len(sketch.gpu_names))))
    stretch_s = sketch.end_s / STRETCHES
    by_colour: dict[str, tuple[list[float], list[float], list[str]]] = {}
    for piece, text in zip(sketch.pieces, words, strict=True):
        x, y, texts = by_colour.setdefault(colour_of_piece(piece), ([], [], []))
        parts = max(1, ceil((piece.end_s - piece.start_s) / stretch_s))
        step_s = (piece.end_s - piece.start_s) / parts
        x += [(piece.start_s + part * step_s) / unit.seconds for part in range(parts + 1)]
        y += [piece.gpu] * (parts + 1)
        texts += [text] * (parts + 1)
        x.append(nan)  # ends the line
        y.append(nan)
        texts.append("")
    return [
        Scattergl(
            # As arrays they take a quarter of the place in the page.
            x=np.array(x),
            y=np.array(y, dtype=np.float32),
            hovertext=texts,
            hoverinfo="text",
            mode="lines",
            line={"color": colour, "width": width},
        )
        for colour, (x, y, texts) in sorted(by_colour.items())
    ]


def _words(piece: Piece, sketch: Sketch, policy: str) -> str:
    """Lines of text: the job that held the GPU, and when."""
    unit = unit_for(sketch.end_s)
    spec = sketch.specs.get(piece.row)
    if piece.row == SEVERAL or spec is None:
        who = "several jobs"
    else:
        user = f", of {escape(spec.user)}" if spec.user else ""
        gpus = "1 GPU" if spec.num_gpus == 1 else f"{spec.num_gpus} GPUs"
        who = f"job {escape(spec.job_id)}{user}, {gpus}"
    node, _, gpu = sketch.gpu_names[piece.gpu].rpartition(":")
    start, length = piece.start_s / unit.seconds, written(piece.end_s - piece.start_s)
    return (
        f"{who}<br>{escape(node)}, GPU {gpu}<br>"
        f"from {start:,.3f} {unit.sign}, for {length}<br>{escape(policy)}"
    )
