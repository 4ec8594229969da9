"""Interactive timeline of a sweep's trials: a line for each trial, a bar for each turn."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import inf, nan
from typing import TYPE_CHECKING

from rota.report.duration import unit_for
from rota.report.plotly_style import labelled
from rota.report.sweep import SweepStory, TrialStory, Turn
from rota.report.sweepcharts import BEST, COLOUR, GREY, by_standing

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

MOST_BARS = 5000
THINNEST = 1500  # a pause shorter than this part of the time can't be seen
MOST_NAMED = 40  # trials beside the axis
MOST_GPUS = 8  # GPUs that are listed by name


def turns_chart(story: SweepStory) -> Figure:
    """Timeline of trials: a line for each trial, a bar for each turn, a thin line for a wait."""
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
            (trial.number, line[trial.number], turn)
            for trial in trials
            if (trial.number == story.winner) == (standing == "best")
            for turn in turns[trial.number]
        ]
        if not bars:
            continue
        starts = np.array([turn.start_s for _, _, turn in bars]) / unit.seconds
        stops = np.array([turn.stop_s for _, _, turn in bars]) / unit.seconds
        figure.add_trace(
            Bar(
                name=standing,
                base=starts.astype(np.float32),
                x=(stops - starts).astype(np.float32),
                y=np.array([row for _, row, _ in bars], dtype=np.int32),
                width=0.8,
                orientation="h",
                marker={"color": COLOUR.get(standing, BEST), "line": {"width": 0}},
                hovertext=[f"trial {n} on {gpus_words(turn)}" for n, _, turn in bars],
                hovertemplate="%{hovertext}<br>from %{base:.3f} to %{x:.3f} "
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


def gpus_words(turn: Turn) -> str:
    """Names of the GPUs if they are few, else their number."""
    count = len(turn.gpus)
    return escape(", ".join(turn.gpus)) if count <= MOST_GPUS else f"{count} GPUs"


def _turns(story: SweepStory) -> dict[int, list[Turn]]:
    """Turns of each trial, joined where the pause is too short to see or turns are too many."""
    least_s = story.end_s / THINNEST
    while True:
        found: dict[int, list[Turn]] = {}
        for trial in story.trials:
            merged: list[Turn] = []
            for turn in sorted(trial.ran):
                if merged and turn.start_s - merged[-1].stop_s < least_s:
                    merged[-1] = _joined(merged[-1], turn)
                else:
                    merged.append(turn)
            found[trial.number] = merged
        bars = sum(map(len, found.values()))
        if bars <= max(MOST_BARS, len(found)) or not least_s < inf:
            return found
        least_s = least_s * 2 or 1.0


def _joined(turn: Turn, later: Turn) -> Turn:
    gpus = tuple(dict.fromkeys([*turn.gpus, *later.gpus]))
    return Turn(turn.start_s, max(turn.stop_s, later.stop_s), gpus)


def _waits(
    story: SweepStory, trial: TrialStory, turns: Sequence[Turn]
) -> list[tuple[float, float]]:
    """Times at which a trial was open and had no turn."""
    end_s = story.end_s if trial.finish_s is None else trial.finish_s
    edges_s = [trial.submit_s, *(edge for turn in turns for edge in turn[:2]), end_s]
    pairs = zip(edges_s[::2], edges_s[1::2], strict=True)
    return [(from_s, to_s) for from_s, to_s in pairs if to_s > from_s]
