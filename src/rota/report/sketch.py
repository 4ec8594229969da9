"""The data that figures of a run need, thinned out so that it can be sent and drawn."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from rota.model.cluster import Node
from rota.model.job import JobSpec, JobState
from rota.model.state.state import ClusterState
from rota.report.history import History, Moment
from rota.report.timeline import Timeline

POINTS = 400
MOST_PIECES = 30_000
SEVERAL = -1  # stands for the row of a job in a piece that was made of several jobs'
THINNEST = 16_000  # pieces shorter than this part of the run are merged where there are too many


class Course(NamedTuple):
    """The cluster over time: averages over equal spans, each given by its beginning."""

    at_s: list[float]
    waiting_jobs: list[float]
    used: list[float]  # share of all GPUs on which jobs advanced


class Piece(NamedTuple):
    """A job, or several short turns one after another, on one GPU."""

    gpu: int  # counted through all nodes
    start_s: float
    end_s: float
    row: int


class Sketch(NamedTuple):
    """A run, ready to be drawn."""

    jct_s: list[float]  # rising, at most POINTS of them at equal ranks
    course: Course
    pieces: list[Piece]  # in no particular order; empty unless requested
    gpu_names: list[str]
    specs: dict[int, JobSpec]  # of the rows in ``pieces``
    end_s: float


def sketch(
    state: ClusterState, history: History, nodes: Sequence[Node], *, with_gpus: bool
) -> Sketch:
    """The sketch of a run whose state kept its events in ``log``."""
    pieces: list[Piece] = []
    if with_gpus:
        pieces = _pieces(Timeline(state.log or (), nodes), nodes)
        pieces = thinned_pieces(pieces, MOST_PIECES)
    times = zip(state.finish_s, state.submit_s, state.state, strict=True)
    rising = sorted(end - submit for end, submit, code in times if code == JobState.SUCCEEDED)
    return Sketch(
        jct_s=[rising[rank] for rank in ranks(len(rising))],
        course=course(history.moments),
        pieces=pieces,
        gpu_names=[f"{node.name}:{gpu}" for node in nodes for gpu in range(node.num_gpus)],
        specs={piece.row: state.spec[piece.row] for piece in pieces if piece.row != SEVERAL},
        end_s=history.moments[-1].at_s if history.moments else 0.0,
    )


def course(moments: Sequence[Moment], points: int = POINTS) -> Course:
    """Averages over ``points`` equal spans between the first moment and the last."""
    if len(moments) < 2 or moments[-1].at_s <= moments[0].at_s:
        return Course([], [], [])
    zero_s, span_s = moments[0].at_s, (moments[-1].at_s - moments[0].at_s) / points
    sums = [[0.0] * points for _ in range(3)]  # waiting, running, all; times seconds
    for moment, later in pairwise(moments):
        values = (moment.waiting_jobs, moment.running_gpus, moment.all_gpus)
        start_s = moment.at_s - zero_s
        end_s = later.at_s - zero_s
        index = min(int(start_s / span_s), points - 1)
        while start_s < end_s:
            upto_s = end_s if index == points - 1 else min(end_s, (index + 1) * span_s)
            for total, value in zip(sums, values, strict=True):
                total[index] += value * (upto_s - start_s)
            start_s = upto_s
            index = min(index + 1, points - 1)
    waiting, running, gpus = sums
    return Course(
        [zero_s + index * span_s for index in range(points)],
        [job_s / span_s for job_s in waiting],
        [gpu_s / all_s if all_s else 0.0 for gpu_s, all_s in zip(running, gpus, strict=True)],
    )


def ranks(count: int) -> list[int]:
    """At most ``POINTS`` of the ranks below ``count``, evenly spaced, both ends included."""
    if count <= POINTS:
        return list(range(count))
    return [round(i * (count - 1) / (POINTS - 1)) for i in range(POINTS)]


def _pieces(timeline: Timeline, nodes: Sequence[Node]) -> list[Piece]:
    first, count = [], 0
    for node in nodes:
        first.append(count)
        count += node.num_gpus
    return [
        Piece(first[node] + gpu, segment.start_s, segment.end_s, segment.row)
        for segment in timeline.segments
        for node, gpu in segment.gpus
        if segment.end_s > segment.start_s
    ]


def thinned_pieces(pieces: list[Piece], most: int) -> list[Piece]:
    """About ``most`` pieces at most: short neighbours on a GPU are merged."""
    if len(pieces) <= most:
        return pieces
    rising: list[Any] = sorted(pieces)
    shortest_s = max(piece.end_s for piece in pieces) / THINNEST
    while len(rising) > most:
        merged = [rising[0]]
        for piece in rising[1:]:
            last = merged[-1]
            together = piece.gpu == last.gpu and piece.end_s - last.start_s <= shortest_s
            if together:
                row = last.row if last.row == piece.row else SEVERAL
                merged[-1] = Piece(last.gpu, last.start_s, piece.end_s, row)
            else:
                merged.append(piece)
        rising = merged
        shortest_s *= 2
    return rising
