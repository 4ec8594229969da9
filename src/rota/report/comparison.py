"""Runs side by side: which figures there are, and their means and intervals over seeds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from rota.report.fairness import BINS
from rota.report.statistic import Interval, interval

if TYPE_CHECKING:
    from rota.report.sketch import Sketch

ORACLE_NOTE = "* an oracle: it reads durations that a live scheduler does not know"


class Entry(NamedTuple):
    """What is one line of a table: a policy at one point, and its runs, one for each seed.

    ``point`` names what differs from line to line besides the policy, such as the load.
    """

    policy: str  # with its settings, and a star if it is an oracle
    point: dict[str, str]
    summaries: list[dict[str, Any]]
    sketches: list[Sketch]

    @property
    def label(self) -> str:
        """The policy and the point, as one text."""
        return " ".join([self.policy, *(f"{key} {value}" for key, value in self.point.items())])

    @property
    def is_oracle(self) -> bool:
        """Whether the policy reads durations."""
        return any(summary["needs_duration"] for summary in self.summaries)


def _seconds(value: float) -> str:
    return f"{value:,.1f}"


def _count(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"


def _share(value: float) -> str:
    return f"{value:.1%}"


def _ratio(value: float) -> str:
    return f"{value:,.2f}"


class Figure(NamedTuple):
    """A figure of a summary: its heading, where it is (``bins.SS.jobs``), and how it is written."""

    heading: str
    key: str
    text: Callable[[float], str]

    def of(self, summary: dict[str, Any]) -> float | None:
        """Its value, or None if this run does not have it."""
        value: Any = summary
        for part in self.key.split("."):
            value = None if value is None else value.get(part)
        return value

    def over(self, entry: Entry) -> Interval | None:
        """Its mean over the entry's runs, with its confidence interval."""
        return interval([self.of(summary) for summary in entry.summaries])

    def cell(self, entry: Entry) -> str:
        """Its mean as text, with ± and half the interval's width if there are several runs."""
        found = self.over(entry)
        if found is None:
            return "-"
        if found.half_width is None:
            return self.text(found.mean)
        long = self.text is _seconds and found.mean >= 1000
        text = _count_of_seconds if long else self.text
        return f"{text(found.mean)} ±{text(found.half_width)}"


def _count_of_seconds(value: float) -> str:
    return f"{value:,.0f}"


FIGURES = (
    Figure("jobs", "finished", _count),
    Figure("avg JCT s", "avg_jct_s", _seconds),
    Figure("median s", "median_jct_s", _seconds),
    Figure("p90 s", "p90_jct_s", _seconds),
    Figure("p95 s", "p95_jct_s", _seconds),
    Figure("p99 s", "p99_jct_s", _seconds),
    Figure("makespan s", "makespan_s", _seconds),
    Figure("avg queue s", "avg_queue_s", _seconds),
    Figure("median queue s", "median_queue_s", _seconds),
    Figure("p95 queue s", "p95_queue_s", _seconds),
    Figure("first 100 s", "avg_first_100_s", _seconds),
    Figure("median first 100 s", "median_first_100_s", _seconds),
    Figure("avg waiting", "avg_waiting_jobs", _ratio),
    Figure("max waiting", "max_waiting_jobs", _count),
    Figure("preempted", "preemptions", _count),
    Figure("migrated", "migrations", _count),
    Figure("overhead GPU s", "overhead_gpu_s", _seconds),
    Figure("lost GPU s", "lost_gpu_s", _seconds),
    Figure("GPUs allocated", "gpu_allocation", _share),
    Figure("GPU use", "gpu_utilisation", _share),
    Figure("fragmentation", "fragmentation", _share),
    Figure("avg slowdown", "avg_slowdown", _ratio),
    Figure("p99 slowdown", "p99_slowdown", _ratio),
    *(Figure(f"slowdown {name}", f"bins.{name}.avg_slowdown", _ratio) for name in BINS),
    Figure("avg rho", "avg_rho", _ratio),
    Figure("worst rho", "worst_rho", _ratio),
    Figure("unfair jobs", "unfair_jobs", _share),
    Figure("Jain index", "jain_index", lambda value: f"{value:.3f}"),
    Figure("decisions", "decisions", _count),
    Figure("CPU s", "cpu_s", _ratio),
)
BY_KEY = {figure.key: figure for figure in FIGURES}
NARROW = tuple(
    BY_KEY[key]
    for key in (
        "avg_jct_s",
        "median_jct_s",
        "p95_jct_s",
        "avg_queue_s",
        "makespan_s",
        "preemptions",
        "gpu_utilisation",
        "cpu_s",
    )
)


def known_figures(entries: Sequence[Entry]) -> list[Figure]:
    """The figures that at least one run has."""
    summaries = [summary for entry in entries for summary in entry.summaries]
    return [figure for figure in FIGURES if any(figure.of(s) is not None for s in summaries)]


def spread_table(entries: Sequence[Entry]) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the table in which each figure is a line and each entry a column."""
    header = ["", *(entry.policy for entry in entries)]
    points = [
        [key, *(entry.point[key] for entry in entries)]
        for key in (entries[0].point if entries else ())
    ]
    runs = max((len(entry.summaries) for entry in entries), default=0)
    seeds = [["seeds", *(str(len(entry.summaries)) for entry in entries)]] if runs > 1 else []
    figures = [
        [figure.heading, *(figure.cell(entry) for entry in entries)]
        for figure in known_figures(entries)
    ]
    return header, points + seeds + figures


def narrow_table(entries: Sequence[Entry]) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the table in which each entry is a line, with the main figures."""
    many = any(len(entry.summaries) > 1 for entry in entries)
    left_out = ("makespan_s", "preemptions") if many else ()  # for the intervals to have room
    figures = [figure for figure in NARROW if figure.key not in left_out]
    points = list(entries[0].point) if entries else []
    header = ["policy", *points, *(["seeds"] if many else []), *(f.heading for f in figures)]
    rows = [
        [
            entry.policy,
            *(entry.point[key] for key in points),
            *([str(len(entry.summaries))] if many else []),
            *(_plain(figure, entry) for figure in figures),
        ]
        for entry in entries
    ]
    return header, rows


def _plain(figure: Figure, entry: Entry) -> str:
    """As in the cell; CPU time is no result, so that its interval says nothing."""
    if figure.key != "cpu_s":
        return figure.cell(entry)
    found = figure.over(entry)
    return "-" if found is None else figure.text(found.mean)


def flat_table(entries: Sequence[Entry]) -> tuple[list[str], list[list[Any]]]:
    """Header and rows for other programs: mean, low and high end of every figure's interval.

    The ends are None where there are fewer than two runs.
    """
    figures = known_figures(entries)
    points = list(entries[0].point) if entries else []
    header = ["policy", "oracle", *points, "seeds"]
    for figure in figures:
        name = figure.key.replace(".", "_")
        header += [name, f"{name}_low", f"{name}_high"]
    rows = []
    for entry in entries:
        row: list[Any] = [entry.policy, entry.is_oracle, *(entry.point[key] for key in points)]
        row.append(len(entry.summaries))
        for figure in figures:
            found = figure.over(entry)
            row.append(None if found is None else found.mean)
            if found is None or found.half_width is None:
                row += [None, None]
            else:
                row += [found.mean - found.half_width, found.mean + found.half_width]
        rows.append(row)
    return header, rows
