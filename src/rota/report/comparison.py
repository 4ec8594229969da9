"""Runs side by side: the metrics, and their means and intervals over seeds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

from rota.report.eta import KINDS
from rota.report.fairness import BINS
from rota.report.statistic import Interval, interval

if TYPE_CHECKING:
    from rota.report.sketch import Sketch

ORACLE_NOTE = "* an oracle: it reads durations that a live scheduler does not know"


class Entry(NamedTuple):
    """One line of a table: a policy at one point, and its runs, one for each seed.

    ``point`` names what differs from line to line besides the policy, such as the load.
    """

    policy: str  # includes its settings, and a star if it is an oracle
    point: dict[str, str]
    summaries: list[dict[str, Any]]
    sketches: list[Sketch]
    is_log: bool = False  # the log's own record, and no run

    @property
    def is_choice(self) -> bool:
        """True if somebody could choose this policy."""
        return not (self.is_oracle or self.is_log)

    @property
    def label(self) -> str:
        """The policy and the point, as one text."""
        return " ".join([self.policy, *(f"{key} {value}" for key, value in self.point.items())])

    @property
    def is_oracle(self) -> bool:
        """True if the policy reads durations."""
        return any(summary["needs_duration"] for summary in self.summaries)

    @property
    def information(self) -> str:
        """The policy's information on job lengths; "" if the runs do not say."""
        return next((summary.get("information", "") for summary in self.summaries), "")


def _seconds(value: float) -> str:
    return f"{value:z,.1f}"  # never -0.0, which rounding can leave


def _count(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"


def _share(value: float) -> str:
    return f"{value:z.1%}"


def _ratio(value: float) -> str:
    return f"{value:,.2f}"


class Metric(NamedTuple):
    """A metric of a summary: its heading, its place (``bins.SS.jobs``), and its format.

    No run can have a value below ``least`` or above ``most``.
    """

    heading: str
    key: str
    text: Callable[[float], str]
    least: float = 0.0
    most: float = inf

    def of(self, summary: dict[str, Any]) -> float | None:
        """Its value, or None if this run does not have it."""
        value: Any = summary
        for part in self.key.split("."):
            value = None if value is None else value.get(part)
        return value

    def over(self, entry: Entry) -> Interval | None:
        """Its mean over the entry's runs, with its confidence interval."""
        return interval([self.of(summary) for summary in entry.summaries])

    def ends(self, found: Interval) -> tuple[float, float]:
        """Both ends of an interval, clipped to the metric's possible values."""
        half = found.half_width or 0.0
        return max(self.least, found.mean - half), min(self.most, found.mean + half)

    def cell(self, entry: Entry) -> str:
        """Its mean as text, with ± and half the interval's width if the runs differ in it."""
        found = self.over(entry)
        if found is None:
            return "-"
        if not found.half_width:
            return self.text(found.mean)
        long = self.text is _seconds and found.mean >= 1000
        text = _count_of_seconds if long else self.text
        return f"{text(found.mean)} ±{text(found.half_width)}"


def _count_of_seconds(value: float) -> str:
    return f"{value:,.0f}"


METRICS = (
    Metric("jobs", "finished", _count),
    Metric("GPU hours", "gpu_hours", _ratio),
    Metric("GPU share", "gpu_share", _share, most=1.0),
    Metric("avg JCT s", "avg_jct_s", _seconds),
    Metric("median s", "median_jct_s", _seconds),
    Metric("p90 s", "p90_jct_s", _seconds),
    Metric("p95 s", "p95_jct_s", _seconds),
    Metric("p99 s", "p99_jct_s", _seconds),
    Metric("makespan s", "makespan_s", _seconds),
    Metric("avg queue s", "avg_queue_s", _seconds),
    Metric("median queue s", "median_queue_s", _seconds),
    Metric("p95 queue s", "p95_queue_s", _seconds),
    Metric("first 100 s", "avg_first_100_s", _seconds),
    Metric("median first 100 s", "median_first_100_s", _seconds),
    Metric("avg waiting", "avg_waiting_jobs", _ratio),
    Metric("max waiting", "max_waiting_jobs", _count),
    Metric("preempted", "preemptions", _count),
    Metric("migrated", "migrations", _count),
    Metric("restarts", "restarts", _count),
    Metric("restarts/job", "restarts_per_job", _ratio),
    Metric("cost GPU s", "overhead_gpu_s", _seconds),
    Metric("node failures", "node_failures", _count),
    Metric("node hours", "node_hours", lambda value: f"{value:,.1f}"),
    Metric("avg nodes", "avg_nodes", _ratio),
    Metric("node starts", "node_starts", _count),
    Metric("avg utility", "avg_utility", _ratio),
    Metric("time in band", "time_in_band", _share, most=1.0),
    Metric("lost attempts", "lost_attempts", _count),
    Metric("lost GPU s", "lost_gpu_s", _seconds),
    Metric("background jobs", "background_finished", _count),
    Metric("background avg JCT s", "background_avg_jct_s", _seconds),
    Metric("harvest GPU s", "harvest_gpu_s", _seconds),
    Metric("foreground slowdown", "foreground_slowdown", _ratio, least=1.0),
    Metric("GPUs allocated", "gpu_allocation", _share, most=1.0),
    Metric("GPU use", "gpu_utilisation", _share, most=1.0),
    Metric("fragmentation", "fragmentation", _share, most=1.0),
    Metric("avg slowdown", "avg_slowdown", _ratio, least=1.0),
    Metric("p99 slowdown", "p99_slowdown", _ratio, least=1.0),
    *(Metric(f"slowdown {name}", f"bins.{name}.avg_slowdown", _ratio, least=1.0) for name in BINS),
    Metric("avg rho", "avg_rho", _ratio),
    Metric("worst rho", "worst_rho", _ratio),
    Metric("unfair jobs", "unfair_jobs", _share, most=1.0),
    Metric("Jain index", "jain_index", lambda value: f"{value:.3f}", most=1.0),
    *(
        Metric(f"{kind.replace('_', ' ')} ETAs kept", f"eta.{kind}.within", _share, most=1.0)
        for kind in KINDS
    ),
    Metric("decisions", "decisions", _count),
    Metric("CPU s", "cpu_s", _ratio),
)
BY_KEY = {metric.key: metric for metric in METRICS}
NARROW = tuple(
    BY_KEY[key]
    for key in (
        "avg_jct_s",
        "median_jct_s",
        "p95_jct_s",
        "avg_queue_s",
        "makespan_s",
        "preemptions",
        "restarts_per_job",
        "lost_attempts",
        "gpu_utilisation",
        "harvest_gpu_s",
        "foreground_slowdown",
        "node_hours",
        "cpu_s",
    )
)
# What goes first where there is too little room; the average JCT always stays.
LEAST_FIRST = (
    "cpu_s",
    "median_jct_s",
    "makespan_s",
    "preemptions",
    "p95_jct_s",
    "gpu_utilisation",
    "lost_attempts",
    "restarts_per_job",
    "avg_queue_s",
    "node_hours",
    "harvest_gpu_s",
    "foreground_slowdown",
)
GAP = 2  # columns between those of a table


def known_metrics(entries: Sequence[Entry]) -> list[Metric]:
    """The metrics that at least one run has."""
    summaries = [summary for entry in entries for summary in entry.summaries]
    return [metric for metric in METRICS if any(metric.of(s) is not None for s in summaries)]


def spread_table(entries: Sequence[Entry]) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the table in which each metric is a line and each entry a column."""
    header = ["", *(entry.policy for entry in entries)]
    points = [
        [key, *(entry.point[key] for entry in entries)]
        for key in (entries[0].point if entries else ())
    ]
    runs = max((len(entry.summaries) for entry in entries), default=0)
    seeds = [["seeds", *(str(len(entry.summaries)) for entry in entries)]] if runs > 1 else []
    metrics = [
        [metric.heading, *(_plain(metric, entry) for entry in entries)]
        for metric in known_metrics(entries)
    ]
    return header, points + _told(entries) + seeds + metrics


def _told(entries: Sequence[Entry]) -> list[list[str]]:
    """A line with what each policy is told about job lengths; none if no run has it."""
    told = [entry.information for entry in entries]
    return [["information", *told]] if any(told) else []


def narrow_table(
    entries: Sequence[Entry], width: float = inf, beside: Sequence[str] = ()
) -> tuple[list[str], list[list[str]], list[str]]:
    """Header and rows of the table in which each entry is a line, with the main metrics.

    Also the headings that are left out so that the table is no wider than ``width``. ``beside`` is
    a column to stand beside the average JCT: its heading, and a cell for each line.
    """
    many = any(len(entry.summaries) > 1 for entry in entries)
    left_out = {"makespan_s", "preemptions"} if many else set()  # makes room for the intervals
    if not any(summary.get("faults") for entry in entries for summary in entry.summaries):
        left_out.add("lost_attempts")
    if not any(summary.get("profiles") for entry in entries for summary in entry.summaries):
        left_out.add("restarts_per_job")
    for key in ("node_hours", "harvest_gpu_s", "foreground_slowdown"):
        if not any(BY_KEY[key].over(entry) for entry in entries):
            left_out.add(key)
    points = list(entries[0].point) if entries else []
    names = [["policy", *(entry.policy for entry in entries)]]
    names += [[key, *(entry.point[key] for entry in entries)] for key in points]
    names += _told(entries)
    if many:
        names.append(["seeds", *(str(len(entry.summaries)) for entry in entries)])
    shown = {
        metric.key: [metric.heading, *(_plain(metric, entry) for entry in entries)]
        for metric in NARROW
        if metric.key not in left_out
    }
    if beside:
        shown = {"avg_jct_s": shown.pop("avg_jct_s"), "": list(beside), **shown}
    dropped = []
    for key in LEAST_FIRST:
        columns = [*names, *shown.values()]
        if sum(max(map(len, column)) + GAP for column in columns) - GAP <= width:
            break
        if key in shown:
            dropped.append(shown.pop(key)[0])
    header, *rows = map(list, zip(*names, *shown.values(), strict=True))
    return header, rows, dropped


def _plain(metric: Metric, entry: Entry) -> str:
    """The cell without the interval of CPU time, which is no result."""
    if metric.key != "cpu_s":
        return metric.cell(entry)
    found = metric.over(entry)
    return "-" if found is None else metric.text(found.mean)


def flat_table(entries: Sequence[Entry]) -> tuple[list[str], list[list[Any]]]:
    """Header and rows for other programs: mean, low and high end of every metric's interval.

    The ends are possible values, and None where there are fewer than two runs.
    """
    metrics = known_metrics(entries)
    points = list(entries[0].point) if entries else []
    header = ["policy", "oracle", "information", *points, "seeds"]
    for metric in metrics:
        name = metric.key.replace(".", "_")
        header += [name, f"{name}_low", f"{name}_high"]
    rows = []
    for entry in entries:
        row: list[Any] = [entry.policy, entry.is_oracle, entry.information]
        row += [*(entry.point[key] for key in points), len(entry.summaries)]
        for metric in metrics:
            found = metric.over(entry)
            row.append(None if found is None else found.mean)
            if found is None or found.half_width is None:
                row += [None, None]
            else:
                row += metric.ends(found)
        rows.append(row)
    return header, rows
