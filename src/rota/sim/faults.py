"""Faults of a simulation: nodes fail, workers crash, nodes slow down for a while.

When something fails depends on the seed, the cluster and the clock alone, never on what a policy
decides: every node has random streams of its own, so that two policies meet the same faults.

A job that loses its attempt falls back to its last checkpoint. Checkpoints are taken, at no cost,
whenever the job's work (``ClusterState.work``) reaches a multiple of ``checkpoint_s``, and outlive
the node; without ``checkpoint_s`` the job has none and starts from nothing. What is lost is told
by ``AttemptLost``, and counted in the column ``lost_s``.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from functools import partial
from heapq import heappop, heappush
from math import floor, inf
from random import Random
from typing import NamedTuple

from rota.errors import InputError, SimulationError
from rota.model.allocation import Allocation
from rota.model.cluster import Node
from rota.model.commands import Suspend
from rota.model.decide.departures import closing_times, closings_due
from rota.model.events import AttemptLost, JobSuspended, NodeDeadlineChanged, NodeLost, joined
from rota.model.job import JobSpec, JobState
from rota.model.state.state import ClusterState
from rota.sim.engine import FAULT
from rota.sim.machine import Phase, PhasedSpeedModel, SpeedModel
from rota.sim.simulation import Simulation
from rota.workload.trace import MAX_S, SPEEDS

ROUNDING = 1e-9  # part of a checkpoint interval: work so close to its end has reached it
MOST_IN_VAIN = 1000  # attempts of a job that may be lost one after another without a checkpoint
MOST_IDLE = 10_000  # faults that may come one after another while jobs wait and none runs
LEAST_S = 0.001
BEGINS, ENDS = 1, 0  # at one instant, ends come first


class What(StrEnum):
    """Kinds of faults."""

    FAIL = "fail"  # the node is gone for a while, with all that ran or was suspended there
    CRASH = "crash"  # the processes on one GPU die, and with them the attempts they belong to
    SLOW = "slow"  # for a while the node runs at ``speed`` times its own


class Fault(NamedTuple):
    """Something that happens to a node at a time, whatever runs there.

    ``for_s`` is how long a node is down or slow, ``gpu`` which worker crashes. That a node will
    fail is known ``notice_s`` before.
    """

    at_s: float
    what: What
    node: str
    for_s: float = inf
    gpu: int = 0
    speed: float = 1.0
    notice_s: float = 0.0


class Faults(NamedTuple):
    """Faults drawn at random, or written down in ``script``, or both; see docs/reference/faults.md.

    Times to failure, repair, crash and slow spell are exponential with the given means: of a node
    (``mtbf_s``, ``mttr_s``), of a GPU (``worker_mtbf_s``), of a node's time between slow spells and
    of their length (``straggler_every_s``, ``straggler_for_s``). None is never. A node is down
    until all its outages are over, and as slow as the slowest of its spells.
    """

    seed: int = 0
    mtbf_s: float | None = None
    mttr_s: float = 3600.0
    worker_mtbf_s: float | None = None
    straggler_every_s: float | None = None
    straggler_for_s: float = 600.0
    straggler_speed: float = 0.5
    checkpoint_s: float | None = None
    script: tuple[Fault, ...] = ()

    def attach(self, simulation: Simulation) -> None:
        """Put the first fault on the simulation's engine; one object serves many simulations.

        Raises InputError if a number is out of range, or if the script names a node or a GPU that
        the cluster does not have.
        """
        self.check()
        _Course(self, simulation)

    def check(self) -> None:
        """Raise InputError for a time or a speed that is out of range."""
        for field, value in self._asdict().items():
            if field.endswith("_s") and value is not None and not LEAST_S <= value <= MAX_S:
                raise InputError(
                    f"faults: {field} is {value:g}; give from {LEAST_S} to {MAX_S:,.0f} seconds"
                )
        speeds = [("straggler_speed", self.straggler_speed)]
        for field, speed in [*speeds, *(("speed", fault.speed) for fault in self.script)]:
            if not SPEEDS[0] <= speed <= 1:
                raise InputError(
                    f"faults: {field} is {speed:g}; give a number from {SPEEDS[0]} to 1"
                )
        for fault in self.script:
            if not 0 <= fault.at_s <= MAX_S:
                raise InputError(
                    f"faults: at_s is {fault.at_s:g}; give from 0 to {MAX_S:,.0f} seconds"
                )
            if not 0 <= fault.notice_s <= MAX_S:
                raise InputError(
                    f"faults: notice_s is {fault.notice_s:g}; give from 0 to {MAX_S:,.0f} seconds"
                )
            if not (LEAST_S <= fault.for_s <= MAX_S or fault.for_s == inf):
                raise InputError(
                    f"faults: for_s is {fault.for_s:g}; give from {LEAST_S} to {MAX_S:,.0f} "
                    "seconds, or none for ever"
                )

    def streams(self, nodes: list[Node]) -> list[Iterator[Fault]]:
        """The faults of these nodes in streams, each in order of time; random ones are endless."""
        streams: list[Iterator[Fault]] = [iter(sorted(self.script, key=lambda fault: fault.at_s))]
        for node in nodes:
            if self.mtbf_s is not None:
                streams.append(self._outages(node.name, self.mtbf_s))
            if self.worker_mtbf_s is not None:
                streams.append(self._crashes(node, self.worker_mtbf_s))
            if self.straggler_every_s is not None:
                streams.append(self._slow_spells(node.name, self.straggler_every_s))
        return streams

    def _outages(self, node: str, mtbf_s: float) -> Iterator[Fault]:
        chance, at_s = self._chance("outages", node), 0.0
        while True:
            at_s += chance.expovariate(1 / mtbf_s)
            for_s = chance.expovariate(1 / self.mttr_s)
            yield Fault(at_s, What.FAIL, node, for_s)
            at_s += for_s

    def _crashes(self, node: Node, mtbf_s: float) -> Iterator[Fault]:
        chance, at_s = self._chance("crashes", node.name), 0.0
        while True:
            at_s += chance.expovariate(node.num_gpus / mtbf_s)
            yield Fault(at_s, What.CRASH, node.name, gpu=chance.randrange(node.num_gpus))

    def _slow_spells(self, node: str, every_s: float) -> Iterator[Fault]:
        chance, at_s = self._chance("slow spells", node), 0.0
        while True:
            at_s += chance.expovariate(1 / every_s)
            for_s = chance.expovariate(1 / self.straggler_for_s)
            yield Fault(at_s, What.SLOW, node, for_s, speed=self.straggler_speed)
            at_s += for_s

    def _chance(self, kind: str, node: str) -> Random:
        return Random(f"{self.seed} {kind} {node}")


class _Slowed:
    """A speed model under which a job is as slow as the slowest of its nodes."""

    def __init__(self, base: SpeedModel | None) -> None:
        self._base = base
        self.spells: dict[int, list[float]] = {}  # node index -> the speeds of its slow spells

    def speed(self, spec: JobSpec, allocation: Allocation, nodes: list[Node]) -> float:
        speed = 1.0 if self._base is None else self._base.speed(spec, allocation, nodes)
        return speed * self._slowest(allocation)

    def _slowest(self, allocation: Allocation) -> float:
        spells = self.spells
        if not spells:
            return 1.0
        return min(min(spells.get(node, (1.0,))) for node in allocation.nodes())


class _SlowedPhases(_Slowed):
    """The same, where the speed also changes as a job proceeds."""

    _base: PhasedSpeedModel

    def phase(
        self, spec: JobSpec, allocation: Allocation, nodes: list[Node], work_s: float
    ) -> Phase:
        phase = self._base.phase(spec, allocation, nodes, work_s)
        return phase._replace(speed=phase.speed * self._slowest(allocation))


class _Course:
    """The faults of one simulation: the next one is on the engine until all jobs have ended."""

    def __init__(self, faults: Faults, simulation: Simulation) -> None:
        state = simulation.state
        _check_script(faults.script, {node.name: node.num_gpus for node in state.nodes})
        self._checkpoint_s = faults.checkpoint_s
        self._outages = [0] * len(state.nodes)
        self._in_vain: dict[int, tuple[float, int]] = {}  # row -> (work kept, attempts lost at it)
        self._idle = 0  # faults since a job last held GPUs, or none waited
        base = simulation.machine.speeds
        self._slowed = _SlowedPhases(base) if hasattr(base, "phase") else _Slowed(base)
        if faults.straggler_every_s is not None or any(f.what == What.SLOW for f in faults.script):
            simulation.machine.speeds = self._slowed
            simulation.machine.unsteady = True
        self._streams = faults.streams(state.nodes)
        self._due: list[tuple[float, int, int, Fault]] = []  # BEGINS with the number of its stream
        self._ends = 0
        for number in range(len(self._streams)):
            self._draw(number)
        self._told = [each for each in faults.script if each.what == What.FAIL and each.notice_s]
        for fault in self._told:
            tell_s = max(0.0, fault.at_s - fault.notice_s)
            simulation.engine.at(tell_s, FAULT, partial(self._tell, fault.node))
        self._schedule(simulation)

    def _draw(self, number: int) -> None:
        fault = next(self._streams[number], None)
        if fault is not None:
            heappush(self._due, (fault.at_s, BEGINS, number, fault))

    def _schedule(self, simulation: Simulation) -> None:
        if self._due:
            simulation.engine.at(self._due[0][0], FAULT, self._happen)

    def _happen(self, simulation: Simulation) -> None:
        state = simulation.state
        if _is_over(simulation):
            return
        at_s, begins, number, fault = heappop(self._due)
        index = state.node_index[fault.node]
        if begins:
            self._count_idle(state)
            self._draw(number)
            if fault.what != What.CRASH and at_s + fault.for_s < inf:
                self._ends += 1
                heappush(self._due, (at_s + fault.for_s, ENDS, self._ends, fault))
        if fault.what == What.CRASH:
            self._crash(simulation, index, fault.gpu)
        elif fault.what == What.SLOW:
            self._change_speed(simulation, index, fault.speed, begins=bool(begins))
        elif begins:
            self._fail(simulation, index)
        else:
            self._repair(simulation, index)
        self._schedule(simulation)

    def _tell(self, node: str, simulation: Simulation) -> None:
        """Have it known that a node will fail, if it will, and the node be left in time."""
        state, engine = simulation.state, simulation.engine
        index, now_s = state.node_index[node], engine.now_s
        known = [each for each in self._told if each.node == node]
        known = [each for each in known if each.at_s - each.notice_s <= now_s < each.at_s]
        leaves_s = min((each.at_s for each in known), default=None)
        if _is_over(simulation) or not state.nodes[index].alive or leaves_s is None:
            return
        if leaves_s != state.leaves_s.get(index):
            state.apply(NodeDeadlineChanged(now_s, node, leaves_s))
        self._close(simulation)
        for at_s in closing_times(leaves_s, simulation.policy.turn_s):
            if at_s > now_s:
                engine.at(at_s, FAULT, self._close)

    def _close(self, simulation: Simulation) -> None:
        """Cordon or drain the nodes for which it is time."""
        state = simulation.state
        for event in closings_due(state, simulation.engine.now_s, simulation.policy.turn_s):
            state.apply(event)

    def _count_idle(self, state: ClusterState) -> None:
        """Raise SimulationError if faults keep all jobs from running for ever."""
        waiting = [*state.active, *state.background]
        if not waiting or any(state.held[row] is not None for row in waiting):
            self._idle = 0
            return
        self._idle += 1
        if self._idle > MOST_IDLE:
            spec = state.spec[min(waiting)]
            raise SimulationError(
                f"{MOST_IDLE:,} faults happened while jobs waited and none ran; the first of them "
                f"is job {spec.job_id} ({spec.num_gpus} GPUs); make faults rarer, repairs faster, "
                "or the cluster larger"
            )

    def _fail(self, simulation: Simulation, index: int) -> None:
        state = simulation.state
        self._outages[index] += 1
        if self._outages[index] > 1:
            return
        name = state.nodes[index].name
        for row in _rows(simulation):
            places = (state.held[row], state.home[row])
            if any(place is not None and index in place.nodes() for place in places):
                self._lose_attempt(simulation, row, f"node {name} failed")
        state.apply(NodeLost(simulation.engine.now_s, name))

    def _repair(self, simulation: Simulation, index: int) -> None:
        self._outages[index] -= 1
        if self._outages[index]:
            return
        node = simulation.state.nodes[index]
        simulation.state.apply(joined(simulation.engine.now_s, node))
        self._tell(node.name, simulation)

    def _crash(self, simulation: Simulation, index: int, gpu: int) -> None:
        name = simulation.state.nodes[index].name
        for row in _rows(simulation):
            held = simulation.state.held[row]
            if held is not None and any(n == index and mask >> gpu & 1 for n, mask in held.parts):
                self._lose_attempt(simulation, row, f"a worker crashed on GPU {gpu} of {name}")

    def _change_speed(
        self, simulation: Simulation, index: int, speed: float, *, begins: bool
    ) -> None:
        spells = self._slowed.spells.setdefault(index, [])
        if begins:
            spells.append(speed)
        else:
            spells.remove(speed)
            if not spells:
                del self._slowed.spells[index]
        state = simulation.state
        for row in _rows(simulation):
            held = state.held[row]
            if held is not None and state.state[row] == JobState.RUNNING and index in held.nodes():
                simulation.machine.adapt_speed(row)

    def _lose_attempt(self, simulation: Simulation, row: int, error: str) -> None:
        state, now_s = simulation.state, simulation.engine.now_s
        if isinstance(state.outstanding[row], Suspend):
            # It makes no progress since the command left: it is lost as a suspended job is.
            state.apply(JobSuspended(now_s, row, state.changed_s[row]))
        work_s = state.work(row, now_s)
        kept_s = checkpointed_s(work_s, self._checkpoint_s)
        lost_s = max(0.0, work_s - kept_s)
        held = state.held[row]
        state.apply(AttemptLost(now_s, row, state.attempt[row], error, lost_s))
        if held is not None:
            simulation.machine.neighbours_changed(held)
        kept_before_s, losses = self._in_vain.get(row, (kept_s, 0))
        losses = losses + 1 if kept_before_s == kept_s else 1
        self._in_vain[row] = (kept_s, losses)
        if losses > MOST_IN_VAIN:
            raise SimulationError(
                f"job {state.spec[row].job_id} has lost {losses} attempts since its last "
                f"checkpoint, at {kept_s:g} of its {state.duration_s[row]:g} s of work; make "
                "faults rarer, or checkpoints more frequent"
            )


def checkpointed_s(work_s: float, checkpoint_s: float | None) -> float:
    """Work that the last checkpoint holds, if one is taken every ``checkpoint_s`` of work."""
    if checkpoint_s is None:
        return 0.0
    return floor(work_s / checkpoint_s + ROUNDING) * checkpoint_s


def _is_over(simulation: Simulation) -> bool:
    """True if all jobs have ended, and no others will come."""
    state = simulation.state
    return simulation.all_arrived and not state.open_rows() and not state.unsettled


def _rows(simulation: Simulation) -> list[int]:
    """The rows that may have processes, or state on a node."""
    state = simulation.state
    return sorted({*state.open_rows(), *state.unsettled, *state.held_back})


def _check_script(script: tuple[Fault, ...], gpus: dict[str, int]) -> None:
    """Raise InputError if a fault names a node or a GPU that the cluster does not have."""
    names = list(gpus)
    there = f"has the nodes {names[0]} to {names[-1]}" if names else "has no nodes"
    for fault in script:
        place = f"faults: at {fault.at_s:g} s, {fault.what}"
        if fault.node not in gpus:
            raise InputError(
                f"{place}: node is {fault.node!r}; the cluster {there}; name one of them"
            )
        if fault.what == What.CRASH and not 0 <= fault.gpu < gpus[fault.node]:
            raise InputError(
                f"{place}: gpu is {fault.gpu}; {fault.node} has the GPUs "
                f"0 to {gpus[fault.node] - 1}; name one of them"
            )
