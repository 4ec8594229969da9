"""CPU cores by what they are worth to each job (SAD, SoCC 2018).

Each node's cores are apportioned exactly, by curves fitted to the step times that jobs have told,
when jobs come or go on it, when a job enters another phase, and from time to time. A change must
pay; a job whose curve is not known is tried with other cores, which others lend.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf
from typing import Any, NamedTuple

from rota.model.allocation import Allocation
from rota.model.measured.core_times import core_times
from rota.model.measured.reports import CoreTime
from rota.model.plan import CpuPlan, Plan
from rota.model.probe import Probe
from rota.model.view import View
from rota.policy.cpus.apportion import CORE, CoreClaim, apportion, bears, fewest, quantum_of, worth
from rota.policy.cpus.demand import Points, curve, gpu_type_of, points_of, speeds
from rota.policy.cpus.stage import CpuStage, Residents, cores_to_share
from rota.policy.cpus.trials import (
    LOOK_S,
    REPORTS_S,
    Trial,
    cores_to_try,
    earliest_s,
    next_trial,
    tries,
)
from rota.policy.cpus.words import why

SLACK = 0.03  # of the floors: predictions are off by about as much
GAIN = 0.03  # of the sum of speeds that makes a change worth it
DWELL_S = 20.0  # in a phase, before another one is acted on
FIRST_LOOK_S = 30.0  # after which a job is looked at that can't be tried yet, or has told nothing
ROUND = "round"  # mark: when all nodes were apportioned last
LEARNED = "learned"  # mark: when that changed a job's cores last, or a trial ended
NODE = "node "  # marks: what nodes had when they were apportioned last


class Member(NamedTuple):
    """A job on the nodes that are apportioned, and what is known of it."""

    row: int
    place: Allocation
    phase: str
    gpu_type: str
    points: Points


Held = dict[int, dict[int, int]]  # node -> row -> thousandths of a core there


class Settled(NamedTuple):
    """What nodes were apportioned by when no job on them was to be looked at again.

    ``cores`` are those of each node, in thousandths, ``has`` those of each member.
    """

    nodes: list[int]
    cores: list[int]
    members: list[Member]
    has: list[int]


class Sad(CpuStage):
    """Cores where they make jobs faster, above the floors of all.

    Of what it remembers, ``round`` is when all nodes were apportioned, ``learned`` when that
    changed a job's cores, or a trial ended; ``node N`` is which jobs were on a node when it was
    apportioned, with which GPUs and how many cores; a row has its ``phase``, ``since`` when that is
    acted on, when to ``look`` at it again, its ``trial``, how often cores were ``tried``, and the
    seconds ``spent`` in trials.
    """

    learns = True

    def __init__(self, *, floor: str = "proportional", period_s: float = 300.0) -> None:
        super().__init__(floor=floor, period_s=period_s)
        self.residents = Residents()
        self.looks: dict[int, float] = {}  # row -> when to look at it, as in its mark
        self.on_trial: set[int] = set()  # rows with a trial in their mark
        self.members: dict[int, tuple[tuple[CoreTime, ...], Member]] = {}  # and what it has told
        # The first of nodes that were apportioned, and by what: the same has the same outcome.
        self.settled: dict[int, Settled] = {}

    def assign(self, view: View, plan: Plan) -> CpuPlan:
        return _Assignment(self, view, plan).made()


class _Assignment:
    """The cores of one decision."""

    def __init__(self, stage: Sad, view: View, plan: Plan) -> None:
        self.stage, self.view, self.floor = stage, view, stage.floor
        self.residents, self.looks = stage.residents, stage.looks
        self.touched = self.residents.follow(view, plan)
        self.changed: set[int] = set()  # nodes with other jobs, or cores, than at the last time
        self.marks: Mapping[str, Any] = view.stage_marks.get("cpus", {})
        self.changes: dict[str, Any] = {}
        self.cores: dict[int, int] = {}  # thousandths of each node that is looked at
        self.quanta: dict[int, int] = {}  # and the thousandths that these are dealt out in
        self.millicores: dict[int, int | None] = {}
        self.why: dict[int, str] = {}
        self.probes: dict[int, tuple[Probe, ...]] = {}
        if self.residents.is_new:
            self._rebuild()

    def _rebuild(self) -> None:
        """Make the indexes anew, from the marks."""
        stage = self.stage
        for index in (stage.looks, stage.on_trial, stage.members, stage.settled):
            index.clear()
        for key, mark in self.marks.items():
            if key.startswith(NODE):
                self.touched.add(int(key.removeprefix(NODE)))
            elif key.isdigit():
                if mark["look"] is not None:
                    stage.looks[int(key)] = mark["look"]
                if mark["trial"]:
                    stage.on_trial.add(int(key))

    def made(self) -> CpuPlan:
        due = self._due()
        while due:
            nodes = self._together(min(due))
            due -= nodes
            self._apportion(sorted(nodes))
        if ROUND in self.changes and (self.millicores or LEARNED not in self.marks):
            self.changes[LEARNED] = self.view.now_s
        return CpuPlan(
            dict(sorted(self.millicores.items())),
            self.changes,
            self._wake_at_s(),
            self.why,
            self.probes,
        )

    # -- which nodes --------------------------------------------------------------------------

    def _due(self) -> set[int]:
        """The nodes whose cores are to be apportioned now."""
        view, residents, now_s = self.view, self.residents, self.view.now_s
        due: set[int] = set()
        if now_s >= self.marks.get(ROUND, -inf) + self.stage.period_s:
            due.update(residents.nodes())
            if due:
                self.changes[ROUND] = now_s
            for row in self.stage.members.keys() - residents.place.keys():
                del self.stage.members[row]
            self.stage.on_trial &= residents.place.keys()
        self._look_at(self.touched)
        for node in sorted(self.touched):
            occupants = self._occupants(node)
            if occupants != self.marks.get(f"{NODE}{node}"):
                self.changes[f"{NODE}{node}"] = occupants
                self.changed.add(node)
        due |= self.changed
        for row in [row for row, at_s in self.looks.items() if at_s <= now_s]:
            if row in residents.place:
                due.update(residents.place[row].nodes())
            else:
                del self.looks[row]  # it is looked at when it has GPUs again
        for row in view.changed:
            mark = self.marks.get(str(row))
            if mark and row in residents.place and view.phase(row) != mark["phase"]:
                due.update(residents.place[row].nodes())
        return due

    def _look_at(self, nodes: Iterable[int]) -> None:
        self.cores |= cores_to_share(self.view, nodes)
        for node in nodes:
            all = self.view.nodes[node]
            each_gpu = all.millicores / all.num_gpus
            self.quanta[node] = CORE if all.whole_cores else quantum_of(each_gpu)

    def _occupants(self, node: int) -> list[int] | None:
        """Cores of the node; of each of its jobs the row, the mask of GPUs here, and all GPUs."""
        masks, place = self.residents.masks(node), self.residents.place
        jobs = [each for row, mask in masks for each in (row, mask, place[row].num_gpus)]
        return [self.cores[node], *jobs] if masks else None

    def _together(self, node: int) -> set[int]:
        """The node, and those that gangs connect with it."""
        found, new = {node}, [node]
        while new:
            for row in self.residents.rows(new.pop()):
                others = set(self.residents.place[row].nodes()) - found
                found |= others
                new += sorted(others)
        return found

    def _wake_at_s(self) -> float | None:
        place = self.residents.place
        if not place:
            return None
        times = [at_s for row, at_s in self.looks.items() if row in place]
        round_s, learned_s = (self.changes.get(k, self.marks.get(k)) for k in (ROUND, LEARNED))
        if round_s is not None:  # after long without news, no decision is asked for for as long
            quiet_s = 0.0 if learned_s is None else round_s - learned_s
            times.append(round_s + max(self.stage.period_s, quiet_s))
        return min((at_s for at_s in times if at_s > self.view.now_s), default=None)

    # -- a node, or several that share a gang -------------------------------------------------

    def _apportion(self, nodes: list[int]) -> None:
        view, residents = self.view, self.residents
        self._look_at(nodes)
        is_new = not self.changed.isdisjoint(nodes)
        rows = sorted({row for node in nodes for row in residents.rows(node)})
        if not rows:
            return
        known = [row for row in rows if all(self.cores[n] for n in residents.place[row].nodes())]
        for row in set(rows).difference(known):
            self._give(row, None)
        if not is_new and self._is_settled(nodes, known):
            return
        marks = {row: self._mark(row) for row in known}
        members = [self._member(row, marks[row]["phase"]) for row in known]
        ended = {each.row: self._end_trial(each, marks[each.row], is_new) for each in members}
        under_way = any(mark["trial"] for mark in marks.values())
        held = self._old(members, nodes)
        if not (under_way and held is not None):
            claims = self._claims(members, nodes)
            trial = self._begin_trial(members, marks, claims)
            held = self._solved(claims, held, trial)
            for member in members:
                self._give(member.row, _whole(member.place, held, member.row))
            self.why |= why(view, claims, held, self.quanta, trial)
        for member in members:
            mark, over = marks[member.row], ended[member.row]
            if over is not None:
                probe, cores = over
                kept = probe.measured is not None and cores == _whole(
                    member.place, held, member.row
                )
                self.probes[member.row] = (probe._replace(kept=kept),)
            if not mark["trial"] and not self._has_told(member):
                wait_s = FIRST_LOOK_S
                while mark["since"] + wait_s <= view.now_s:
                    wait_s *= 2
                self._look(mark, mark["since"] + wait_s)
            self._keep(member.row, mark)
        if any(mark["look"] is not None for mark in marks.values()):
            self.stage.settled.pop(nodes[0], None)
        else:
            of_nodes = [self.cores[node] for node in nodes]
            has = [_whole(member.place, held, member.row) for member in members]
            self.stage.settled[nodes[0]] = Settled(nodes, of_nodes, members, has)

    def _is_settled(self, nodes: list[int], rows: list[int]) -> bool:
        """True if nothing has changed since the nodes were apportioned, and nothing is awaited."""
        before, view = self.stage.settled.get(nodes[0]), self.view
        if before is None or before.nodes != nodes or len(before.members) != len(rows):
            return False
        for row, member, has in zip(rows, before.members, before.has, strict=True):
            mark = self.marks.get(str(row))
            if mark is None or mark["look"] is not None or mark["phase"] != member.phase:
                return False
            if view.phase(row) != member.phase or view.target_cpus.get(row) != has:
                return False
            if self._member(row, member.phase) != member:
                return False
        return before.cores == [self.cores[node] for node in nodes]

    def _give(self, row: int, millicores: int | None) -> None:
        if self.view.target_cpus.get(row) != millicores:
            self.millicores[row] = millicores

    def _mark(self, row: int) -> dict[str, Any]:
        """A copy of the job's mark, in the phase that is acted on now."""
        phase, now_s = self.view.phase(row), self.view.now_s
        mark: dict[str, Any] | None = self.marks.get(str(row))
        if mark is None:
            return {"phase": phase, "since": now_s, "look": None, "trial": None}
        mark = mark | {"look": None}
        if phase != mark["phase"]:
            if now_s >= mark["since"] + DWELL_S:
                mark |= {"phase": phase, "since": now_s}
            else:
                self._look(mark, mark["since"] + DWELL_S)
        return mark

    def _look(self, mark: dict[str, Any], at_s: float) -> None:
        if at_s > self.view.now_s and (mark["look"] is None or at_s < mark["look"]):
            mark["look"] = at_s

    def _keep(self, row: int, mark: dict[str, Any]) -> None:
        if mark != self.marks.get(str(row)):
            self.changes[str(row)] = mark
        if mark["look"] is None:
            self.looks.pop(row, None)
        else:
            self.looks[row] = mark["look"]
        if mark["trial"]:
            self.stage.on_trial.add(row)
        else:
            self.stage.on_trial.discard(row)

    def _member(self, row: int, phase: str) -> Member:
        view, place = self.view, self.residents.place[row]
        told, gpu_type = view.core_times(row, place, phase), gpu_type_of(view, place)
        if any(view.nodes[node].whole_cores for node in place.nodes()):
            # A part of a core was a whole one there, shared with others.
            told = tuple(each for each in told if each.millicores % CORE == 0)
        if row in self.stage.members:
            before, member = self.stage.members[row]
            same = (member.place, member.phase, member.gpu_type) == (place, phase, gpu_type)
            if same and told == before:
                return member
        member = Member(row, place, phase, gpu_type, points_of(told, place.num_gpus))
        self.stage.members[row] = told, member
        return member

    def _has_told(self, member: Member) -> bool:
        """True if a step time of the job itself is known, and not only of its kind.

        In a simulation what one of a kind has told holds for all.
        """
        own = self.view.own_profile(member.row)
        if own is None:
            return bool(member.points)
        return bool(core_times((own,), member.place, member.phase))

    def _claims(self, members: list[Member], nodes: list[int]) -> dict[int, dict[int, CoreClaim]]:
        view, by_row = self.view, {member.row: member for member in members}
        claims = dict[int, dict[int, CoreClaim]]()
        for node in nodes:
            if not self.cores[node]:
                continue
            each_gpu = view.nodes[node].millicores / view.nodes[node].num_gpus
            claims[node] = {}
            for resident in self.residents.on(view, node):
                member = by_row.get(resident.row)
                if member is None:
                    continue
                gpus = dict(member.place.parts)[node].bit_count()
                quantum = self.quanta[node]
                claims[node][resident.row] = CoreClaim(
                    max(1, int(each_gpu * resident.gpus)),
                    speeds(
                        member.points, member.gpu_type, gpus, quantum, self.cores[node] // quantum
                    ),
                    resident.gpus,
                    int(resident.least),
                    None if resident.most == inf else int(resident.most),
                )
        return claims

    def _old(self, members: list[Member], nodes: list[int]) -> Held | None:
        """The cores that jobs have where they are; None if some have none, or nodes too few."""
        view, held = self.view, {node: dict[int, int]() for node in nodes}
        for row, place in ((member.row, member.place) for member in members):
            millicores = view.target_cpus.get(row)
            if millicores is None or view.target[row] is not place:
                return None
            for node, share in place.shares(millicores):
                held[node][row] = share
        if any(sum(held[node].values()) > self.cores[node] for node in nodes):
            return None
        return held

    def _solved(
        self,
        claims: dict[int, dict[int, CoreClaim]],
        old: Held | None,
        trial: tuple[int, Trial] | None,
    ) -> Held:
        """The cores that are worth most, or the old ones if these are worth about as much."""
        if trial is not None:
            row, cores = trial[0], trial[1].millicores
            node = next(node for node in claims if row in claims[node])
            pinned = claims[node][row]._replace(speeds=(), least=cores, most=cores)
            claims = claims | {node: claims[node] | {row: pinned}}
        held = self._dealt(claims)
        gangs = [row for row in _rows(claims) if len(self.residents.place[row].parts) > 1]
        if gangs:
            claims = {node: dict(jobs) for node, jobs in claims.items()}
            for row in gangs:
                place = self.residents.place[row]
                least = _per_gpu(place, held, row)
                for node, mask in place.parts:
                    quantum = self.quanta[node]
                    cores = max(quantum, least * mask.bit_count() // quantum * quantum)
                    pinned = claims[node][row]._replace(least=cores, most=cores)
                    claims[node][row] = pinned
            held = self._dealt(claims)
        if old is None or trial is not None or held == old:
            return held
        return held if self._pays(claims, old, held) else old

    def _dealt(self, claims: dict[int, dict[int, CoreClaim]]) -> Held:
        held: Held = {}
        for node, jobs in claims.items():
            found = apportion(
                list(jobs.values()),
                self.cores[node],
                floor=self.floor,
                slack=SLACK,
                quantum=self.quanta[node],
            )
            held[node] = dict(zip(jobs, found, strict=True))
        return held

    def _pays(self, claims: dict[int, dict[int, CoreClaim]], old: Held, held: Held) -> bool:
        """True if the new cores are worth a change."""
        before = after = 0.0
        for node, jobs in claims.items():
            all, quantum = list(jobs.values()), self.quanta[node]
            has, gets = ([share[node][row] for row in jobs] for share in (old, held))
            free = [
                each._replace(least=0, most=None) if each.least == each.most else each
                for each in all
            ]
            kept = {"floor": self.floor, "slack": SLACK, "quantum": quantum}
            if not bears(free, has, **kept):  # type: ignore[arg-type]
                return True
            before += worth(all, has, quantum=quantum)
            after += worth(all, gets, quantum=quantum)
            if all_gain(all, has, gets):
                return True
        return after > before * (1 + GAIN)

    # -- trials -------------------------------------------------------------------------------

    def _end_trial(
        self, member: Member, mark: dict[str, Any], is_new: bool
    ) -> tuple[Probe, int] | None:
        """The trial of the job, if it is over, and its cores; it is ended in the job's mark."""
        if not mark["trial"]:
            return None
        trial, now_s = Trial(*mark["trial"]), self.view.now_s
        over_s = trial.began_s + trial.lasts_s
        cores = trial.millicores / (1000 * member.place.num_gpus)
        told = [p for p in member.points if p.gpu_type == member.gpu_type and p.cores == cores]
        if not (told or is_new or now_s >= over_s + REPORTS_S):
            self._look(mark, over_s if over_s > now_s else now_s + LOOK_S)
            return None
        self.changes[LEARNED] = now_s
        mark |= {"trial": None, "spent": mark.get("spent", 0.0) + now_s - trial.began_s}
        had = trial.before / (1000 * member.place.num_gpus)
        found = curve(member.points, member.gpu_type)
        measured = None
        if told and found is not None:
            measured = found.demand.step_s(had, member.gpu_type) / told[0].step_s
        what = f"{cores * member.place.num_gpus:g} CPU cores instead of {trial.before / 1000:g}"
        probe = Probe(now_s, what, trial.predicted, measured, False, (), member.place.parts)
        return probe, trial.millicores

    def _begin_trial(
        self,
        members: list[Member],
        marks: dict[int, dict[str, Any]],
        claims: dict[int, dict[int, CoreClaim]],
    ) -> tuple[int, Trial] | None:
        """The next trial on these nodes, and its job; written into its mark."""
        view, floors = self.view, self._floors(claims)
        for member in members:
            row, place, mark = member.row, member.place, marks[member.row]
            if len(place.parts) > 1 or place.shared:
                continue
            node = place.parts[0][0]
            tried = tries(mark, member.phase, member.gpu_type)
            cores = self._wanted(member, claims[node][row], floors[node], node, tried)
            if cores is None:
                continue
            if not self._is_steady(row, place) or self._is_tried_elsewhere(member):
                self._look(mark, view.now_s + FIRST_LOOK_S)
                continue
            trial = next_trial(
                view, row, place, member.phase, member.points, member.gpu_type, cores
            )
            if trial is None:
                continue
            begins_s = earliest_s(view, row, mark.get("spent", 0.0), trial)
            if begins_s > view.now_s:
                self._look(mark, begins_s)
                continue
            key = str(trial.millicores)
            tried[key] = tried.get(key, 0) + 1
            where = f"{member.phase} {member.gpu_type}"
            mark["tried"] = mark.get("tried", {}) | {where: tried}
            mark["trial"] = list(trial)
            self._look(mark, trial.began_s + trial.lasts_s)
            return row, trial
        return None

    def _floors(self, claims: dict[int, dict[int, CoreClaim]]) -> dict[int, dict[int, int]]:
        """The quanta of each node that its jobs do not lend."""
        found = {}
        for node, jobs in claims.items():
            quantum = self.quanta[node]
            quanta = self.cores[node] // quantum
            found[node] = {
                row: fewest(claim, quanta, self.floor, SLACK, quantum)
                for row, claim in jobs.items()
            }
        return found

    def _wanted(
        self,
        member: Member,
        own: CoreClaim,
        floors: dict[int, int],
        node: int,
        tried: Mapping[str, int],
    ) -> float | None:
        """Cores for each of its GPUs to try, of those that others can lend."""
        quantum, gpus = self.quanta[node], member.place.num_gpus
        most = self.cores[node] // quantum - sum(floors.values()) + floors[member.row]
        if own.most is not None:
            most = min(most, own.most // quantum)
        each = quantum / 1000
        return cores_to_try(
            member.points,
            member.gpu_type,
            own.share / (1000 * gpus),
            most // gpus * each,
            each,
            tuple(tried.items()),
            gpus,
        )

    def _is_steady(self, row: int, place: Allocation) -> bool:
        """True if the job has its GPUs and its cores by now."""
        cores = self.view.held_cpus.get(row)
        has = self.view.held[row] is place and cores is not None
        return has and cores == self.view.target_cpus.get(row)

    def _is_tried_elsewhere(self, member: Member) -> bool:
        """True if a job of its kind is on trial."""
        view, place = self.view, self.residents.place
        signature = view.signature(member.row)
        return bool(signature) and any(
            row != member.row and row in place and view.signature(row) == signature
            for row in self.stage.on_trial
        )


def all_gain(claims: list[CoreClaim], old: list[int], new: list[int]) -> bool:
    """True if nobody gets less, and a job of which nothing is known gets more."""
    unknown = False
    for claim, has, gets in zip(claims, old, new, strict=True):
        if gets < has:
            return False
        unknown = unknown or (not claim.speeds and gets > has)
    return unknown


def _rows(claims: dict[int, dict[int, CoreClaim]]) -> list[int]:
    return sorted({row for jobs in claims.values() for row in jobs})


def _per_gpu(place: Allocation, held: Held, row: int) -> int:
    """The least thousandths that a node gives for each of the job's GPUs there."""
    return min(held[node][row] // mask.bit_count() for node, mask in place.parts)


def _whole(place: Allocation, held: Held, row: int) -> int:
    """Thousandths of the whole job."""
    if len(place.parts) == 1:
        return held[place.parts[0][0]][row]
    return max(1, _per_gpu(place, held, row)) * place.num_gpus
