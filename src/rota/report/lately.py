"""Report on a live cluster's jobs: the figures of a simulated run, from its event log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any

from rota.model.events import Event
from rota.model.job import JobSpec, JobState
from rota.model.state.state import ClusterState
from rota.report.comparison import Entry
from rota.report.eta import Past
from rota.report.gauges import gpu_seconds, grouped
from rota.report.history import History, Moment
from rota.report.metrics import summarise
from rota.report.sketch import POINTS, Course, Sketch, course, ranks

# Of a summary, the figures that a part of a log's jobs has by itself.
FIGURES = (
    *("finished", "avg_jct_s", "median_jct_s", "p90_jct_s", "p95_jct_s", "p99_jct_s"),
    *("makespan_s", "avg_queue_s", "median_queue_s", "p95_queue_s"),
    *("avg_slowdown", "p99_slowdown", "jain_index"),
    *("preemptions", "migrations", "restarts", "restarts_per_job", "lost_attempts"),
    *("overhead_gpu_s", "lost_gpu_s"),
)
OF_COURSE = ("avg_waiting_jobs", "max_waiting_jobs", "fragmentation")


def report(
    state: ClusterState, log: Iterable[Event], now_s: float, since_s: float | None = None
) -> dict[str, Any]:
    """The figures of ``state``, whose events are ``log``, by name and JSON-able.

    It is about the jobs that had not ended ``since_s``; None: about all. ``all`` has the figures of
    :func:`rota.report.metrics.summarise`, averaged over those that succeeded, and of the course of
    the cluster since then; ``users`` and ``queues`` those of their jobs, with ``gpu_share``, their
    part of these jobs' GPU time. ``going`` counts by state the jobs that have not ended, ``ended``
    the others, by outcome. ``eta``, of ``all``, is the error of ETAs so far:
    :meth:`rota.report.eta.Past.errors`.
    """
    begin_s = min(state.submit_s, default=now_s) if since_s is None else since_s
    rows = [row for row, end_s in enumerate(state.finish_s) if end_s < 0 or end_s >= begin_s]
    codes = Counter(JobState(state.state[row]) for row in rows)
    past = Past()
    history = History(past.noting(log))
    history.moments = window(history.moments, begin_s, now_s)
    figures = history.figures()
    everything = _figures(state, rows, now_s)
    everything |= {key: figures[key] for key in OF_COURSE} | gpu_use(history.moments)
    everything["eta"] = past.errors()
    jct_s = sorted(
        state.finish_s[row] - state.submit_s[row]
        for row in rows
        if state.state[row] == JobState.SUCCEEDED
    )
    return {
        "since_s": begin_s,
        "until_s": now_s,
        "jobs": len(rows),
        "ended": {code.name: count for code, count in sorted(codes.items()) if code.is_final},
        "going": {code.name: count for code, count in sorted(codes.items()) if not code.is_final},
        "all": everything,
        "users": _groups(state, rows, now_s, lambda spec: spec.user),
        "queues": _groups(state, rows, now_s, lambda spec: spec.vc),
        "jct_s": [jct_s[rank] for rank in ranks(len(jct_s))],
        "course": course(history.moments, POINTS)._asdict(),
    }


def window(moments: Sequence[Moment], begin_s: float, end_s: float) -> list[Moment]:
    """The moments from ``begin_s`` on, with how it stood then and how it stands at ``end_s``."""
    before = [moment for moment in moments if moment.at_s <= begin_s][-1:]
    later = [moment for moment in moments if begin_s < moment.at_s < end_s]
    found = [moment._replace(at_s=begin_s) for moment in before] + later
    return found + [moment._replace(at_s=max(end_s, moment.at_s)) for moment in found[-1:]]


def gpu_use(moments: Sequence[Moment]) -> dict[str, float | None]:
    """The parts of all GPU time in which jobs held GPUs, and in which they advanced on them."""
    held = running = there = 0.0
    for moment, later in pairwise(moments):
        length = later.at_s - moment.at_s
        held += moment.held_gpus * length
        running += moment.running_gpus * length
        there += moment.all_gpus * length
    return {
        "gpu_allocation": held / there if there else None,
        "gpu_utilisation": running / there if there else None,
    }


def entries_of(told: dict[str, Any], by: str = "") -> list[Entry]:
    """A report as columns of a table: of all its jobs, and of each of ``users`` or ``queues``."""
    drawn = Sketch(told["jct_s"], _from_zero(told), [], [], {}, told["until_s"] - told["since_s"])
    groups = told[by] if by else {}
    return [
        Entry("all", {}, [_summary(told["all"])], [drawn]),
        *(Entry(name, {}, [_summary(figures)], []) for name, figures in groups.items()),
    ]


def _summary(figures: dict[str, Any]) -> dict[str, Any]:
    return figures | {"needs_duration": False}


def _from_zero(told: dict[str, Any]) -> Course:
    at_s, waiting_jobs, used = (told["course"][name] for name in Course._fields)
    return Course([each - told["since_s"] for each in at_s], waiting_jobs, used)


def _groups(
    state: ClusterState, rows: Sequence[int], now_s: float, of: Callable[[JobSpec], str]
) -> dict[str, dict[str, Any]]:
    """The figures of the jobs of each user or queue, by name; most GPU hours first."""
    groups = grouped(state, rows, of)
    figures = {name: _figures(state, members, now_s) for name, members in groups.items()}
    total = sum(told["gpu_hours"] for told in figures.values())
    for told in figures.values():
        told["gpu_share"] = told["gpu_hours"] / total if total else None
    return dict(sorted(figures.items(), key=lambda item: (-item[1]["gpu_hours"], item[0])))


def _figures(state: ClusterState, rows: Sequence[int], now_s: float) -> dict[str, Any]:
    told = summarise(state.only(rows), decisions=state.decision_seq, policy=state.policy)
    counts = {"jobs": len(rows), "gpu_hours": gpu_seconds(state, rows, now_s) / 3600}
    return counts | {key: told[key] for key in FIGURES}
