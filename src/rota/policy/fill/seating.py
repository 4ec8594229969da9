"""The GPUs of each background job: which gap it takes, whose place, and when it moves."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from rota.policy.fill.gaps import Gap

LEAST_SHARE = 0.05  # of a GPU: a smaller gap is none
GAIN = 0.5  # of a GPU: how much larger a gap must be for which a job leaves its place
TURN_S = 600.0  # by which a job has run longer than one that takes its place
NOISE_S = 1e-6

Where = tuple[int, int]  # node and GPU
Place = tuple[int, tuple[int, ...]]  # node and GPUs


class Offer(NamedTuple):
    """A gap as one job finds it: the ``share`` of each GPU that it is to get there."""

    gap: Gap
    share: float


def wheres(gap: Gap) -> list[Where]:
    """The gap's node with each of its GPUs."""
    return [(gap.node, gpu) for gpu in gap.gpus]


def best(offers: Iterable[Offer], home: Place | None) -> Offer | None:
    """The offer to take: idle GPUs first, then the largest share, then by node and GPUs.

    A job stays at ``home``, where its state lies, unless another place has a share larger by GAIN.
    """
    offers = list(offers)
    found = min(offers, key=_order, default=None)
    if found is None or home is None:
        return found
    own = next((each for each in offers if each.gap[:2] == home), None)
    if own is not None and not pays(own.share, found.share):
        return own
    on_node = (each for each in offers if each.gap.node == home[0])
    near = min(on_node, key=_order, default=None)
    return found if near is None or pays(near.share, found.share) else near


def _order(offer: Offer) -> tuple[bool, float, int, tuple[int, ...]]:
    return bool(offer.gap.beside), -offer.share, *offer.gap[:2]


def pays(here: float, there: float) -> bool:
    """True if a larger share is worth a move."""
    return there - here >= GAIN


class Seat(NamedTuple):
    """A background job that has a place, and the seconds that it has run so far."""

    row: int
    attained_s: float
    gap: Gap


class Turn(NamedTuple):
    """Seats whose jobs make room on one node, the GPUs that they leave, and how long they have yet.

    ``left_s`` is 0 if the turns of all of them are over.
    """

    seats: list[Seat]
    gaps: list[Gap]  # of single GPUs
    left_s: float


def longest_served(
    seats: Iterable[Seat], attained_s: float, usable: Callable[[Gap], list[Gap]], wanted: int = 1
) -> Turn | None:
    """The seats whose places a job that has run ``attained_s`` is to have; None: of nobody.

    ``wanted`` is the number of GPUs of a node that it lacks, ``usable`` gives those of a seat's gap
    that it can have. Taken are the first of ``seats``, where those that have run longest come
    first, that have enough together.
    """
    found: dict[int, Turn] = {}  # by node
    for seat in seats:
        left_s = TURN_S - (seat.attained_s - attained_s)
        if left_s >= TURN_S:
            return None  # it has run no longer than the one that waits, nor have the others
        gaps = usable(seat.gap)
        if not gaps:
            continue
        turn = found.setdefault(seat.gap.node, Turn([], [], 0.0))
        turn.seats.append(seat)
        turn.gaps.extend(gaps)
        if len(turn.gaps) >= wanted:
            return turn._replace(left_s=0.0 if left_s <= NOISE_S else left_s)
    return None


def in_order(rows: Iterable[int], attained_s: Callable[[int], float]) -> list[int]:
    """The rows, those that have run least first, then by arrival and id."""
    return sorted(rows, key=lambda row: (attained_s(row), row))
