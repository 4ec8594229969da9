"""Progress bars, for runs that take long, on a terminal."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rota.scenario.pool import watched

if TYPE_CHECKING:
    from rich.progress import Progress

PATIENCE_S = 1.0  # shorter work needs no bar
EVERY_S = 0.5


@contextmanager
def many_runs() -> Iterator[None]:
    """Draws a bar of the runs that go over the cores in here, if stderr is a terminal."""
    if not _on_terminal():
        yield
        return
    bar = _RunsBar()
    with watched(bar):
        try:
            yield
        finally:
            bar.close()


@contextmanager
def one_run(how_far: Callable[[], tuple[int, int]]) -> Iterator[None]:
    """Draws a bar of the jobs of a run that takes long, if stderr is a terminal.

    ``how_far`` gives (jobs that have ended, all jobs); it is called from another thread.
    """
    if not _on_terminal():
        yield
        return
    over = threading.Event()
    thread = threading.Thread(target=_follow, args=(how_far, over), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _follow(how_far: Callable[[], tuple[int, int]], over: threading.Event) -> None:
    if over.wait(PATIENCE_S):
        return
    with _bar("jobs") as bar:
        task = bar.add_task("", total=None)
        while not over.wait(EVERY_S):
            done, total = how_far()
            bar.update(task, completed=done, total=total or None)


class _RunsBar:
    """A bar that is drawn from the second run on, and grows when more runs are told."""

    def __init__(self) -> None:
        self._bar: Progress | None = None
        self._task: Any = None
        self._total = self._done = 0

    def expect(self, count: int) -> None:
        self._total += count
        if self._bar is None and self._total > 1:
            self._bar = _bar("runs")
            self._bar.start()
            self._task = self._bar.add_task("", total=self._total)
        self._draw()

    def advance(self) -> None:
        self._done += 1
        self._draw()

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()

    def _draw(self) -> None:
        if self._bar is not None:
            self._bar.update(self._task, completed=self._done, total=self._total)


def _on_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()


def _bar(what: str) -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, Task
    from rich.table import Column
    from rich.text import Text

    class HowFar(ProgressColumn):
        """Work done, time passed, and estimate of the time left."""

        def render(self, task: Task) -> Text:
            total = "?" if task.total is None else f"{task.total:,.0f}"
            return Text(f"{task.completed:,.0f} of {total} {what}, {_times(task)}")

    columns = (BarColumn(bar_width=20), HowFar(table_column=Column(no_wrap=True)))
    return Progress(*columns, console=Console(stderr=True), transient=True)


def _times(task: Any) -> str:
    passed_s = task.elapsed or 0.0
    if not task.completed or not task.total:
        return f"{_clock(passed_s)} so far"
    left_s = passed_s / task.completed * (task.total - task.completed)
    return f"{_clock(passed_s)} so far, about {_clock(left_s)} to go"


def _clock(seconds: float) -> str:
    return time.strftime("%H:%M:%S" if seconds >= 3600 else "%M:%S", time.gmtime(seconds))
