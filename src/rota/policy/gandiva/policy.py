"""Gandiva: introspective scheduling (Xiao et al., OSDI 2018, section 3).

Reactive: a job that arrives is given a home, one or more nodes, where it takes turns with those
that live there. Introspective: homes are changed, and jobs put together on one GPU, where that
seems to pay; what was tried is measured, and undone where it does not pay.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from rota.model.allocation import Allocation, of_parts
from rota.model.notes import Notes as Told
from rota.model.plan import Plan
from rota.model.reason import Reason
from rota.model.turns import Turns
from rota.model.view import View, WhatIf
from rota.policy.base import PER_S, Setting, not_negative, one_of, positive, to_instant, turn_s
from rota.policy.gandiva.charges import Charges
from rota.policy.gandiva.homes import Homes
from rota.policy.gandiva.jobs import Notes, goes_on
from rota.policy.gandiva.moves import Moves
from rota.policy.gandiva.packing import Packing
from rota.policy.gandiva.servers import Servers, Vain
from rota.policy.gandiva.signatures import SignatureGains
from rota.policy.gandiva.sweeps import Sweeps
from rota.policy.gandiva.turn import Turn
from rota.policy.gandiva.types import Types
from rota.policy.gandiva.verdicts import Verdicts
from rota.policy.information import LABEL
from rota.policy.ordering.round_robin import RoundRobin
from rota.policy.placement.nodesets import lowest_gpus
from rota.policy.stages.selection import Stages, has_a_say

LARGEST_PRIORITY = 100
WAITING_TURN = Reason.SLICE_WAITING_TURN  # looked up once: it is compared for every job
LEAD = 0.5  # quanta that a gang may be ahead of those whose turn it takes to use idle GPUs


def height(text: str) -> int:
    """How many times the GPUs of a node may be promised. Raises ValueError."""
    value = int(text)
    if not 1 <= value <= 1000:
        raise ValueError("it must be a whole number from 1 to 1000")
    return value


class Gandiva(RoundRobin):
    """Jobs take turns on the nodes where they live, which introspection changes.

    At the end of each quantum the jobs of a node with the least run time per priority come first
    (ties by arrival, then id), each gang whole or not at all; jobs packed together take their turn
    together. Within a quantum nobody is preempted: GPUs that become free go to whoever is next. A
    job that comes to a node starts level with the least served there.

    With any setting that is common to all orderings, jobs take turns over the whole cluster, and
    nothing of the rest is done.
    """

    name = "gandiva"
    information = LABEL
    weighs_priority = True
    resizes = True
    stages: Stages | None = Stages(priority=False)
    per_unit = PER_S * LARGEST_PRIORITY  # a microsecond of anybody's run time is a step at least
    SETTINGS = {
        "quantum_s": Setting(turn_s, 60.0, "Seconds that a job's turn lasts."),
        "limit": Setting(
            height, 4, "How many times a node's GPUs may be promised; jobs beyond that are queued."
        ),
        "pass_s": Setting(
            positive, 300.0, "Seconds for which a job in the queue may be passed by later ones."
        ),
        "restart_turn_s": Setting(
            turn_s,
            3600.0,
            "Seconds up to which turns double of jobs that suspend: restart, each time they stop.",
        ),
        "affinity": Setting(
            one_of("prefer", "strict"),
            "prefer",
            "strict: no turns on nodes where gangs of another size live, as published.",
        ),
        "pack": Setting(
            one_of("on", "off"), "on", "on: jobs may share a GPU where that does more work."
        ),
        "gpu_memory_gb": Setting(
            not_negative, 0.0, "Memory of a GPU; jobs packed must fit it (0: as the node tells)."
        ),
        "memory_fraction": Setting(positive, 0.9, "Part of a GPU's memory that jobs may fill."),
        "trial_s": Setting(turn_s, 30.0, "Seconds that a probe lasts: all that it can cost a job."),
        "least_gain": Setting(
            not_negative, 0.05, "Gain below which what was tried is undone, relative."
        ),
        "migrate": Setting(one_of("on", "off"), "on", "on: jobs may be moved to other nodes."),
        "types": Setting(
            one_of("on", "off"),
            "on",
            "on: jobs go to the GPU types that suit them, if every node says its type.",
        ),
        "stay_s": Setting(positive, 300.0, "Seconds for which a job that was moved stays."),
        "grow": Setting(
            one_of("on", "off"), "on", "on: elastic jobs get GPUs that nobody else needs."
        ),
        "trials": Setting(
            positive,
            1.0,
            "How many trials of a search take turns, in parts of what the cluster has room for.",
        ),
        "idle_s": Setting(positive, 30.0, "Seconds without anybody waiting before jobs grow."),
    }
    alone = frozenset(SETTINGS) - {"quantum_s"}
    instead = (
        "jobs take turns over the whole cluster, and nothing is tried: no packing, no moves, "
        "no GPU types, no growing"
    )

    def __init__(self, **settings: Any) -> None:
        values = {key: setting.default for key, setting in self.SETTINGS.items()} | settings
        super().__init__(values["quantum_s"])
        self._set = values
        self._vain = Vain()
        self._notes: dict[int, Notes] = {}  # of the last decision: marks read are not read again

    def ran(self, view: View, row: int) -> float:
        """Seconds run per priority."""
        return view.attained_s(row) / view.priority[row]

    def decide(self, view: View) -> Plan:
        """Judge probes, find homes, try what may pay, and let the jobs of each node take turns."""
        if has_a_say(self.stages, view):
            return super().decide(view)
        turn = Round(view, self._set, self._notes, self._vain)
        plan = turn.plan()
        self._notes = turn.notes
        return plan

    def turns(self, view: View, row: int) -> Turns | None:
        """Who takes turns on the nodes where the job lives; None of one without a home."""
        if has_a_say(self.stages, view):
            return None
        return Round(view, self._set).turns(row)


class Round:
    """One decision."""

    def __init__(
        self,
        view: View,
        settings: dict[str, Any],
        read: Mapping[int, Notes] | None = None,
        vain: Vain | None = None,
    ) -> None:
        self.view = view
        self.what_if: WhatIf = view.what_if()
        self._no_home: dict[int, Reason] = {}  # by gang size, once all have their GPUs
        self._set = settings
        told: dict[str, Any] = view.policy_mark or {}
        self._began_s: float | None = told.get("began_s")
        quantum_s = settings["quantum_s"]
        self._over = self._began_s is None or view.now_s >= to_instant(self._began_s + quantum_s)
        if self._over:
            self._began_s = view.now_s
        self.notes: dict[int, Notes] = {}
        self.lodged: dict[int, Notes] = {}  # those who may live somewhere: most may be in the queue
        for row in sorted(view.active):
            mark, notes = view.marks[row], read.get(row) if read else None
            if notes is None or not notes.are_as(mark):
                notes = Notes(mark)
            self.notes[row] = notes
            if notes.home or notes.pack is not None or view.target[row] is not None:
                self.lodged[row] = notes
        sizes = {n: node.num_gpus for n, node in enumerate(view.nodes) if node.alive}
        affinity = {int(node): size for node, size in told.get("affinity", {}).items()}
        strict = settings["affinity"] == "strict"
        whole = view.one_node_gangs
        self.servers = Servers(sizes, affinity, settings["limit"], strict=strict, whole=whole)
        self.charges = Charges(view, self.notes)
        jobs = (self.notes, self.lodged, self.charges)
        turn = Turn(view, self.servers, *jobs, settings, Vain() if vain is None else vain)
        self.types = types = Types(turn, told.get("types", {}))
        self.homes = Homes(turn, types, told.get("idle_from_s"))
        self.moves = Moves(turn, types, self.homes.move_in)
        self.gains = SignatureGains(told.get("kinds", {}))
        verdicts = Verdicts(turn, self.gains)
        self.packing = Packing(turn, self.gains, verdicts)
        self.sweeps = Sweeps(turn, self.gains, verdicts, self._goes_on)

    def plan(self) -> Plan:
        """What to do now."""
        view, notes = self.view, self.notes
        self.homes.forget()
        self.sweeps.weigh()
        self.packing.settle()
        self.homes.count()
        self.packing.judge()
        self.moves.judge()
        self.homes.find_homes(self.sweeps.waiting)
        migrates = self._set["migrate"] == "on"
        if self._set["pack"] == "on":
            self.packing.spread()
            self.packing.try_more()
            if migrates:
                self.packing.gather(self.moves.movable)
        if migrates:  # into what packing has freed, too
            self.moves.improve()
        if self._set["grow"] == "on":
            self.homes.resize()
        units = self._units()
        chosen = self._choose(units)
        self._place(chosen)
        waiting = [row for unit in units for row in unit if row not in chosen]
        for row in notes:
            if row not in chosen and view.target[row] is None:
                self._wait(row)
        self.packing.begin()
        told = Told({}, {}, {}, {})
        for row, each in notes.items():
            each.write(self.what_if, row, told)
        affinity = {str(n): size for n, size in self.servers.affinity.items() if size}
        mark: dict[str, Any] = {"began_s": self._began_s}
        mark |= {"affinity": affinity} if affinity else {}
        mark |= {"kinds": self.gains.mark()} if self.gains.mark() else {}
        mark |= {"types": self.types.mark()} if self.types.mark() else {}
        wake = self._wake_s(bool(waiting or self.sweeps.waiting))
        if self.homes.idle_from_s is not None:
            mark["idle_from_s"] = self.homes.idle_from_s
        return self.what_if.plan(
            wake_at_s=wake,
            policy_mark=mark if mark != view.policy_mark else None,
            notes=told if told.probes or told.packs else None,
        )

    def turns(self, row: int) -> Turns | None:
        """Who takes turns where a job lives, as things are. Nothing is decided."""
        self.homes.forget()
        self.packing.settle()
        if row not in self.notes or not self.notes[row].home:
            return None
        nodes = {node for node, _ in self.notes[row].home}
        homes = ((unit, self.notes[unit[0]].home) for unit in self._units())
        here = [unit for unit, home in homes if not nodes.isdisjoint(node for node, _ in home)]
        runs = [unit for unit in here if any(self.view.target[each] is not None for each in unit)]
        waits = [unit for unit in here if unit not in runs]
        assert self._began_s is not None
        ends_s = self.view.now_s if self._over else self._began_s + self._set["quantum_s"]
        return Turns(tuple(sorted(nodes)), tuple(runs), tuple(waits), to_instant(ends_s))

    # -- whose turn it is ----------------------------------------------------------------------

    def _units(self) -> list[tuple[int, ...]]:
        """Those who take turns: jobs, and packs of jobs. The least served come first."""
        units = {self.packing.unit(row) for row, each in self.lodged.items() if each.home}
        return sorted(units, key=self._rank)

    def _goes_on(self, row: int) -> bool:
        return goes_on(self.view, row, self._set["quantum_s"], self._set["restart_turn_s"])

    def _rank(self, unit: tuple[int, ...]) -> tuple[int, int]:
        return _in_steps(min(map(self.charges.had, unit))), min(unit)

    def _choose(self, units: list[tuple[int, ...]]) -> dict[int, None]:
        """The rows that are to run now, those with GPUs first: they keep the GPUs they have."""
        view, room = self.view, dict(self.servers.sizes)
        probed = [unit for unit in units if self.packing.is_probed(unit)]
        order = probed + [unit for unit in units if any(map(self._goes_on, unit))] + units
        if not self._over:
            runs = [u for u in units if any(view.target[row] is not None for row in u)]
            order = probed + runs + units
        chosen: dict[int, None] = {}
        for unit in order:
            if unit[0] in chosen:
                continue
            home = self.notes[unit[0]].home
            for node, gpus in home:
                if room[node] < gpus:
                    break
            else:
                for node, gpus in home:
                    room[node] -= gpus
                chosen.update(dict.fromkeys(unit))
        if self._over:
            self._fill(room, chosen, order)
        return chosen

    def _fill(
        self, room: dict[int, int], chosen: dict[int, None], order: list[tuple[int, ...]]
    ) -> None:
        """Let a gang that waits beside idle GPUs have its turn before single jobs that block it.

        Those lose theirs who had most, and not much less than the gang.
        """
        for unit in order:
            home = self.notes[unit[0]].home
            if unit[0] in chosen or len(home) > 1 or not 0 < room[home[0][0]] < home[0][1]:
                continue
            node, gpus = home[0]
            one = ((node, 1),)
            weight = self.notes[unit[0]].weight(self.view.priority[unit[0]])
            lead = LEAD * self._set["quantum_s"] / weight
            singles = [
                other
                for other in reversed(order)
                if other[0] in chosen
                and self.notes[other[0]].home == one
                and _in_steps(min(map(self.charges.had, other)) + lead)
                >= _in_steps(self.charges.had(unit[0]))
                and not self.packing.is_probed(other)
                and not any(map(self._goes_on, other))
            ]
            out = singles[: gpus - room[node]]
            if room[node] + len(out) == gpus:
                for other in out:
                    for row in other:
                        del chosen[row]
                chosen.update(dict.fromkeys(unit))
                room[node] = 0

    def _wake_s(self, waiting: bool) -> float | None:
        """The end of the quantum if anybody waits for a turn; of probes; the time to grow."""
        now_s, times = self.view.now_s, []
        assert self._began_s is not None
        if waiting:
            times.append(to_instant(self._began_s + self._set["quantum_s"]))
        times += self.packing.ends_s()
        times += self.homes.ends_s() + self.moves.ends_s()
        later = [at_s for at_s in times if at_s > now_s]
        return min(later) if later else None

    # -- where they run ------------------------------------------------------------------------

    def _place(self, chosen: dict[int, None]) -> None:
        """Give those chosen GPUs of their homes; others lose theirs first."""
        view, what_if = self.view, self.what_if
        seats = self._seats(chosen)
        for row in self.lodged:
            target = view.target[row]
            stays = row in chosen and target is not None and self._may_stay(row, target, seats)
            if target is not None and not stays:
                undone = row in self.packing.undone
                behind = Reason.TRIAL_BEHIND if row in self.sweeps.waiting else None
                turn = Reason.PACK_UNDONE if undone else Reason.SLICE_WAITING_TURN
                what_if.release(row, behind or turn)
        # Who can only go on where it was comes first, then who is in a pack that has a GPU.
        waiting = [row for row in chosen if what_if.target(row) is None]
        waiting.sort(
            key=lambda row: (not view.must_stay(row), self.packing.gpu_of(row, what_if) < 0)
        )
        for row in waiting:
            allocation = self._allocation(row)
            if allocation is None or not what_if.free.fits(allocation):
                del chosen[row]
            else:
                what_if.give(row, allocation)

    def _seats(self, chosen: dict[int, None]) -> dict[tuple[int, ...], Allocation]:
        """The GPU that each pack keeps, of which it has most jobs there already.

        Jobs that change packs may still be on one GPU with those whom they have left.
        """
        there: Counter[tuple[tuple[int, ...], Allocation]] = Counter()
        for row in chosen:
            target = self.view.target[row]
            if target is not None and target.shared and self.packing.is_packed(row):
                there[self.packing.unit(row), target] += 1
        seats: dict[tuple[int, ...], Allocation] = {}
        taken: set[Allocation] = set()
        for (unit, gpu), _ in sorted(there.items(), key=lambda item: (-item[1], item[0][0])):
            if unit not in seats and gpu not in taken:
                seats[unit] = gpu
                taken.add(gpu)
        return seats

    def _may_stay(
        self, row: int, target: Allocation, seats: dict[tuple[int, ...], Allocation]
    ) -> bool:
        """True if the GPUs that a job has are those that it should have."""
        if self.packing.is_packed(row) and seats.get(self.packing.unit(row)) != target:
            return False
        home = self.notes[row].home
        counts = tuple((node, mask.bit_count()) for node, mask in target.parts)
        return counts == home and target.shared == self.packing.is_packed(row)

    def _allocation(self, row: int) -> Allocation | None:
        """GPUs of the job's home: those that it had, or its pack has, else the lowest free."""
        what_if, home, packed = self.what_if, self.notes[row].home, self.packing.is_packed(row)
        if packed:
            gpu = self.packing.gpu_of(row, what_if)
            if gpu >= 0:
                return of_parts([(home[0][0], 1 << gpu)], shared=True)
        for known in self._known(row):
            counts = tuple((node, mask.bit_count()) for node, mask in known.parts)
            # The first of a pack needs a GPU that is free: one that others share is another pack's.
            if counts == home and what_if.free.fits(known.with_sharing(False)):
                return known.with_sharing(packed)
        if self.view.must_stay(row):
            return None
        parts = []
        for node, gpus in home:
            free = what_if.free.masks[node]
            before = self._before(row, node)
            kept = lowest_gpus(before & free, min(gpus, (before & free).bit_count()))
            more = gpus - kept.bit_count()
            if (free & ~kept).bit_count() < more:
                return None
            parts.append((node, kept | lowest_gpus(free & ~kept, more)))
        return of_parts(parts, shared=packed) if parts else None

    def _known(self, row: int) -> Iterable[Allocation]:
        for known in (self.view.target[row], self.view.home[row]):
            if known is not None:
                yield known

    def _before(self, row: int, node: int) -> int:
        """GPUs of a node that the job has or had last: a larger or smaller gang keeps some."""
        return next((m for k in self._known(row) for n, m in k.parts if n == node), 0)

    def _wait(self, row: int) -> None:
        reason = WAITING_TURN
        if row in self.sweeps.waiting:
            reason = Reason.TRIAL_BEHIND
        elif not self.notes[row].home:
            num_gpus = self.view.num_gpus[row]
            if num_gpus not in self._no_home:
                self._no_home[num_gpus] = self._why_no_home(num_gpus)
            reason = self._no_home[num_gpus]
        if self.view.reason[row] != reason:
            self.what_if.wait(row, reason)

    def _why_no_home(self, num_gpus: int) -> Reason:
        if num_gpus > self.view.total_gpus:
            return Reason.NEVER_FITS
        enough = self.what_if.free_gpus >= num_gpus
        return Reason.WAIT_GANG_FRAGMENTED if enough else Reason.WAIT_RESOURCES


def _in_steps(seconds_per_priority: float) -> int:
    """What was had, as it is compared: sums that are equal on paper are equal here."""
    return round(seconds_per_priority * Gandiva.per_unit)
