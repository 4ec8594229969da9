"""Elements that pages are made of. Whatever they show is text."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from nicegui import ui
from nicegui.element import Element

from rota.ui.text import plain

MOST_SHORT = 340  # pixels of height of a grid that is as high as its rows
TONES = {
    "RUNNING": "good",
    "SUCCEEDED": "good",
    "FAILED": "bad",
    "LOST": "bad",
    "TIMEOUT": "bad",
    "PENDING": "wait",
    "SUSPENDED": "wait",
    "SUSPENDING": "wait",
    "STARTING": "wait",
    "RESUMING": "wait",
    "HELD": "wait",
}


class Gpus(Element, component="static/gpus.js"):
    """A canvas with a cell for each GPU; ``run_method("show", nodes)`` draws it."""

    def __init__(self, label: str) -> None:
        super().__init__()
        self._props["label"] = label


class Timeline(Element, component="static/timeline.js"):
    """A canvas with a line for each GPU, which loads its pieces itself; of one job, or of all."""

    def __init__(self, label: str, job: str = "") -> None:
        super().__init__()
        self._props |= {"label": label, "job": job}


class LogPane(Element, component="static/log.js"):
    """The end of an output; ``run_method("add", text)`` adds to it."""

    def __init__(self, label: str) -> None:
        super().__init__()
        self._props["label"] = label


def tag(name: str, text: object = None, *, classes: str = "", **props: object) -> Element:
    """An HTML element, with a text if one is given. ``aria_label`` is written ``aria-label``."""
    element = Element(name)
    if text is not None:
        element._text = str(text)
    if classes:
        element.classes(classes)
    for key, value in props.items():
        element._props[key.rstrip("_").replace("_", "-")] = value
    return element


def write(element: Element, text: object) -> None:
    """Give an element another text, if it is another."""
    if element._text != str(text):
        element._text = str(text)
        element.update()


def figure(name: str, command: str) -> Element:
    """A number with its name below, and the command that prints it; returns the number."""
    with tag("button", classes="figure", type="button", data_command=command, title=command):
        number = tag("b", "–")
        tag("i", name)
    return number


def age(at_s: float | None) -> Element:
    """How long ago a time of the cluster is; it grows on the page."""
    if at_s is None:
        return tag("span", "–")
    return tag("span", data_age=at_s)


def moment(at_s: float | None) -> Element:
    """A time of the cluster, in the browser's time zone."""
    return tag("span", "–") if at_s is None else tag("span", data_clock=at_s)


def badge(state: str) -> Element:
    """A state."""
    return tag("span", plain(state).lower(), classes=f"badge {TONES.get(state, '')}")


def job_link(job_id: str, text: str | None = None) -> Element:
    """The way to a job's page."""
    return tag("a", plain(text or job_id), href=f"/job/{job_id}")


def facts(pairs: Iterable[tuple[str, object]]) -> None:
    """Names and values, those that are None left out; a value may be a function that makes it."""
    with tag("dl", classes="facts"):
        for name, value in pairs:
            if value is None or value == "":
                continue
            tag("dt", name)
            if callable(value):
                with tag("dd"):
                    value()
            else:
                tag("dd", plain(value, 1000))


def table(header: Sequence[str], rows: Iterable[Sequence[object]], *, label: str) -> None:
    """A table of text; a cell may be a function that makes it."""
    with (
        tag("div", classes="sideways", tabindex="0", role="region", aria_label=label),
        tag("table", classes="list"),
    ):
        with tag("thead"), tag("tr"):
            for name in header:
                tag("th", name, scope="col")
        with tag("tbody"):
            for row in rows:
                with tag("tr"):
                    for cell in row:
                        if callable(cell):
                            with tag("td"):
                                cell()
                        else:
                            tag("td", plain(cell, 1000))


class Grid:
    """A grid of rows by id, of which only what has changed is sent.

    ``columns`` are AG Grid's; ``context.from`` of one is the width from which it is shown. A row
    that is the same object as before has not changed. ``on_select`` is told the chosen row's id.
    ``commands`` print what a cell shows, by column, that of "" for the others: ROW is the row's id.
    """

    def __init__(
        self,
        columns: Sequence[Mapping[str, Any]],
        *,
        label: str,
        empty: str,
        commands: Mapping[str, str] = {},
        on_select: Callable[[str | None], Any] | None = None,
        short: bool = False,
    ) -> None:
        self._short = short
        self._sent: dict[str, Mapping[str, Any]] = {}
        self._order: list[str] = []
        self.chosen: str | None = None
        options: dict[str, Any] = {
            "columnDefs": [dict(each) for each in columns],
            "defaultColDef": {"sortable": True, "resizable": True, "suppressMovable": True},
            "rowData": [],
            "rowHeight": 32,
            "headerHeight": 34,
            "suppressCellFocus": False,
            "animateRows": False,
            "suppressColumnMoveAnimation": True,
            "ensureDomOrder": False,
            "overlayNoRowsTemplate": f'<span class="note">{empty}</span>',
            ":getRowId": "params => params.data.id",
            ":onGridSizeChanged": "rota.fit",
        }
        if any(":valueFormatter" in each for each in columns):
            options[":onFirstDataRendered"] = "rota.ages"
        if on_select is not None:
            options["rowSelection"] = {
                "mode": "singleRow",
                "checkboxes": False,
                "enableClickSelection": True,
            }
        self.element = ui.aggrid(options, theme="quartz", auto_size_columns=False)
        self.element.classes("rota-grid" + (" short" if short else ""))
        self.element._props["role"] = "region"
        self.element._props["aria-label"] = label
        self.element._props["data-commands"] = json.dumps(commands)
        if on_select is not None:

            async def selected() -> None:
                row = await self.element.get_selected_row()
                self.chosen = row["id"] if row else None
                await on_select(self.chosen)

            self.element.on("selectionChanged", selected, [])

    def show(self, rows: Mapping[str, Mapping[str, Any]]) -> None:
        """Make the grid show these rows, in this order."""
        order = list(rows)
        if self._short and (not self._sent or len(order) != len(self._order)):
            self.element.style(f"height:{min(MOST_SHORT, 46 + 32 * max(2, len(order)))}px")
        if not self._sent or order[: len(self._order)] != self._order:
            if order != self._order or any(self._sent.get(key) is not rows[key] for key in rows):
                self.element.run_grid_method("setGridOption", "rowData", list(rows.values()))
        else:
            changed = [
                r for key, r in rows.items() if key in self._sent and self._sent[key] is not r
            ]
            added = [rows[key] for key in order[len(self._order) :]]
            if changed or added:
                self.element.run_grid_method("applyTransaction", {"update": changed, "add": added})
        self._sent, self._order = dict(rows), order
