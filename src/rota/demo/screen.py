"""One line of progress while trainings run."""

from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from rota.demo.workload import Training
from rota.model.job import JobState

BAR = 14  # characters
PLAIN_EVERY_S = 10.0  # without a terminal
LEAST_PART = 0.1  # done, for a guess at how long the rest takes


class ProgressLine:
    """A line that is drawn again and again; on what is no terminal a plain line now and then."""

    def __init__(
        self,
        console: Console,
        policy: str,
        trainings: Sequence[Training],
        clock: Callable[[], float],
    ) -> None:
        self._console, self._policy, self._clock = console, policy, clock
        self._trainings = trainings
        self._began_s = clock()
        self._from_s: float | None = None  # since then there are jobs
        self._next_s = 0.0
        self._live = Live(console=console, transient=True, auto_refresh=False)

    def __enter__(self) -> "ProgressLine":
        if self._console.is_terminal:
            self._live.start()
            self._draw(f"{self._policy}: a cluster starts")
        return self

    def __exit__(self, *exc: object) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def show(self, jobs: list[dict[str, Any]]) -> None:
        """Draw how far the jobs are."""
        passed_s = self._clock() - self._began_s
        if self._console.is_terminal:
            self._draw(self.text(jobs))
        elif passed_s >= self._next_s:
            self._next_s = passed_s + PLAIN_EVERY_S
            self._console.print(self.text(jobs), soft_wrap=True, markup=False, highlight=False)

    def text(self, jobs: list[dict[str, Any]]) -> str:
        """The line: how much is done, for how long it has run, and who runs."""
        now_s, part = self._clock(), self._part(jobs)
        passed_s = now_s - self._began_s
        if self._from_s is None:
            self._from_s = now_s
        filled = round(BAR * part)
        states = {job["name"]: JobState[job["state"]] for job in jobs}
        runs = [name for name, state in states.items() if state == JobState.RUNNING]
        ended = sum(state == JobState.SUCCEEDED for state in states.values())
        left = ""
        if LEAST_PART <= part < 1:
            left = f", {(now_s - self._from_s) * (1 / part - 1):.0f} s left"
        return (
            f"{self._policy} [{'#' * filled}{'.' * (BAR - filled)}] {part:4.0%}  {passed_s:.0f} s"
            f"{left}  {ended}/{len(self._trainings)} done  {', '.join(runs)}"
        ).rstrip()

    def _part(self, jobs: list[dict[str, Any]]) -> float:
        """The part of all device time that is behind the jobs, by their steps."""
        known = {job["name"]: job for job in jobs}
        done_s = total_s = 0.0
        for training in self._trainings:
            needs_s = training.gpus * training.seconds
            total_s += needs_s
            if (job := known.get(training.name)) is None:
                continue
            if job["state"] == JobState.SUCCEEDED.name:
                done_s += needs_s
            else:
                done_s += needs_s * min(1.0, job["progress"].get("step", 0) / training.steps)
        return done_s / total_s

    def _draw(self, line: str) -> None:
        text = Text(line, no_wrap=True, overflow="crop")
        self._live.update(text, refresh=True)
