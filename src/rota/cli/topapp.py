"""The screens of ``rota top``. The only module that imports Textual."""

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

from rich.text import Text
from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen, Screen
from textual.widgets import DataTable, Footer, RichLog, Static
from textual.worker import Worker, WorkerState

from rota.cli.present import job_text
from rota.cli.topboard import (
    ANSWERS,
    BACK,
    KEPT_LINES,
    KEYS,
    MOST_CHARACTERS,
    Board,
    Column,
    Key,
    Snapshot,
    cut,
)
from rota.cli.topfeed import Feed, apart
from rota.cli.verdict import why_text
from rota.client.client import Client
from rota.client.outputs import split_lines
from rota.errors import RotaError
from rota.report.text import printable

HAPPENED_LINES, TURN_LINES = 4, 2  # on the first screen
LOG_LINES, LOG_TAIL = 5000, 200
STEERING = ("suspend", "resume", "cancel")
TICK_S = 1.0  # ages and the clock go on though nothing happens


def _bindings(keys: Sequence[Key]) -> list[BindingType]:
    return [Binding(key.key, key.action, key.label) for key in keys]


class Top(App[None]):
    """The cluster that ``client`` talks to, from what was read ``first`` on.

    ``failure`` is why it could not go on, None after the key that leaves.
    """

    ENABLE_COMMAND_PALETTE = False
    BINDINGS = _bindings(KEYS)
    CSS = """
    Screen { layout: vertical; }
    #heading { height: 1; text-style: bold; }
    #away { height: 1; display: none; text-style: reverse; }
    .block { border-top: solid $foreground; border-title-align: left; height: auto; }
    #gpus { max-height: 6; }
    #jobs { height: 1fr; min-height: 4; border-top: solid $foreground; }
    #more { height: auto; }
    #turns { max-height: 3; display: none; }
    #happened { height: 5; }
    DataTable, RichLog { background: $background; }
    DataTable, RichLog, VerticalScroll { scrollbar-size-vertical: 1; overflow-x: hidden; }
    DataTable > .datatable--cursor {
        color: $foreground; background: $background; text-style: reverse;
    }
    DataTable > .datatable--header { text-style: bold; }
    Question { align: center middle; }
    Question > Vertical {
        width: 60; height: auto; padding: 1 2; border: solid $foreground; background: $surface;
    }
    """

    def __init__(self, client: Client, first: Snapshot) -> None:
        # Without colours the terminal's own two are used: Textual's greys are colours, too.
        super().__init__(ansi_color=bool(os.environ.get("NO_COLOR")))
        self.failure: RotaError | None = None
        self.board = Board()
        self._client, self._first = client, first
        self._columns: list[Column] = []
        self._shown: dict[str, list[str]] = {}

    def compose(self) -> ComposeResult:
        """Lay the first screen out."""
        yield Static(id="heading", markup=False)
        yield Static(id="away", markup=False)
        with VerticalScroll(id="gpus", classes="block", can_focus=False) as gpus:
            gpus.border_title = "GPUs"
            yield Static(id="nodes", markup=False)
        jobs: DataTable[Text] = DataTable(id="jobs", cursor_type="row", cell_padding=0)
        jobs.border_title = "jobs"
        yield jobs
        turns = Static(id="turns", classes="block", markup=False)
        turns.border_title = "turns"
        yield turns
        happened = Static(id="happened", classes="block", markup=False)
        happened.border_title = "decisions"
        yield happened
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        """Begin to follow the cluster."""
        self.query_one("#jobs", DataTable).focus()
        feed = Feed(self._client, self.board, self.show_board)
        self.run_worker(feed.run(self._first), name="feed", exit_on_error=False)
        self.set_interval(TICK_S, self.show_board)

    def on_resize(self, event: events.Resize) -> None:
        """Use the new width."""
        self.show_board()

    def on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        """Leave with the error that the cluster can't be followed any more, if so."""
        if event.worker.name == "feed" and event.state == WorkerState.ERROR:
            error = event.worker.error
            if not isinstance(error, RotaError):
                raise error or AssertionError("the feed ended")
            self.failure = error
            self.exit()

    # -- what is shown -------------------------------------------------------------------------

    def show_board(self) -> None:
        """Show the board as it is."""
        if not self.screen_stack or not self.is_running:
            return
        screen = self.screen_stack[0]
        if not screen.query("#happened"):
            return
        self.refresh_bindings()
        board, now_s, width = self.board, self._client.now_s(), self.size.width
        screen.query_one("#heading", Static).update(board.heading(now_s, width))
        away = screen.query_one("#away", Static)
        away.update(cut(board.away or "", width))
        away.display = board.away is not None
        screen.query_one("#nodes", Static).update("\n".join(board.gpu_lines(width)))
        turns = screen.query_one("#turns", Static)
        lines = board.turn_lines(now_s, width)[:TURN_LINES]
        turns.update("\n".join(lines))
        turns.display = bool(lines)
        happened = board.happened(HAPPENED_LINES, width)
        screen.query_one("#happened", Static).update("\n".join(happened))
        self._show_jobs(screen, now_s, width)

    def _show_jobs(self, screen: Screen[Any], now_s: float, width: int) -> None:
        table = screen.query_one("#jobs", DataTable)
        table.border_title = "  ".join(filter(None, ("jobs", self.board.left_out())))
        columns = self.board.columns(width)
        if columns != self._columns:
            table.clear(columns=True)
            for name, size in columns:
                table.add_column(Text(name), width=size, key=name)
            self._columns, self._shown = columns, {}
        rows = self.board.rows(columns, now_s)
        if list(rows) == list(self._shown):
            for job_id, cells in rows.items():
                for column, old, new in zip(columns, self._shown[job_id], cells, strict=True):
                    if old != new:
                        table.update_cell(job_id, column.name, Text(new))
        else:
            self._replace_jobs(table, rows)
        self._shown = rows

    def _replace_jobs(self, table: DataTable[Text], rows: dict[str, list[str]]) -> None:
        """Show other jobs; the cursor stays on its job if that is among them."""
        chosen, top = self._job_id(), table.scroll_offset.y
        table.clear()
        for job_id, cells in rows.items():
            table.add_row(*map(Text, cells), key=job_id)
        if chosen in rows:
            table.move_cursor(row=list(rows).index(chosen), animate=False, scroll=False)
        table.scroll_to(y=top, animate=False)

    def _job_id(self) -> str | None:
        """The job that the cursor is on."""
        ids, row = list(self._shown), self.screen_stack[0].query_one("#jobs", DataTable).cursor_row
        return ids[row] if 0 <= row < len(ids) else None

    # -- keys ----------------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Keys of jobs are for the first screen; None greys one out that the role forbids."""
        if action in STEERING and not self.board.may(action):
            return None
        ours = action in [key.action for key in KEYS if key.action != "quit"]
        return not ours or len(self.screen_stack) == 1

    def action_suspend(self) -> None:
        """Suspend the chosen job."""
        self._steer("suspend", self._client.suspend)

    def action_resume(self) -> None:
        """Resume the chosen job."""
        self._steer("resume", self._client.resume)

    def action_cancel(self) -> None:
        """Cancel the chosen job, if the answer is yes."""
        job_id = self._job_id()
        if job_id is not None:
            name = self.board.jobs[job_id]["name"]
            lost = "It ends, and what it has not saved is lost."
            text = f"Cancel job {job_id} ({cut(name, 40)})? {lost}"
            answered = partial(self._cancel_if, job_id)
            self.push_screen(Question(text), answered)

    def _cancel_if(self, job_id: str, yes: bool | None) -> None:
        if yes:
            self._steer("cancel", self._client.cancel, job_id)

    def action_why(self) -> None:
        """Tell why the chosen job does not run."""
        if (job_id := self._job_id()) is not None:
            explain, width = self._client.explain, self.size.width - 2
            self._open(f"why job {job_id}", lambda: why_text(explain(job_id), width))

    def action_show(self) -> None:
        """Tell everything about the chosen job."""
        if (job_id := self._job_id()) is not None:
            client, width = self._client, self.size.width - 2
            self._open(
                f"job {job_id}",
                lambda: job_text(client.job(job_id), client.explain(job_id), width),
            )

    def action_decisions(self) -> None:
        """List what has happened."""
        lines = self.board.happened(KEPT_LINES, MOST_CHARACTERS)
        self.push_screen(Page("decisions, the latest last", "\n".join(lines), at_end=True))

    def action_logs(self) -> None:
        """Follow the output of the chosen job."""
        if (job_id := self._job_id()) is not None:
            self.push_screen(Log(self._client, job_id))

    def _steer(
        self, verb: str, call: Callable[[str], dict[str, Any]], job_id: str | None = None
    ) -> None:
        job_id = job_id or self._job_id()
        if job_id is not None:
            self.run_worker(self._steered(verb, call, job_id))

    async def _steered(self, verb: str, call: Callable[[str], dict[str, Any]], job_id: str) -> None:
        try:
            changed = (await apart(lambda: call(job_id)))["changed"]
        except RotaError as error:
            self._say(f"{verb} job {job_id}: {error}", severity="error")
            return
        self._say(f"{verb} job {job_id}: " + ("asked for" if changed else "nothing to change"))

    def _open(self, title: str, text: Callable[[], str]) -> None:
        self.run_worker(self._opened(title, text))

    async def _opened(self, title: str, text: Callable[[], str]) -> None:
        try:
            told = await apart(text)
        except RotaError as error:
            self._say(str(error), severity="error")
            return
        self.push_screen(Page(title, told))

    def _say(self, text: str, **how: Any) -> None:
        self.notify(printable(text)[:MOST_CHARACTERS], markup=False, **how)


class Page(Screen[None]):
    """A text that scrolls."""

    BINDINGS: ClassVar[list[BindingType]] = [
        *_bindings([BACK]),
        Binding("q", BACK.action, show=False),
    ]

    def __init__(self, title: str, text: str, *, at_end: bool = False) -> None:
        super().__init__()
        self._heading, self._text, self._at_end = title, text, at_end

    def compose(self) -> ComposeResult:
        """Lay it out."""
        with VerticalScroll(classes="block", id="page") as page:
            page.border_title = self._heading
            page.styles.height = "1fr"
            yield Static(Text(self._text), id="text")
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        """Begin at the end if that is of most interest."""
        page = self.query_one("#page", VerticalScroll)
        page.focus()
        if self._at_end:
            page.scroll_end(animate=False)

    def action_back(self) -> None:
        """Close it."""
        self.dismiss()


class Log(Screen[None]):
    """The output of a job, followed to its end."""

    BINDINGS = Page.BINDINGS

    def __init__(self, client: Client, job_id: str) -> None:
        super().__init__()
        self._client, self._job_id = client, job_id

    def compose(self) -> ComposeResult:
        """Lay it out."""
        log = RichLog(id="log", classes="block", max_lines=LOG_LINES, wrap=True, markup=False)
        log.border_title = f"logs of job {self._job_id}"
        log.styles.height = "1fr"
        yield log
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        """Begin to follow."""
        self.query_one("#log", RichLog).focus()
        self.run_worker(self._follow())

    async def _follow(self) -> None:
        log, rest = self.query_one("#log", RichLog), ""
        pieces = self._client.logs(self._job_id, tail=LOG_TAIL, follow=True)
        try:
            while (piece := await apart(lambda: next(pieces, None))) is not None:
                lines, rest = split_lines(rest, piece)
                for line in lines:
                    log.write(_line(line))
            if rest:
                log.write(_line(rest))
            log.write(Text("(it has ended)"))
        except RotaError as error:
            log.write(_line(f"({error})"))

    def action_back(self) -> None:
        """Close it."""
        self.dismiss()


class Question(ModalScreen[bool]):
    """A question that y answers with yes, and n and escape with no."""

    BINDINGS: ClassVar[list[BindingType]] = [
        *_bindings(ANSWERS),
        Binding("escape", "no", show=False),
    ]

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        """Lay it out."""
        answers = "   ".join(f"{key.key}  {key.label}" for key in ANSWERS)
        with Vertical():
            yield Static(Text(f"{self._text}\n\n{answers}"), id="question")

    def action_yes(self) -> None:
        """Answer yes."""
        self.dismiss(True)

    def action_no(self) -> None:
        """Answer no."""
        self.dismiss(False)


def _line(text: str) -> Text:
    return Text(printable(text[:MOST_CHARACTERS], keep="\t")[:MOST_CHARACTERS])
