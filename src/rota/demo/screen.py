"""The terminal's view of a run in progress."""

from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from rota.demo.workload import MIX

STATE_STYLES = {"RUNNING": "bold green", "SUSPENDED": "yellow", "SUCCEEDED": "blue"}
PLAIN_EVERY = 20  # without a terminal, one line per so many looks


class Screen:
    """A live table of jobs and slots; plain lines where the output is not a terminal."""

    def __init__(self, console: Console, policy: str, slots: int) -> None:
        self._console = console
        self._policy = policy
        self._slots = slots
        self._looks = 0
        self._live = Live(console=console, transient=True, auto_refresh=False)

    def __enter__(self) -> "Screen":
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def show(self, jobs: list[dict[str, Any]]) -> None:
        """Draw the jobs' present state."""
        if self._console.is_terminal:
            self._live.update(self._table(jobs), refresh=True)
        elif self._looks % PLAIN_EVERY == 0:
            self._console.print(
                f"{self._policy}: "
                + ", ".join(f"{job['name']} {_step(job)} {job['state'].lower()}" for job in jobs)
            )
        self._looks += 1

    def _table(self, jobs: list[dict[str, Any]]) -> Group:
        table = Table(box=None, padding=(0, 1), header_style="dim")
        for column in ("JOB", "STATE", "SLOT", "STEP", "LOSS", "METRIC", "TARGET"):
            table.add_column(column, justify="left" if column in ("JOB", "STATE") else "right")
        table.add_column("DEVICE TIME", no_wrap=True)
        most_s = max((job["run_s"] for job in jobs), default=0.0) or 1.0
        targets = {training.name: training for training in MIX}
        for job in jobs:
            progress, training = job["progress"], targets[job["name"]]
            metric = progress.get("metrics", {}).get(training.metric)
            slots = ",".join(str(gpu) for node in job["gpus"] for gpu in node["gpus"])
            table.add_row(
                job["name"],
                Text(job["state"].lower(), STATE_STYLES.get(job["state"], "")),
                slots or "-",
                str(progress.get("step", "-")),
                _number(progress.get("loss")),
                _number(metric),
                f"{'≥' if training.higher_is_better else '≤'} {training.target:g}",
                Text(f"{job['run_s']:5.1f} s ")
                + Text("█" * round(9 * job["run_s"] / most_s), "cyan"),
            )
        title = Text(f"{self._policy}: {len(jobs)} jobs on {self._slots} slots", "bold")
        return Group(title, table)


def _step(job: dict[str, Any]) -> str:
    return f"step {job['progress'].get('step', 0)}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
