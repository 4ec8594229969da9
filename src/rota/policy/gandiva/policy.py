"""Gandiva: introspective scheduling (Xiao et al., OSDI 2018, section 3).

Reactive: a job that arrives is given a home, one or more nodes, where it takes turns with those
that live there. Introspective: homes are changed, and jobs put together on one GPU, where that
seems to pay; what was tried is measured, and undone where it does not pay.
"""

from collections.abc import Mapping
from typing import Any

from rota.errors import PolicySettingError
from rota.model.notes import Notes as Told
from rota.model.plan import Plan
from rota.model.reason import Reason
from rota.model.turns import Ahead, Cause, Turns
from rota.model.view import View, WhatIf
from rota.policy.base import Setting, not_negative, one_of, positive, spelled, to_instant, turn_s
from rota.policy.gandiva.charges import Charges
from rota.policy.gandiva.choice import PER_UNIT, Choice, Unit
from rota.policy.gandiva.homes import Homes
from rota.policy.gandiva.jobs import Notes
from rota.policy.gandiva.moves import Moves
from rota.policy.gandiva.owners import Owners
from rota.policy.gandiva.packing import Packing
from rota.policy.gandiva.rotation import Rotation, why_no_home
from rota.policy.gandiva.seats import Seats
from rota.policy.gandiva.servers import Servers, Vain
from rota.policy.gandiva.signatures import SignatureGains
from rota.policy.gandiva.sweeps import Sweeps
from rota.policy.gandiva.turn import Turn
from rota.policy.gandiva.types import Types
from rota.policy.gandiva.verdicts import Verdicts
from rota.policy.information import LABEL
from rota.policy.ordering.round_robin import RoundRobin
from rota.policy.stages.fair_share import UseByOwner, parse_shares
from rota.policy.stages.selection import Stages, has_a_say

WAITING_TURN = Reason.SLICE_WAITING_TURN  # looked up once: it is compared for every job


def height(text: str) -> int:
    """Maximum resident GPU demand, as a multiple of the node's GPUs. Raises ValueError."""
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
    per_unit = PER_UNIT
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
        "pack_gangs": Setting(
            one_of("on", "off"), "off", "on: trainings of several GPUs may share all of them, too."
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
        "fair_share": Setting(
            one_of("auto", "user", "vc", "no"),
            "auto",
            "Owners who take turns: auto: users, where jobs of several are there; no: none.",
        ),
        "shares": Setting(
            spelled(parse_shares), "equal", "Shares by owner: equal, or OWNER=SHARE;OWNER=SHARE."
        ),
    }
    alone = frozenset(SETTINGS) - {"quantum_s", "fair_share", "shares"}
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
        self._rotation: Rotation | None = None
        owner, shares = self._set["fair_share"], self._set["shares"]
        if owner == "no" and shares != "equal":
            raise PolicySettingError(
                f"policy gandiva: shares={shares} has no effect with fair_share=no; drop one"
            )
        self._totals = None if owner == "no" else UseByOwner("vc" if owner == "vc" else "user")

    def ran(self, view: View, row: int) -> float:
        """Seconds run per priority."""
        return view.attained_s(row) / view.priority[row]

    def decide(self, view: View) -> Plan:
        """Judge probes, find homes, try what may pay, and let the jobs of each node take turns."""
        if has_a_say(self.stages, view):
            return super().decide(view)
        if self._rotation is not None and self._rotation.follows(view):
            return self._rotation.plan()
        turn = Round(view, self._set, self._notes, self._vain, self._totals)
        plan = turn.plan()
        self._notes, self._rotation = turn.notes, turn.rotation
        return plan

    def rank(self, view: View, row: int) -> tuple[float, ...]:
        """The job's use where all take turns with all; else they look for a home by arrival."""
        return super().rank(view, row) if has_a_say(self.stages, view) else ()

    def turns(self, view: View, row: int) -> Turns | None:
        """The jobs that take turns on the nodes of the job's home; None without a home."""
        if has_a_say(self.stages, view):
            return None
        return self._round(view).turns(row)

    def ahead(self, view: View, row: int) -> Ahead | None:
        """The jobs that have their turns, or are let in, before this one."""
        if has_a_say(self.stages, view):
            return None
        return self._round(view).ahead(row)

    def order(self, view: View) -> list[int]:
        """Jobs as they look for a home: by owners where several take turns, and priorities."""
        if has_a_say(self.stages, view):
            return super().order(view)
        return self._round(view).owners.in_line(sorted(view.active))

    def queue_weight(self, queue: str) -> float:
        """The share of a queue."""
        if self._set["fair_share"] != "vc":
            return super().queue_weight(queue)
        return dict(parse_shares(self._set["shares"])).get(queue, 1.0)

    def _round(self, view: View) -> "Round":
        """A round that decides nothing."""
        return Round(view, self._set, totals=self._totals)


class Round:
    """One decision."""

    def __init__(
        self,
        view: View,
        settings: dict[str, Any],
        read: Mapping[int, Notes] | None = None,
        vain: Vain | None = None,
        totals: UseByOwner | None = None,
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
        self.rotation: Rotation | None = None  # the turns that follow, if nothing else happens
        self.notes: dict[int, Notes] = {}
        self.lodged: dict[int, Notes] = {}  # jobs that may have a home: most may be in the queue
        for row in sorted(view.active):
            mark, notes = view.marks[row], read.get(row) if read else None
            if notes is None or not notes.are_as(mark):
                notes = Notes(mark)
            self.notes[row] = notes
            if notes.home or notes.pack is not None or view.target[row] is not None:
                self.lodged[row] = notes
        sizes = {n: node.num_gpus for n, node in enumerate(view.nodes) if node.alive}
        for node, gpus in view.kept_gpus():  # nobody can take turns on these
            if node in sizes:
                sizes[node] -= gpus
        sizes = {node: gpus for node, gpus in sizes.items() if gpus > 0}
        affinity = {int(node): size for node, size in told.get("affinity", {}).items()}
        strict = settings["affinity"] == "strict"
        whole = view.one_node_gangs()
        self.servers = Servers(sizes, affinity, settings["limit"], strict=strict, whole=whole)
        self.owners = Owners(
            view, self.notes, settings, told.get("owners", {}), told.get("passed", {}), totals
        )
        self.charges = Charges(view, self.notes, self.owners)
        jobs = (self.notes, self.lodged, self.charges, self.owners)
        turn = Turn(view, self.servers, *jobs, settings, Vain() if vain is None else vain)
        self.types = types = Types(turn, told.get("types", {}))
        self.homes = Homes(turn, types, told.get("idle_from_s"))
        self.moves = Moves(turn, types, self.homes.move_in)
        self.gains = SignatureGains(told.get("kinds", {}))
        verdicts = Verdicts(turn, self.gains)
        self.packing = Packing(turn, self.gains, verdicts)
        self.choice = Choice(turn, self.packing)
        self.seats = Seats(turn, self.packing)
        self.sweeps = Sweeps(turn, self.gains, verdicts, self.choice.goes_on)
        self._turn = turn

    def plan(self) -> Plan:
        """The plan for now."""
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
        units = self.choice.units()
        chosen = self.choice.choose(units, over=self._over)
        self.seats.place(chosen, self.sweeps.waiting, self.what_if)
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
        if self.owners.are_several:
            mark |= {"owners": self.owners.mark(), "passed": self.owners.passed}
        wake = self._wake_s(bool(waiting or self.sweeps.waiting))
        if self.homes.idle_from_s is not None:
            mark["idle_from_s"] = self.homes.idle_from_s
        plan = self.what_if.plan(
            wake_at_s=wake,
            policy_mark=mark if mark != view.policy_mark else None,
            notes=told if told.probes or told.packs else None,
        )
        if self._is_settled(plan, mark):
            until_s = self.homes.passes_until_s()
            parts = self.choice, self.seats, self.moves
            self.rotation = Rotation(self._turn, *parts, plan, mark, until_s)
        return plan

    def _is_settled(self, plan: Plan, mark: Mapping[str, Any]) -> bool:
        """True if nothing but turns changes until jobs come, end or have waited for long enough."""
        view, before = self.view, self.view.policy_mark or {}
        # What changes in turns, too, says nothing about what else does.
        turns = {key: mark.get(key) for key in ("began_s", "owners", "passed")}
        return (
            {**before, **turns} == {**mark, **turns}
            and not view.sweeps
            and not any(notes.is_changed for notes in self.notes.values())
            and self.homes.are_settled()
            and (self._set["pack"] == "off" or self.packing.is_settled())
            and (self._set["migrate"] == "off" or self.moves.are_settled())
            and all(
                view.spec[row].simulated
                and view.movable[row]
                and notes.home
                and notes.pack is None
                # A move is judged by how its job runs from now on.
                and not (notes.is_moved and (view.target[row] or plan.allocations.get(row)))
                for row, notes in self.lodged.items()
            )
        )

    def turns(self, row: int) -> Turns | None:
        """The jobs that take turns where a job lives, at present. Decides nothing."""
        self.homes.forget()
        self.packing.settle()
        if row not in self.notes or not self.notes[row].home:
            return None
        nodes = {node for node, _ in self.notes[row].home}
        homes = ((unit, self.notes[unit[0]].home) for unit in self.choice.units())
        here = [unit for unit, home in homes if not nodes.isdisjoint(node for node, _ in home)]
        runs = [unit for unit in here if any(self.view.target[each] is not None for each in unit)]
        waits = self._in_turn(runs, [unit for unit in here if unit not in runs])
        assert self._began_s is not None
        ends_s = self.view.now_s if self._over else self._began_s + self._set["quantum_s"]
        return Turns(tuple(sorted(nodes)), tuple(runs), tuple(waits), to_instant(ends_s))

    def _in_turn(self, runs: list[Unit], waits: list[Unit]) -> list[Unit]:
        """Those that wait in the order in which they have turns, after one of those that run."""
        order, chosen = list[Unit](), dict[int, None]()
        for unit in self.owners.in_turn(runs, waits, chosen):
            order.append(unit)
            chosen.update(dict.fromkeys(unit))
        return order[len(runs) :]

    def ahead(self, row: int) -> Ahead | None:
        """The jobs that come before a waiting one. Decides nothing."""
        view, turns = self.view, self.turns(row)
        if row not in self.notes or view.target[row] is not None:
            return None
        if turns is None:
            line = self.owners.in_line(r for r, each in self.notes.items() if not each.home)
            sharing, gpus = sum(1 for each in self.notes.values() if each.home), view.total_gpus
        else:
            line = [unit[0] if row not in unit else row for unit in turns.waiting]
            sharing = sum(map(len, turns.running)) + sum(map(len, turns.waiting))
            gpus = sum(view.nodes[node].num_gpus for node in turns.nodes)
        before = [(self._cause(other, row), other) for other in line[: line.index(row)]]
        return Ahead.by_cause(sharing, gpus, before)

    def _cause(self, other: int, row: int) -> Cause:
        """The cause for which another job comes before this one."""
        if self.owners.of.get(other) != self.owners.of.get(row):
            return Cause.OWNER
        if self.view.priority[other] > self.view.priority[row]:
            return Cause.PRIORITY
        if self.notes[row].home and self.choice.rank((other,))[0] < self.choice.rank((row,))[0]:
            return Cause.SERVED
        return Cause.EARLIER

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

    def _wait(self, row: int) -> None:
        reason = WAITING_TURN
        if row in self.sweeps.waiting:
            reason = Reason.TRIAL_BEHIND
        elif not self.notes[row].home:
            num_gpus = self.view.num_gpus[row]
            if num_gpus not in self._no_home:
                free_gpus = self.what_if.free_gpus
                self._no_home[num_gpus] = why_no_home(
                    self.view, num_gpus, free_gpus, self._set["limit"]
                )
            reason = self._no_home[num_gpus]
        if self.view.reason[row] != reason:
            self.what_if.wait(row, reason)
