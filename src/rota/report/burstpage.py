"""The page about a plan of GPUs by layer: its table, and the timeline of one step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rota.report.page import Section, Table, page
from rota.report.plotly_style import labelled

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

COLOURS = {
    "forward": "#4c78a8",
    "backward": "#54a24b",
    "transfer": "#e45756",
    "reduction": "#eeca3b",
}
PlacedSpan = tuple[str, str, int, float, float]  # kind, layer, GPU, start and end in seconds


def burst_page(
    model: str,
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    spans: Sequence[PlacedSpan],
    gpus: int,
    advice: Sequence[str],
) -> str:
    """The text of one HTML file about a plan."""
    text = "One step of the chosen plan. Reductions run on the links beside what GPUs compute."
    sections = [
        Section("Plans", " ".join(advice), Table(list(header), [list(row) for row in rows])),
        Section("Timeline", text, _timeline(spans, gpus)),
    ]
    return page(f"GPUs by layer: {model}", sections)


def _timeline(spans: Sequence[PlacedSpan], gpus: int) -> Figure:
    from plotly.graph_objects import Bar, Figure

    figure = Figure()
    for kind, colour in COLOURS.items():
        mine = [span for span in spans if span[0] == kind]
        figure.add_trace(
            Bar(
                name=kind,
                orientation="h",
                y=[f"GPU {gpu}" for _, _, gpu, _, _ in mine],
                x=[(end - start) * 1e3 for *_, start, end in mine],
                base=[start * 1e3 for *_, start, _ in mine],
                hovertext=[f"{layer}, {kind}" for _, layer, *_ in mine],
                marker={"color": colour},
                width=0.3 if kind == "reduction" else 0.8,
            )
        )
    labelled(figure, "", "ms", "")
    figure.update_layout(barmode="overlay", height=min(900, 160 + 28 * gpus))
    names = [f"GPU {gpu}" for gpu in range(gpus)]
    figure.update_yaxes(categoryorder="array", categoryarray=names, autorange="reversed")
    return figure
