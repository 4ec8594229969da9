"""Interactive figures: of simulated runs, and of the demo's timelines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from math import isnan, log10
from typing import TYPE_CHECKING, Any

from rota.report.colours import colour_of, dash_of, hatch_of, mark_of
from rota.report.comparison import BY_KEY, Entry
from rota.report.curves import (
    GREY,
    OVER_AXIS,
    SHARES,
    Point,
    bins_of,
    completion,
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
from rota.report.plotly_style import labelled
from rota.report.timeline import Timeline

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


MOST_NUMBERS = 16  # bars; more have no room for theirs


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


def slowdown_chart(entries: Sequence[Entry]) -> Figure:
    """Average slowdown by job-size bin, from 1 on: a group for each bin, a bar for each entry."""
    from plotly.graph_objects import Bar, Figure

    figure = Figure()
    names, by_entry = bins_of(entries, "avg_slowdown")
    few = len(entries) * len(names) <= MOST_NUMBERS
    for index, (entry, points) in enumerate(zip(entries, by_entry, strict=True)):
        figure.add_trace(
            Bar(
                name=entry.label,
                x=names,
                # A bar's length is counted from its base, on a logarithmic axis too.
                base=1.0,
                y=[None if point.mean is None else point.mean - 1 for point in points],
                error_y=_whiskers(points, colour=GREY),
                marker={"color": colour_of(index), "pattern": {"shape": hatch_of(index)}},
                text=["" if p.mean is None else f"{p.mean:,.2f}" for p in points] if few else None,
                textposition="outside",
                cliponaxis=False,
                hovertext=[
                    _with_interval(point, lambda value: f"{value:,.2f}") for point in points
                ],
                hovertemplate="%{hovertext}",
            )
        )
    most = max((p.mean + p.above for ps in by_entry for p in ps if p.mean is not None), default=2.0)
    ticks = ratio_ticks(most)
    figure.update_layout(barmode="group", height=400, hovermode="x unified")
    figure.update_yaxes(type="log", tickvals=ticks, ticktext=[plain(tick) for tick in ticks])
    figure.update_yaxes(range=[0, log10(max(ticks[-1], 1.1))])
    return labelled(figure, "", "", "average slowdown")


def bins_jct_chart(entries: Sequence[Entry]) -> Figure:
    """Average completion time by job-size bin: a group for each bin, a mark for each entry."""
    from plotly.graph_objects import Figure, Scatter

    figure = Figure()
    names, by_entry = bins_of(entries, "avg_jct_s")
    for index, (entry, points) in enumerate(zip(entries, by_entry, strict=True)):
        figure.add_trace(
            Scatter(
                name=entry.label,
                x=names,
                y=[point.mean for point in points],
                error_y=_whiskers(points),
                mode="markers",
                marker={"color": colour_of(index), "size": 10, "symbol": mark_of(index)},
                hovertext=[_with_interval(point, written) for point in points],
                hovertemplate=f"{escape(entry.label)}, %{{x}}: %{{hovertext}}<extra></extra>",
            )
        )
    means = [point.mean for points in by_entry for point in points if point.mean]
    figure.update_layout(scattermode="group", scattergap=0.3, height=400, hovermode="closest")
    title = _time_axis(
        figure.update_yaxes, min(means, default=1.0) * 0.7, max(means, default=1.0) * 1.4
    )
    return labelled(figure, "", "", f"average JCT{title}")


def sweep_chart(entries: Sequence[Entry], axis: str, key: str) -> Figure:
    """A figure over the values of ``axis``, one line for each policy and each other point."""
    lines = list(over_point(entries, axis, key))
    top = top_of([points for _, _, points in lines], BY_KEY[key].most)
    unit = unit_for(top)
    share = key in SHARES
    scale = 1.0 if share else unit.seconds
    figure = _lines(
        (
            (
                name,
                x,
                [None if point.mean is None else point.mean / scale for point in points],
                [_with_interval(p, (lambda v: f"{v:.1%}") if share else written) for p in points],
                _whiskers(points, scale),
            )
            for name, x, points in lines
        ),
        markers=True,
    )
    figure.update_layout(height=400, hovermode="x unified")
    figure.update_xaxes(unifiedhovertitle={"text": f"{axis} %{{x}}"})
    if all(isinstance(value, float) for _, x, _ in lines for value in x):
        figure.update_xaxes(tickvals=sorted({value for _, x, _ in lines for value in x}))
    figure.update_yaxes(range=[0, top / scale])
    if share:
        figure.update_yaxes(tickformat=".0%")
    return labelled(figure, "", axis, over_axis_title(key, unit))


def over_axis_title(key: str, unit: Unit) -> str:
    """Title of the vertical axis in a figure over an axis."""
    return OVER_AXIS[key] if key in SHARES else f"{OVER_AXIS[key]} in {unit.name}"


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


def _whiskers(
    points: Sequence[Point], scale: float = 1.0, colour: str | None = None
) -> dict[str, Any] | None:
    """The intervals of points as error bars; None if there are none."""
    if not any(point.below or point.above for point in points):
        return None
    return {
        "type": "data",
        "symmetric": False,
        "array": [point.above / scale for point in points],
        "arrayminus": [point.below / scale for point in points],
        "color": colour,
        "thickness": 1,
        "width": 4,
    }


def _with_interval(point: Point, write: Any) -> str:
    if point.mean is None:
        return "-"
    if not (point.below or point.above):
        return str(write(point.mean))
    ends = f"{write(point.mean - point.below)} to {write(point.mean + point.above)}"
    return f"{write(point.mean)} ({ends})"


def _lines(curves: Any, *, markers: bool = False) -> Figure:
    """A line for each (name, x, y, texts to show at the points, error bars if there are any)."""
    from plotly.graph_objects import Figure, Scatter

    figure = Figure()
    for index, (name, x, y, texts, *whiskers) in enumerate(curves):
        figure.add_trace(
            Scatter(
                name=name,
                x=x,
                y=y,
                error_y=whiskers[0] if whiskers else None,
                hovertext=texts,
                hovertemplate="%{hovertext}",
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
