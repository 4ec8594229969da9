"""Self-contained HTML reports: sections with tables and charts, and the page around them."""

from __future__ import annotations

import html
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

STYLE = """
:root { color-scheme: light dark; --page: #fff; --ink: #222; --rule: #ddd; --grid: #e4e4e4;
        --shade: rgba(0, 0, 0, .28) }
@media (prefers-color-scheme: dark) {
  :root { --page: #16181c; --ink: #e4e4e4; --rule: #3c4048; --grid: #383c44;
          --shade: rgba(255, 255, 255, .35) }
}
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page);
       max-width: 72rem; margin: 2rem auto; padding: 0 1rem; overflow-wrap: break-word }
h1 { font-size: 1.6rem } h2 { font-size: 1.2rem; margin-top: 2.5rem }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem }
th, td { padding: .3rem .8rem; border-bottom: 1px solid var(--rule); text-align: right;
         white-space: nowrap }
th:first-child, td:first-child { text-align: left; position: sticky; left: 0;
                                 background: var(--page) }
.text { text-align: left }
.prose td { text-align: left; vertical-align: top; white-space: normal }
/* A shadow at the right edge for as long as there is more to scroll to. */
.scroll { overflow-x: auto; background:
  linear-gradient(to left, var(--page), var(--page)) right / 2rem 100% no-repeat local,
  linear-gradient(to left, var(--shade), transparent) right / 1rem 100% no-repeat scroll }
svg text { fill: var(--ink) }
svg [style*="stroke: #000000"] { stroke: var(--ink) !important }
.drawing svg { width: 100%; max-width: 56rem; height: auto }
summary { font-size: 1.2rem; font-weight: bold; margin-top: 1rem; cursor: pointer }
.js-plotly-plot .main-svg text { fill: var(--ink) !important }
.js-plotly-plot .gridlayer path { stroke: var(--grid) !important }
.js-plotly-plot .spikeline { stroke: #888 !important; stroke-width: 1px !important }
.js-plotly-plot .zerolinelayer path { stroke: var(--rule) !important }
.js-plotly-plot .main-svg .bartext-inside { fill: #111 !important }
.js-plotly-plot .textpoint text { paint-order: stroke; stroke: var(--page); stroke-width: 3px }
.js-plotly-plot .hoverlayer .legend .bg, .js-plotly-plot .updatemenu-item-rect
  { fill: var(--page) !important; stroke: var(--rule) !important }
.js-plotly-plot .hoverlayer .hovertext text { fill: #fff !important }
.js-plotly-plot .hoverlayer .hovertext path { fill: #333 !important; stroke: #999 !important }
.js-plotly-plot .hoverlayer .axistext text { fill: #fff !important }
"""
CONFIG = {"displaylogo": False, "responsive": True}


class Table(NamedTuple):
    """A table of text cells; the first column is the name of the row, the others are numbers.

    In a table of ``prose`` they are sentences; ``text_columns`` are others that are no numbers.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    prose: bool = False
    text_columns: Collection[int] = ()


class Drawing(NamedTuple):
    """A figure that does not move, as an SVG element; its colours are those of the page."""

    svg: str


class Section(NamedTuple):
    """A heading, a paragraph, and a table or figure under it.

    A figure that needs ``least_px`` of width is scrolled where there is less. Of a section that is
    ``folded`` only the heading shows until it is clicked.
    """

    title: str
    text: str
    content: Table | Drawing | Figure | None = None
    least_px: int = 0
    folded: bool = False


def write_page(path: Path, title: str, sections: Sequence[Section]) -> None:
    """Write one HTML file that needs no other file: scripts and data are inside."""
    path.write_text(page(title, sections), encoding="utf-8")


def page(title: str, sections: Sequence[Section]) -> str:
    """The text of that file. The same sections give the same text, bit for bit.

    It has the script that moves figures, which are most of its bytes, if a section has such a one.
    """
    script = ""
    if any(not isinstance(each.content, Table | Drawing | None) for each in sections):
        from plotly.offline import get_plotlyjs

        script = f"<script>{get_plotlyjs()}</script>"
    body = "".join(_section(section, f"figure{i}") for i, section in enumerate(sections))
    return (
        f"<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        f"<meta name='viewport' content='width=device-width'><title>{html.escape(title)}</title>"
        f"<style>{STYLE}</style>{script}</head>"
        f"<body><h1>{html.escape(title)}</h1>{body}</body></html>"
    )


def _section(section: Section, figure_id: str) -> str:
    content: Any = section.content
    if content is None:
        inner = ""
    elif isinstance(content, Table):
        head = _row(content, content.header, "th")
        rows = "".join(_row(content, row, "td") for row in content.rows)
        kind = " class='prose'" if content.prose else ""
        inner = f"<div class='scroll'><table{kind}>{head}{rows}</table></div>"
    elif isinstance(content, Drawing):
        inner = f"<div class='drawing'>{content.svg}</div>"
    else:
        inner = content.to_html(
            full_html=False, include_plotlyjs=False, config=CONFIG, div_id=figure_id
        )
        if section.least_px:
            wide = f"<div style='min-width:{section.least_px}px'>{inner}</div>"
            inner = f"<div class='scroll'>{wide}</div>"
    title = html.escape(section.title)
    text = f"<p>{html.escape(section.text)}</p>" if section.text else ""
    if section.folded:
        return f"<details><summary>{title}</summary>{text}{inner}</details>"
    return f"<h2>{title}</h2>{text}{inner}"


def _row(table: Table, cells: Sequence[str], tag: str) -> str:
    text = [" class='text'" if n in table.text_columns else "" for n in range(len(cells))]
    inner = (f"<{tag}{kind}>{html.escape(c)}</{tag}>" for kind, c in zip(text, cells, strict=True))
    return f"<tr>{''.join(inner)}</tr>"
