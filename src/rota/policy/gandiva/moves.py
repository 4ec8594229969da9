"""Gandiva's moves: to free GPUs, together, to other GPU types, each measured and undone if bad."""

from collections.abc import Callable, Iterator

from rota.model.probe import Probe
from rota.policy.gandiva.fragments import Clearing, Job, clear_one, fit_elsewhere
from rota.policy.gandiva.jobs import (
    Move,
    goes_on,
    left_s,
    level,
    look,
    nodes_of,
    rate,
    speed_alone,
)
from rota.policy.gandiva.servers import Home
from rota.policy.gandiva.turn import Part, Turn
from rota.policy.gandiva.types import Types

MOST_DOUBLINGS = 8  # of the time that a job stays after undone moves
SPARE = 0.75  # of a node's GPUs must be free for it to be worth emptying (3 of 4, OSDI 2018)


class Moves(Part):
    """Chooses jobs that should live elsewhere. A job that was moved stays for a while.

    A move that slows its job is undone if there is still room where it was; two jobs that changed
    places change back unless both together have gained.
    """

    def __init__(self, turn: Turn, types: Types, move_in: Callable[[int, Home], None]) -> None:
        super().__init__(turn)
        self._types = types
        self._move_in = move_in

    def improve(self) -> None:
        """Move jobs: from nodes where they wait to free GPUs, together, off nodes that a waiting
        gang could have for itself, off nearly empty nodes, and to GPUs that suit them better.

        Only jobs that may move, and have stayed for a while.
        """
        target, vain = self._view.target, self._vain.of(self._servers.as_key())
        for row, notes in self._lodged.items():
            home = notes.home
            if not home or home in vain or (len(home) == 1 and target[row] is not None):
                continue
            if not self._is_movable(row):
                continue
            better = self._better(row)
            if better is not None:
                self._move(row, better)
                vain = self._vain.of(self._servers.as_key())
            elif not self._types.on:  # then there is none for anybody who lives there
                vain.add(home)
        self._move_packs()
        self._make_room()
        self._empty()
        self._change_types()

    def _better(self, row: int) -> Home | None:
        """A better home for the job than its own; None if there is none."""
        home, better = self._notes[row].home, None
        size = sum(gpus for _, gpus in home)
        if len(home) > 1:
            better = (
                self._one_node(row, size)
                or self._servers.of_its_size(home)
                or self._servers.with_its_like(home)
            )
        elif self._crowded(home):
            better = self._one_node(row, size, but=home[0][0])
            if better is None and (alike := self._servers.of_its_size(home)) is not None:
                better = alike if self._types.may_go(row, alike[0][0]) else None
        return None if better == home else better

    def are_settled(self) -> bool:
        """True if nobody has a better place to go as long as nobody comes, whoever's turn it is."""
        servers, notes = self._servers, self._notes
        if self._types.on:
            return False
        rooms = {node: servers.room(node) for node in servers.sizes}
        free = sum(rooms.values())
        if any(servers.load[n] and room >= SPARE * servers.sizes[n] for n, room in rooms.items()):
            return False  # the node may be emptied
        for row in self.gangs() if free else ():
            rest = free
            for node, gpus in notes[row].home:
                rest += max(0, gpus - max(0, servers.load[node] - servers.sizes[node]))
            if rest >= self._view.num_gpus[row]:
                return False  # room may be made for it
        vain = self._vain.of(servers.as_key())
        for row, each in self._lodged.items():
            if each.home not in vain:
                if self._better(row) is not None:
                    return False
                vain.add(each.home)
        return True

    def movable(self) -> list[int]:
        """Jobs that can go to other nodes, and have not been moved just before."""
        return [row for row in self._lodged if self._is_movable(row)]

    def _is_movable(self, row: int) -> bool:
        notes = self._notes[row]
        home, pack, move = notes.home, notes.pack, notes.move
        return bool(home) and pack is None and move is None and self._may_move(row)

    def _may_move(self, row: int) -> bool:
        view, moved_s = self._view, self._notes[row].moved_s
        return (
            not view.must_stay(row)
            and not view.stays_on_node(row)
            and bool(view.portable[row])
            and (moved_s is None or view.now_s - moved_s >= self._stay_s(row))
            and (view.target[row] is None or view.since_s[row] >= 0)
            and not goes_on(view, row, self._set["quantum_s"], self._set["restart_turn_s"])
        )

    def _stay_s(self, row: int) -> float:
        """Time for which a moved job stays; a job that waits beside idle GPUs stays one quantum.

        It doubles after each move that was undone, since the next move may fail too.
        """
        running = self._view.target[row] is not None
        stay_s: float = self._set["stay_s"] if running else self._set["quantum_s"]
        return stay_s * float(2 ** min(self._notes[row].undone, MOST_DOUBLINGS))

    def _crowded(self, home: Home) -> bool:
        return any(self._servers.load[node] > self._servers.sizes[node] for node, _ in home)

    def _one_node(self, row: int, size: int, but: int = -1) -> Home | None:
        for nodes in self._types.groups(row):
            home = self._servers.on_one_node(size, nodes - {but})
            if home is not None and self._types.does_more(row, home):
                return home
        return None

    def _move_packs(self) -> None:
        """Packs that wait among gangs of another size go where jobs of their size take turns."""
        for row, notes in self._lodged.items():
            pack, home = notes.pack, notes.home
            if pack is None or pack.gain is None or row != pack.rows[0] or not self._crowded(home):
                continue
            waits = all(self._view.target[each] is None for each in pack.rows)
            better = self._servers.of_its_size(home) if waits else None
            if better is not None and all(map(self._may_move, pack.rows)):
                level(self._lodged, pack.rows, better, self._charges.had, self._owners.of)
                self._servers.remove(home)
                self._servers.add(better)
                for each in pack.rows:
                    self._notes[each].set_home(better)
                    self._notes[each].moved_s = self._view.now_s

    # -- fragments -----------------------------------------------------------------------------

    def _make_room(self) -> None:
        """Bring free GPUs together on one node for each gang that has to wait beside them.

        Every such move ends with less waiting for GPUs than there was, summed over the nodes: no
        two of them undo each other.
        """
        if not any(map(self._servers.room, self._servers.sizes)):
            return
        lodgers: dict[int, list[Job]] | None = None
        for row in list(self._gangs_that_wait()):
            home, size = self._notes[row].home, self._view.num_gpus[row]
            self._servers.remove(home)
            found = None
            if sum(map(self._servers.room, self._servers.sizes)) >= size:
                lodgers = self._lodgers() if lodgers is None else lodgers
                found = self._clearing(row, size, lodgers)
            self._servers.add(home)
            if found is None:
                continue
            lodgers = None
            what = f"move to make room for job {self._view.spec[row].job_id}"
            sizes = {other: self._notes[other].home[0][1] for other in found.goes}
            for other, node in found.goes.items():
                self._move(other, ((node, sizes[other]),), what)
            if home != ((found.node, size),):
                self._move(row, ((found.node, size),))

    def gangs(self) -> Iterator[int]:
        """Gangs that fit on a node, in the queue or where jobs take turns."""
        view = self._view
        largest = max(self._servers.sizes.values(), default=0)
        for row, notes in self._notes.items():
            if 1 < view.num_gpus[row] <= largest:
                home = notes.home
                if not home or (len(home) == 1 and self._crowded(home)):
                    yield row

    def waits(self, row: int) -> bool:
        """True if one of the :meth:`gangs` has no GPUs, and may go to another node."""
        if self._view.target[row] is not None:
            return False
        if self._notes[row].home:
            return self._is_movable(row)
        return not self._view.stays_on_node(row)

    def _gangs_that_wait(self) -> Iterator[int]:
        return filter(self.waits, self.gangs())

    def _lodgers(self) -> dict[int, list[Job]]:
        """The movable jobs of each node that live there alone, with their GPUs."""
        lodgers: dict[int, list[Job]] = {}
        for row in self.movable():
            home = self._notes[row].home
            if len(home) == 1:
                lodgers.setdefault(home[0][0], []).append((row, home[0][1]))
        return lodgers

    def _clearing(self, row: int, size: int, lodgers: dict[int, list[Job]]) -> Clearing | None:
        """Whom to move where for a gang; to slower GPUs only if there is no other way."""
        home = self._notes[row].home
        if home and (node := home[0][0]) in lodgers:  # its own move is counted apart
            others = [each for each in lodgers[node] if each[0] != row]
            lodgers = lodgers | {node: others}
        state_on = self._view.home[row]
        where = -1 if state_on is None else state_on.parts[0][0]
        found = clear_one(self._servers, size, lodgers, self._types.may_go, where)
        if found is None and self._types.on:
            found = clear_one(self._servers, size, lodgers, lambda _row, _node: True, where)
        return found

    def _empty(self) -> None:
        """Empty the node with the most free GPUs into fuller ones, if all of it goes there."""
        servers = self._servers
        used = [n for n, load in servers.load.items() if load]
        movable: set[int] | None = None
        for node in sorted(used, key=lambda n: (-servers.room(n), n)):
            if servers.room(node) < SPARE * servers.sizes[node]:
                break
            if movable is None:
                movable = set(self.movable())
            rows = [r for r, n in self._lodged.items() if any(where == node for where, _ in n.home)]
            if not movable.issuperset(rows) or any(len(self._notes[r].home) > 1 for r in rows):
                continue
            room = {
                n: servers.room(n)
                for n in used
                if n != node and servers.room(n) < servers.room(node)
            }
            jobs = [(row, self._notes[row].home[0][1]) for row in rows]
            goes = fit_elsewhere(jobs, room, self._types.may_go, sum(gpus for _, gpus in jobs))
            if goes:
                for row, gpus in jobs:
                    self._move(row, ((goes[row], gpus),))
                break

    # -- types ---------------------------------------------------------------------------------

    def _change_types(self) -> None:
        """Let jobs go to, or change, GPUs of other types as long as that promises something."""
        while self._types.on and (found := self._types.better(self.movable())) is not None:
            row, home, predicted, partner = found
            before = self._notes[row].home
            if partner < 0:
                self._move(row, home, self._called(home), predicted)
                continue
            kinds = self._types.of(home), self._types.of(before)
            back = self._types.expected(partner, kinds[1], kinds[0]) or 1.0
            self._move(row, home, self._called(home), predicted, partner)
            self._move(partner, before, self._called(before), back, row)

    def _called(self, home: Home) -> str:
        return f"move to {self._types.of(home)}"

    # -- probes --------------------------------------------------------------------------------

    def _move(
        self,
        row: int,
        home: Home,
        what: str = "move",
        predicted: float = 1.0,
        partner: int = -1,
    ) -> None:
        notes, view = self._notes[row], self._view
        before = notes.home
        alone, now = speed_alone(view, row, notes), look(view, row)
        self._types.learn(row, before, alone)
        self._servers.remove(before)
        self._move_in(row, home)
        notes.moved_s = view.now_s
        if alone and now is not None:
            overhead_s = view.overhead_s[row]
            notes.move = Move(before, alone, what, predicted, partner, overhead_s)
        elif view.home[row] is not None or view.target[row] is not None:
            mates, places = _mates(partner), (nodes_of(home), nodes_of(before))
            notes.note(Probe(view.now_s, what, predicted, None, True, mates, *places))
        notes.seen = now  # its speed elsewhere says nothing about its speed here

    def judge(self) -> None:
        """Keep the moves that pay, as far as they can be judged yet, and undo the others."""
        for row, notes in self._lodged.items():
            if notes.move is None:
                continue
            now = self._rate(row)
            partner = self._partner(row)
            if now is None:
                continue
            if partner is None:
                self._tried(row, now / notes.move.was)
                self._end_probe(row, now, now >= notes.move.was * (1 - self._set["least_gain"]))
            elif row < partner and (other := self._rate(partner)) is not None:
                moves = notes.move, self._notes[partner].move
                assert moves[1] is not None
                gain = (now / moves[0].was) * (other / moves[1].was)
                kept = gain > 1 + self._set["least_gain"]
                self._tried(row, gain)
                if not kept:  # both leave before either comes back
                    self._servers.remove(notes.home)
                    self._servers.remove(self._notes[partner].home)
                self._end_probe(row, now, kept, left=not kept)
                self._end_probe(partner, other, kept, left=not kept)

    def _tried(self, row: int, gain: float) -> None:
        notes = self._notes[row]
        assert notes.move is not None
        cost_s = self._view.overhead_s[row] - notes.move.overhead_s
        self._types.tried(notes.move.before, notes.home, gain, cost_s)

    def _rate(self, row: int) -> float | None:
        return rate(self._notes[row].seen, look(self._view, row), self._set["trial_s"])

    def _partner(self, row: int) -> int | None:
        """The job that it changed places with, as long as both can change back."""
        move = self._notes[row].move
        other = self._notes.get(move.partner) if move is not None else None
        if move is None or other is None or other.move is None or other.move.partner != row:
            return None
        can = move.before == other.home and other.move.before == self._notes[row].home
        return move.partner if can else None

    def _end_probe(self, row: int, now: float, kept: bool, *, left: bool = False) -> None:
        """Write down what a move came to; go back if it is not kept, and there is room.

        ``left``: the job is not counted any more where it is, and its room is kept for it.
        """
        view, notes = self._view, self._notes[row]
        assert notes.move is not None
        before, was, what, predicted, partner, _ = notes.move
        self._types.learn(row, notes.home, now)
        sizes, room = self._servers.sizes, self._servers.room
        back = not kept and (
            left or all(node in sizes and room(node) >= gpus for node, gpus in before)
        )
        types = self._types  # the job's speeds on other types are remembered
        if not types.on or types.of(before) == types.of(notes.home):
            notes.undone = notes.undone + 1 if back else 0
        notes.move = None
        notes.seen = look(view, row)
        notes.alone = was if back else now
        places = (nodes_of(notes.home), nodes_of(before))
        notes.note(
            Probe(view.now_s, what, predicted, now / was, not back, _mates(partner), *places)
        )
        if back:
            if not left:
                self._servers.remove(notes.home)
            self._servers.add(before)
            notes.set_home(before)
            notes.give_back()
            notes.moved_s = view.now_s

    def ends_s(self) -> list[float]:
        """Time at which the next probe can be judged, and at which moves are looked for again."""
        view = self._view
        times = []
        for row, notes in self._lodged.items():
            if notes.move is not None and view.target[row] is not None:
                left = left_s(notes.seen, look(view, row), self._set["trial_s"])
                times.append(view.now_s + left)
        if self._set["migrate"] == "on":
            times += self._types.looks_s()
            if next(self._gangs_that_wait(), None) is not None:
                times.append(view.now_s + self._set["quantum_s"])
        return times


def _mates(partner: int) -> tuple[int, ...]:
    """The job that it changes places with, if there is one."""
    return () if partner < 0 else (partner,)
