"""Gandiva's GPU types: how fast each job was on each, and who should be where (OSDI 2018, 3.4)."""

from collections.abc import Iterable, Mapping
from itertools import permutations
from math import exp, fsum, inf, log
from typing import Any, NamedTuple

from rota.policy.base import LEAST_TURN_S
from rota.policy.gandiva.jobs import profiled, speed_alone
from rota.policy.gandiva.servers import Home
from rota.policy.gandiva.turn import Part, Turn

ENOUGH = 8  # jobs measured on two types, before it may be taken that all others are like them
WORTH = 20  # times what a move costs a job has to have run: two cost it a tenth of that at most
MOST_DOUBLINGS = 8  # of the time without probes after those that showed no difference


class TypeMove(NamedTuple):
    """A job's move to a node of another type; ``predicted`` is its speed relative to before.

    With a ``partner`` the two change places, each taking the other's home.
    """

    row: int
    home: Home
    predicted: float
    partner: int = -1


class Types(Part):
    """Knowledge of speeds by GPU type: each job's own, alone, on the types it has been on.

    No type is better than another by name: of two jobs the one that gains more by the first type,
    relative to itself on the second, should have the first. A job of which that is not known tries
    the other type once: where GPUs are free, or in exchange with another job. That costs time: a
    kind is tried once at a time, nobody's turn is cut short for it where others wait, and after a
    probe that showed no difference there are none for a while, twice as long each time.

    ``mark`` is what :meth:`mark` gave before. Nothing is done (``on`` is False) unless every living
    node says its type, and they differ.
    """

    def __init__(self, turn: Turn, mark: Mapping[str, Any]) -> None:
        super().__init__(turn)
        view, servers, settings = turn.view, turn.servers, turn.settings
        self._pauses: dict[str, list[float]] = dict(mark.get("vain", {}))
        self._moved_s: float = mark.get("moved_s", 0.0)
        self._of = {node: view.nodes[node].gpu_type for node in servers.sizes}
        kinds = sorted(set(self._of.values()))
        self.on = settings["types"] == "on" and len(kinds) > 1 and all(kinds)
        self._kinds = kinds
        self._all = set(self._of)
        self._nodes = {kind: {n for n in self._of if self._of[n] == kind} for kind in kinds}
        self._speeds: dict[tuple[int, str], float | None] = {}  # in this decision, as the ratios
        self._ratios: dict[tuple[str, int, str, str], list[float]] | None = None
        self._queue = False  # True if jobs are in the queue

    def mark(self) -> dict[str, Any]:
        """The memory of probes, for the next decision.

        For each two types, the number of consecutive probes that showed no difference, and the time
        until which there are to be no more; and the cost of a job's move, in seconds.
        """
        mark: dict[str, Any] = {"vain": self._pauses} if self._pauses else {}
        return mark | ({"moved_s": self._moved_s} if self._moved_s else {})

    # -- speeds --------------------------------------------------------------------------------

    def of(self, home: Home) -> str:
        """The type of all GPUs of a home; empty if there are several, or none is known."""
        kinds = {self._of.get(node, "") for node, _ in home}
        return kinds.pop() if len(kinds) == 1 else ""

    def learn(self, row: int, home: Home, rate: float | None) -> None:
        """Remember how fast a job was where it lives, or lived."""
        kind = self.of(home)
        if self.on and kind and rate and len(self._view.sizes(row)) == 1:
            self._notes[row].learn(kind, rate)
            self._speeds.pop((row, kind), None)
            self._ratios = None

    def tried(self, before: Home, home: Home, gain: float, cost_s: float) -> None:
        """A probe on another type is over; the move there took ``cost_s``."""
        kinds = self.of(before), self.of(home)
        if not self.on or not all(kinds) or kinds[0] == kinds[1]:
            return
        self._moved_s = (self._moved_s + cost_s) / 2 if self._moved_s else cost_s
        key, least = _pair_key(*kinds), 1 + self._set["least_gain"]
        times = self._pauses.pop(key, [0, 0.0])[0] + 1
        if 1 / least <= gain <= least:
            pause_s = self._set["stay_s"] * 2.0 ** min(times - 1, MOST_DOUBLINGS)
            self._pauses[key] = [times, self._view.now_s + pause_s]

    def ratio(self, row: int, kind: str, than: str) -> float | None:
        """A job's speed on one type over that on another: its own, else that of jobs of its kind.

        This is the one place that knows where speeds come from.
        """
        own = [self._speed(row, each) for each in (kind, than)]
        if own[0] and own[1]:
            return own[0] / own[1]
        name = self._view.signature(row)
        alike = self._all_ratios().get((name, self._view.num_gpus[row], kind, than))
        return _mean(alike) if name and alike else None

    def expected(self, row: int, kind: str, than: str) -> float | None:
        """The same; of a job that was never measured what it is for the others on average."""
        known = self.ratio(row, kind, than)
        every = self._of_all(kind, than) if known is None else []
        return _mean(every) if every else known

    def _speed(self, row: int, kind: str) -> float | None:
        key = row, kind
        if key not in self._speeds:
            notes = self._notes[row]
            speed = notes.speeds.get(kind)
            if kind == self.of(notes.home) and notes.move is None:
                speed = speed_alone(self._view, row, notes) or speed
            self._speeds[key] = speed or profiled(self._view, row, kind, self._view.num_gpus[row])
        return self._speeds[key]

    def _of_all(self, kind: str, than: str) -> list[float]:
        ratios = self._all_ratios()
        return [r for key, many in ratios.items() if key[2:] == (kind, than) for r in many]

    def _may_differ(self, kind: str, than: str) -> bool:
        """True if jobs gain unlike by a type, as far as is known; else all may stay."""
        every = self._of_all(kind, than)
        return len(every) < ENOUGH or max(every) > min(every) * (1 + self._set["least_gain"])

    def _all_ratios(self) -> dict[tuple[str, int, str, str], list[float]]:
        """(kind of job, GPUs, type, other type) -> the ratios of the jobs that know both."""
        if self._ratios is None:
            self._ratios = {}
            for row, notes in self._notes.items():
                if not notes.speeds:
                    continue
                speeds = {kind: self._speed(row, kind) for kind in self._kinds}
                known = {kind: speed for kind, speed in speeds.items() if speed}
                like = self._view.signature(row), self._view.num_gpus[row]
                for a, b in permutations(known, 2):
                    self._ratios.setdefault((*like, a, b), []).append(known[a] / known[b])
        return self._ratios

    # -- where to go ---------------------------------------------------------------------------

    def groups(self, row: int) -> list[set[int]]:
        """The nodes by type, those first on which the job is expected to be fastest.

        Those of types that make no difference to it are one group, as are all where nothing is
        known.
        """
        if self.on:
            speeds = {kind: self.expected(row, kind, self._kinds[0]) for kind in self._kinds[1:]}
            known = {self._kinds[0]: 1.0} | {k: s for k, s in speeds.items() if s is not None}
            if len(known) == len(self._kinds):
                groups: list[set[int]] = []
                fastest = inf
                for kind in sorted(known, key=lambda kind: (-known[kind], kind)):
                    if known[kind] * (1 + self._set["least_gain"]) < fastest:
                        groups.append(set())
                        fastest = known[kind]
                    groups[-1] |= self._nodes[kind]
                return groups
        return [self._all]

    def may_go(self, row: int, node: int) -> bool:
        """True if a job is not known to be slower there than where it lives."""
        here, there = self.of(self._notes[row].home), self._of[node]
        if not self.on or not here or here == there:
            return True
        known = self.expected(row, there, here)
        # As in _to_free, seen from there: else it would come back as soon as it may.
        return known is None or known * (1 + self._set["least_gain"]) >= 1

    def does_more(self, row: int, home: Home) -> bool:
        """True if a job does more work on free GPUs there than in its turns where it lives."""
        notes, servers = self._notes[row], self._servers
        here, there = self.of(notes.home), self.of(home)
        if not self.on or not here or not there or here == there:
            return True
        known = self.expected(row, there, here)
        share = min(servers.sizes[node] / servers.load[node] for node, _ in notes.home)
        return known is None or known * (1 + self._set["least_gain"]) >= min(1.0, share)

    def better(self, movable: Iterable[int]) -> TypeMove | None:
        """The move or exchange that promises most; None if there is none to be made or tried.

        Of a node one job at a time is under probe, and a job has to have run for as long as one
        takes.
        """
        if not self.on:
            return None
        self._queue = any(not notes.home for notes in self._notes.values())
        busy = {
            node
            for notes in self._notes.values()
            if notes.move is not None
            for node, _ in (*notes.home, *notes.move.before)
        }
        rows = [row for row in movable if self._is_ready(row, busy)]
        free = {n for n in self._servers.sizes if n not in busy and self._servers.room(n)}
        return self._to_free(rows, free) or self._exchange(rows)

    def looks_s(self) -> list[float]:
        """Times at which jobs will have run, or stayed, long enough to take part, if they may."""
        view, times = self._view, []
        if not self.on:
            return []
        for row, notes in self._notes.items():
            if not notes.home or notes.move or notes.pack:
                continue
            if len(view.sizes(row)) > 1 or not view.portable[row]:
                continue
            if view.target[row] is None and view.attained_s(row) > 0:  # a turn is an occasion
                continue
            left_s = self._must_have_run_s() - view.attained_s(row)
            if notes.moved_s is not None:
                left_s = max(left_s, notes.moved_s + self._set["stay_s"] - view.now_s)
            if left_s > 0:
                times.append(view.now_s + left_s + LEAST_TURN_S)
            elif speed_alone(view, row, notes) is None:
                times.append(view.now_s + self._set["trial_s"])
        return times + [until_s for _, until_s in self._pauses.values()]

    def _must_have_run_s(self) -> float:
        """Seconds that a job must have run before it is worth trying another type."""
        return max(float(self._set["trial_s"]), WORTH * self._moved_s)

    def _may_try(self, row: int, kind: str, other: str) -> bool:
        """True if a job of which it is not known may try another type now."""
        view, ((node, _),) = self._view, self._notes[row].home
        waited_for = self._servers.load[node] > self._servers.sizes[node]
        if self._queue or (waited_for and view.target[row] is not None):
            return False
        until_s = self._pauses.get(_pair_key(kind, other), [0, 0.0])[1]
        return view.now_s >= until_s and (view.signature(row), kind, other) not in self._probed()

    def _probed(self) -> set[tuple[str, str, str]]:
        """The kinds of jobs under probe on a type, and where they were before; both ways."""
        found = set()
        for row, notes in self._notes.items():
            if notes.move is not None:
                types = self.of(notes.home), self.of(notes.move.before)
                found |= {(self._view.signature(row), *pair) for pair in (types, types[::-1])}
        return found

    def _is_ready(self, row: int, busy: set[int]) -> bool:
        view, home = self._view, self._notes[row].home
        return (
            len(home) == 1
            and home[0][0] not in busy
            and len(view.sizes(row)) == 1
            and view.attained_s(row) >= self._must_have_run_s()
            and bool(speed_alone(view, row, self._notes[row]))
        )

    def _to_free(self, rows: list[int], free: set[int]) -> TypeMove | None:
        """A move to free GPUs of a type on which a job is faster, or may be, if unknown."""
        best: tuple[float, int, TypeMove] | None = None
        for row in rows:
            here, size = self.of(self._notes[row].home), self._notes[row].home[0][1]
            for node in sorted(free, key=lambda n: (self._servers.room(n), n)):
                if self._of[node] == here or self._servers.room(node) < size:
                    continue
                known = self.expected(row, self._of[node], here)
                gain = 1.0 if known is None else known
                if known is not None and known <= 1 + self._set["least_gain"]:
                    continue
                if known is None and not self._may_try(row, here, self._of[node]):
                    continue
                if best is None or gain > best[0]:
                    best = gain, row, TypeMove(row, ((node, size),), gain)
        return None if best is None else best[2]

    def _exchange(self, rows: list[int]) -> TypeMove | None:
        """Two gangs of one size change places: where that pays; else where it is not known."""
        best: tuple[float, TypeMove] | None = None
        by_place: dict[tuple[str, int, int], list[int]] = {}  # (type, GPUs, height) -> rows
        for row in rows:
            ((node, size),) = self._notes[row].home
            by_place.setdefault((self._of[node], size, self._servers.height(node)), []).append(row)
        for one, other in permutations(sorted(by_place), 2):
            if one[0] == other[0] or one[1:] != other[1:]:
                continue
            pair = self._pair(by_place[one], by_place[other], one[0], other[0])
            if pair is not None and (best is None or pair[0] > best[0]):
                best = pair
        return None if best is None else best[1]

    def _pair(
        self, here: list[int], there: list[int], kind: str, other: str
    ) -> tuple[float, TypeMove] | None:
        """The gain, and the exchange of a job on type ``kind`` for one on type ``other``.

        The gain is relative to each where it is. If it is unknown for one of them, the two are
        worth a probe if on average such a job gains; if for both, if nothing is known of others
        either.
        """
        lose = [(r, row) for row in here if (r := self.ratio(row, kind, other)) is not None]
        gain = [(r, -row) for row in there if (r := self.ratio(row, kind, other)) is not None]
        least, most = min(lose, default=(0.0, -1)), max(gain, default=(0.0, 1))
        if lose and gain and most[0] / least[0] > 1 + self._set["least_gain"]:
            return most[0] / least[0], self._swap(least[1], -most[1], kind, other)
        if not self._may_differ(kind, other):
            return None
        new_here, new_there = (
            [
                r
                for r in rows
                if self.ratio(r, kind, other) is None and self._may_try(r, kind, other)
            ]
            for rows in (here, there)
        )
        if new_here and new_there:
            return 1.0, self._swap(min(new_here), min(new_there), kind, other)
        if new_here and gain and most[0] > (self.expected(new_here[0], kind, other) or 0.0):
            return 1.0, self._swap(min(new_here), -most[1], kind, other)
        if new_there and lose and least[0] < (self.expected(new_there[0], kind, other) or 0.0):
            return 1.0, self._swap(least[1], min(new_there), kind, other)
        return None

    def _swap(self, row: int, partner: int, kind: str, other: str) -> TypeMove:
        predicted = self.expected(row, other, kind) or 1.0
        return TypeMove(row, self._notes[partner].home, predicted, partner)


def _pair_key(kind: str, other: str) -> str:
    return " and ".join(sorted((kind, other)))


def _mean(ratios: list[float]) -> float:
    """Geometric: the mean of a ratio and its inverse is 1."""
    return exp(fsum(map(log, ratios)) / len(ratios))
