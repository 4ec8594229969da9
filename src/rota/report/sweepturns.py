"""Who ran when in a sweep, as an interactive figure: a line for each trial, a bar for each turn."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, nan
from typing import TYPE_CHECKING

from rota.report.duration import unit_for
from rota.report.look import labelled
from rota.report.sweep import SweepStory, TrialStory
from rota.report.sweepcharts import BEST, COLOUR, GREY, by_standing

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

MOST_BARS = 5000
THINNEST = 1500  # a pause shorter than this part of the time can't be seen
MOST_NAMED = 40  # trials beside the axis


def turns_chart(story: SweepStory) -> Figure:
    """Who ran when: a line for each trial, a bar for each turn, thin where it waits for one."""
    import numpy as np
    from plotly.graph_objects import Bar, Figure, Scatter

    figure = Figure()
    unit = unit_for(story.end_s)
    line = {trial.number: index for index, trial in enumerate(story.trials)}
    turns = _turns(story)
    waits = [
        (line[trial.number], from_s / unit.seconds, to_s / unit.seconds, nan)
        for trial in story.trials
        for from_s, to_s in _waits(story, trial, turns[trial.number])
    ]
    figure.add_trace(
        Scatter(
            name="waits",
            x=np.array([wait[1:] for wait in waits], dtype=np.float32).ravel(),
            y=np.repeat(np.array([wait[0] for wait in waits], dtype=np.int32), 3),
            mode="lines",
            line={"color": GREY, "width": 1},
            hoverinfo="skip",
            opacity=0.6,
        )
    )
    for standing, trials in [*by_standing(story), ("best", [story.best] if story.best else [])]:
        bars = [
            (trial.number, line[trial.number], start_s / unit.seconds, stop_s / unit.seconds)
            for trial in trials
            if (trial.number == story.winner) == (standing == "best")
            for start_s, stop_s in turns[trial.number]
        ]
        if not bars:
            continue
        numbers, rows, starts, stops = (
            np.array(column, dtype=np.float32) for column in zip(*bars, strict=True)
        )
        figure.add_trace(
            Bar(
                name=standing,
                base=starts,
                x=stops - starts,
                y=rows.astype(np.int32),
                width=0.8,
                orientation="h",
                marker={"color": COLOUR.get(standing, BEST), "line": {"width": 0}},
                customdata=numbers.astype(np.int32),
                hovertemplate="trial %{customdata}: from %{base:.3f} to %{x:.3f} "
                f"{unit.sign}<extra></extra>",
            )
        )
    count = len(line)
    every = max(1, -(-count // MOST_NAMED))
    some = list(line.items())[::every]
    figure.update_yaxes(
        tickvals=[index for _, index in some],
        ticktext=[str(number) for number, _ in some],
        range=[count - 0.4, -0.6],
        showgrid=False,
        zeroline=False,
    )
    figure.update_xaxes(range=[0, story.end_s / unit.seconds or 1.0])
    row = max(2.0, min(22.0, 900 / max(1, count)))
    figure.update_layout(barmode="overlay", height=170 + row * count, hovermode="closest")
    return labelled(figure, "", f"{unit.name} since the submission", "trial")


def _turns(story: SweepStory) -> dict[int, list[tuple[float, float]]]:
    """When each trial ran; turns whose pause can't be seen are one, and of very many, more."""
    least_s = story.end_s / THINNEST
    while True:
        found: dict[int, list[tuple[float, float]]] = {}
        for trial in story.trials:
            merged: list[tuple[float, float]] = []
            for start_s, stop_s in sorted(trial.ran):
                if merged and start_s - merged[-1][1] < least_s:
                    merged[-1] = (merged[-1][0], max(stop_s, merged[-1][1]))
                else:
                    merged.append((start_s, stop_s))
            found[trial.number] = merged
        bars = sum(map(len, found.values()))
        if bars <= max(MOST_BARS, len(found)) or not least_s < inf:
            return found
        least_s = least_s * 2 or 1.0


def _waits(
    story: SweepStory, trial: TrialStory, turns: Sequence[tuple[float, float]]
) -> list[tuple[float, float]]:
    """When a trial was open, and had no turn."""
    end_s = story.end_s if trial.finish_s is None else trial.finish_s
    edges_s = [trial.submit_s, *(edge_s for turn in turns for edge_s in turn), end_s]
    pairs = zip(edges_s[::2], edges_s[1::2], strict=True)
    return [(from_s, to_s) for from_s, to_s in pairs if to_s > from_s]
