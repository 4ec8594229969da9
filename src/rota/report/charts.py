"""Interactive figures: of the jobs of a cluster, and of the demo's timelines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isnan, log10
from typing import TYPE_CHECKING, Any

from rota.report.colours import colour_of, dash_of
from rota.report.comparison import Entry
from rota.report.curves import completion, over_time
from rota.report.duration import (
    WORTH_A_LOG,
    linear_ticks,
    plain,
    time_ticks,
    unit_for,
    written,
)
from rota.report.plotly_style import labelled
from rota.report.timeline import Timeline

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


def completion_chart(entries: Sequence[Entry]) -> Figure:
    """The share of jobs that had completed within a time of their submission, by entry."""
    curves = [(entry.label, *completion(entry)) for entry in entries]
    times = [jct_s for _, jcts_s, _ in curves for jct_s in jcts_s if jct_s > 0]
    least_s, most_s = min(times, default=1.0), max(times, default=1.0)
    figure = _lines(
        (name, [max(jct_s, least_s) for jct_s in jcts_s], shares, [written(s) for s in jcts_s])
        for name, jcts_s, shares in curves
    )
    figure.update_layout(height=440, hovermode="y unified", hoverdistance=-1)
    title = _time_axis(figure.update_xaxes, least_s, most_s)
    figure.update_yaxes(tickformat=".0%", range=[0, 1.02], hoverformat=".1%")
    return labelled(figure, "", f"job completion time{title}", "jobs completed")


def course_chart(entries: Sequence[Entry], column: str, y_title: str, share: bool) -> Figure:
    """A column of each entry's course over time, of its first seed."""
    unit, at, values = over_time(entries, column)
    drawn = [entry for entry in entries if entry.sketches]
    write = (lambda value: f"{value:.1%}") if share else (lambda value: f"{value:,.1f} jobs")
    figure = _lines(
        (entry.label, at, ours, ["" if isnan(value) else write(value) for value in ours])
        for entry, ours in zip(drawn, values, strict=True)
    )
    figure.update_layout(height=380, hovermode="x unified")
    figure.update_xaxes(unifiedhovertitle={"text": f"%{{x:.2f}} {unit.sign}"})
    if share:
        figure.update_yaxes(tickformat=".0%", range=[0, 1.02])
    figure.update_yaxes(rangemode="tozero")
    return labelled(figure, "", unit.name, y_title)


def slots_chart(timeline: Timeline, names: Sequence[str], zero_s: float, title: str) -> Figure:
    """Timeline of slots: one line for each GPU, one bar for each turn.

    ``zero_s`` is the origin of the axis.
    """
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
                    hovertemplate=name + ": from %{base:.2f} s to %{x:.2f} s<extra></extra>",
                )
            )
    figure.update_layout(barmode="overlay", bargap=0.25, height=150 + 45 * timeline.num_gpus)
    return labelled(figure, title, "seconds since submission", "")


def curves_chart(
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


def bars_chart(
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


def _time_axis(update: Any, least_s: float, most_s: float) -> str:
    """Turn an axis of seconds into one of round times. Returns the end of its title.

    It is linear where its ends are close together.
    """
    if most_s >= least_s * WORTH_A_LOG:
        ticks = time_ticks(least_s, most_s)
        ends = [log10(least_s) - 0.03, log10(most_s) + 0.03]
        update(type="log", tickvals=ticks, ticktext=[written(tick) for tick in ticks], range=ends)
        return ""
    unit = unit_for(most_s)
    ticks = linear_ticks(most_s, unit)
    update(tickvals=ticks, ticktext=[plain(tick / unit.seconds) for tick in ticks])
    update(range=[0, most_s * 1.05])
    return f" in {unit.name}"


def _lines(curves: Any) -> Figure:
    """A line for each (name, x, y, texts to show at the points)."""
    from plotly.graph_objects import Figure, Scatter

    figure = Figure()
    for index, (name, x, y, texts) in enumerate(curves):
        figure.add_trace(
            Scatter(
                name=name,
                x=x,
                y=y,
                hovertext=texts,
                hovertemplate="%{hovertext}",
                mode="lines",
                line={
                    "color": colour_of(index),
                    "width": 2,
                    "dash": dash_of(index),
                    "shape": "hv",
                },
            )
        )
    return figure
