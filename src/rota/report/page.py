"""Self-contained HTML reports: the figures that a page is made of, and the page around them."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rota.report.timeline import Timeline

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

# Okabe and Ito's colours can be told apart with any kind of colour vision.
COLOURS = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#CC79A7",
    "#56B4E9",
    "#D55E00",
    "#999999",
    "#F0E442",
)

DASHES = ("solid", "dash", "dot", "dashdot")

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #222; max-width: 72rem; margin: 2rem auto;
       padding: 0 1rem }
h1 { font-size: 1.6rem } h2 { font-size: 1.2rem; margin-top: 2.5rem }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem }
th, td { padding: .3rem .8rem; border-bottom: 1px solid #ddd; text-align: right;
         white-space: nowrap }
th:first-child, td:first-child { text-align: left; position: sticky; left: 0; background: #fff }
.prose td { text-align: left; vertical-align: top; white-space: normal }
.scroll { overflow-x: auto }
"""
CONFIG = {"displaylogo": False, "responsive": True}


class Table(NamedTuple):
    """A table of text cells; the first column is the name of the row, the others are numbers.

    In a table of ``prose`` they are sentences.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    prose: bool = False


class Section(NamedTuple):
    """A heading, a paragraph, and a table or figure under it."""

    title: str
    text: str
    content: Table | Figure | None = None


def slots_figure(timeline: Timeline, names: Sequence[str], zero_s: float, title: str) -> Figure:
    """Who held which slot: one line per GPU, one bar per turn. ``zero_s`` is the axis' origin."""
    from plotly.graph_objects import Bar, Figure

    figure = Figure()
    for row, name in enumerate(names):
        bars = [
            (segment.start_s - zero_s, segment.end_s - segment.start_s, f"slot {gpu}")
            for segment in timeline.segments
            if segment.row == row
            for _, gpu in segment.gpus
        ]
        if bars:
            starts, lengths, slots = zip(*bars, strict=True)
            figure.add_trace(
                Bar(
                    name=name,
                    base=starts,
                    x=lengths,
                    y=slots,
                    orientation="h",
                    marker={"color": colour_of(row), "line": {"width": 0}},
                    hovertemplate=name + ": from %{base:.2f} s for %{x:.2f} s<extra></extra>",
                )
            )
    figure.update_layout(barmode="overlay", bargap=0.25, height=150 + 45 * timeline.num_gpus)
    return labelled(figure, title, "seconds since submission", "")


def curves_figure(
    curves: Mapping[str, Sequence[tuple[float, float]]], title: str, y_title: str
) -> Figure:
    """One line per job: (seconds, value) points."""
    from plotly.graph_objects import Figure, Scatter

    figure = Figure()
    for row, (name, points) in enumerate(curves.items()):
        figure.add_trace(
            Scatter(
                name=name,
                x=[x for x, _ in points],
                y=[y for _, y in points],
                mode="lines",
                line={"color": colour_of(row), "width": 2},
            )
        )
    figure.update_layout(height=380)
    return labelled(figure, title, "seconds since submission", y_title)


def bars_figure(
    groups: Mapping[str, Sequence[float]], names: Sequence[str], title: str, y_title: str
) -> Figure:
    """Grouped bars: one group per name, one bar per entry of ``groups``."""
    from plotly.graph_objects import Bar, Figure

    figure = Figure(
        [
            Bar(name=group, x=list(names), y=list(values), marker={"color": colour_of(index)})
            for index, (group, values) in enumerate(groups.items())
        ]
    )
    figure.update_layout(barmode="group", height=380)
    return labelled(figure, title, "", y_title)


def write_page(path: Path, title: str, sections: Sequence[Section]) -> None:
    """Write one HTML file that needs nothing but itself: scripts and data are inside."""
    from plotly.offline import get_plotlyjs

    body = "".join(_section(section) for section in sections)
    path.write_text(
        f"<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        f"<meta name='viewport' content='width=device-width'><title>{html.escape(title)}</title>"
        f"<style>{STYLE}</style><script>{get_plotlyjs()}</script></head>"
        f"<body><h1>{html.escape(title)}</h1>{body}</body></html>",
        encoding="utf-8",
    )


def _section(section: Section) -> str:
    content: Any = section.content
    if content is None:
        inner = ""
    elif isinstance(content, Table):
        head = "".join(f"<th>{html.escape(cell)}</th>" for cell in content.header)
        rows = "".join(
            "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>"
            for row in content.rows
        )
        kind = " class='prose'" if content.prose else ""
        inner = f"<div class='scroll'><table{kind}><tr>{head}</tr>{rows}</table></div>"
    else:
        inner = content.to_html(full_html=False, include_plotlyjs=False, config=CONFIG)
    return f"<h2>{html.escape(section.title)}</h2><p>{html.escape(section.text)}</p>{inner}"


def colour_of(index: int) -> str:
    """The colour of the line, bar or job with this index; colours repeat."""
    return COLOURS[index % len(COLOURS)]


def dash_of(index: int) -> str:
    """The dash of the line with this index, which changes when the colours begin again."""
    return DASHES[index // len(COLOURS) % len(DASHES)]


def labelled(figure: Figure, title: str, x_title: str, y_title: str) -> Figure:
    """The figure, with its titles and the look that all figures share."""
    figure.update_layout(
        title={"text": title, "font": {"size": 15}, "yref": "container", "y": 0.97},
        xaxis_title=x_title,
        yaxis_title=y_title,
        template="plotly_white",
        margin={"l": 60, "r": 20, "t": 90 if title else 50, "b": 50},
        legend={"orientation": "h", "yanchor": "bottom", "y": 1.0, "x": 0.0},
    )
    return figure
