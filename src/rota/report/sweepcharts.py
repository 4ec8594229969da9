"""Interactive figures of a sweep: its best value, and its curves."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import nan
from typing import TYPE_CHECKING, Any

from rota.report.colours import COLOURS
from rota.report.duration import unit_for, written
from rota.report.plotly_style import labelled
from rota.report.sweep import (
    CANCELLED,
    DONE,
    FAILED,
    RUNNING,
    STANDINGS,
    STOPPED,
    WAITING,
    SweepStory,
    TrialStory,
    best_so_far,
    thinned,
    value_text,
    values_of,
)
from rota.report.sweepaxes import Axis, shortened, step_axis, value_axis

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

BLUE, ORANGE, GREEN, PINK, SKY, VERMILLION, GREY = COLOURS
COLOUR = {
    RUNNING: GREEN,
    WAITING: SKY,
    DONE: BLUE,
    STOPPED: GREY,
    FAILED: VERMILLION,
    CANCELLED: PINK,
}
MARK = {
    RUNNING: "triangle-right",
    WAITING: "circle-open",
    DONE: "circle",
    STOPPED: "square",
    FAILED: "x",
    CANCELLED: "diamond",
}
DASH = {FAILED: "dot", CANCELLED: "dash"}
BEST = ORANGE
MOST_POINTS = 12_000  # of all curves together
MANY_POINTS = 2000  # beyond, a line has no marks at its points
LARGEST_32 = 1e38  # of a float in four bytes
ROOM_FOR_MARKS = 0.01  # at the ends of an axis
MOST_TOLD, FEW_TOLD = 20, 6  # parameters of a trial that is pointed at, of few trials and of many
MANY_TRIALS = 200


def best_chart(story: SweepStory) -> Figure:
    """The best value over time as a line, and each trial's best as a mark at its time."""
    from plotly.graph_objects import Figure, Scatter

    figure = Figure()
    unit = unit_for(story.end_s)
    most = MOST_TOLD if len(story.trials) <= MANY_TRIALS else FEW_TOLD
    for standing, trials in by_standing(story):
        told = [(trial, trial.best) for trial in trials if trial.best is not None]
        figure.add_trace(
            Scatter(
                name=standing,
                x=[best.at_s / unit.seconds for _, best in told],
                y=[best.value for _, best in told],
                hovertext=[trial_words(trial, most) for trial, _ in told],
                hoverinfo="text",
                mode="markers",
                marker={"color": COLOUR[standing], "symbol": MARK[standing], "size": 8},
                opacity=0.75,
            )
        )
    steps = best_so_far(story)
    if steps:
        figure.add_trace(
            Scatter(
                name="best so far",
                x=[*(at_s / unit.seconds for at_s, _, _ in steps), story.end_s / unit.seconds],
                y=[*(value for _, value, _ in steps), steps[-1][1]],
                hovertext=[*(f"trial {n}: {value_text(v)}" for _, v, n in steps), ""],
                hoverinfo="text",
                mode="lines",
                line={"color": BEST, "width": 3, "shape": "hv"},
            )
        )
    if story.target is not None:
        figure.add_trace(
            Scatter(
                name=f"target {value_text(story.target)}",
                x=[0.0, story.end_s / unit.seconds],
                y=[story.target] * 2,
                hoverinfo="skip",
                mode="lines",
                line={"color": GREY, "width": 1.5, "dash": "dash"},
            )
        )
    bests = [trial.best.value for trial in story.trials if trial.best is not None]
    first = [steps[0][1]] if steps else []
    known = [value for value in (*bests, *first, story.target) if value is not None]
    _set(figure.update_yaxes, value_axis(known, story.maximize))
    figure.update_xaxes(range=[0, story.end_s / unit.seconds * 1.02 or 1.0])
    figure.update_layout(height=400, hovermode="closest")
    return labelled(figure, "", f"{unit.name} since the submission", _metric(story))


def trials_chart(story: SweepStory) -> Figure:
    """The value of each trial by step: a line each, faint but for the best one's."""
    from plotly.graph_objects import Figure

    figure = Figure()
    curves = [trial for trial in story.trials if trial.curve]
    most = max(8, MOST_POINTS // max(1, len(curves)))
    for standing, trials in by_standing(story):
        others = [trial for trial in trials if trial.number != story.winner]
        faint = 0.35 if standing in (STOPPED, CANCELLED) or len(curves) > 100 else 0.7
        line = {"color": COLOUR[standing], "width": 1.2, "dash": DASH.get(standing, "solid")}
        if others:
            figure.add_trace(_curves(others, most, standing, line).update(opacity=faint))
    if story.best is not None:
        line = {"color": BEST, "width": 3}
        name = f"best: trial {story.best.number}"
        figure.add_trace(_curves([story.best], MOST_POINTS, name, line))
    reports = [report for trial in curves for report in trial.curve]
    lasts = [trial.curve[-1].step for trial in curves]
    _set(figure.update_xaxes, step_axis(lasts, min((r.step for r in reports), default=0.0)))
    _set(figure.update_yaxes, value_axis(list(values_of(story)), story.maximize))
    figure.update_layout(height=460, hovermode="closest")
    return labelled(figure, "", "step", _metric(story))


def _curves(trials: Sequence[TrialStory], most: int, name: str, line: dict[str, Any]) -> Any:
    """Curves one after another in one trace, with gaps between; with marks if one is short."""
    import numpy as np
    from plotly.graph_objects import Scatter

    x: list[float] = []
    y: list[float] = []
    numbers: list[int] = []
    for trial in trials:
        points = thinned(trial.curve, most)
        x += [*(report.step for report in points), nan]
        y += [*(nan if report.value is None else report.value for report in points), nan]
        numbers += [trial.number] * (len(points) + 1)
    short = all(len(trial.curve) == 1 for trial in trials)
    return Scatter(
        name=name,
        # As arrays they take a quarter of the place in the page.
        x=np.array(x, dtype=np.float32),
        y=_array(y),
        customdata=np.array(numbers, dtype=np.int32),
        hovertemplate="trial %{customdata}, step %{x}: %{y:.4g}<extra></extra>",
        mode="markers" if short else "lines+markers" if len(x) < MANY_POINTS else "lines",
        marker={"size": 6 if short else 5},
        line=line,
    )


def _array(values: Sequence[float]) -> Any:
    """An array of four-byte floats, or of eight-byte ones for very large or small values."""
    import numpy as np

    wide = np.array(values)
    sizes = np.abs(wide[np.isfinite(wide) & (wide != 0)])
    small = sizes.size == 0 or (sizes.max() < LARGEST_32 and sizes.min() > 1 / LARGEST_32)
    return wide.astype(np.float32) if small else wide


def trial_words(trial: TrialStory, most: int) -> str:
    """Lines of text: a trial's parameters and result."""
    value = "no value" if trial.best is None else value_text(trial.best.value)
    told = list(trial.params.items())
    lines = [
        f"trial {trial.number}, {trial.standing}: {value}",
        *(f"{escape(name)} {escape(shortened(text, 40))}" for name, text in told[:most]),
        *([f"and {len(told) - most} more"] if len(told) > most else []),
        f"{'1 report' if len(trial.curve) == 1 else f'{len(trial.curve)} reports'}, "
        f"{written(trial.gpu_s)} of GPU time",
    ]
    return "<br>".join(lines)


def by_standing(story: SweepStory) -> list[tuple[str, list[TrialStory]]]:
    """Trials by standing, without empty standings; the most visible are drawn last."""
    order = sorted(STANDINGS, key=(STOPPED, CANCELLED, FAILED, WAITING, DONE, RUNNING).index)
    found = [(each, [t for t in story.trials if t.standing == each]) for each in order]
    return [(standing, trials) for standing, trials in found if trials]


def _set(update: Any, axis: Axis) -> None:
    """Set an axis of a figure."""
    places = [10**place if axis.log else place for place, _ in axis.ticks]
    more = (axis.high - axis.low) * ROOM_FOR_MARKS
    update(
        type="log" if axis.log else "linear",
        range=[axis.low - more, axis.high + more],
        tickvals=places,
        ticktext=[text for _, text in axis.ticks],
    )


def _metric(story: SweepStory) -> str:
    return escape(shortened(story.metric, 40))
