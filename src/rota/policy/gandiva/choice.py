"""Whose turn it is under Gandiva: those of each node who have had least, each gang whole."""

from rota.policy.base import PER_S
from rota.policy.gandiva.jobs import goes_on
from rota.policy.gandiva.packing import Packing
from rota.policy.gandiva.turn import Part, Turn

LARGEST_PRIORITY = 100
PER_UNIT = PER_S * LARGEST_PRIORITY  # a microsecond of anybody's run time is a step at least
LEAD = 0.5  # quanta that a gang may be ahead of those whose turn it takes to use idle GPUs

Unit = tuple[int, ...]  # takes its turns as a whole: a job, or the jobs of a pack


class Choice(Part):
    """Chooses the jobs that run now, among those with a home."""

    def __init__(self, turn: Turn, packing: Packing) -> None:
        super().__init__(turn)
        self._packing = packing

    def units(self) -> list[Unit]:
        """Jobs and packs that take turns, the least served first."""
        units = {self._packing.unit(row) for row, each in self._lodged.items() if each.home}
        return sorted(units, key=self.rank)

    def goes_on(self, row: int) -> bool:
        """True if the job's turn is not over yet, as a suspension would cost it too much."""
        return goes_on(self._view, row, self._set["quantum_s"], self._set["restart_turn_s"])

    def rank(self, unit: Unit) -> tuple[int, int, int]:
        """The charge of a unit, in steps; the highest priority, then the lowest row break ties."""
        had = in_steps(min(map(self._charges.had, unit)))
        return had, self._owners.tie(unit), min(unit)

    def choose(self, units: list[Unit], *, over: bool) -> dict[int, None]:
        """The rows that are to run now, those with GPUs first: they keep the GPUs they have.

        ``over``: the quantum is over; within one nobody loses a turn.
        """
        view, room = self._view, dict(self._servers.sizes)
        probed = [unit for unit in units if self._packing.comes_first(unit)]
        first = probed + [unit for unit in units if any(map(self.goes_on, unit))]
        if not over:
            runs = [u for u in units if any(view.target[row] is not None for row in u)]
            first = probed + runs
        if over:
            first += self._owners.due(units)
        chosen: dict[int, None] = {}
        order = []
        for unit in self._owners.in_turn(first, units, chosen):
            order.append(unit)
            if unit[0] in chosen:
                continue
            home = self._notes[unit[0]].home
            for node, gpus in home:
                if room[node] < gpus:
                    break
            else:
                for node, gpus in home:
                    room[node] -= gpus
                chosen.update(dict.fromkeys(unit))
        if over:
            self.fill(room, chosen, order)
            self._owners.note(units, chosen)
        return chosen

    def fill(self, room: dict[int, int], chosen: dict[int, None], order: list[Unit]) -> None:
        """Let a gang that waits beside idle GPUs have its turn before single jobs that block it.

        Those lose theirs who had most, and not much less than the gang.
        """
        for unit in order:
            home = self._notes[unit[0]].home
            if unit[0] in chosen or len(home) > 1 or not 0 < room[home[0][0]] < home[0][1]:
                continue
            node, gpus = home[0]
            one = ((node, 1),)
            singles = [
                other
                for other in reversed(order)
                if other[0] in chosen
                and self._notes[other[0]].home == one
                and self._is_level(other, unit[0])
                and not self._packing.comes_first(other)
                and not any(map(self.goes_on, other))
            ]
            out = singles[: gpus - room[node]]
            if room[node] + len(out) == gpus:
                for other in out:
                    for row in other:
                        del chosen[row]
                chosen.update(dict.fromkeys(unit))
                room[node] = 0

    def _is_level(self, unit: Unit, row: int) -> bool:
        """True if a unit has had as much as a gang, but for its lead at most."""
        quantum_s, owners = self._set["quantum_s"], self._owners
        if owners.are_several and all(owners.of[each] != owners.of[row] for each in unit):
            lead = in_steps(LEAD * quantum_s)
            return max(map(owners.step, unit)) + lead // LARGEST_PRIORITY >= owners.step(row)
        lead_s = LEAD * quantum_s / self._notes[row].weight(self._view.priority[row])
        had_s = min(map(self._charges.had, unit))
        return in_steps(had_s + lead_s) >= in_steps(self._charges.had(row))


def in_steps(seconds_per_priority: float) -> int:
    """A charge in steps for comparison, so that sums that are equal on paper are equal here."""
    return round(seconds_per_priority * PER_UNIT)
