"""Gandiva's homes: found at arrival, and changed where that brings jobs together."""

from collections.abc import Callable, Mapping
from typing import Any

from rota.model.reason import Reason
from rota.model.view import View
from rota.policy.gandiva_jobs import Notes, left_s, look, rate, speed_alone
from rota.policy.gandiva_servers import Home, Servers

SPARE = 0.75  # of a node's GPUs must be free for it to be worth emptying (3 of 4, OSDI 2018)


class Places:
    """Who lives where. A job that was moved stays for a while; a move that slows it is undone."""

    def __init__(
        self,
        view: View,
        servers: Servers,
        notes: Mapping[int, Notes],
        settings: Mapping[str, Any],
        idle_from_s: float | None,
    ) -> None:
        self._view = view
        self._servers = servers
        self._notes = notes
        self._set = settings
        self.idle_from_s = idle_from_s

    def forget(self) -> None:
        """Jobs of lost nodes have no home any more, nor have those that lost their processes or
        were suspended by their owner."""
        for row, notes in self._notes.items():
            came_back = self._view.reason[row] == Reason.WAIT_PRIORITY
            if came_back or any(node not in self._servers.sizes for node, _ in notes.home):
                notes.home, notes.pack, notes.move, notes.seen = (), None, None, None

    def count(self) -> None:
        """Count who lives where; a pack needs what one of it needs."""
        for row, notes in self._notes.items():
            home, target = notes.home, self._view.target[row]
            if target is not None and home and sum(g for _, g in home) != target.num_gpus:
                notes.home = home = tuple((n, m.bit_count()) for n, m in target.parts)
            if home and (notes.pack is None or row == notes.pack.rows[0]):
                self._servers.add(home)

    # -- arrivals ------------------------------------------------------------------------------

    def find_homes(self, had: Callable[[int], float]) -> None:
        """Give homes to jobs that have none, in order of arrival."""
        for row, notes in self._notes.items():
            if not notes.home and self._view.num_gpus[row] <= self._view.total_gpus:
                home = self._kept(row) or self._room_for(row)
                if home is not None:
                    self._move_in(row, home, had)

    def _kept(self, row: int) -> Home | None:
        """Where a suspended job's state lies, if it can go on nowhere else."""
        kept = self._view.home[row]
        if kept is None or not self._view.stays_on_node(row):
            return None
        return tuple((node, mask.bit_count()) for node, mask in kept.parts)

    def _room_for(self, row: int) -> Home | None:
        num_gpus = self._view.num_gpus[row]
        home = self._servers.choose_free(num_gpus)
        if home is None and self._set["grow"] == "on" and self._shrink_for(num_gpus):
            home = self._servers.choose_free(num_gpus)
        return home or self._servers.choose(num_gpus)

    def _move_in(self, row: int, home: Home, had: Callable[[int], float]) -> None:
        """A job comes to live with others, level with the least served of them."""
        nodes = {node for node, _ in home}
        notes = self._notes[row]
        others = [
            had(other)
            for other, their in self._notes.items()
            if other != row and nodes & {node for node, _ in their.home}
        ]
        self._servers.add(home)
        notes.home = home
        if others:
            mine = had(row)
            notes.credit += max(mine, min(others)) - mine

    # -- moves ---------------------------------------------------------------------------------

    def improve(self, had: Callable[[int], float]) -> None:
        """Move jobs: from nodes where they wait to free GPUs, together, and off nearly empty nodes.

        Only jobs that may move, and have stayed for a while.
        """
        for row in self.movable():
            home = self._notes[row].home
            size = sum(gpus for _, gpus in home)
            better: Home | None = None
            if len(home) > 1:
                better = (
                    self._servers.on_one_node(size)
                    or self._servers.of_its_size(home)
                    or self._servers.with_its_like(home)
                )
            elif self._view.target[row] is None and self._crowded(home):
                elsewhere = self._servers.on_one_node(size, but=[home[0][0]])
                better = elsewhere or self._servers.of_its_size(home)
            if better is not None and better != home:
                self._move(row, better, had)
        self._move_packs()
        self._defragment(had)

    def _move_packs(self) -> None:
        """Packs that wait among gangs of another size go where jobs of their size take turns."""
        for row, notes in self._notes.items():
            pack, home = notes.pack, notes.home
            if pack is None or pack.gain is None or row != pack.rows[0] or not self._crowded(home):
                continue
            waits = all(self._view.target[each] is None for each in pack.rows)
            better = self._servers.of_its_size(home) if waits else None
            if better is not None and all(map(self._may_move, pack.rows)):
                self._servers.remove(home)
                self._servers.add(better)
                for each in pack.rows:
                    self._notes[each].home, self._notes[each].moved_s = better, self._view.now_s

    def movable(self) -> list[int]:
        """Jobs that can go to other nodes, and have not been moved just before."""
        return [
            row
            for row, notes in self._notes.items()
            if notes.home and notes.pack is None and notes.move is None and self._may_move(row)
        ]

    def _may_move(self, row: int) -> bool:
        view, moved_s = self._view, self._notes[row].moved_s
        return (
            not view.must_stay(row)
            and not view.stays_on_node(row)
            and bool(view.state.portable[row])
            and (moved_s is None or view.now_s - moved_s >= self._stay_s(row))
            and (view.target[row] is None or view.since_s[row] >= 0)
        )

    def _stay_s(self, row: int) -> float:
        """How long a job that was moved stays: one that waits beside idle GPUs, for one quantum."""
        running = self._view.target[row] is not None
        return float(self._set["stay_s"] if running else self._set["quantum_s"])

    def _crowded(self, home: Home) -> bool:
        return any(self._servers.load[node] > self._servers.sizes[node] for node, _ in home)

    def _defragment(self, had: Callable[[int], float]) -> None:
        """Empty the node with the most free GPUs into fuller ones, if all of it goes there."""
        servers = self._servers
        used = [n for n, load in servers.load.items() if load]
        movable: set[int] | None = None
        for node in sorted(used, key=lambda n: (-servers.room(n), n)):
            if servers.room(node) < SPARE * servers.sizes[node]:
                break
            if movable is None:
                movable = set(self.movable())
            rows = [r for r, n in self._notes.items() if any(where == node for where, _ in n.home)]
            if not movable.issuperset(rows) or any(len(self._notes[r].home) > 1 for r in rows):
                continue
            room = {
                n: servers.room(n)
                for n in used
                if n != node and servers.room(n) < servers.room(node)
            }
            goes = self._fit([(row, self._notes[row].home[0][1]) for row in rows], room)
            for row, where in goes.items():
                self._move(row, ((where, self._notes[row].home[0][1]),), had)
            if goes:
                break

    @staticmethod
    def _fit(jobs: list[tuple[int, int]], room: dict[int, int]) -> dict[int, int]:
        """A node for each job, the tightest; none at all if not all of them fit."""
        goes = {}
        for row, gpus in sorted(jobs, key=lambda job: -job[1]):
            fits = [node for node, free in room.items() if free >= gpus]
            if not fits:
                return {}
            goes[row] = node = min(fits, key=lambda n: (room[n], n))
            room[node] -= gpus
        return goes

    def _move(self, row: int, home: Home, had: Callable[[int], float]) -> None:
        notes, view = self._notes[row], self._view
        before = notes.home
        self._servers.remove(before)
        self._move_in(row, home, had)
        notes.moved_s = view.now_s
        alone, now = speed_alone(view, row, notes), look(view, row)
        if alone and now is not None:
            notes.move = (before, alone)
            notes.seen = now

    def judge(self) -> None:
        """Undo a move that has slowed its job, if there is still room where it was."""
        view = self._view
        for row, notes in self._notes.items():
            if notes.move is None:
                continue
            before, was = notes.move
            seen = look(view, row)
            now = rate(notes.seen, seen, self._set["trial_s"])
            if now is None:
                continue
            notes.seen = seen
            kept = now >= was * (1 - self._set["least_gain"])
            room = all(
                node in self._servers.sizes and self._servers.room(node) >= gpus
                for node, gpus in before
            )
            notes.move = None
            notes.note(view.now_s, "move", 1.0, now / was, kept or not room)
            if not kept and room:
                self._servers.remove(notes.home)
                self._servers.add(before)
                notes.home = before
                notes.moved_s = view.now_s

    # -- sizes ---------------------------------------------------------------------------------

    def resize(self) -> None:
        """Let elastic jobs grow once nobody has waited for a while."""
        view, now_s = self._view, self._view.now_s
        someone_waits = self._servers.overloaded() or any(not n.home for n in self._notes.values())
        elastic = [row for row in self._notes if len(view.sizes(row)) > 1]
        if someone_waits or not elastic:
            self.idle_from_s = None
            return
        if self.idle_from_s is None:
            self.idle_from_s = now_s
        if now_s - self.idle_from_s < self._set["idle_s"]:
            return
        for row in elastic:
            self._grow(row)

    def _grow(self, row: int) -> None:
        home = self._notes[row].home
        if len(home) != 1 or self._view.target[row] is None or self._notes[row].pack is not None:
            return
        node, size = home[0]
        most = size + self._servers.room(node)
        larger = [each for each in self._view.sizes(row) if size < each <= most]
        if larger:
            self._change(row, node, larger[-1])

    def _shrink_for(self, num_gpus: int) -> bool:
        """Make room for a gang on one node, where elastic jobs have more than their least."""
        view = self._view
        spare: dict[int, list[tuple[int, int]]] = {}
        for row, notes in self._notes.items():
            sizes = view.sizes(row)
            if len(notes.home) == 1 and view.target[row] is not None and len(sizes) > 1:
                node, size = notes.home[0]
                if size > sizes[0]:
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
        self._notes[row].home = ((node, size),)
        self._servers.add(self._notes[row].home)

    def ends_s(self) -> list[float]:
        """When the next trial can be judged, or jobs may grow."""
        now_s, times = self._view.now_s, []
        if self.idle_from_s is not None:
            times.append(self.idle_from_s + self._set["idle_s"])
        for row, notes in self._notes.items():
            if notes.move is not None and self._view.target[row] is not None:
                left = left_s(notes.seen, look(self._view, row), self._set["trial_s"])
                times.append(now_s + left)
        return times
