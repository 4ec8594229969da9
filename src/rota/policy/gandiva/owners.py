"""Gandiva's owners: of several, those who have had least of their part of the GPUs come first.

A part is what an owner can use of its fair share; what an owner can't use is shared by the others.
Levels compare owners: the GPU time that each has had, in seconds of its part, since it came. So an
owner who was away, or alone, is owed nothing, and owes nothing.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heapreplace
from typing import Any

from rota.model.job import Suspension
from rota.model.view import View
from rota.policy.base import PER_S
from rota.policy.gandiva.jobs import Notes, turn_s
from rota.policy.stages.fair_share import MILLI, UseByOwner, parse_shares

Unit = tuple[int, ...]

RESTART = int(Suspension.RESTART)  # compared as a number
PASSED_TURNS = 4  # that a job is next in vain, at least, before it comes first
LEAD_TURNS = 2.0  # turns with all of its jobs that an owner may be ahead before that is forgotten


class Owners:
    """The owners (users, or queues) of the jobs of one decision.

    ``of`` tells the owner of each active job; it is empty unless jobs of more than one owner could
    run: then all have turns as if there were no owners. ``told`` is the mark of the last decision.
    ``passed`` has, by owner, the job that is next among the owner's but did not get its turn, and
    since when: a gang may be next in vain for ever while others have one GPU each.
    """

    def __init__(
        self,
        view: View,
        notes: Mapping[int, Notes],
        settings: Mapping[str, Any],
        told: Mapping[str, Sequence[Any]],
        passed: Mapping[str, Sequence[Any]],
        totals: UseByOwner | None,
    ) -> None:
        self._view, self._notes, self._set = view, notes, settings
        self._told = told
        # True if the highest priority comes first, of one owner's jobs and of jobs on a level.
        self.by_priority = settings["fair_share"] != "no" and len(view.priorities) > 1
        self.passed = {owner: list(each) for owner, each in passed.items()}
        self.of: dict[int, str] = {}
        self._wanted: dict[str, int] = {}
        self._levels: dict[str, float] = {}
        self._milli: dict[str, int] = {}  # GPU time, without what mates in packs had of it
        self._settled: dict[int, int] = {}  # of rows that leave their packs now, what mates had
        if totals is None:
            return
        spec, num_gpus, most = view.spec, view.num_gpus, view.total_gpus
        if settings["fair_share"] == "vc":
            of = {row: spec[row].vc for row in notes}
        else:
            of = {row: spec[row].user for row in notes}
        wanted: dict[str, int] = {}
        for row, owner in of.items():
            if num_gpus[row] <= most:
                wanted[owner] = wanted.get(owner, 0) + num_gpus[row]
        if len(wanted) < 2:
            return
        for owner in of.values():  # who has jobs alone that are too large now is in line, too
            wanted.setdefault(owner, 1)
        self.of, self._wanted = of, wanted
        self._shares = dict(parse_shares(settings["shares"]))
        self._parts = parts(most, wanted, {each: self.share(each) for each in wanted})
        self._milli = totals.at(view)
        self._by_row = {row: self._used_milli(row) for row in of}
        for row, each in notes.items():
            if each.pack is not None and row in of:
                self._milli[of[row]] -= self._shared_milli(row)
        self._weigh()

    @property
    def are_several(self) -> bool:
        """True if owners take turns."""
        return bool(self._wanted)

    def share(self, owner: str) -> float:
        """The owner's share, relative to those of others."""
        return float(self._shares.get(owner, 1.0))

    def fair(self, owner: str) -> float:
        """The part of the cluster that is the owner's fair share, of owners who are there."""
        return self.share(owner) / sum(map(self.share, self._wanted))

    def again(self, ran: Iterable[int]) -> None:
        """Weigh the same owners again at the view's present time, as :meth:`mark` left them.

        All that has happened since is that the jobs of these rows ran, none of them in a pack.
        """
        if not self.are_several:
            return
        self._told = self.mark()
        for row in ran:
            milli = self._used_milli(row)
            self._milli[self.of[row]] += milli - self._by_row[row]
            self._by_row[row] = milli
        self._weigh()

    def mark(self) -> dict[str, list[Any]]:
        """What to remember: by owner, a level, the thousandths of GPU-seconds then, and the part.

        An owner's entry stays as it is for as long as the part does, unless a lead is forgotten.
        """
        return {owner: self._entry(owner, level) for owner, level in sorted(self._levels.items())}

    def _entry(self, owner: str, level: float) -> list[Any]:
        old = self._told.get(owner)
        settled = sum(milli for row, milli in self._settled.items() if self.of[row] == owner)
        same = old is not None and old[2] == self._parts[owner] and not settled
        if old is not None and same and self._level(owner, old) == level:
            return list(old)
        return [level, self._milli[owner] + settled, self._parts[owner]]

    def _level(self, owner: str, entry: Sequence[Any]) -> float:
        level, milli, part = entry
        return float(level + max(0, self._milli[owner] - milli) / MILLI / part)

    def _weigh(self) -> None:
        quantum_s = self._set["quantum_s"]
        known = {o: self._level(o, self._told[o]) for o in self._wanted if o in self._told}
        least = min(known.values(), default=0.0)
        restarts = (r for r in self.of if self._view.suspension[r] == RESTART)
        turn = max((turn_s(self._view, r, *self._turns()) for r in restarts), default=quantum_s)
        for owner, wanted in self._wanted.items():
            level = known.get(owner, least)
            ahead = min(wanted, self._view.total_gpus) / self._parts[owner] * LEAD_TURNS * turn
            self._levels[owner] = least + ahead if level > least + 2 * ahead else level

    def _turns(self) -> tuple[float, float]:
        return self._set["quantum_s"], self._set["restart_turn_s"]

    def settle(self, row: int) -> None:
        """The job leaves its pack: what its mates had of the GPU stays taken off."""
        if row in self.of:
            self._settled.setdefault(row, self._shared_milli(row))

    def _used_milli(self, row: int) -> int:
        return round(self._view.attained_gpu_s(row) * MILLI)

    def _shared_milli(self, row: int) -> int:
        """GPU time since the job's pack began that its mates had, in thousandths."""
        notes = self._notes[row]
        if notes.pack is None or notes.seen is None:
            return 0
        ran_s = max(0.0, self._view.attained_s(row) - notes.seen.ran_s)
        return round(ran_s * self._view.num_gpus[row] * (1 - notes.part) * MILLI)

    def due(self, units: Iterable[Unit]) -> list[Unit]:
        """Units that were next of their owners' for several turns in vain: they come first."""
        if not self.passed:
            return []
        quantum_s, now_s = self._set["quantum_s"], self._view.now_s
        rows = set()
        for owner, (row, since_s) in self.passed.items():
            if row in self.of:
                usual = self._view.num_gpus[row] / self._parts[owner]
                turns = max(PASSED_TURNS, 2.0 * usual)
                if now_s - since_s >= (turns - 0.5) * quantum_s:
                    rows.add(row)
        return [unit for unit in units if not rows.isdisjoint(unit)] if rows else []

    def note(self, units: Iterable[Unit], chosen: Mapping[int, None]) -> None:
        """Note whose next unit does not get the turn that begins now."""
        if not self.are_several:
            self.passed = {}
            return
        first: dict[str, int] = {}
        for unit in units:
            for row in unit:
                first.setdefault(self.of[row], row)
            if len(first) == len(self._wanted):
                break
        before, now_s = self.passed, self._view.now_s
        self.passed = {}
        for owner, row in sorted(first.items()):
            if row not in chosen:
                same = owner in before and before[owner][0] == row
                self.passed[owner] = before[owner] if same else [row, now_s]

    # -- who comes first -----------------------------------------------------------------------

    def step(self, row: int) -> int:
        """The level of the job's owner, in whole steps for comparison."""
        return round(self._levels[self.of[row]] * PER_S)

    def tie(self, unit: Unit) -> int:
        """What is compared of units that have had as much: less for a higher priority."""
        return -max(map(self._view.priority.__getitem__, unit)) if self.by_priority else 0

    def in_line(self, rows: Iterable[int]) -> list[int]:
        """Rows in the order in which they look for a home: the least served owners' first, of an
        owner those of the highest priority, of these the first."""
        priority = self._view.priority
        if self.are_several:
            return sorted(rows, key=lambda row: (self.step(row), -priority[row], row))
        if self.by_priority:
            return sorted(rows, key=lambda row: (-priority[row], row))
        return list(rows)

    def in_turn(
        self, first: Iterable[Unit], units: Iterable[Unit], chosen: Mapping[int, None]
    ) -> Iterator[Unit]:
        """Yield those ``first``, then ``units`` as they are in line for their turns.

        Of several owners the least served one offers its next unit, and is charged at once for a
        turn of each that its caller has added to ``chosen``. Each owner's units keep their order.
        """
        if not self.are_several:
            yield from first
            yield from units
            return
        levels = dict(self._levels)
        for unit in first:
            before = unit[0] in chosen
            yield unit
            if unit[0] in chosen and not before:
                self._charge(levels, unit)
        lines: dict[str, list[Unit]] = {}
        of, priority = self.of, self._view.priority
        for unit in units:
            for owner in (of[unit[0]],) if len(unit) == 1 else {of[row] for row in unit}:
                lines.setdefault(owner, []).append(unit)
        steps = {owner: round(level * PER_S) for owner, level in levels.items()}
        heads = [_head(steps[owner], priority, line, 0, owner) for owner, line in lines.items()]
        heapify(heads)
        while heads:
            step, _, _, place, owner = heads[0]
            line, unit = lines[owner], lines[owner][place]
            if unit[0] not in chosen:
                if step != steps[owner]:  # charged for a pack in which another owner has a job
                    heapreplace(heads, _head(steps[owner], priority, line, place, owner))
                    continue
                yield unit
                if unit[0] in chosen:
                    for each in self._charge(levels, unit):
                        steps[each] = round(levels[each] * PER_S)
            place += 1
            if place == len(line):
                heappop(heads)
            else:
                heapreplace(heads, _head(steps[owner], priority, line, place, owner))

    def _charge(self, levels: dict[str, float], unit: Unit) -> set[str]:
        """Add a turn of a unit's jobs to the levels of their owners, and tell these."""
        for row in unit:
            owner = self.of[row]
            gpus = self._view.num_gpus[row] * self._notes[row].part
            levels[owner] += self._set["quantum_s"] * gpus / self._parts[owner]
        return {self.of[row] for row in unit}


def _head(
    step: int, priority: Sequence[int], line: Sequence[Unit], place: int, owner: str
) -> tuple[int, int, int, int, str]:
    """The entry of an owner by which its next unit is compared with those of others."""
    unit = line[place]
    if len(unit) == 1:
        return step, -priority[unit[0]], unit[0], place, owner
    return step, -max(priority[row] for row in unit), min(unit), place, owner


def parts(total: int, wanted: Mapping[str, int], shares: Mapping[str, float]) -> dict[str, float]:
    """GPUs for each owner: by shares, but nobody more than is ``wanted``, and all given out."""
    found, left, weights = dict[str, float](), float(total), sum(shares.values())
    for owner in sorted(wanted, key=lambda owner: (wanted[owner] / shares[owner], owner)):
        found[owner] = min(float(wanted[owner]), left * shares[owner] / weights)
        left -= found[owner]
        weights -= shares[owner]
    return found
