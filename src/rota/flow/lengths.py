"""What operations count as in the order: those that take about as long count as equal. Pure.

Lengths are measured with an error, and an order that took them as they are would give programs of
equal operations unequal shares. Lengths are sorted into groups: as long as the shortest of a group
is under ``LIKE`` times the longest, it is cut where neighbours are furthest apart. So lengths that
differ by an error alone are the last to be cut, whichever others there are, and a length that was
measured wrongly counts as the others' as soon as it is measured rightly.
"""

from __future__ import annotations

import math

from rota.flow.order import LEAST_COST_S

LIKE = 0.75
TURN_S = 1e-4  # that passing a turn on takes beside its operation; it counts in comparisons
GRAIN = 0.05  # lengths are known to this part of themselves


class Lengths:
    """The lengths of clients' operations by kind, and what each counts as."""

    def __init__(self) -> None:
        self._grains: dict[tuple[int, int], int] = {}  # by client and kind: the logarithm
        self._counts: dict[tuple[int, int], int] = {}  # as what this counts

    def took(self, client: int, kind: int, seconds: float) -> dict[tuple[int, int], float]:
        """A client's operations of a kind take so long.

        Returns the seconds that operations count as from now on, by client and kind, where that has
        changed.
        """
        grains = round(math.log(seconds + TURN_S) / GRAIN)
        if self._grains.get((client, kind)) == grains:
            return {}
        self._grains[client, kind] = grains
        counted = set(self._counts.values())
        as_what: dict[int, int] = {}
        for group in _groups(sorted(set(self._grains.values()))):
            before = [each for each in range(group[0], group[-1] + 1) if each in counted] or group
            as_what |= dict.fromkeys(group, before[len(before) // 2])
        counts = {key: as_what[each] for key, each in self._grains.items()}
        changed = {key: each for key, each in counts.items() if self._counts.get(key) != each}
        self._counts = counts
        return {key: _seconds(each) for key, each in changed.items()}

    def forget(self, client: int) -> None:
        """A client is gone."""
        for key in [each for each in self._grains if each[0] == client]:
            del self._grains[key], self._counts[key]


def _groups(grains: list[int]) -> list[list[int]]:
    """Sorted lengths, cut into groups of like ones."""
    if math.exp((grains[0] - grains[-1]) * GRAIN) > LIKE:
        return [grains]
    cut = max(range(1, len(grains)), key=lambda at: grains[at] - grains[at - 1])
    return _groups(grains[:cut]) + _groups(grains[cut:])


def _seconds(grains: int) -> float:
    return max(LEAST_COST_S, math.exp(grains * GRAIN) - TURN_S)
