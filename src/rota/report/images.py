"""Figures of simulated runs, as images for papers and as drawings for pages."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from io import BytesIO
from math import log
from typing import Any

from rota.report.colours import colour_of, dash_of, hatch_of
from rota.report.comparison import BY_KEY, Entry
from rota.report.curves import (
    BIN_TEXT,
    OVER_AXIS,
    SHARES,
    Point,
    bins_of,
    colour_of_piece,
    completion,
    named,
    nodes_of,
    over_point,
    over_time,
    top_of,
)
from rota.report.duration import (
    WORTH_A_LOG,
    Unit,
    linear_ticks,
    plain,
    ratio_ticks,
    time_ticks,
    unit_for,
    written,
)
from rota.report.sketch import Sketch

DPI, SVG_DPI = 200, 150
TICK_WIDE = 0.1  # of a text on an axis of time, as a part of the axis
MOST_PANELS = 4  # of GPUs in a drawing
MANY_PIECES = 500
SHORTENED = re.compile(r"(?<=[-\d])(\.\d)\d+(?=[-\s\"L,)zM])")
METADATA = re.compile(r"<metadata>.*?</metadata>\s*", re.DOTALL)
WIDE, HIGH = 6.4, 3.6  # inches
LEGEND_WIDE = 84  # letters in a line of a legend
LEGEND_HIGH = 0.17  # for each line of a legend beyond the second
PANEL_LEAST, PANEL_MOST, ROW_HIGH = 1.1, 3.0, 0.09  # of a panel of GPUs
MOST_NAMES = 12  # nodes named in a panel
LINES = {"solid": "-", "dash": "--", "dot": ":", "dashdot": "-."}
MARKS = {"": "", "/": "///", "x": "xxx", "\\": "\\\\\\"}


def images(entries: Sequence[Entry], axes: Sequence[str] = ()) -> Iterator[tuple[str, bytes]]:
    """The figures of ``entries`` as PNG: (name, bytes) of each.

    ``axes`` are the points to draw figures over. Figures for which the entries have no sketches are
    not drawn.
    """
    for name, figure in _figures(entries, axes):
        yield name, _saved(figure, "png", DPI, {"Software": None})


def drawings(entries: Sequence[Entry], axes: Sequence[str] = ()) -> Iterator[tuple[str, str]]:
    """The same figures as SVG elements, which take their colours of text from the page.

    The GPUs are drawn of the first entries alone, MOST_PANELS of them.
    """
    from matplotlib import rc_context

    for name, figure in _figures(entries, axes, MOST_PANELS):
        with rc_context({"svg.fonttype": "none", "svg.hashsalt": "rota"}):
            text = _saved(figure, "svg", SVG_DPI, {"Date": None}, transparent=True).decode()
        text = text[text.index("<svg") :]
        # A tenth of a point is less than anybody sees, and half of the bytes.
        yield name, SHORTENED.sub(r"\1", METADATA.sub("", text))


def _figures(
    entries: Sequence[Entry], axes: Sequence[str], most_panels: int | None = None
) -> Iterator[tuple[str, Any]]:
    drawn: dict[str, Callable[[Any], None]] = {
        f"{key}-over-{axis}": _sweep(entries, axis, key) for axis in axes for key in OVER_AXIS
    }
    held = [entry for entry in entries if entry.sketches and entry.sketches[0].pieces]
    if not axes and any(entry.sketches for entry in entries):
        drawn |= {
            "completion": lambda ax: _completion(ax, entries),
            "queue": lambda ax: _course(ax, entries, "waiting_jobs", "waiting jobs"),
            "utilisation": lambda ax: _course(ax, entries, "used", "GPUs in use"),
            "slowdown": lambda ax: _slowdown(ax, entries),
        }
    for name, draw in drawn.items():
        yield name, _drawn(draw, len(entries))
    if held and not axes:
        yield "gpus", _gpus(held[:most_panels])


def _drawn(draw: Callable[[Any], None], names: int) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDE, HIGH), layout="constrained")
    ax = figure.add_subplot()
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(alpha=0.25)
    ax.set_axisbelow(True)
    draw(ax)
    handles, labels = ax.get_legend_handles_labels()
    if handles:
        columns = max(1, min(4, LEGEND_WIDE // (max(map(len, labels)) + 5)))
        figure.set_figheight(HIGH + LEGEND_HIGH * max(0, -(-names // columns) - 2))
        place: dict[str, Any] = {
            "loc": "outside upper left",
            "ncols": columns,
            "fontsize": 8,
            "frameon": False,
        }
        figure.legend(handles, labels, **place)
    return figure


def _saved(figure: Any, kind: str, dpi: int, metadata: dict[str, Any], **more: Any) -> bytes:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    FigureCanvasAgg(figure)
    file = BytesIO()
    figure.savefig(file, format=kind, dpi=dpi, metadata=metadata, **more)
    return file.getvalue()


def _completion(ax: Any, entries: Sequence[Entry]) -> None:
    curves = [completion(entry) for entry in entries]
    times = [jct_s for jcts_s, _ in curves for jct_s in jcts_s if jct_s > 0]
    least_s, most_s = min(times, default=1.0), max(times, default=1.0)
    for index, (entry, (jcts_s, share)) in enumerate(zip(entries, curves, strict=True)):
        known = [max(jct_s, least_s) for jct_s in jcts_s]
        ax.step(known, share, where="post", label=entry.label, **_style(index))
    title = "job completion time"
    if most_s >= least_s * WORTH_A_LOG:
        ax.set_xscale("log")
        ticks = _apart(time_ticks(least_s, most_s), most_s / least_s)
        ax.set_xticks(ticks, [written(tick) for tick in ticks])
        ax.minorticks_off()
        ax.set_xlim(least_s * 0.95, most_s * 1.05)
    else:
        unit = unit_for(most_s)
        ticks = linear_ticks(most_s, unit)
        ax.set_xticks(ticks, [plain(tick / unit.seconds) for tick in ticks])
        ax.set_xlim(0, most_s * 1.05)
        title = f"{title} in {unit.name}"
    _percent(ax, 1.0)
    ax.set_xlabel(title)
    ax.set_ylabel("jobs completed")


def _apart(ticks: Sequence[float], span: float) -> list[float]:
    """The ticks of a logarithmic axis over such a ratio whose texts do not touch."""
    found: list[float] = []
    for tick in ticks:
        if not found or log(tick / found[-1]) >= TICK_WIDE * log(span):
            found.append(tick)
    return found


def _course(ax: Any, entries: Sequence[Entry], column: str, title: str) -> None:
    unit, at, values = over_time(entries, column)
    for index, entry in enumerate(entry for entry in entries if entry.sketches):
        ax.step(at, values[index], where="post", label=entry.label, **_style(index))
    if column == "used":
        _percent(ax, 1.0)
    else:
        ax.set_ylim(bottom=0)
    ax.set_xlim(left=min(at, default=0.0))
    ax.set_xlabel(unit.name)
    ax.set_ylabel(title)


def _percent(ax: Any, top: float) -> None:
    from matplotlib.ticker import PercentFormatter

    ax.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    ax.set_ylim(0, top * 1.02)


def _slowdown(ax: Any, entries: Sequence[Entry]) -> None:
    names, by_entry = bins_of(entries, "avg_slowdown")
    width = 0.8 / len(entries)
    for index, (entry, points) in enumerate(zip(entries, by_entry, strict=True)):
        places = [group + (index - (len(entries) - 1) / 2) * width for group in range(len(names))]
        ax.bar(
            places,
            [(point.mean or 1.0) - 1 for point in points],
            width,
            bottom=1.0,
            yerr=_whiskers(points),
            label=entry.label,
            color=colour_of(index),
            hatch=MARKS[hatch_of(index)],
            edgecolor="white",
            linewidth=0.4,
            ecolor="#333333",
            capsize=2,
        )
    ax.set_xticks(range(len(names)), names)
    ax.grid(visible=False, axis="x")
    ax.set_yscale("log")
    most = max((p.mean + p.above for ps in by_entry for p in ps if p.mean is not None), default=2.0)
    ticks = ratio_ticks(most)
    ax.set_yticks(ticks, [plain(tick) for tick in ticks])
    ax.minorticks_off()
    ax.set_ylim(1.0, max(ticks[-1], 1.1))
    ax.set_ylabel("average slowdown")
    ax.set_xlabel(BIN_TEXT)


def _gpus(entries: Sequence[Entry]) -> Any:
    """A panel for each entry, one below the other, over the same time."""
    from matplotlib.figure import Figure

    sketches = [entry.sketches[0] for entry in entries]
    end_s = max(sketch.end_s for sketch in sketches)
    unit = unit_for(end_s)
    highs = [
        min(PANEL_MOST, max(PANEL_LEAST, ROW_HIGH * len(sketch.gpu_names))) for sketch in sketches
    ]
    figure = Figure(figsize=(WIDE, sum(highs) + 0.3 * len(highs) + 0.4), layout="constrained")
    panels = figure.subplots(len(entries), sharex=True, squeeze=False, height_ratios=highs)
    for (ax,), entry, sketch in zip(panels, entries, sketches, strict=True):
        _panel(ax, sketch, unit.seconds)
        ax.set_title(entry.label, fontsize=9, loc="left")
    panels[-1][0].set_xlim(0, end_s / unit.seconds)
    panels[-1][0].set_xlabel(unit.name)
    return figure


def _panel(ax: Any, sketch: Sketch, unit_s: float) -> None:
    import numpy as np
    from matplotlib.collections import PolyCollection

    corners = np.empty((len(sketch.pieces), 4, 2))
    for index, piece in enumerate(sketch.pieces):
        start, end = piece.start_s / unit_s, piece.end_s / unit_s
        low, high = piece.gpu - 0.45, piece.gpu + 0.45
        corners[index] = ((start, low), (end, low), (end, high), (start, high))
    colours = [colour_of_piece(piece) for piece in sketch.pieces]
    many = len(sketch.pieces) > MANY_PIECES  # then a drawing has them as an image
    ax.add_collection(
        PolyCollection(list(corners), facecolors=colours, linewidths=0, rasterized=many)
    )
    nodes = nodes_of(sketch)
    some = named(nodes, MOST_NAMES)
    ax.set_yticks([node.middle for node in some], [node.name for node in some], fontsize=8)
    ax.tick_params(axis="y", length=0)
    if len(nodes) * 2 <= len(sketch.gpu_names):
        for node in nodes[1:]:
            ax.axhline(node.first - 0.5, color="#888888", linewidth=0.4)
    ax.set_ylim(len(sketch.gpu_names) - 0.5, -0.5)
    ax.spines[["top", "right"]].set_visible(False)


def _sweep(entries: Sequence[Entry], axis: str, key: str) -> Callable[[Any], None]:
    def draw(ax: Any) -> None:
        lines = list(over_point(entries, axis, key))
        top = top_of([points for _, _, points in lines], BY_KEY[key].most)
        unit = unit_for(top)
        scale = 1.0 if key in SHARES else unit.seconds
        for index, (name, x, points) in enumerate(lines):
            means = [float("nan") if p.mean is None else p.mean / scale for p in points]
            marks = {"marker": "o", "ms": 4, "capsize": 2, "elinewidth": 0.8}
            whiskers = _whiskers(points, scale)
            ax.errorbar(x, means, yerr=whiskers, label=name, **marks, **_style(index))
        ax.set_ylim(0, top / scale)
        if key in SHARES:
            _percent(ax, top)
        if all(isinstance(value, float) for _, x, _ in lines for value in x):
            values = sorted({value for _, x, _ in lines for value in x})
            ax.set_xticks(values, [f"{value:g}" for value in values])
        ax.set_xlabel(axis)
        ax.set_ylabel(over_axis_title(key, unit))

    return draw


def _whiskers(points: Sequence[Point], scale: float = 1.0) -> list[list[float]] | None:
    """The lengths of intervals below and above points; None if there are none."""
    if not any(point.below or point.above for point in points):
        return None
    return [[point.below / scale for point in points], [point.above / scale for point in points]]


def _style(index: int) -> dict[str, Any]:
    return {"color": colour_of(index), "linestyle": LINES[dash_of(index)], "linewidth": 1.5}


def over_axis_title(key: str, unit: Unit) -> str:
    """Title of the vertical axis in a figure over an axis."""
    return OVER_AXIS[key] if key in SHARES else f"{OVER_AXIS[key]} in {unit.name}"
