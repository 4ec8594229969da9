"""The points of the figures of simulated runs, whatever draws them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rota.report.comparison import BY_KEY, Entry, Figure
from rota.report.fairness import BINS, SHORT_S, SMALL_GPUS
from rota.report.page import COLOURS
from rota.report.sketch import SEVERAL, Course, Piece, ranks

BIN_NAMES = {
    "SS": "small, short",
    "SL": "small, long",
    "LS": "large, short",
    "LL": "large, long",
}
GREY = "#999999"
JOB_COLOURS = [colour for colour in COLOURS if colour != GREY]
BIN_TEXT = f"Small: up to {SMALL_GPUS} GPUs; short: less than {SHORT_S:g} s"


def completion(entry: Entry) -> tuple[list[float], list[float]]:
    """(job completion times, share of jobs that needed no more), over all seeds together."""
    rising = sorted(jct_s for sketch in entry.sketches for jct_s in sketch.jct_s)
    chosen = ranks(len(rising))
    return [rising[rank] for rank in chosen], [(rank + 1) / len(rising) for rank in chosen]


def stairs(course: Course, column: str) -> tuple[list[float], list[float]]:
    """(hours, values) of a column of a course."""
    return [seconds / 3600 for seconds in course.at_s], list(getattr(course, column))


def bin_groups(entry: Entry, key: str) -> tuple[list[str], list[float | None], list[float]]:
    """(names of the bins, means of a figure, half widths of their intervals; 0 where unknown)."""
    found = [Figure("", f"bins.{name}.{key}", str).over(entry) for name in BINS]
    return (
        [BIN_NAMES[name] for name in BINS],
        [None if each is None else each.mean for each in found],
        [0.0 if each is None else each.half_width or 0.0 for each in found],
    )


def over_point(
    entries: Sequence[Entry], axis: str, key: str
) -> Iterator[tuple[str, list[float | str], list[float | None], list[float]]]:
    """(name, values of ``axis``, means of a figure, half widths) for each line of a sweep."""
    lines: dict[str, list[Entry]] = {}
    for entry in entries:
        rest = {name: value for name, value in entry.point.items() if name != axis}
        lines.setdefault(entry._replace(point=rest).label, []).append(entry)
    for name, members in lines.items():
        found = [BY_KEY[key].over(entry) for entry in members]
        yield (
            name,
            _numbers([entry.point[axis] for entry in members]),
            [None if each is None else each.mean for each in found],
            [0.0 if each is None else each.half_width or 0.0 for each in found],
        )


def _numbers(texts: list[str]) -> list[float | str]:
    """As numbers if all of them are."""
    try:
        return [float(text) for text in texts]
    except ValueError:
        return list(texts)


def colour_of_piece(piece: Piece) -> str:
    """One of a few colours by the job's row; grey for several jobs."""
    return GREY if piece.row == SEVERAL else JOB_COLOURS[piece.row % len(JOB_COLOURS)]
