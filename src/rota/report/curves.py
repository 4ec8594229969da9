"""The points of the figures of simulated runs, for all ways of drawing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf, nan
from typing import NamedTuple

from rota.report.colours import COLOURS
from rota.report.comparison import BY_KEY, Entry, Metric
from rota.report.duration import UNITS, Unit, unit_for
from rota.report.fairness import BINS, SHORT_S, SMALL_GPUS
from rota.report.sketch import POINTS, SEVERAL, Course, Piece, Sketch, ranks
from rota.report.statistic import FEWEST_DRAWN

BIN_NAMES = {
    "SS": "small, short",
    "SL": "small, long",
    "LS": "large, short",
    "LL": "large, long",
}
OVER_AXIS = {  # drawn of sweeps
    "avg_jct_s": "average JCT",
    "median_jct_s": "median JCT",
    "avg_queue_s": "average queue time",
    "gpu_utilisation": "GPU use",
}
SHARES = ("gpu_utilisation",)  # figures from 0 to 1
BIN_METRICS = {
    "avg_slowdown": Metric("average slowdown", "avg_slowdown", str, least=1.0),
}
GREY = "#999999"  # is seen on white and on black
YELLOW = "#F0E442"  # too light for a line, but not for a bar
JOB_COLOURS = [*(colour for colour in COLOURS if colour != GREY), YELLOW]
BIN_TEXT = f"Small: up to {SMALL_GPUS} GPUs; short: less than {SHORT_S:g} s"
ROOM = 2.0  # height of a figure over an axis, over its highest mean, for intervals


class Point(NamedTuple):
    """A mean, None where unknown; and how far its interval goes below and above it.

    The interval has no length where it is not drawn: with too few runs, it has no meaning.
    """

    mean: float | None
    below: float = 0.0
    above: float = 0.0


class Node(NamedTuple):
    """A node's GPUs, by their numbers among all GPUs."""

    name: str
    first: int
    num_gpus: int

    @property
    def middle(self) -> float:
        """Place of the node's name."""
        return self.first + (self.num_gpus - 1) / 2


def completion(entry: Entry) -> tuple[list[float], list[float]]:
    """(job completion times, share of jobs that took no longer), over all seeds together.

    Begins with no job.
    """
    rising = sorted(jct_s for sketch in entry.sketches for jct_s in sketch.jct_s)
    chosen = ranks(len(rising))
    times, shares = [rising[rank] for rank in chosen], [(rank + 1) / len(rising) for rank in chosen]
    return [*times[:1], *times], [*([0.0] if times else []), *shares]


def over_time(entries: Sequence[Entry], column: str) -> tuple[Unit, list[float], list[list[float]]]:
    """(unit, times in it, for each entry the values of a column of its first course).

    The times are the same for all: the beginnings of equal spans, over which values are averaged.
    A value is nan where a course has ended.
    """
    from numpy import arange

    courses = [entry.sketches[0].course for entry in entries if entry.sketches]
    starts = [course.at_s[0] for course in courses if course.at_s]
    ends = [_end_s(course) for course in courses if course.at_s]
    if not starts:
        return UNITS[0], [], [[] for _ in courses]
    zero_s, span_s = min(starts), (max(ends) - min(starts)) / POINTS
    edges = zero_s + span_s * arange(POINTS + 1)
    unit = unit_for(max(ends))
    values = [_averaged(course, column, edges) for course in courses]
    return unit, [float(edge) / unit.seconds for edge in edges[:-1]], values


def _end_s(course: Course) -> float:
    return course.at_s[-1] + (course.at_s[1] - course.at_s[0])


def _averaged(course: Course, column: str, edges: object) -> list[float]:
    """The averages of a column between ``edges``, an array of times."""
    import numpy as np

    if not course.at_s:
        return [nan] * POINTS
    end_s = _end_s(course)
    times = np.array([*course.at_s, end_s])
    total = np.concatenate([[0.0], np.cumsum(np.array(getattr(course, column)) * np.diff(times))])
    within = np.clip(np.asarray(edges), times[0], end_s)
    lengths = np.diff(within)
    sums = np.diff(np.interp(within, times, total))
    return [
        float(s / length) if length > 0 else nan for s, length in zip(sums, lengths, strict=True)
    ]


def bins_of(entries: Sequence[Entry], key: str) -> tuple[list[str], list[list[Point]]]:
    """(names of the bins that any job is in, for each entry the points of a figure there)."""
    metric = BIN_METRICS[key]
    found = {name: metric._replace(key=f"bins.{name}.{key}") for name in BINS}
    points = {name: [_point(each, entry) for entry in entries] for name, each in found.items()}
    there = [name for name in BINS if any(point.mean is not None for point in points[name])]
    by_entry = [[points[name][index] for name in there] for index in range(len(entries))]
    return [BIN_NAMES[name] for name in there], by_entry


def over_point(
    entries: Sequence[Entry], axis: str, key: str
) -> Iterator[tuple[str, list[float | str], list[Point]]]:
    """(name, values of ``axis``, points of a figure) for each line of a sweep."""
    lines: dict[str, list[Entry]] = {}
    for entry in entries:
        rest = {name: value for name, value in entry.point.items() if name != axis}
        lines.setdefault(entry._replace(point=rest).label, []).append(entry)
    for name, members in lines.items():
        points = [_point(BY_KEY[key], entry) for entry in members]
        yield name, _numbers([entry.point[axis] for entry in members]), points


def top_of(lines: Sequence[Sequence[Point]], most: float = inf) -> float:
    """Upper end of a figure over an axis; intervals may exceed it, so that means stay apart."""
    points = [point for line in lines for point in line if point.mean is not None]
    means = [point.mean or 0.0 for point in points]
    highest = max((mean + p.above for mean, p in zip(means, points, strict=True)), default=1.0)
    return min(most, highest * 1.05, max(means, default=1.0) * ROOM) or 1.0


def few_runs(entries: Sequence[Entry]) -> bool:
    """True if there are several seeds, but too few for their intervals to be drawn."""
    return any(1 < len(entry.summaries) < FEWEST_DRAWN for entry in entries)


def _point(metric: Metric, entry: Entry) -> Point:
    found = metric.over(entry)
    if found is None:
        return Point(None)
    if found.half_width is None or found.runs < FEWEST_DRAWN:
        return Point(found.mean)
    low, high = metric.ends(found)
    return Point(found.mean, found.mean - low, high - found.mean)


def _numbers(texts: list[str]) -> list[float | str]:
    """The values as numbers if all of them are numbers."""
    try:
        return [float(text) for text in texts]
    except ValueError:
        return list(texts)


def nodes_of(sketch: Sketch) -> list[Node]:
    """The nodes whose GPUs a sketch names, in order."""
    nodes: list[Node] = []
    for index, name in enumerate(sketch.gpu_names):
        node = name.rpartition(":")[0]
        if nodes and nodes[-1].name == node:
            nodes[-1] = nodes[-1]._replace(num_gpus=nodes[-1].num_gpus + 1)
        else:
            nodes.append(Node(node, index, 1))
    return nodes


def named(nodes: Sequence[Node], most: int) -> list[Node]:
    """At most ``most`` of the nodes, evenly spaced."""
    return list(nodes[:: max(1, -(-len(nodes) // most))])


def colour_of_piece(piece: Piece) -> str:
    """One of a few colours by the job's row; grey for several jobs."""
    return GREY if piece.row == SEVERAL else JOB_COLOURS[piece.row % len(JOB_COLOURS)]
