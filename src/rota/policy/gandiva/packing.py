"""Gandiva's packing: jobs that share GPUs for as long as that does more work than turns."""

from collections.abc import Callable, Iterable
from math import inf

from rota.model.job import Suspension
from rota.model.measured.usage import Usage
from rota.model.probe import Probe
from rota.model.view import WhatIf
from rota.policy.gandiva.jobs import Notes, Pack, left_s, level, look, nodes_of, rate, speed_alone
from rota.policy.gandiva.servers import Lodgers
from rota.policy.gandiva.signatures import SignatureGains, of_one_search, signature_of
from rota.policy.gandiva.turn import Part, Turn
from rota.policy.gandiva.verdicts import Unit, Verdicts

PATIENCE = 20  # times ``trial_s``: a probe is given up if its jobs have not told enough by then
FIRST = 2  # times ``trial_s``: a probe that has run for so long without telling enough takes turns


class Packing(Part):
    """Chooses the jobs that are packed together, as a probe or for good.

    Jobs of one GPU are, and gangs of as many GPUs that take turns: an island keeps the operations
    of flow jobs, and the steps of trainings with sessions, in one order, so that gangs on the same
    GPUs can't wait for each other in a circle.
    """

    def __init__(self, turn: Turn, gains: SignatureGains, verdicts: Verdicts) -> None:
        super().__init__(turn)
        self._gains = gains
        self._verdicts = verdicts
        self._none_to_pack = False  # no job, nor pack, is known to leave its GPU idle
        self.undone: set[int] = set()  # rows that have to leave a pack, in this decision
        self._changed: set[int] = set()  # rows whose progress counts from now on

    def unit(self, row: int) -> tuple[int, ...]:
        """The job, with those that it is packed with."""
        pack = self._lodged[row].pack
        return (row,) if pack is None else pack.rows

    def is_packed(self, row: int) -> bool:
        """True if the job shares its GPUs, if only with itself for the moment."""
        return self._lodged[row].pack is not None

    def is_probed(self, unit: tuple[int, ...]) -> bool:
        """True if it is not known yet what the pack is worth."""
        pack = self._lodged[unit[0]].pack
        return pack is not None and pack.gain is None

    def comes_first(self, unit: tuple[int, ...]) -> bool:
        """True if the pack is under probe, and its jobs have not run for long in it.

        Jobs that tell nothing, as a flow job of which no operation is asked, must not keep others
        waiting until the probe is given up.
        """
        if not self.is_probed(unit):
            return False
        if not self._changed.isdisjoint(unit):  # it begins with this decision
            return True
        ran_s = [
            self._view.attained_s(row) - seen.ran_s
            for row in unit
            if (seen := self._notes[row].seen) is not None
        ]
        return not ran_s or min(ran_s) < FIRST * float(self._set["trial_s"])

    def is_settled(self) -> bool:
        """True if nobody can be packed as long as nobody comes, as this decision has found."""
        return self._none_to_pack

    def gpus_of(self, row: int, what_if: WhatIf) -> int:
        """The mask of the GPUs that another job of its pack has in ``what_if``; 0 if none has."""
        for other in self.unit(row):
            target = what_if.target(other)
            if other != row and target is not None and target.shared:
                return target.parts[0][1]
        return 0

    def ends_s(self) -> list[float]:
        """Times at which the current probes can be judged."""
        view = self._view
        times = []
        for row, notes in self._lodged.items():
            if notes.pack is not None and notes.pack.gain is None:
                left = left_s(notes.seen, look(view, row), self._set["trial_s"])
                times.append(view.now_s + left)
        return times

    # -- probes --------------------------------------------------------------------------------

    def judge(self) -> None:
        """Keep packs that do more work than their jobs would in turns, and undo the others."""
        for row, notes in self._lodged.items():
            pack = notes.pack
            if pack is not None and pack.gain is None and row == pack.rows[0]:
                gain = self._gain(pack)
                late_s = pack.began_s + PATIENCE * self._set["trial_s"]
                if gain is not None or self._view.now_s >= late_s:
                    self._end_probe(pack, gain)

    def _gain(self, pack: Pack) -> float | None:
        """The work of all in the pack, relative to each alone; None if it is too early to tell."""
        gain = 0.0
        for row in pack.rows:
            notes = self._lodged[row]
            now = rate(notes.seen, look(self._view, row), self._set["trial_s"])
            if now is None or not notes.alone:
                return None
            gain += now / notes.alone
        return gain

    def _end_probe(self, pack: Pack, gain: float | None) -> None:
        """Keep the pack, or take its newcomer out of it; if there is nothing measured, too."""
        kept = gain is not None and self._verdicts.pays(
            gain, self._verdicts.to_beat(pack.rows, pack.beat)
        )
        if gain is not None:
            signatures = (signature_of(self._view, each) for each in pack.rows)
            self._gains.learn(signatures, gain, self._verdicts.place_of(pack.rows[0]))
        rest = tuple(row for row in pack.rows if row != pack.newcomer)
        before = Pack(rest, 2 * pack.beat - 1) if len(rest) > 1 else None
        if not kept:
            self.undone.update(pack.rows if before is None else [pack.newcomer])
        for row in pack.rows:
            notes = self._lodged[row]
            self._charges.settle(row)
            target, predicted = self._view.target[row], pack.predicted or pack.beat
            mates = tuple(each for each in pack.rows if each != row)
            on = nodes_of(notes.home) if target is None else target.parts
            notes.note(Probe(self._view.now_s, "pack", predicted, gain, kept, mates, on))
            self._changed.add(row)
            if kept:
                notes.set_pack(Pack(pack.rows, gain))
            elif row == pack.newcomer:
                notes.set_pack(None)
                self._keep_apart(notes, rest)
                self._go_back(row, pack.came_from)
            else:
                notes.set_pack(before)
                self._keep_apart(notes, [pack.newcomer])

    def _go_back(self, row: int, node: int) -> None:
        """A newcomer that has left a pack lives where it did before, unless there is no place."""
        notes = self._lodged[row]
        if self._servers.takes(node, 1):
            notes.set_home(((node, 1),))
            notes.moved_s = self._view.now_s
            notes.give_back()
        self._servers.add(notes.home)

    def _keep_apart(self, notes: Notes, rows: Iterable[int]) -> None:
        """Never pack a job with these again; those that have ended need not be remembered."""
        finish_s = self._view.finish_s
        notes.apart = {row for row in notes.apart.union(rows) if finish_s[row] < 0}

    def try_more(self) -> None:
        """On each node where jobs take turns, pack those that use their GPU least.

        Among new combinations, only one is tried at a time.
        """
        by_place = self._by_place()
        self._none_to_pack = not by_place
        if self._none_to_pack:
            return
        lodgers = self._lodgers()
        exploring = {n.home[0][0] for row, n in self._lodged.items() if self._explores(row)}
        for (node, gpus), units in by_place.items():
            while lodgers[node].fewer_turns(gpus):
                mates = (self._mate(one, units, node not in exploring) for one in units)
                pair = next(filter(None, mates), None)
                gone = pair or self._break_up(units)
                if not gone:
                    break
                if pair is not None:
                    self._pack(*pair)
                    if self._explores(pair[0].rows[0]):
                        exploring.add(node)
                lodgers[node] = lodgers[node].without(gpus)
                units = [unit for unit in units if unit not in gone]

    def _break_up(self, units: list[Unit]) -> list[Unit]:
        """Let all of the smallest pack of trials join others of their search, if that is possible.

        Packs shrink as trials end or fall behind. Returns the units that are no more.
        """
        for unit in sorted(units, key=lambda unit: len(unit.rows)):
            if len(unit.rows) < 2 or not of_one_search(self._view, unit.rows):
                continue
            rest, joins = [other for other in units if other is not unit], []
            for one in (self._unit((row,)) for row in unit.rows):
                may = (
                    o
                    for o in rest
                    if self._verdicts.is_settled(one, o) and self._verdicts.may_join(one, o)
                )
                other = next(may, None)
                if other is None:
                    break
                joins.append((one, other))
                rest[rest.index(other)] = self._unit(one.rows + other.rows)
            if len(joins) == len(unit.rows):
                for row in unit.rows:
                    self._charges.settle(row)
                    self._lodged[row].set_pack(None)
                    self._changed.add(row)
                for row in unit.rows[1:]:
                    self._servers.add(self._lodged[row].home)
                for one, other in joins:
                    self._pack(one, other)
                return [each for each in units if each not in rest]
        return []

    def spread(self) -> None:
        """Give jobs of packs GPUs of their own where that costs nobody a turn."""
        packs = [
            (row, notes)
            for row, notes in self._lodged.items()
            if (pack := notes.pack) is not None and pack.gain is not None and row == pack.rows[-1]
        ]
        lodgers = self._lodgers() if packs else {}
        for row, notes in packs:
            node, gpus = notes.home[0]
            more = lodgers[node].beside(gpus)
            if more.turns() <= lodgers[node].turns():
                self._charges.settle(row)
                notes.set_pack(None)
                self._changed.add(row)
                self._servers.add(notes.home)
                lodgers[node] = more
        self.settle()

    def gather(self, movable: Callable[[], Iterable[int]]) -> None:
        """Move jobs to packs of other nodes, if packs like theirs are known to do more work.

        Only jobs of one GPU, of nodes where others wait for their turn, and ``movable`` ones; only
        on GPUs of one type, as speeds are not to be compared else.
        """
        if self._none_to_pack:  # this decision has found so before
            return
        lodgers = self._lodgers()
        by_node = {node: units for (node, gpus), units in self._by_place().items() if gpus == 1}
        lonely = [
            (node, unit)
            for node, units in by_node.items()
            for unit in units
            if len(unit.rows) == 1 and lodgers[node].fewer_turns()
        ]
        by_type: dict[str, dict[tuple[str, ...], list[Unit]]] = {}
        for units in by_node.values():
            for unit in units:
                alike = by_type.setdefault(self._verdicts.place_of(unit.rows[0]), {})
                alike.setdefault(unit.signatures, []).append(unit)
        may_move = set(movable()) if lonely else set()
        for node, one in lonely:
            if one.rows[0] not in may_move or self.is_packed(one.rows[0]):
                continue
            if not lodgers[node].fewer_turns():
                continue
            alike = by_type[self._verdicts.place_of(one.rows[0])]
            known = [
                (gain, units)
                for units in alike.values()
                if units
                and (gain := self._verdicts.predicted(one, units[0]))
                and self._verdicts.pays(gain, 1.0)
            ]
            for _, units in sorted(known, key=lambda each: -each[0]):
                other = next(
                    (u for u in units if u is not one and self._verdicts.may_join(one, u)), None
                )
                if other is not None:
                    self._pack(one, other)
                    lodgers[node] = lodgers[node].without(1)
                    for unit in (one, other):
                        alike[unit.signatures].remove(unit)
                    break

    def _by_place(self) -> dict[tuple[int, int], list[Unit]]:
        """The jobs and packs that may be in a pack, by node and GPUs, the least busy first.

        They are known to leave their GPUs idle at times, and are not in a probe.
        """
        view, found = self._view, dict[tuple[int, int], list[Unit]]()
        for row, notes in self._lodged.items():
            home = notes.home
            if len(home) != 1 or (home[0][1] > 1 and not self._takes_turns(row)):
                continue
            if row != (rows := self.unit(row))[0]:
                continue
            usages = [view.usage(each) for each in rows]
            if _util(usages) >= len(rows) or len(view.sizes(row)) > 1:
                continue
            if notes.move is not None:  # the move is being measured now
                continue
            if not self.is_probed(rows) and not any(map(view.must_stay, rows)):
                found.setdefault(home[0], []).append(self._unit(rows, usages))
        for units in found.values():
            units.sort(key=lambda unit: (unit.util, unit.rows))
        return found

    def _takes_turns(self, row: int) -> bool:
        """True if what a gang does is ordered where it shares its GPUs, and it may share them."""
        if self._view.spec[row].is_flow:
            return True
        steps = self._view.suspension[row] == Suspension.BOUNDARY
        return self._set["pack_gangs"] == "on" and steps

    def _unit(self, rows: tuple[int, ...], usages: Iterable[Usage] | None = None) -> Unit:
        view = self._view
        usages = [view.usage(each) for each in rows] if usages is None else usages
        util = _util(usages)
        gb = sum(inf if use.memory_gb is None else use.memory_gb for use in usages)
        signatures = tuple(sorted(signature_of(view, each) for each in rows))
        return Unit(tuple(sorted(rows)), util, gb, signatures, all(map(self.alone, rows)))

    def _lodgers(self) -> dict[int, Lodgers]:
        """The jobs that take turns on each node; a pack counts as one."""
        found = {node: Lodgers(size, [], 0) for node, size in self._servers.sizes.items()}
        for row, notes in self._lodged.items():
            if not notes.home or row != self.unit(row)[0]:
                continue
            for node, gpus in notes.home:
                if gpus > 1:
                    found[node].gangs.append(gpus)
                else:
                    found[node].singles += 1
        return found

    def _explores(self, row: int) -> bool:
        """True if it is in a pack under probe of which nobody knows what to expect."""
        pack = self._lodged[row].pack
        return pack is not None and pack.gain is None and pack.predicted is None

    def _mate(self, one: Unit, units: Iterable[Unit], explore: bool) -> tuple[Unit, Unit] | None:
        """A single job and the GPU's worth of jobs to put it with, if there is any such.

        They must fit the memory together, and not have failed together. Best is what has done most
        work before with jobs of these signatures; else, to ``explore``, the first that is new.
        """
        if len(one.rows) > 1:
            return None
        best: tuple[float, Unit] | None = None
        for other in units:
            if other is one or not self._verdicts.may_join(one, other):
                continue
            gain = self._verdicts.predicted(one, other)
            if gain is None and explore:
                gain = 0.0
            if gain is not None and (best is None or gain > best[0]):
                best = gain, other
        return (one, best[1]) if best else None

    def _pack(self, one: Unit, other: Unit) -> None:
        rows = tuple(sorted(one.rows + other.rows))
        turns, predicted = self._verdicts.turns(other.rows), self._verdicts.predicted(one, other)
        gain = predicted if self._verdicts.is_settled(one, other) else None
        newcomer, home = self._lodged[one.rows[0]], self._lodged[other.rows[0]].home
        if newcomer.home != home:
            level(self._lodged, one.rows, home, self._charges.had, self._owners.of)
        came_from = -1 if newcomer.home == home else newcomer.home[0][0]
        self._servers.remove(newcomer.home)
        for row in rows:
            if self._lodged[row].pack is not None:
                self._charges.settle(row)
            else:
                self._lodged[row].alone = self.alone(row)
            self._lodged[row].set_pack(
                Pack(rows, gain, one.rows[0], turns, predicted, self._view.now_s, came_from)
            )
            self._changed.add(row)
        if newcomer.home != home:
            newcomer.set_home(home)
            newcomer.moved_s = self._view.now_s

    def settle(self) -> None:
        """Leave those that have ended, or gone."""
        for row, notes in self._lodged.items():
            pack = notes.pack
            if pack is None:
                continue
            stays = bool(notes.home)
            left = tuple(each for each in pack.rows if stays and self._is_with(each, row))
            if left != pack.rows:
                self._charges.settle(row)
            if len(left) < 2:
                notes.set_pack(None)
                self._changed.add(row)
            elif left != pack.rows:
                # Those who stay are no slower than they were: a newcomer has to beat that.
                was = pack.gain if pack.gain is not None else 2 * pack.beat - 1
                notes.set_pack(Pack(left, max(1.0, was * len(left) / len(pack.rows))))
                self._changed.add(row)

    def _is_with(self, other: int, row: int) -> bool:
        """True if a job is still there, and in the same pack as another."""
        notes = self._lodged.get(other)
        pack = notes.pack if notes is not None and notes.home else None
        return pack is not None and row in pack.rows

    # -- speeds --------------------------------------------------------------------------------

    def alone(self, row: int) -> float | None:
        """Steps a second of a job that has its GPUs for itself, or had before its probe.

        Its own: jobs of one kind may differ in what numbers of their command stand for, and a pack
        that hurts must not be kept for that.
        """
        if row in self._changed:  # a job that left a pack in this decision was not alone until now
            return self._lodged[row].alone
        return speed_alone(self._view, row, self._lodged[row])

    def begin(self) -> None:
        """Start measuring where something has changed; for a probe, once all of it runs."""
        view = self._view
        for row, notes in self._notes.items():
            if not notes.were_looked_at:
                notes.seen = look(view, row)
        for row, notes in self._lodged.items():
            pack = notes.pack
            probed = pack is not None and pack.gain is None
            if row in self._changed or (
                probed and pack is not None and any(view.since_s[r] < 0 for r in pack.rows)
            ):
                notes.seen = look(view, row)
        self._charges.share_out()


def _util(usages: Iterable[Usage]) -> float:
    """The jobs' total use of a GPU; a job of unknown use counts as using all of it."""
    return sum(1.0 if use.gpu_util is None else use.gpu_util for use in usages)
