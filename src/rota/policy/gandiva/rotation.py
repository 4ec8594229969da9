"""Gandiva's turns while nothing else happens: who lives where stays as it is, and all take turns.

Most decisions on a full cluster are such turns. Then no job of the queue need be looked at, and of
those who live somewhere only those who ran since the last turn have had more.
"""

from math import inf
from typing import Any

from rota.model.allocation import Allocation, on_node
from rota.model.job import Suspension
from rota.model.plan import Plan
from rota.model.reason import Reason
from rota.model.view import View, WhatIf
from rota.policy.base import to_instant
from rota.policy.gandiva.choice import PER_UNIT, Choice, Unit
from rota.policy.gandiva.moves import Moves
from rota.policy.gandiva.seats import Seats
from rota.policy.gandiva.turn import Part, Turn

WAITING_TURN = Reason.SLICE_WAITING_TURN  # looked up once, as it is for most who lose their GPUs
CAME_BACK, RESTART = int(Reason.WAIT_PRIORITY), int(Suspension.RESTART)  # compared as numbers


class Rotation(Part):
    """The turns that follow a decision in which nothing was changed but whose turn it is.

    It holds for simulated jobs alone, of which no reports come between decisions, and which have
    no pack, no range of sizes, and no GPU type that may suit them better.
    ``until_s`` is when one of those in the queue is passed no longer. A turn comes to what a whole
    decision would come to; ``looked_at`` counts the jobs whose time was added up for it.
    """

    def __init__(
        self,
        turn: Turn,
        choice: Choice,
        seats: Seats,
        moves: Moves,
        plan: Plan,
        policy_mark: dict[str, Any],
        until_s: float,
    ) -> None:
        super().__init__(turn)
        view, notes = self._view, self._notes
        self._choice, self._seats, self._moves = choice, seats, moves
        self._plan = plan
        self._mark = policy_mark
        self._until_s = until_s
        self._nodes = list(view.nodes)
        self._gangs = list(moves.gangs()) if self._set["migrate"] == "on" else []
        self._gang_in_queue = any(not notes[row].home for row in self._gangs)
        self._queue: dict[int, list[int]] = {}  # by size, the rows of jobs without a home
        for row, each in notes.items():
            if not each.home:
                self._queue.setdefault(view.num_gpus[row], []).append(row)
        self._moved = {row for row, each in self._lodged.items() if each.is_moved}
        self._is_over = False  # a job of which a move is under probe has its turn
        self._weights = {
            row: (each.weight(view.priority[row]), each.credit)
            for row, each in self._lodged.items()
        }
        # Gangs that idle GPUs of their node may be too few for: (row, node, GPUs).
        self._on_one = [
            (row, *each.home[0])
            for row, each in self._lodged.items()
            if len(each.home) == 1 and each.home[0][1] > 1
        ]
        self._order = sorted(choice.rank((row,)) for row in self._lodged)  # by the least charge
        places, target = plan.allocations, view.target
        self._run = [row for row in self._lodged if places.get(row, target[row]) is not None]
        self._ran = {*self._run, *(row for row in self._lodged if view.since_s[row] >= 0)}
        self._known: dict[int, Allocation] = {}  # GPUs that are as the home of the row wants them
        self._single = {
            row: each.home[0][0]
            for row, each in self._lodged.items()
            if len(each.home) == 1 and each.home[0][1] == 1
        }
        self.looked_at = 0

    def follows(self, view: View) -> bool:
        """True if all that happened since the last turn is that jobs stopped and went on."""
        if view.plan is not self._plan or view is not self._view or self._is_over:
            return False
        over_s = to_instant(self._mark["began_s"] + self._set["quantum_s"])
        if not over_s <= view.now_s < self._until_s or len(view.active) != len(self._notes):
            return False
        self._ran.update(view.changed)
        return (
            self._notes.keys() >= self._ran
            and CAME_BACK not in map(view.reason.__getitem__, self._ran)
            and RESTART not in map(view.suspension.__getitem__, self._ran)
            and view.nodes == self._nodes
        )

    def plan(self) -> Plan:
        """The jobs that run in the turn that begins now, and their GPUs."""
        view = self._view
        now_s, quantum_s = view.now_s, self._set["quantum_s"]
        self._owners.again(self._ran)
        self._count()
        chosen = self._choose()
        self._owners.note(((row,) for _, _, row in self._order), chosen)
        what_if = view.what_if()
        self._place(chosen, what_if)
        self._ran = {*chosen, *(row for row in self._ran if view.since_s[row] >= 0)}
        self._run = sorted(chosen)
        self._is_over = not self._moved.isdisjoint(chosen)
        self._tell_queue(what_if)
        times = [self._until_s] if self._until_s < inf else []
        if len(chosen) < len(self._order):
            times.append(to_instant(now_s + quantum_s))
        if self._gang_in_queue or any(map(self._moves.waits, self._gangs)):
            times.append(now_s + quantum_s)
        self._mark = {**self._mark, "began_s": now_s}
        if self._owners.are_several:
            self._mark["owners"] = self._owners.mark()
            self._mark["passed"] = self._owners.passed
        self._plan = what_if.plan(wake_at_s=min(times, default=None), policy_mark=self._mark)
        return self._plan

    def _count(self) -> None:
        """Let those who ran since the last turn come after those who have had less."""
        service_s, since_s, now_s = self._view.service_s, self._view.since_s, self._view.now_s
        weights = self._weights
        order = [each for each in self._order if each[2] not in self._ran]
        for row in self._ran:
            if row in weights:
                weight, credit = weights[row]
                since = since_s[row]
                attained_s = service_s[row] + (now_s - since if since >= 0 else 0.0)
                had = round((attained_s / weight + credit) * PER_UNIT)
                order.append((had, self._owners.tie((row,)), row))
        self.looked_at += len(self._ran)
        order.sort()
        self._order = order

    def _choose(self) -> dict[int, None]:
        room, notes = dict(self._servers.sizes), self._notes
        left = sum(room.values())
        chosen: dict[int, None] = {}
        order = []
        units = ((row,) for _, _, row in self._order)
        for unit in self._owners.in_turn(self._due(), units, chosen):
            order.append(unit)
            (row,) = unit
            if row in chosen:
                continue
            home = notes[row].home
            for node, gpus in home:
                if room[node] < gpus:
                    break
            else:
                for node, gpus in home:
                    room[node] -= gpus
                    left -= gpus
                chosen[row] = None
                if not left:
                    return chosen
        if any(row not in chosen and 0 < room[node] < gpus for row, node, gpus in self._on_one):
            self._choice.fill(room, chosen, order)
        return chosen

    def _due(self) -> list[Unit]:
        return self._owners.due((row,) for _, _, row in self._order)

    def _place(self, chosen: dict[int, None], what_if: WhatIf) -> None:
        target, home, free = self._view.target, self._view.home, what_if.free
        for row in self._run:
            if row not in chosen:
                what_if.release(row, WAITING_TURN)
        nodes, known = self._single, self._known
        for row in [row for row in chosen if target[row] is None]:
            last, allocation = home[row], None
            if last is not None and known.get(row) is last and free.fits(last):
                allocation = last
            elif row in nodes and (mask := free.masks[nodes[row]]):
                if last is not None and last.parts[0][0] == nodes[row]:
                    mask = mask & last.parts[0][1] or mask
                allocation = on_node(nodes[row], mask & -mask)
            else:
                allocation = self._seats.allocation(row, what_if)
            if allocation is None or not free.fits(allocation):
                del chosen[row]
            else:
                known[row] = allocation
                what_if.give(row, allocation)

    def _tell_queue(self, what_if: WhatIf) -> None:
        """Say why those in the queue wait, if that is something else now."""
        news: dict[int, Reason] = {}
        for size, rows in self._queue.items():
            reason = why_no_home(self._view, size, what_if.free_gpus, self._set["limit"])
            if reason != self._view.reason[rows[0]]:
                news |= dict.fromkeys(rows, reason)
        for row in sorted(news):
            what_if.wait(row, news[row])


def why_no_home(view: View, num_gpus: int, free_gpus: int, limit: int) -> Reason:
    """The reason for which a gang in the queue waits, with so many GPUs free."""
    if num_gpus > view.total_gpus:
        return Reason.NEVER_FITS
    if free_gpus >= num_gpus:
        return Reason.WAIT_GANG_FRAGMENTED
    return Reason.WAIT_LIMIT if limit > 1 else Reason.WAIT_RESOURCES
