"""Gandiva's homes: found at arrival; how many GPUs elastic jobs have there."""

from collections.abc import Collection, Sequence
from math import inf
from typing import Any

from rota.model.reason import Reason
from rota.policy.base import to_instant
from rota.policy.gandiva.jobs import level
from rota.policy.gandiva.servers import Home, num_gpus_of
from rota.policy.gandiva.turn import Part, Turn
from rota.policy.gandiva.types import Types

ANY_HEIGHT = 10**9


class Homes(Part):
    """Gives each job a home, from its arrival on."""

    def __init__(self, turn: Turn, types: Types, idle_from_s: float | None) -> None:
        super().__init__(turn)
        self._types = types
        view, spec = turn.view, turn.view.spec
        self._elastic = [
            row for row in turn.notes if spec[row].elastic is not None and len(view.sizes(row)) > 1
        ]
        self.idle_from_s = idle_from_s
        self._grows_later = False

    def forget(self) -> None:
        """Jobs of lost nodes have no home any more, nor have those that lost their processes or
        were suspended by their owner."""
        reason, sizes, came_back = self._view.reason, self._servers.sizes, int(Reason.WAIT_PRIORITY)
        gone = {row for row in self._notes if reason[row] == came_back}
        for row, notes in self._lodged.items():
            if any(node not in sizes for node, _ in notes.home) or self._was_to_move(row):
                gone.add(row)
        for row in gone:
            self._notes[row].leave()

    def _was_to_move(self, row: int) -> bool:
        """True if a job was suspended before it had moved, and can go on only where it is."""
        view, home = self._view, self._notes[row].home
        state_at = view.home[row]
        if state_at is None or view.target[row] is not None or not view.must_stay(row):
            return False
        parts = tuple((node, mask.bit_count()) for node, mask in state_at.parts)
        if not self._servers.sizes.keys() >= {node for node, _ in parts}:
            return False
        if len(parts) > 1:  # its processes stay where they are, so many on each node
            return parts != tuple(sorted(home))
        return [node for node, _ in home] != [parts[0][0]]

    def count(self) -> None:
        """Count who lives where; a pack needs what one of it needs.

        A home has as many GPUs as its job has, or can go on with: a change of size may have failed,
        or the job may have been suspended before it.
        """
        for row, notes in self._lodged.items():
            home, target = notes.home, self._view.target[row]
            if target is not None and home and num_gpus_of(home) != target.num_gpus:
                notes.resized(self._view.now_s)
                home = tuple((n, m.bit_count()) for n, m in target.parts)
                notes.set_home(home)
            elif target is None and home and self._view.spec[row].elastic is not None:
                home = self._as_it_goes_on(row, home)
            if home and (notes.pack is None or row == notes.pack.rows[0]):
                self._servers.add(home)

    def _as_it_goes_on(self, row: int, home: Home) -> Home:
        """The home of an elastic job without GPUs, of a size with which the job can go on."""
        notes, sizes = self._notes[row], self._view.sizes(row)
        if num_gpus_of(home) not in sizes:
            notes.resized(self._view.now_s)
            if len(home) > 1:
                notes.leave()
            else:
                fit = [size for size in sizes if size <= home[0][1]]
                notes.set_home(((home[0][0], fit[-1] if fit else sizes[0]),))
        return notes.home

    # -- arrivals ------------------------------------------------------------------------------

    def find_homes(self, leave: Collection[int]) -> None:
        """Give homes to jobs that have none, other than those to ``leave``.

        The least served owner's come first, of one owner those of the highest priority, then those
        that came earlier. Where nodes are promised as often as may be, they are promised more often
        for a job whose owner has less than a fair share of the homes; jobs of a lower priority do
        not count.

        Who finds none may be passed by those who came later, but not for ever. Then a node may be
        promised once more than others may have it. Where that does not help nodes are kept for it;
        else not: in an overload all would wait for the largest gangs.
        """
        now_s, turns = self._view.now_s, self._set["limit"] > 1
        holds = not turns or self._set["affinity"] == "strict"
        # Sizes of gangs that find no room before another has moved in, the second even if it may be
        # promised once more: where thousands wait, most need not be tried.
        full, fuller = set[int](), set[int]()
        num_gpus_of_row, most = self._view.num_gpus, self._view.total_gpus
        queue = [
            row
            for row, notes in self._notes.items()
            if not notes.home and row not in leave and num_gpus_of_row[row] <= most
        ]
        known = self._known_of(queue)
        if known is not None and known == self._vain.queue:
            return
        self._vain.queue = known
        for row in self._owners.in_line(queue):
            notes, num_gpus = self._notes[row], self._view.num_gpus[row]
            home = self._kept(row)
            if home is None and num_gpus not in full:
                home = self._room_for(row)
                full.add(num_gpus)
            late = notes.queued_s is not None and self._is_late(notes.queued_s)
            if home is None and late and turns and num_gpus not in fuller:
                home = self._servers.choose(num_gpus, higher=1)
                fuller.add(num_gpus)
            if home is None and turns and self._may_exceed(row):
                home = self._servers.choose(num_gpus, higher=ANY_HEIGHT)
            if home is not None:
                full, fuller, self._vain.queue = set(), set(), None
                notes.set_queued_s(None)
                self.move_in(row, home)
            elif notes.queued_s is None:
                notes.set_queued_s(now_s)
            elif late and holds and not self._servers.held:
                self._servers.hold(num_gpus)
                self._vain.queue = None

    def _may_exceed(self, row: int) -> bool:
        """True if a job may have a home on nodes that are at their limit.

        So it is if those of its owner's jobs that are of its priority at least have less than the
        owner's fair share of all homes, and others have the rest.
        """
        if not (self._owners.are_several or self._owners.by_priority):
            return False
        loads, priority = self._loads(), self._view.priority[row]
        owner = self._owners.of.get(row, "")
        mine = sum(gpus for (o, p), gpus in loads.items() if o == owner and p >= priority)
        if mine == sum(loads.values()):
            return False
        fair = self._owners.fair(owner) if self._owners.are_several else 1.0
        most = self._set["limit"] * self._view.total_gpus * fair
        return not mine or mine + self._view.num_gpus[row] <= most

    def _loads(self) -> dict[tuple[str, int], int]:
        """The GPUs of all homes, by owner and priority."""
        loads: dict[tuple[str, int], int] = {}
        for row, notes in self._lodged.items():
            if notes.home:
                kind = self._owners.of.get(row, ""), self._view.priority[row]
                loads[kind] = loads.get(kind, 0) + num_gpus_of(notes.home)
        return loads

    def _known_of(self, queue: Sequence[int]) -> tuple[Any, ...] | None:
        """Everything on which it depends whether one of these jobs finds a home; None if unknown.

        It is unknown, too, if one of the jobs has just arrived.
        """
        if self._types.on or self._elastic:
            return None
        view, late = self._view, list[tuple[int, bool]]()
        home, everybody = view.home, self._notes
        late_before_s = view.now_s - self._set["pass_s"] - 2.0  # whatever sums of times are off by
        for row in queue:
            queued_s = everybody[row].queued_s
            if queued_s is None or home[row] is not None:
                return None
            late.append((row, queued_s < late_before_s or self._is_late(queued_s)))
        own = self._owners.are_several or self._owners.by_priority
        loads = frozenset(self._loads().items()) if own else None
        return view.total_gpus, late, self._servers.as_key(), loads

    def _kept(self, row: int) -> Home | None:
        """Place of a suspended job's state, if the job can continue nowhere else."""
        view, kept = self._view, self._view.home[row]
        if kept is None or not (view.stays_on_node(row) or view.must_stay(row)):
            return None
        if not self._servers.sizes.keys() >= set(kept.nodes()):
            return None  # a node that takes no jobs
        return tuple((node, mask.bit_count()) for node, mask in kept.parts)

    def _room_for(self, row: int) -> Home | None:
        num_gpus = self._view.num_gpus[row]
        for nodes in self._types.groups(row)[:-1]:  # fast GPUs first, if they are free
            home = self._servers.choose_free(num_gpus, among=nodes)
            if home is not None:
                return home
        home = self._servers.choose_free(num_gpus)
        if home is None and self._set["grow"] == "on" and self._shrink_for(num_gpus):
            home = self._servers.choose_free(num_gpus)
        return home or self._servers.choose(num_gpus)

    def move_in(self, row: int, home: Home) -> None:
        """A job comes to live with others, level with the least served of them."""
        if row not in self._lodged:
            self._lodged[row] = self._notes[row]
            in_order = sorted(self._lodged.items())
            self._lodged.clear()
            self._lodged.update(in_order)
        level(self._lodged, [row], home, self._charges.had, self._owners.of)
        self._servers.add(home)
        self._notes[row].set_home(home)

    # -- sizes ---------------------------------------------------------------------------------

    def resize(self) -> None:
        """Let elastic jobs grow once nobody has waited for a while."""
        now_s = self._view.now_s
        someone_waits = self._servers.overloaded() or any(not n.home for n in self._notes.values())
        if someone_waits or not self._elastic:
            self.idle_from_s = None
            return
        if self.idle_from_s is None:
            self.idle_from_s = now_s
        if now_s - self.idle_from_s < self._set["idle_s"]:
            return
        for row in self._elastic:
            self._grow(row)

    def _grow(self, row: int) -> None:
        notes, target = self._notes[row], self._view.target[row]
        if notes.pack is not None or notes.move is not None:
            return  # another size would spoil what is being measured
        if target is None or target.nodes() != tuple(node for node, _ in notes.home):
            self._grows_later = True  # on its way to its home, where it continues at its size
            return
        if len(notes.home) != 1:
            return
        node, size = notes.home[0]
        most = size + self._servers.room(node)
        larger = [each for each in self._view.sizes(row) if size < each <= most]
        if larger:
            self._change(row, node, larger[-1])

    def _shrink_for(self, num_gpus: int) -> bool:
        """Make room for a gang on one node, where elastic jobs have more than their least."""
        view = self._view
        spare: dict[int, list[tuple[int, int]]] = {}
        for row in self._elastic:
            notes, sizes = self._notes[row], view.sizes(row)
            if len(notes.home) == 1 and view.target[row] is not None:
                node, size = notes.home[0]
                if size > sizes[0] and node not in self._servers.held:
                    spare.setdefault(node, []).append((size - sizes[0], row))
        for node in sorted(spare):
            need = num_gpus - self._servers.room(node)
            if sum(most for most, _ in spare[node]) < need:
                continue
            for _, row in sorted(spare[node], reverse=True):
                need = num_gpus - self._servers.room(node)
                size = self._notes[row].home[0][1]
                if need > 0:
                    fit = [each for each in view.sizes(row) if each <= size - need]
                    self._change(row, node, fit[-1] if fit else view.sizes(row)[0])
            return True
        return False

    def _change(self, row: int, node: int, size: int) -> None:
        self._servers.remove(self._notes[row].home)
        self._notes[row].resized(self._view.now_s)
        self._notes[row].set_home(((node, size),))
        self._servers.add(self._notes[row].home)

    def _is_late(self, queued_s: float) -> bool:
        """True if who waits in the queue since then is passed no longer."""
        left_s = queued_s + self._set["pass_s"] - self._view.now_s
        return left_s < -1.0 or (left_s < 1.0 and self._view.now_s >= self._passed_at_s(queued_s))

    def _passed_at_s(self, queued_s: float) -> float:
        """Time from which a job queued at ``queued_s`` is not passed any more."""
        return to_instant(queued_s + self._set["pass_s"])

    def are_settled(self) -> bool:
        """True if the queue is looked through in vain until somebody is passed no longer, and no
        job is of a size that may change."""
        known = self._vain.queue is not None and not self._servers.held
        return known and not self._elastic and self.idle_from_s is None

    def passes_until_s(self) -> float:
        """Time from which the next job in the queue is not passed; infinity without jobs."""
        return min(self._passes_end_s(), default=inf)

    def _passes_end_s(self) -> list[float]:
        queued = {notes.queued_s for notes in self._notes.values() if not notes.home}
        return [
            self._passed_at_s(since_s)
            for since_s in queued
            if since_s is not None and not self._is_late(since_s)
        ]

    def ends_s(self) -> list[float]:
        """Times at which jobs may grow, and at which jobs in the queue are not passed any more."""
        times = self._passes_end_s()
        if self.idle_from_s is not None:
            since_s = self._view.now_s if self._grows_later else self.idle_from_s
            times.append(since_s + self._set["idle_s"])
        return times
