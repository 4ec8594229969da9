"""Parallel coordinates of a sweep: its parameters and its value as axes, its trials as lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from math import ceil, nan
from typing import TYPE_CHECKING, Any

from rota.report.plotly_style import labelled
from rota.report.sweep import SweepStory, TrialStory, ranked, value_text
from rota.report.sweepaxes import Axis, parameter_axis, shortened, value_axis
from rota.report.sweepcharts import BEST, BLUE, GREY, MOST_TOLD, SKY, VERMILLION, trial_words

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

# Up to which part of the trials, the best first, has which colour.
COLOURS = ((0.05, VERMILLION), (0.2, BLUE), (0.5, SKY), (1.0, GREY))
MOST_AXES, MANY_AXES = 60, 8  # the names of many stand aslant
MOST_TICKS = 24
MANY_LINES = 100  # are thin
MOST_WORDS = 1000  # points that tell all about their trial; of more each tells its own value
TICK_PX = 7  # of a letter
RAIL = "#888"  # can be seen on white and on black


def parameters_chart(story: SweepStory) -> Figure:
    """A line for each trial with a value, through its parameters, to its value on the right.

    Traces are ordinary lines, which need no graphics processor: a few trials each, by value.
    """
    from plotly.graph_objects import Figure

    trials = [trial for trial in ranked(story) if trial.best is not None]
    names = story.parameters[: MOST_AXES - 1]
    axes, columns = [], []
    for name in names:
        axis, places = parameter_axis(name, story, [trial.params.get(name) for trial in trials])
        axes.append(axis)
        columns.append([axis.part_of(place) for place in places])
    goal = value_axis([_value(trial) for trial in trials], story.maximize)
    axes.append(goal)
    columns.append([goal.part(_value(trial)) for trial in trials])

    figure = Figure()
    heights = list(zip(*columns, strict=True))
    many = len(trials) > MANY_LINES
    for first, end, colour in reversed(list(_groups(len(trials)))):
        best = first == 0
        figure.add_trace(
            _lines(story, trials[first:end], heights[first:end], names).update(
                name=_group_name(trials[first:end]),
                line={"color": colour, "width": 3 if best else 0.8 if many else 1.4},
                opacity=0.45 if colour == GREY else 1.0 if best else 0.8,
            )
        )
    figure.add_traces([_rails(len(axes)), *_ticks(axes)])
    figure.update_xaxes(
        tickvals=list(range(len(axes))),
        ticktext=[escape(shortened(name, 18)) for name in [*names, story.metric]],
        tickangle=-25 if len(axes) > MANY_AXES else 0,
        side="top",
        range=[-0.1, len(axes) - 0.9],
        fixedrange=True,
        showgrid=False,
        zeroline=False,
    )
    figure.update_yaxes(range=[-0.04, 1.04], fixedrange=True, visible=False)
    figure.update_layout(height=520, hovermode="closest", legend_traceorder="reversed")
    labelled(figure, "", "", "")
    left, right = (
        TICK_PX * max((len(text) for _, text in axes[n].ticks), default=0) for n in (0, -1)
    )
    return figure.update_layout(margin={"t": 60, "l": 20 + left, "r": 20 + right})


def _value(trial: TrialStory) -> float:
    return 0.0 if trial.best is None or trial.best.value is None else trial.best.value


def _groups(count: int) -> Iterator[tuple[int, int, str]]:
    """(first, end, colour) by rank of those that have a colour: the best one, and then parts."""
    yield 0, 1, BEST
    first = 1
    for part, colour in COLOURS:
        end = ceil(part * count)
        if end > first:
            yield first, end, colour
            first = end


def _group_name(trials: Sequence[TrialStory]) -> str:
    """``trial 7: 0.9``, ``12 trials: 0.5 to 0.8``."""
    if len(trials) == 1:
        return f"trial {trials[0].number}: {value_text(_value(trials[0]))}"
    ends = [value_text(_value(trials[n])) for n in (-1, 0)]
    return f"{len(trials)} trials: {' to '.join(dict.fromkeys(ends))}"


def _lines(
    story: SweepStory,
    trials: Sequence[TrialStory],
    heights: Sequence[Sequence[float]],
    names: Sequence[str],
) -> Any:
    """One trace with a line for each of the trials; at each axis it can be hovered over."""
    import numpy as np
    from plotly.graph_objects import Scatter

    wide = len(names) + 1
    words: list[str] = []
    for trial in trials:
        if len(story.trials) * wide <= MOST_WORDS:
            told = [trial_words(trial, MOST_TOLD)] * wide
        else:
            values = [*(trial.params.get(name) for name in names), _value(trial)]
            told = [f"trial {trial.number}: {escape(shortened(value))}" for value in values]
        words += [*told, ""]
    return Scatter(
        x=np.tile(np.arange(wide + 1, dtype=np.int8), len(trials)),
        y=np.array([[*line, nan] for line in heights], dtype=np.float32).ravel(),
        hovertext=words,
        hoverinfo="text",
        mode="lines",
    )


def _rails(count: int) -> Any:
    """The axes themselves: lines from bottom to top."""
    from plotly.graph_objects import Scatter

    return Scatter(
        x=[place for n in range(count) for place in (n, n, None)],
        y=[0, 1, None] * count,
        mode="lines",
        line={"color": RAIL, "width": 1},
        hoverinfo="skip",
        showlegend=False,
    )


def _ticks(axes: Sequence[Axis]) -> Iterator[Any]:
    """The words beside the axes: left of the parameters' axes, right of the value's."""
    from plotly.graph_objects import Scatter

    last = len(axes) - 1
    for side, some in (("left", range(last)), ("right", [last])):
        ticks = [
            (n, axes[n].part_of(place), text)
            for n in some
            for place, text in axes[n].ticks[:: ceil(len(axes[n].ticks) / MOST_TICKS) or 1]
        ]
        yield Scatter(
            x=[n for n, _, _ in ticks],
            y=[part for _, part, _ in ticks],
            text=[escape(text) for _, _, text in ticks],
            textposition=f"middle {side}",
            mode="markers+text",
            marker={"symbol": "line-ew", "size": 8, "line": {"color": RAIL, "width": 1}},
            cliponaxis=False,
            hoverinfo="skip",
            showlegend=False,
        )
