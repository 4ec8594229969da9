"""Elastic jobs: each job its least; the other GPUs go to the jobs that gain most by them.

A job's scaler chooses the size that is best for that job (:mod:`rota.policy.scaling`). If the sizes
add up to more GPUs than there are, GPUs go where one more raises relative throughput most.
"""

from collections.abc import Sequence
from math import inf
from typing import Any, NamedTuple

from rota.model.allocation import Allocation, gpus_text, on_node
from rota.model.notes import Notes
from rota.model.plan import Plan
from rota.model.reason import Reason
from rota.model.view import View, WhatIf
from rota.policy.base import Policy, Setting, one_of, positive
from rota.policy.information import DECLARED
from rota.policy.placement.consolidate import consolidate
from rota.policy.placement.nodesets import first_gpus, lowest_gpus
from rota.policy.scaling import (
    Choice,
    Claim,
    DeadlineUtility,
    FitScaler,
    Observations,
    Observed,
    PlannedCurve,
    ProbeScaler,
    Scaler,
    Throughput,
    ThroughputScaling,
    UtilityOverCost,
    allot,
    claim,
    covers,
    fit_curve,
)

UNTRIED = 0.9  # a job that has run at one size only is taken to scale as size ** 0.9
# GPUs by node: free, or held by an elastic job beyond its least; and those meant for one job.
Room = list[int]
Places = dict[int, int]
CALM = 10  # looks are so much rarer when all scalers are content


class Watched(NamedTuple):
    """A running elastic job: its sizes, its measurements and predictions, its scaler's wish."""

    sizes: tuple[int, ...]
    observations: Observations
    predicted: Sequence[float | None]
    wish: int
    calm: bool

    def claim(self) -> Claim:
        """Value of each size to the job, up to the size that it wants."""
        sizes = [size for size in self.sizes if size <= self.wish]
        if covers(self.predicted, sizes):
            return claim(sizes, PlannedCurve(self.observations, self.predicted).rate)
        if len(self.observations.sizes) > 1:
            return claim(sizes, fit_curve(self.observations).rate)
        return claim(sizes, lambda size: float(size**UNTRIED))


class Elastic(Policy):
    """Jobs start in order of arrival where they fit, and grow and shrink while they run.

    A job with a range of GPUs starts with its least. GPUs for which no job waits go to jobs whose
    scalers want them, by marginal gain in relative throughput; they return when a job that has
    arrived needs them. No job is suspended. A job's memory is its measurements.
    """

    name = "elastic"
    information = DECLARED
    preemptive = False
    resizes = True
    SETTINGS = {
        "scaler": Setting(
            one_of("fit", "probe"), "fit", "who chooses a job's size: fit, or the published probe"
        ),
        "threshold": Setting(
            positive, 0.1, "least gain of throughput per GPU, relative to that of those before it"
        ),
        "look_s": Setting(positive, 5.0, "seconds between two looks at a job's throughput"),
        "pause_s": Setting(
            positive, 0.5, "seconds that a resize costs a job; fit leaves those alone that end soon"
        ),
    }

    def __init__(
        self,
        scaler: str = "fit",
        threshold: float = 0.1,
        look_s: float = 5.0,
        pause_s: float = 0.5,
    ) -> None:
        self.scaler = scaler
        self.threshold = threshold
        self.look_s = look_s
        self.pause_s = pause_s

    def decide(self, view: View) -> Plan:
        """Start jobs that fit, and give the remaining GPUs to running ones."""
        what_if, told = view.what_if(), Notes({}, {}, {}, {})
        rows = sorted(view.active)
        running = [row for row in rows if view.target[row] is not None]
        watched = {
            row: self._watch(view, what_if, row, told)
            for row in running
            if self._is_elastic(view, row)
        }
        room = [mask.bit_count() for mask in what_if.free.masks]
        for row, each in watched.items():
            target = view.target[row]
            assert target is not None
            room[target.parts[0][0]] += target.num_gpus - each.sizes[0]
        starting = self._starting(view, what_if, rows, room)
        sizes = self._sizes(view, watched, room)
        for row, size in sizes.items():
            target = view.target[row]
            if target is not None and size < target.num_gpus:
                what_if.change(row, first_gpus(target, size))
        for row, places in starting.items():
            self._start(what_if, row, places)
        for row, size in sizes.items():
            target = view.target[row]
            if target is not None and size > target.num_gpus:
                self._grow(view, what_if, row, target, size)
        wake_at_s = self._wake_at_s(view, [*running, *starting], watched)
        return what_if.plan(wake_at_s=wake_at_s, notes=told if told.why else None)

    # -- one job -------------------------------------------------------------------------------

    def _is_elastic(self, view: View, row: int) -> bool:
        target = view.target[row]
        return len(view.sizes(row)) > 1 and target is not None and len(target.parts) == 1

    def _is_for_one_node(self, view: View, row: int) -> bool:
        """True for an elastic job whose least size some node has: its ranks stay on one node.

        A job whose least size no node has runs with that size on several nodes, as a gang.
        """
        largest = max((node.num_gpus for node in view.nodes if node.alive), default=0)
        return view.spec[row].elastic is not None and view.sizes(row)[0] <= largest

    def _watch(self, view: View, what_if: WhatIf, row: int, told: Notes) -> Watched:
        """Look at the job's throughput, and ask its scaler."""
        mark: dict[str, Any] = view.marks[row] or {"scaler": {}, "looked": None}
        observations = Observations.from_dict(mark["seen"]) if "seen" in mark else Observations()
        target = view.target[row]
        assert target is not None
        size, sizes = target.num_gpus, view.sizes(row)
        pace = view.pace(row)
        looked = None
        if pace is not None:
            looked = [pace.since_s, pace.at_s, pace.steps, pace.work]
            before = mark["looked"]
            if before is not None and before[0] == pace.since_s and pace.at_s > before[1]:
                rate = (pace.work - before[3]) / (pace.at_s - before[1])
                if rate > 0:
                    # The published search counts steps; the other asks how looks differ.
                    steps = int(pace.steps - before[2]) if self.scaler == "probe" else 1
                    observations.add(size, Throughput(max(1, steps), rate, 0.0))
        left = inf if pace is None or pace.left is None else pace.left
        wish, memory, planned = size, mark["scaler"], view.burst_planned(row)
        predicted = planned.step_s if planned is not None else ()
        if observations.workers == size and observations.steps:
            job = Observed(observations, view.now_s - view.submit_s[row], left, predicted)
            choice = self._scaler(view, row, sizes, left).choose(job, memory)
            wish, memory = choice.size, choice.memory
            told.why[row] = _why(choice, size)
        seen = {
            "seen": observations.as_dict(),
            "scaler": memory,
            "looked": looked or mark["looked"],
        }
        if seen != mark:
            what_if.mark(row, seen)
        wish = max(wish, sizes[0])
        return Watched(sizes, observations, predicted, wish, "settled" in memory)

    def _scaler(self, view: View, row: int, sizes: tuple[int, ...], left: float) -> Scaler:
        wanted = view.spec[row].elastic
        condition: Any = ThroughputScaling(self.threshold)
        if wanted is not None and wanted.deadline_s is not None and wanted.value and left < inf:
            utility = DeadlineUtility(value=wanted.value, deadline_s=wanted.deadline_s)
            condition = UtilityOverCost(utility, wanted.price_per_gpu_hour)
        if self.scaler == "probe":
            return ProbeScaler(sizes, condition)
        return FitScaler(sizes, condition, pause_s=self.pause_s, min_steps=3, most_steps=20)

    # -- all of them ---------------------------------------------------------------------------

    def _starting(
        self, view: View, what_if: WhatIf, rows: list[int], room: Room
    ) -> dict[int, Places]:
        """Jobs that can start, and where, if elastic jobs shrink to their least; takes the room."""
        starting = {}
        for row in rows:
            if view.target[row] is not None:
                continue
            places = self._places(view, what_if, row, room)
            if isinstance(places, Reason):
                what_if.wait(row, places)
                continue
            for node, gpus in places.items():
                room[node] -= gpus
            starting[row] = places
        return starting

    def _places(self, view: View, what_if: WhatIf, row: int, room: Room) -> Places | Reason:
        """Number of GPUs on each node on which a job can start, or why it can't start."""
        least, home = view.sizes(row)[0], view.home[row]
        if least > view.total_gpus:
            return Reason.NEVER_FITS
        if home is not None and (view.must_stay(row) or what_if.free.fits(home)):
            wanted = {node: mask.bit_count() for node, mask in home.parts}
            if all(room[node] >= gpus for node, gpus in wanted.items()):
                return wanted
            return Reason.WAIT_TOPOLOGY
        if least > sum(room):
            return Reason.WAIT_RESOURCES
        free = what_if.free.masks
        fitting = [node for node in range(len(room)) if room[node] >= least]
        if fitting:  # where the fewest GPUs must be given back, then the tightest fit
            back = (max(0, least - free[node].bit_count()) for node in fitting)
            return {min(zip(back, (room[n] for n in fitting), fitting, strict=True))[2]: least}
        if self._is_for_one_node(view, row):
            return Reason.WAIT_GANG_FRAGMENTED
        return _spread(room, least)

    def _sizes(self, view: View, watched: dict[int, Watched], room: Room) -> dict[int, int]:
        """The size of each running elastic job, by node: none exceeds the size that it wants."""
        by_node: dict[int, list[int]] = {}
        for row in watched:
            target = view.target[row]
            assert target is not None
            by_node.setdefault(target.parts[0][0], []).append(row)
        sizes: dict[int, int] = {}
        for node, rows in by_node.items():
            gpus = room[node] + sum(watched[row].sizes[0] for row in rows)
            given = allot(gpus, [watched[row].claim() for row in rows])
            sizes.update(zip(rows, given, strict=True))
        return sizes

    def _start(self, what_if: WhatIf, row: int, places: Places) -> None:
        least = what_if.view.sizes(row)[0]
        home = what_if.view.home[row]
        if home is not None and what_if.free.fits(home):
            what_if.give(row, home)
            return
        if what_if.view.must_stay(row):
            what_if.wait(row, Reason.WAIT_TOPOLOGY)
            return
        node = next(iter(places))
        if len(places) == 1 and what_if.free.masks[node].bit_count() >= least:
            what_if.give(row, on_node(node, lowest_gpus(what_if.free.masks[node], least)))
            return
        allocation = consolidate(what_if.free, least)
        if allocation is None:
            what_if.wait(row, Reason.WAIT_RESOURCES)
        elif len(allocation.parts) > 1 and self._is_for_one_node(what_if.view, row):
            what_if.wait(row, Reason.WAIT_GANG_FRAGMENTED)
        else:
            what_if.give(row, allocation)

    def _grow(self, view: View, what_if: WhatIf, row: int, target: Allocation, size: int) -> None:
        """Add GPUs of the job's node, as many as its size and the free ones allow."""
        node, mask = target.parts[0]
        free = what_if.free.masks[node]
        most = target.num_gpus + free.bit_count()
        fitting = [each for each in view.sizes(row) if target.num_gpus < each <= min(size, most)]
        if fitting:
            more = lowest_gpus(free, fitting[-1] - target.num_gpus)
            what_if.change(row, on_node(node, mask | more))

    def _wake_at_s(self, view: View, rows: list[int], watched: dict[int, Watched]) -> float | None:
        """Time of the next look: soon while a scaler searches, or after a change of size."""
        elastic = [row for row in rows if view.spec[row].elastic is not None]
        if not elastic:
            return None
        calm = all(row in watched and watched[row].calm for row in elastic)
        return view.now_s + self.look_s * (CALM if calm else 1)


def _spread(room: Room, gpus: int) -> Places:
    """``gpus`` GPUs, which must exist, on the nodes with the most room."""
    places = {}
    for node in sorted(range(len(room)), key=lambda node: (-room[node], node)):
        places[node] = min(gpus, room[node])
        gpus -= places[node]
        if not gpus:
            break
    return places


def _why(choice: Choice, size: int) -> str:
    """For the user: the reason for the scaler's ``choice`` for a job of ``size`` GPUs."""
    verb = "keeps" if choice.size == size else "wants"
    return f"its scaler {verb} {gpus_text(choice.size)}: {choice.why}"
