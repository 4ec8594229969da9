"""Figures of simulated runs as images for papers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rota.report.comparison import BY_KEY, Entry
from rota.report.curves import (
    BIN_TEXT,
    bin_groups,
    colour_of_piece,
    completion,
    over_point,
    stairs,
)
from rota.report.page import colour_of, dash_of

DPI = 200
WIDE, HIGH = 6.4, 3.6  # inches
LINES = {"solid": "-", "dash": "--", "dot": ":", "dashdot": "-."}


def write_images(folder: Path, entries: Sequence[Entry], axes: Sequence[str] = ()) -> list[Path]:
    """Write the figures of ``entries`` into ``folder`` as PNG; the files written.

    ``axes`` are the points to draw figures over. Who held which GPU is drawn of the first entry
    that knows it.
    """
    drawings: dict[str, Callable[[Any], None]] = {
        f"{key}-over-{axis}": _sweep(entries, axis, key)
        for axis in axes
        for key in ("avg_jct_s", "median_jct_s", "gpu_utilisation")
    }
    if not axes:
        drawings |= {
            "completion": lambda ax: _completion(ax, entries),
            "queue": lambda ax: _course(ax, entries, "waiting_jobs", "waiting jobs"),
            "utilisation": lambda ax: _course(ax, entries, "used", "share of GPUs in use"),
            "slowdown": lambda ax: _bins(ax, entries, "avg_slowdown", "average slowdown"),
        }
        gpus = next((e for e in entries if e.sketches and e.sketches[0].pieces), None)
        if gpus is not None:
            drawings["gpus"] = lambda ax: _gpus(ax, gpus)
    files = []
    for name, draw in drawings.items():
        path = folder / f"{name}.png"
        _write(path, draw)
        files.append(path)
    return files


def _write(path: Path, draw: Callable[[Any], None]) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDE, HIGH), layout="constrained")
    FigureCanvasAgg(figure)
    ax = figure.add_subplot()
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(alpha=0.25)
    draw(ax)
    handles, names = ax.get_legend_handles_labels()
    if handles:
        columns = 1 if max(map(len, names)) > 28 else 2
        figure.legend(
            handles, names, loc="outside upper left", ncols=columns, fontsize=8, frameon=False
        )
    figure.savefig(path, dpi=DPI, metadata={"Software": None})


def _completion(ax: Any, entries: Sequence[Entry]) -> None:
    for index, entry in enumerate(entries):
        jct_s, share = completion(entry)
        ax.step(jct_s, share, where="post", label=entry.label, **_style(index))
    ax.set_xscale("log")
    ax.set_ylim(0, 1.02)
    ax.set_xlabel("job completion time in seconds")
    ax.set_ylabel("share of jobs completed")


def _course(ax: Any, entries: Sequence[Entry], column: str, title: str) -> None:
    for index, entry in enumerate(entries):
        if entry.sketches:
            hours, values = stairs(entry.sketches[0].course, column)
            ax.step(hours, values, where="post", label=entry.label, **_style(index))
    ax.set_ylim(bottom=0)
    ax.set_xlabel("hours")
    ax.set_ylabel(title)


def _bins(ax: Any, entries: Sequence[Entry], key: str, title: str) -> None:
    width = 0.8 / len(entries)
    for index, entry in enumerate(entries):
        names, means, halves = bin_groups(entry, key)
        places = [group + (index - (len(entries) - 1) / 2) * width for group in range(len(names))]
        heights = [mean or 0.0 for mean in means]
        errors = halves if any(halves) else None
        colour = colour_of(index)
        ax.bar(places, heights, width, yerr=errors, label=entry.label, color=colour, capsize=2)
        ax.set_xticks(range(len(names)), names)
    ax.set_yscale("log")
    ax.set_ylabel(title)
    ax.set_xlabel(BIN_TEXT)


def _gpus(ax: Any, entry: Entry) -> None:
    from matplotlib.collections import LineCollection

    sketch = entry.sketches[0]
    lines = [
        [(piece.start_s / 3600, piece.gpu), (piece.end_s / 3600, piece.gpu)]
        for piece in sketch.pieces
    ]
    colours = [colour_of_piece(piece) for piece in sketch.pieces]
    width = max(0.4, min(9.0, 200 / max(1, len(sketch.gpu_names))))
    ax.add_collection(LineCollection(lines, colors=colours, linewidths=width, capstyle="butt"))
    ax.set_xlim(0, sketch.end_s / 3600)
    ax.set_ylim(len(sketch.gpu_names) - 0.4, -0.6)
    ax.grid(False)
    ax.set_xlabel("hours")
    ax.set_ylabel("GPU")
    ax.set_title(entry.label, fontsize=9, loc="left")


def _sweep(entries: Sequence[Entry], axis: str, key: str) -> Callable[[Any], None]:
    def draw(ax: Any) -> None:
        for index, (name, x, means, halves) in enumerate(over_point(entries, axis, key)):
            errors = halves if any(halves) else None
            known = [float("nan") if mean is None else mean for mean in means]
            ax.errorbar(
                x,
                known,
                yerr=errors,
                label=name,
                marker="o",
                ms=4,
                capsize=2,
                elinewidth=0.8,
                **_style(index),
            )
        ax.set_ylim(bottom=0)
        ax.set_xlabel(axis)
        ax.set_ylabel(BY_KEY[key].heading)

    return draw


def _style(index: int) -> dict[str, Any]:
    return {"color": colour_of(index), "linestyle": LINES[dash_of(index)], "linewidth": 1.5}
