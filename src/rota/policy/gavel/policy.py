"""Fair shares of GPU time across GPU types: max-min and finish-time fairness (Gavel, OSDI 2020)."""

from collections.abc import Iterable, Mapping
from typing import Any

from rota.model.plan import Plan
from rota.model.reason import Reason
from rota.model.view import View, WhatIf
from rota.policy.base import Policy, Setting, not_negative, one_of, turn_s
from rota.policy.gavel.rounds import GpuTypes, Record, TypeOfRow, choose, place_all
from rota.policy.gavel.shares import (
    Clock,
    Gang,
    Shares,
    equal_split,
    fastest_shares,
    least_shares,
    timely_shares,
)
from rota.policy.information import NONE

SHORTEST_S = 1e-3  # a job that is about to end has at least so much left, to divide by
SETTINGS = {
    "heterogeneity": Setting(
        one_of("aware", "agnostic"),
        "aware",
        "aware: shares go by how fast each job is on each GPU type; agnostic: by time alone.",
    ),
    "round_s": Setting(turn_s, 360.0, "Seconds that a round lasts."),
    "solve_every_s": Setting(not_negative, 0.0, "Least seconds between two searches for shares."),
    "fill_idle": Setting(
        one_of("yes", "no"), "yes", "Whether GPUs that fall idle in a round are given out at once."
    ),
}


class FairRounds(Policy):
    """Rounds in which jobs run in turn, so that over time each gets its share on each GPU type.

    A job's speed on a type is its profile's (``JobSpec.speeds``); one that has none, or does not
    name the type, counts as 1; 0 says that it can't run there. A gang runs on one type at a time.
    Shares are found at the start of a round when jobs or nodes came or went. Subclasses say which
    shares are fair: :meth:`solve`.

    Marks: a job's :class:`Record`; the policy's is when the round began, when shares were last
    found, for how many jobs, and for which GPUs.
    """

    def __init__(
        self,
        heterogeneity: str = "aware",
        round_s: float = 360.0,
        solve_every_s: float = 0.0,
        fill_idle: str = "yes",
    ) -> None:
        self.aware = heterogeneity == "aware"
        self.round_s = self.turn_s = round_s
        self.solve_every_s = solve_every_s
        self.fill_idle = fill_idle == "yes"

    def solve(
        self, view: View, gangs: dict[int, Gang], types: GpuTypes, records: Mapping[int, Record]
    ) -> list[Shares]:
        """The shares of these jobs, by GPU type in the order of ``types.gpus``."""
        raise NotImplementedError("a policy of fair rounds must override solve()")

    def decide(self, view: View) -> Plan:
        """Begin a round if the last one is over, else assign GPUs that have become idle."""
        what_if, types, mark = view.what_if(), GpuTypes(view.nodes), view.policy_mark
        able = self._able(what_if, types)
        idle = not any(view.target[row] is not None for row in able)
        if not able:
            return what_if.plan()
        for row in able:
            if view.target[row] is None:
                what_if.wait(row, Reason.SLICE_WAITING_TURN)
        if mark is None or idle or view.now_s >= mark["round_s"] + self.round_s:
            mark = self._begin_round(what_if, types, able, mark)
        elif self.fill_idle:
            waiting = {row: kinds for row, kinds in able.items() if view.target[row] is None}
            records = {row: Record(view.marks[row]) for row in waiting}
            self.run(what_if, types, waiting, records, self._order(view, able, types))
        waits = any(what_if.target(row) is None for row in able)
        turns = waits or len(types.gpus) > 1
        wake_at_s = mark["round_s"] + self.round_s if turns else None
        changed = mark if mark is not view.policy_mark else None
        return what_if.plan(wake_at_s=wake_at_s, policy_mark=changed)

    def _able(self, what_if: WhatIf, types: GpuTypes) -> dict[int, frozenset[str]]:
        """The types on which each active job can run; jobs that fit on none wait for ever."""
        view, able, seen = what_if.view, {}, dict[Any, frozenset[str]]()
        specs, num_gpus = view.spec, view.num_gpus
        for row in sorted(view.active):
            like = specs[row].speeds, num_gpus[row]
            kinds = seen.get(like)
            if kinds is None:
                kinds = seen[like] = types.able(dict(like[0]), like[1])
            if view.must_stay(row):
                kinds = types.all_of(view.home[row])
            if kinds:
                able[row] = kinds
            elif view.target[row] is None:
                what_if.wait(row, Reason.NEVER_FITS)
        return able

    def _begin_round(
        self,
        what_if: WhatIf,
        types: GpuTypes,
        able: dict[int, frozenset[str]],
        mark: dict[str, Any] | None,
    ) -> dict[str, Any]:
        view = what_if.view
        records = {row: Record(view.marks[row]) for row in able}
        solved_s = mark["solved_s"] if mark else -1.0
        known = sum(record.solved_s == solved_s for record in records.values())
        stale = mark is None or not known == mark["jobs"] == len(able) or mark["gpus"] != types.gpus
        if stale and (mark is None or view.now_s >= solved_s + self.solve_every_s):
            self._renew_shares(what_if, types, records, solved_s)
            mark = {"solved_s": view.now_s, "jobs": len(able), "gpus": dict(types.gpus)}
        assert mark is not None
        self.run(what_if, types, able, records, self._order(view, able, types))
        return mark | {"round_s": view.now_s}

    def _renew_shares(
        self, what_if: WhatIf, types: GpuTypes, records: dict[int, Record], solved_s: float
    ) -> None:
        view, kinds = what_if.view, list(types.gpus)
        gangs = {}
        for row in records:
            speeds = dict(view.spec[row].speeds)
            gpus = view.num_gpus[row]
            by_type = tuple(
                speeds.get(kind, 1.0) if gpus <= types.gpus[kind] else 0.0 for kind in kinds
            )
            if not self.aware:
                by_type = tuple(1.0 if speed > 0 else 0.0 for speed in by_type)
            if any(by_type):
                gangs[row] = Gang(gpus, float(view.priority[row]), by_type)
        found = dict(zip(gangs, self.solve(view, gangs, types, records), strict=True))
        # Only a job that was stopped across types by another policy has no type to itself.
        other = (1 / len(records),) * len(kinds)
        for row, record in records.items():
            shares = zip(kinds, found.get(row, other), strict=True)
            share = {kind: part for kind, part in shares if part > 0}
            record.renew(share, view.now_s, view.attained_s(row), solved_s)
            what_if.mark(row, record.mark())

    def _order(self, view: View, rows: Iterable[int], types: GpuTypes) -> list[str]:
        """The order in which types choose their jobs: fastest first, or rotating."""
        kinds = list(types.gpus)
        if len(kinds) == 1:
            return kinds
        if not self.aware:
            first = int(view.now_s // self.round_s) % len(kinds)
            return kinds[first:] + kinds[:first]
        speed = dict.fromkeys(kinds, 0.0)
        for row in rows:
            speeds = dict(view.spec[row].speeds)
            for kind in kinds:
                speed[kind] += speeds.get(kind, 1.0)
        return sorted(kinds, key=lambda kind: -speed[kind])

    def run(
        self,
        what_if: WhatIf,
        types: GpuTypes,
        able: Mapping[int, frozenset[str]],
        records: Mapping[int, Record],
        order: list[str],
    ) -> None:
        """Run the jobs of ``able`` that are furthest behind, on all GPUs that no other job has."""
        view = what_if.view
        has = {row: view.target[row] for row in able}
        mine = [part for allocation in has.values() if allocation for part in allocation.parts]
        left = types.count([*enumerate(what_if.free.masks), *mine])
        chosen = choose(view, types, records, able, left, order, self.round_s)
        for row, allocation in has.items():
            if allocation is not None and chosen.get(row) != types.of(allocation):
                what_if.release(row, Reason.SLICE_WAITING_TURN)
        starts = {row: kind for row, kind in chosen.items() if what_if.target(row) is None}
        failed = place_all(what_if, types, starts)
        for row in failed:
            del starts[row]
        if failed:
            self._use_the_rest(what_if, types, able, starts)
        for row, kind in starts.items():
            record, attained_s = records[row], view.attained_s(row)
            if record.on != kind or view.marks[row] is None:
                record.run_on(kind, attained_s)
                what_if.mark(row, record.mark())

    def _use_the_rest(
        self,
        what_if: WhatIf,
        types: GpuTypes,
        able: Mapping[int, frozenset[str]],
        starts: TypeOfRow,
    ) -> None:
        """Give GPUs that a job bound to other GPUs could not use to jobs that fit, by arrival."""
        for row, kinds in able.items():
            for kind in types.gpus:
                left = types.count(enumerate(what_if.free.masks))
                waits = what_if.target(row) is None and kind in kinds
                fits = what_if.view.num_gpus[row] <= left[kind]
                if waits and fits and not place_all(what_if, types, {row: kind}):
                    starts[row] = kind


class MaxMinFairness(FairRounds):
    """Max-min fairness: gives as much as possible to the job that gets least for its weight.

    The amount is GPUs times time (``agnostic``), or GPUs times the job's speed relative to what an
    even spread over all GPUs would give it (``aware``: OSDI 2020, section 4.1). A job's priority is
    its weight.
    """

    name = "max-min-fairness"
    information = NONE
    SETTINGS = SETTINGS

    def solve(
        self, view: View, gangs: dict[int, Gang], types: GpuTypes, records: Mapping[int, Record]
    ) -> list[Shares]:
        """The shares with the largest minimum."""
        find = fastest_shares if self.aware else least_shares
        return find(list(gangs.values()), list(types.gpus.values()))


class FinishTimeFairness(FairRounds):
    """Finish-time fairness: minimises the largest ratio of a job's time to its time alone.

    Alone means on a part of every GPU type's GPUs as large as everyone's (Themis, NSDI 2020; Gavel,
    section 4.2). Work done so far counts at the speed that the job would have had alone. Reads
    durations. Priorities have no effect, as in Gavel.
    """

    name = "finish-time-fairness"
    needs_duration = True
    SETTINGS = SETTINGS

    def solve(
        self, view: View, gangs: dict[int, Gang], types: GpuTypes, records: Mapping[int, Record]
    ) -> list[Shares]:
        """The shares with the least largest ratio; each record keeps the time alone so far."""
        gpus = list(types.gpus.values())
        clocks = []
        for row, speed in zip(gangs, equal_split(list(gangs.values()), gpus), strict=True):
            more, left_s = records[row].more, max(view.remaining_s(row), SHORTEST_S)
            alone_s = more.get("alone_s", 0.0)
            if "left_s" in more:
                alone_s += (more["left_s"] - left_s) / more["speed"]
            records[row].more = {"alone_s": alone_s, "left_s": left_s, "speed": speed}
            clocks.append(Clock(view.now_s - view.submit_s[row], left_s, alone_s + left_s / speed))
        return timely_shares(list(gangs.values()), clocks, gpus)
