"""The page about a sweep: its result, figures that can be zoomed, and a table of trials."""

from __future__ import annotations

from collections.abc import Iterator

from rota.report.page import Section, Table, page
from rota.report.sweep import (
    CANCELLED,
    DONE,
    FAILED,
    RUNNING,
    STOPPED,
    WAITING,
    SweepStory,
    ranked,
)
from rota.report.sweepcharts import best_chart, trials_chart
from rota.report.sweepfacts import BEFORE, facts, trials_table
from rota.report.sweepgpus import gpus_chart
from rota.report.sweepparallel import parameters_chart
from rota.report.sweepturns import turns_chart

MOST_ROWS = 500
AXIS_PX = 72  # the least room for a parameter in the parallel coordinates
MEANINGS = (
    (RUNNING, "it has GPUs"),
    (WAITING, "it waits for its first turn or its next"),
    (DONE, "it has come to its own end"),
    (STOPPED, "the search ended it early, as others promised more, or with its own end"),
    (FAILED, "it crashed, took too long, or reported no number"),
    (CANCELLED, "its user ended it"),
)
ZOOM = "Drag to zoom, double-click to see everything again; click a name to hide it."


def sweep_page(story: SweepStory) -> str:
    """The text of one HTML file about a sweep, which needs no other file."""
    overview = Section("What it came to", "", Table(("", ""), list(facts(story)), prose=True))
    return page(f"Sweep {story.name}", [overview, *_pictures(story), *_words(story)])


def _pictures(story: SweepStory) -> Iterator[Section]:
    if not story.trials:
        yield Section("Trials", "There are none yet.")
        return
    if any(trial.best for trial in story.trials):
        yield Section(
            "Best so far",
            "The line is the best value up to then; a mark is a trial, at the time of its own "
            f"best value. {ZOOM}",
            best_chart(story),
        )
        yield Section("Curves", f"What each trial reported, by step. {ZOOM}", trials_chart(story))
        yield Section(
            "Parallel coordinates",
            "A line is a trial, from its parameters to its value on the right; point at it where "
            "it crosses an axis. Colours go by value: click a group under the picture to hide it. "
            "Trials without a value are left out.",
            parameters_chart(story),
            least_px=AXIS_PX * (len(story.parameters) + 1),
        )
    elif story.metric:
        yield Section("Curves", f"No trial has reported {story.metric} yet.")
    yield Section(
        "Who ran when",
        "A bar is a time in which a trial had GPUs; where the line is thin, it waits. Pauses too "
        f"short to be seen are left out, and where turns are very many, longer ones, too. {ZOOM}",
        turns_chart(story),
    )
    if any(trial.ran for trial in story.trials):
        yield Section(
            "Who had which GPU",
            "A bar is a turn, with the number of its trial where there is room. Colours repeat; "
            "where turns are very many, short ones in a row are one, and grey. Drag to zoom, "
            "double-click to see everything again.",
            gpus_chart(story),
        )


def _words(story: SweepStory) -> Iterator[Section]:
    if not story.trials:
        return
    some = ranked(story)[:MOST_ROWS]
    more = len(story.trials) - len(some)
    header, rows = trials_table(story, some)
    text = "The best first." + (f" {more} more are left out." if more else "")
    names = [header[0].capitalize(), *(name.lower() for name in header[1 : len(BEFORE)])]
    names += [*header[len(BEFORE) : -2], "GPU time", "why"]
    text_columns = (1, len(header) - 1)
    yield Section("Trials", text, Table(names, rows, text_columns=text_columns))
    yield Section("What the words mean", "", Table(("", ""), MEANINGS, prose=True))
