"""The GPU of each background job: which gap it takes, whose place, and when it moves."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from rota.policy.fill.gaps import Gap

LEAST_SHARE = 0.05  # of a GPU: a smaller gap is none
GAIN = 0.5  # of a GPU: how much larger a gap must be for which a job leaves its place
TURN_S = 600.0  # by which a job has run longer than one that takes its place
NOISE_S = 1e-6

Where = tuple[int, int]  # node and GPU


class Offer(NamedTuple):
    """A gap as one job finds it: the ``share`` of a GPU that it is to get there."""

    gap: Gap
    share: float


def where(gap: Gap) -> Where:
    """The gap's node and GPU."""
    return gap.node, gap.gpu


def best(offers: Iterable[Offer], home: Where | None) -> Offer | None:
    """The offer to take: idle GPUs first, then the largest share, then by node and GPU.

    A job stays at ``home``, where its state lies, unless another GPU has a share larger by GAIN.
    """
    offers = list(offers)
    found = min(offers, key=_order, default=None)
    if found is None or home is None:
        return found
    own = next((each for each in offers if where(each.gap) == home), None)
    if own is not None and not pays(own.share, found.share):
        return own
    on_node = (each for each in offers if each.gap.node == home[0])
    near = min(on_node, key=_order, default=None)
    return found if near is None or pays(near.share, found.share) else near


def _order(offer: Offer) -> tuple[bool, float, int, int]:
    return bool(offer.gap.beside), -offer.share, offer.gap.node, offer.gap.gpu


def pays(here: float, there: float) -> bool:
    """True if a larger share is worth a move."""
    return there - here >= GAIN


class Seat(NamedTuple):
    """A background job that has a place, and the seconds that it has run so far."""

    row: int
    attained_s: float
    gap: Gap


def longest_served(
    seats: Iterable[Seat], attained_s: float, refusal: Callable[[Gap], object]
) -> tuple[Seat, float] | None:
    """The seat of which a job that has run ``attained_s`` is to have the place; None: of nobody.

    It is the first of ``seats``, where those that have run longest come first, without a
    ``refusal`` of its gap. With it come the seconds which that job still has: 0 if its turn is
    over.
    """
    for seat in seats:
        left_s = TURN_S - (seat.attained_s - attained_s)
        if left_s >= TURN_S:
            return None  # it has run no longer than the one that waits, nor have the others
        if refusal(seat.gap) is None:
            return seat, 0.0 if left_s <= NOISE_S else left_s
    return None


def in_order(rows: Iterable[int], attained_s: Callable[[int], float]) -> list[int]:
    """The rows, those that have run least first, then by arrival and id."""
    return sorted(rows, key=lambda row: (attained_s(row), row))
