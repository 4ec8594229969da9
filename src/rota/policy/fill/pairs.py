"""What came of background jobs beside foreground jobs: of the two jobs, and of their kinds.

Undone pairs are left alone for a pause that doubles each time. What is known of two jobs stands
before what is known of their kinds, and ends with the background job.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any, NamedTuple

from rota.model.view import View
from rota.policy.fill.trial import LEAST_HARVEST

MOST_PAIRS = 500  # of kinds; beyond that the one measured longest ago is forgotten
LONGEST_S = 86400.0  # of pauses
BESIDE = " beside "
NEVER = -1.0


class Pair(NamedTuple):
    """What was measured at ``at_s``, and the consecutive times that it was ``undone``.

    The pair is not tried before ``again_s``. ``slowdown`` and ``harvest`` are None if not known.
    """

    at_s: float
    undone: int = 0
    again_s: float = NEVER
    slowdown: float | None = None
    harvest: float | None = None

    @property
    def is_starved(self) -> bool:
        """True if the background job got nothing."""
        return self.harvest is not None and self.harvest < LEAST_HARVEST

    @property
    def goes_well(self) -> bool:
        """True if the foreground was within its limit when that was last measured."""
        return not self.undone and self.slowdown is not None and not self.is_starved


class Pairs:
    """Pairs as the stage's marks have them, and how this decision changes them."""

    def __init__(self, view: View, marks: Mapping[str, Any], pause_s: float) -> None:
        self._view = view
        self._marks = marks
        self._pause_s = pause_s
        self.changes: dict[str, Any] = {}  # of kinds
        self._own: dict[int, dict[str, list[Any]]] = {}  # of jobs, by background row

    def own(self, row: int, mark: Mapping[str, Any]) -> dict[str, list[Any]]:
        """What is known of the job with others that have not ended, for its mark."""
        known = self._own.get(row, mark.get("pairs", {}))
        finish_s = self._view.finish_s
        return {other: pair for other, pair in known.items() if finish_s[int(other)] < 0}

    def of(self, row: int, other: int, mark: Mapping[str, Any]) -> Pair | None:
        """What is known of a background row beside a foreground row; None if nothing is."""
        own = self._own.get(row, mark.get("pairs", {})).get(str(other))
        if own is not None:
            return Pair(*own)
        key = self._key(row, other)
        kind = None if key is None else self.changes.get(key, self._marks.get(key))
        return None if kind is None else Pair(*kind)

    def keep(
        self, row: int, other: int, mark: Mapping[str, Any], slowdown: float, harvest: float
    ) -> None:
        """The two go together."""
        got = harvest if isfinite(harvest) else None
        self._learn(row, other, mark, Pair(self._view.now_s, 0, NEVER, slowdown, got))

    def undo(self, row: int, other: int, mark: Mapping[str, Any], slowdown: float) -> Pair:
        """The two do not go together; returns what is known now, with the end of the pause."""
        before = self.of(row, other, mark)
        times = 1 if before is None else before.undone + 1
        again_s = self._view.now_s + pause_s(self._pause_s, times)
        pair = Pair(self._view.now_s, times, again_s, slowdown, None)
        self._learn(row, other, mark, pair)
        return pair

    def starve(self, row: int, other: int, mark: Mapping[str, Any], harvest: float) -> None:
        """The job gets nothing beside the other one."""
        now_s, before = self._view.now_s, self.of(row, other, mark) or Pair(0.0)
        again_s = now_s + self._pause_s
        pair = before._replace(at_s=now_s, again_s=again_s, harvest=harvest)
        self._learn(row, other, mark, pair)

    def _learn(self, row: int, other: int, mark: Mapping[str, Any], pair: Pair) -> None:
        self._own[row] = self.own(row, mark) | {str(other): list(pair)}
        key = self._key(row, other)
        if key is not None:
            self.changes[key] = list(pair)

    def forget(self) -> None:
        """Forget the oldest kinds if there are too many."""
        if not self.changes:
            return
        known = {key: mark for key, mark in self._marks.items() if BESIDE in key} | self.changes
        oldest = sorted(known, key=lambda key: (known[key][0], key))
        for key in oldest[: len(known) - MOST_PAIRS]:
            self.changes[key] = None

    def _key(self, row: int, other: int) -> str | None:
        """The key of the jobs' kinds; None unless both are known."""
        kinds = self._view.signature(row), self._view.signature(other)
        return BESIDE.join(kinds) if all(kinds) else None


def pause_s(first_s: float, times: int) -> float:
    """The pause after so many undone trials: twice the one before, up to LONGEST_S."""
    return max(first_s, min(first_s * 2.0 ** min(times - 1, 60), LONGEST_S))
