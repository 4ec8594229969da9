"""Searches: which of their trials go on, and how their share is parted among these.

A search has one place in the fair share, whatever the number of its trials. Its share goes to
those that promise most, as what all of them have reported so far tells.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from math import floor, inf, log2

from rota.model.sweep import Sweep
from rota.model.view import View
from rota.predict.learning_curve import Outlook, Promise, Shape

LEAST_SHARE = 2.0**-10  # of a search's weight
STEPS = 4  # parts of a doubling
LOOK_S = 1800.0  # for so long a trial may be silent at first before others are looked at
LEAST_S = 1e-6
LATE = 3.0  # times what a first report took the others: then a trial promises nothing


def shares(view: View, rows: Sequence[int], most: int) -> dict[int, float]:
    """Parts of its weight that the active ones of a search's trials have; 0: it is to wait.

    At most ``most`` of them go on, those with the best chance per second of run time to become the
    best so far. Parts are in proportion to that chance, rounded down so that they seldom change,
    and come to 1 at most, but for the least parts of trials with no chance.
    """
    active = [row for row in rows if row in view.active]
    if not active:
        return {}
    rates = _rates(view, rows, active)
    first = sorted(active, key=lambda row: (-rates[row], _looks(view, row), row))[:most]
    total = sum(rates[row] for row in first)
    parts = dict.fromkeys(active, 0.0)
    for row in first:
        part = rates[row] / total if total > 0 else 1 / len(first)
        parts[row] = 2.0 ** (floor(log2(max(part, LEAST_SHARE)) * STEPS) / STEPS)
    return parts


def _looks(view: View, row: int) -> int:
    """Number of times that a trial's run time has doubled: silent trials take turns at that."""
    return int(view.attained_s(row) / LOOK_S).bit_length() if not view.curve(row) else 0


def _rates(view: View, rows: Sequence[int], active: Sequence[int]) -> Mapping[int, float]:
    """The chance per second of run time to become the search's best, by active row."""
    trial = view.spec[rows[0]].trial
    assert trial is not None
    sweep = trial.sweep
    sign = 1 if sweep.maximize else -1
    shapes = tuple(_shapes(view, rows, sweep, sign))
    target = inf if sweep.target is None else sign * sweep.target
    ended = view.finish_s
    wholes = tuple(
        (shape.reports if shape else 0) if ended[row] >= 0 else sweep.reports
        for row, shape in zip(rows, shapes, strict=True)
    )
    promises, unseen = _promises(shapes, wholes, target)
    report_s = {
        row: max(view.attained_s(row), LEAST_S) / shape.reports
        for row, shape in zip(rows, shapes, strict=True)
        if shape
    }
    usual_s = sorted(report_s.values())[len(report_s) // 2] if report_s else 1.0
    rates = {}
    for row, promise in zip(rows, promises, strict=True):
        if promise is not None:
            rates[row] = promise.rate / report_s[row]
        else:
            late = bool(report_s) and view.attained_s(row) > LATE * usual_s
            rates[row] = 0.0 if late else unseen.rate / usual_s
    return {row: rates[row] for row in active}


def _shapes(view: View, rows: Sequence[int], sweep: Sweep, sign: int) -> Iterator[Shape | None]:
    """The shape of each trial's curve, None of an empty one: made anew only where that is new."""
    kept = _kept(sweep)
    for row in rows:
        curve = view.curve(row)
        if not curve:
            yield None
            continue
        if row not in kept or kept[row][0] is not curve:
            kept[row] = curve, Shape([sign * value for value in curve])
        yield kept[row][1]


@lru_cache(maxsize=16)
def _kept(sweep: Sweep) -> dict[int, tuple[Sequence[float], Shape]]:
    """The last curve and its shape, by trial's row: a view's curves don't change."""
    return {}


@lru_cache(maxsize=16)
def _promises(
    shapes: tuple[Shape | None, ...], wholes: tuple[int | None, ...], target: float
) -> tuple[list[Promise | None], Promise]:
    """The promise of each curve, None for an empty one, and that of a training without reports.

    ``wholes`` are the numbers of reports that each makes in all. Cached between decisions, because
    reports are rare.
    """
    outlook = Outlook([shape for shape in shapes if shape], target)
    promises = [
        outlook.promise(shape, whole) if shape else None
        for shape, whole in zip(shapes, wholes, strict=True)
    ]
    return promises, outlook.unseen([each for each in promises if each is not None])
