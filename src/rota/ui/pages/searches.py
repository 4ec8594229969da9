"""Searches over hyper-parameters: the list, and one with the charts of ``rota sweep show``."""

import asyncio
from collections.abc import Mapping
from typing import Any

from nicegui import ui

from rota.report.sweep import SweepStory, ranked, read_sweep
from rota.report.sweepcharts import best_chart, trials_chart
from rota.report.sweepfacts import facts as sweep_facts
from rota.report.sweepfacts import trials_table
from rota.report.sweepgpus import gpus_chart
from rota.report.sweepparallel import parameters_chart
from rota.report.sweepturns import turns_chart
from rota.ui.frame import Frame
from rota.ui.pages.queue import AGE
from rota.ui.parts import Grid, facts, table, tag, write
from rota.ui.text import number, plain

COLUMNS = (
    {
        "field": "id",
        "headerName": "Search",
        "flex": 2,
        "minWidth": 120,
        ":cellRenderer": "rota.link('/search/')",
    },
    {"field": "state", "headerName": "State", "width": 120, ":cellRenderer": "rota.badge"},
    {"field": "trials", "headerName": "Trials", "flex": 3, "minWidth": 120},
    {"field": "best", "headerName": "Best", "width": 110, "context": {"from": 520}},
    {"field": "user", "headerName": "User", "width": 110, "context": {"from": 640}},
    {"field": "submit_s", "headerName": "Age", "width": 96, **AGE},
)
REREAD_S = 3.0  # a page of charts is drawn anew at most so often
MOST_ROWS = 200


def build(frame: Frame) -> None:
    """The list of searches."""
    rows: dict[str, tuple[Any, dict[str, Any]]] = {}
    with frame.shown("/searches", "Searches", "rota sweep list"):
        with tag("div", classes="head"):
            tag("h1", "Searches")
        grid = Grid(
            COLUMNS,
            label="Searches",
            empty="No search is open, and none ended within the hour.",
            commands={"": "rota sweep show ROW"},
        )

        def update() -> None:
            for name, each in frame.reader.sweeps.items():
                if rows.get(name, (None,))[0] is not each:
                    rows[name] = (each, _row(each))
            for gone in rows.keys() - frame.reader.sweeps.keys():
                del rows[gone]
            grid.show({name: rows[name][1] for name in frame.reader.sweeps})

        frame.on_change(update)


def build_one(frame: Frame, name: str) -> None:
    """One search."""
    shown = plain(name, 60)
    with frame.shown("/searches", f"Search {shown}", f"rota sweep show {shown}"):
        with tag("div", classes="head"):
            tag("h1", f"Search {shown}")
            with tag("div", classes="end"):
                cancel = tag("button", "Cancel", classes="act danger", type="button", disabled=True)
        missing = tag("p", "", classes="note", role="status")
        missing.set_visibility(False)
        with tag("div", classes="cards"):
            about = tag("section", classes="card", aria_label="What it came to")
            charts: dict[str, Any] = {}
            spaces = {
                title: tag("section", classes="card", aria_label=title)
                for title in ("Best so far", "Curves", "Parameters", "Who ran when", "GPUs")
            }
        trials = tag("section", classes="card", aria_label="Trials")
        for part in (about, *spaces.values(), trials):
            part.set_visibility(False)
        state: dict[str, Any] = {"read_s": -REREAD_S, "document": None}

        async def now() -> None:
            await frame.act(f"Search {shown} is cancelled.", lambda c: c.cancel_sweep(name))

        cancel.on(
            "click",
            lambda: frame.confirm(
                f"Cancel search {shown} and its trials? They can't be resumed.",
                "Cancel the search",
                now,
            ),
        )

        def draw_cancel() -> None:
            document = state["document"]
            disabled = document is None or document["state"] == "ENDED" or not frame.may("cancel")
            if cancel._props["disabled"] != disabled:
                cancel._props["disabled"] = disabled
                cancel.update()

        async def update() -> None:
            draw_cancel()
            loop = asyncio.get_running_loop()
            if loop.time() < state["read_s"] + REREAD_S:
                frame.again(state["read_s"] + REREAD_S)
                return
            state["read_s"] = loop.time()
            document = await frame.read(lambda client: client.sweep(name))
            if document is None:
                missing.set_visibility(True)
                write(missing, f"There is no search {shown}, or the controller does not answer.")
                return
            missing.set_visibility(False)
            if document == state["document"]:
                return
            state["document"] = document
            story = read_sweep(document, frame.reader.now_s())
            figures = await asyncio.to_thread(_figures, story)
            draw_cancel()
            about.set_visibility(True)
            about.clear()
            with about:
                tag("h2", "What it came to", data_command=f"rota sweep show {shown}")
                facts(sweep_facts(story))
            for title, space in spaces.items():
                drawn = figures.get(title)
                space.set_visibility(drawn is not None)
                if drawn is None:
                    continue
                if title in charts:
                    charts[title].update_figure(drawn)
                else:
                    with space:
                        tag("h2", title)
                        charts[title] = ui.plotly(drawn).classes("w-full").style("width:100%")
                        charts[title]._props["role"] = "img"
                        charts[title]._props["aria-label"] = title
            trials.set_visibility(bool(story.trials))
            trials.clear()
            with trials:
                tag("h2", "Trials, best first", data_command=f"rota sweep show {shown} --all")
                header, lines = trials_table(story, ranked(story)[:MOST_ROWS])
                table(header, lines, label="Trials, best first")

        frame.on_change(update)


def _figures(story: SweepStory) -> dict[str, Any]:
    """The charts of ``rota sweep show --html``, by title; without trials there are none."""
    if not story.trials:
        return {}
    drawn: dict[str, Any] = {"Who ran when": turns_chart(story)}
    if any(trial.best for trial in story.trials):
        drawn |= {"Best so far": best_chart(story), "Curves": trials_chart(story)}
        if len(story.parameters) > 1:
            drawn["Parameters"] = parameters_chart(story)
    if any(trial.ran for trial in story.trials):
        drawn["GPUs"] = gpus_chart(story)
    return {title: _plain_figure(figure) for title, figure in drawn.items()}


def _plain_figure(figure: Any) -> dict[str, Any]:
    told = figure.to_plotly_json()
    told["layout"].pop("template", None)
    told["config"] = {"displaylogo": False, "responsive": True, "displayModeBar": False}
    return told


def _row(sweep: Mapping[str, Any]) -> dict[str, Any]:
    best = sweep["best"]
    return {
        "id": sweep["name"],
        "state": sweep["outcome"] or sweep["state"],
        "trials": ", ".join(f"{count} {name}" for name, count in sweep["trials"].items() if count),
        "best": "–" if best is None else number(best["value"]),
        "user": plain(sweep["user"]),
        "submit_s": sweep["submit_s"],
    }
