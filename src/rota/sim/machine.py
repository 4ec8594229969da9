"""The simulated world: carries out commands in virtual time, with their delays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from rota.model.allocation import Allocation
from rota.model.cluster import Node
from rota.model.commands import (
    Command,
    Launch,
    Migrate,
    Park,
    Resize,
    Resume,
    Retune,
    SetCpus,
    Stop,
    Suspend,
)
from rota.model.events import (
    CommandSent,
    CpusSet,
    Event,
    JobFinished,
    JobLaunched,
    JobParked,
    JobResized,
    JobResumed,
    JobRetuned,
    JobSuspended,
    SpeedChanged,
    new,
)
from rota.model.job import JobSpec
from rota.model.state.state import ClusterState
from rota.policy.base import to_instant
from rota.predict.interference import Interference, Load
from rota.sim.engine import CONFIRM, FINISH, PHASE, Engine

if TYPE_CHECKING:
    from rota.sim.fills import Fills, GapModel

LEAST_EXPECTED = 256  # entries of the engine's heap before those of no use any more are dropped
# After these a job runs.
RUNS = frozenset((JobLaunched, JobResumed, JobResized, JobRetuned, CpusSet))


class Costs(NamedTuple):
    """Seconds for which a command keeps the GPUs of a job busy without progress.

    The defaults are measured on a live one-node cluster (docs/reference/simulator.md tells how);
    the time of a migration between nodes is Gandiva's for a warmed destination (1-2 s, OSDI 2018).
    A job continues while it is resized, except for the pause.
    """

    suspend_s: float = 0.0015
    resume_s: float = 0.007
    migrate_s: float = 1.5
    cold_start_s: float = 0.04
    resize_s: float = 0.35
    resize_pause_s: float = 0.08


FREE = Costs(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)


def restarts(seconds: float) -> Costs:
    """A job that gets new GPUs holds them so long without progress; nothing else costs."""
    return FREE._replace(cold_start_s=seconds, resume_s=seconds, resize_pause_s=seconds)


class Phase(NamedTuple):
    """A job's speed, and the work after which it changes."""

    speed: float
    until_s: float


class SpeedModel(Protocol):
    """True speeds of jobs, by where they are placed."""

    def speed(self, spec: JobSpec, allocation: Allocation, nodes: list[Node]) -> float:
        """The job's speed on these GPUs, relative to the one that its duration is for."""
        ...


class PhasedSpeedModel(SpeedModel, Protocol):
    """A speed model in which the speed also changes as a job proceeds."""

    def phase(
        self, spec: JobSpec, allocation: Allocation, nodes: list[Node], work_s: float
    ) -> Phase:
        """The job's speed after ``work_s`` of work at speed 1, and the work until it changes."""
        ...


class CpuModel(Protocol):
    """Speeds of jobs by the CPU cores that they may use, relative to those of their placement.

    ``noise`` is that of the step times that jobs tell, as a part of them, drawn by ``seed``.
    """

    noise: float
    seed: int

    def factor(
        self,
        spec: JobSpec,
        allocation: Allocation,
        nodes: list[Node],
        millicores: int,
        work_s: float,
    ) -> float:
        """The part of its speed on these GPUs that the job has with so many cores, above 0.

        ``millicores`` are thousandths of a core, of the whole job; ``work_s`` is the work that it
        has done, at speed 1: where a job's need of cores changes as it proceeds, the speed model is
        a :class:`PhasedSpeedModel`, whose phases tell when.
        """
        ...

    def phase(self, spec: JobSpec, work_s: float) -> str:
        """The phase that the job is in after so much work: ``train`` or ``evaluate``."""
        ...


class Reporter(Protocol):
    """Listener that is told when a job begins to run somewhere, to report measurements."""

    def runs(self, row: int) -> None:
        """Note that the job runs on what it holds, and in the phase in which it is, from now on."""
        ...


class Confirmation(NamedTuple):
    """The event that confirms ``command``; void if the job lost its attempt in the meantime."""

    command: Command
    event: Event


class Machine:
    """Knows true durations; answers commands with events, at once or through the heap."""

    def __init__(
        self,
        engine: Engine,
        state: ClusterState,
        costs: Costs | Callable[[JobSpec], Costs],
        speeds: SpeedModel | None = None,
        interference: Interference | None = None,
        cpus: CpuModel | None = None,
        gaps: GapModel | None = None,
    ) -> None:
        self._engine = engine
        self._state = state
        self._costs_of = costs if callable(costs) else lambda spec: costs
        self.speeds = speeds
        self.cpus = cpus  # None: cores make no job faster or slower
        self._gaps = gaps  # None: those of Gaps
        self._fills: Fills | None = None  # made when the first background job is there
        self._interference = interference or Interference()
        self.unsteady = False  # True if a job's speed may change while it starts
        self.reporters: list[Reporter] = []
        self._most_expected = LEAST_EXPECTED
        self._until_s: dict[int, float] = {}  # row -> work at which its speed changes by itself

    @property
    def is_steady(self) -> bool:
        """True if jobs that share no GPU run at one speed, and nobody is to know when they do."""
        told = self.reporters or hasattr(self.speeds, "phase")
        return not (told or self.unsteady or self._interference.links)

    @property
    def fills(self) -> Fills:
        """The background jobs' neighbours and speeds."""
        if self._fills is None:
            from rota.sim.fills import Fills, Gaps  # here: most simulations have none

            self._fills = Fills(self._engine, self._state, self._gaps or Gaps())
        return self._fills

    def execute(self, command: Command) -> None:
        """Carry out a command; one that takes no time is confirmed at once."""
        now_s = self._engine.now_s
        self._state.apply(new(CommandSent, (now_s, command)))
        delay_s, event = CARRIED_OUT[type(command)](self, command, now_s)
        if delay_s:
            self._engine.at(now_s + delay_s, CONFIRM, Confirmation(command, event))
        else:
            self.confirm(event)

    def costs(self, row: int) -> Costs:
        """The costs of commands for this job."""
        return self._costs_of(self._state.spec[row])

    def _launch(self, command: Launch, now_s: float) -> tuple[float, Event]:
        row = command.row
        delay_s = self.costs(row).cold_start_s
        speed = self.speed(row, command.allocation)
        return delay_s, new(JobLaunched, (now_s + delay_s, row, command.attempt, speed))

    def _suspend(self, command: Suspend, now_s: float) -> tuple[float, Event]:
        delay_s = self.costs(command.row).suspend_s
        return delay_s, new(JobSuspended, (now_s + delay_s, command.row, now_s, None, None))

    def _resume(self, command: Resume | Migrate, now_s: float) -> tuple[float, Event]:
        row = command.row
        costs = self.costs(row)
        delay_s = costs.resume_s + (costs.migrate_s if type(command) is Migrate else 0.0)
        return delay_s, new(JobResumed, (now_s + delay_s, row, self.speed(row, command.allocation)))

    def _park(self, command: Park, now_s: float) -> tuple[float, Event]:
        delay_s = self.costs(command.row).migrate_s
        return delay_s, JobParked(now_s + delay_s, command.row)

    def _resize(self, command: Resize, now_s: float) -> tuple[float, Event]:
        row, allocation = command.row, command.allocation
        costs, speed = self.costs(row), self.speed(row, allocation)
        at_s = now_s + costs.resize_s
        return costs.resize_s, JobResized(at_s, row, allocation, speed, costs.resize_pause_s)

    def _retune(self, command: Retune, now_s: float) -> tuple[float, Event]:
        row, held = command.row, self._state.held[command.row]
        assert held is not None
        speed = self.speed(row, held.with_batch(command.batch))
        return 0.0, JobRetuned(now_s, row, command.batch, speed)

    def _set_cpus(self, command: SetCpus, now_s: float) -> tuple[float, Event]:
        row, held = command.row, self._state.held[command.row]
        assert held is not None
        speed = self._speed_with(row, held, command.millicores)
        return 0.0, CpusSet(now_s, row, command.millicores, speed)

    def _stop(self, command: Stop, now_s: float) -> tuple[float, Event]:
        return 0.0, JobFinished(now_s, command.row, self._state.stop_outcome[command.row])

    def confirm(self, event: Event) -> None:
        """Apply a command's confirmation; a job that runs now will finish some time."""
        kind, row = type(event), event.row  # type: ignore[union-attr]
        before = self._state.held[row]
        self._state.apply(event)
        if kind in RUNS:
            if self._state.has_background_jobs and kind in (JobLaunched, JobResumed):
                self.fills.begins(row)
            self.job_runs(row)
            held = self._state.held[row]
            if held is not None:
                self.neighbours_changed(held)
            if before is not None and before is not held:
                self.neighbours_changed(before)
        elif before is not None:
            self.neighbours_changed(before)

    def job_runs(self, row: int) -> None:
        """A job has begun to run: schedule the completion of its work."""
        held = self._state.held[row]
        for each in self.reporters:
            each.runs(row)
        unsteady = self.unsteady or (held is not None and self._has_neighbours(held))
        if self._state.has_background_jobs:
            self.fills.runs(row)
            unsteady = True
        if not (unsteady and self.adapt_speed(row)):
            if self._until_s:
                self._expect_change(row)
            else:
                self._expect_end(row, self.finish_s(row))

    def _expect_change(self, row: int) -> None:
        """Put the job's end on the heap, or the end of its phase if that comes first."""
        state, end_s = self._state, self.finish_s(row)
        since_s, until_s = state.since_s[row], self._until_s.get(row, inf)
        change_s = since_s + (until_s - state.work(row, since_s)) / state.speed[row]
        if change_s < end_s:
            self._engine.at(change_s, PHASE, (row, since_s))
        else:
            self._expect_end(row, end_s)

    def _expect_end(self, row: int, end_s: float) -> None:
        """Put the job's end on the heap, and from time to time drop ends that have moved.

        Where jobs take turns, each turn moves the ends of all that were suspended.
        """
        engine, since_s = self._engine, self._state.since_s
        if len(engine.heap) > self._most_expected:
            engine.keep(
                lambda at_s, kind, what: (
                    kind != FINISH or (since_s[what] >= 0 and self.finish_s(what) == at_s)
                )
            )
            self._most_expected = 2 * len(engine.heap) + LEAST_EXPECTED
        engine.at(end_s, FINISH, row)

    def phase_ends(self, row: int, since_s: float) -> None:
        """Continue a job at the speed of its next phase, if it has run since then."""
        if self._state.since_s[row] == since_s and not self.adapt_speed(row, by_itself=True):
            for each in self.reporters:
                each.runs(row)
            self._expect_change(row)

    def adapt_speed(self, row: int, by_itself: bool = False) -> bool:
        """Set a running job to the speed of its GPUs. True if that is a change."""
        state = self._state
        held = state.held[row]
        assert held is not None
        speed = self.speed(row, held)
        if speed == state.speed[row]:
            return False
        state.apply(SpeedChanged(self._engine.now_s, row, speed, by_itself))
        self.job_runs(row)
        return True

    def neighbours_changed(self, allocation: Allocation) -> None:
        """Set all jobs that share these GPUs, or links, to the speeds they have together."""
        if self._state.has_background_jobs:
            for row in self.fills.across(allocation):
                self.adapt_speed(row, by_itself=True)
            self.fills.look(allocation)
        if not (allocation.shared or len(allocation.parts) > 1):
            return  # the usual case, made fast
        if not self._has_neighbours(allocation):
            return
        for row in sorted({*self._running_on(allocation), *self._beside(allocation)}):
            self.adapt_speed(row)

    def _has_neighbours(self, allocation: Allocation) -> bool:
        """True if other jobs there may slow each other down."""
        return allocation.shared or (len(allocation.parts) > 1 and self._interference.links > 0)

    def _running_on(self, allocation: Allocation) -> list[int]:
        """Running jobs that have GPUs of ``allocation``."""
        return [row for row, held in self._running() if held.overlaps(allocation)]

    def _beside(self, allocation: Allocation) -> list[int]:
        """Running jobs that exchange gradients over the links of the allocation's nodes."""
        if len(allocation.parts) == 1 or not self._interference.links:
            return []
        nodes = set(allocation.nodes())
        return [
            row
            for row, held in self._running()
            if len(held.parts) > 1 and not nodes.isdisjoint(held.nodes())
        ]

    def _running(self) -> Iterator[tuple[int, Allocation]]:
        state = self._state
        for row in chain(state.active, state.staying):
            held = state.held[row]
            if state.since_s[row] >= 0 and held is not None:
                yield row, held

    def finish_s(self, row: int) -> float:
        """Time at which a running job's work is complete, if nothing changes before.

        Without the noise of sums (:func:`rota.policy.base.to_instant`): otherwise a job that
        arrives at that time could preempt it with the last bit of its work left.
        """
        state = self._state
        left_s = state.duration_s[row] - state.service_s[row] + state.lag_s[row]
        if left_s < 0.0:
            left_s = 0.0
        speed = state.speed[row]
        at_s = state.since_s[row] + (left_s if speed == 1.0 else left_s / speed)
        return max(to_instant(at_s), state.since_s[row]) if at_s % 1.0 else at_s

    def speed(self, row: int, allocation: Allocation) -> float:
        """The job's present speed on these GPUs, with the CPU cores that it holds."""
        return self._speed_with(row, allocation, self._state.held_cpus.get(row))

    def _speed_with(self, row: int, allocation: Allocation, millicores: int | None) -> float:
        spec = self._state.spec[row]
        speed = 1.0
        if self.speeds is not None:
            speed = self._true_speed(row, spec, allocation)
        by_cores = 1.0
        if millicores is not None and self.cpus is not None:
            work_s = self._state.work(row, self._engine.now_s)
            by_cores = self.cpus.factor(spec, allocation, self._state.nodes, millicores, work_s)
        if self._state.has_background_jobs:
            speed *= self.fills.factor(row, allocation)
        if not self._has_neighbours(allocation):
            return speed * by_cores
        if allocation.shared:
            others = [other for other in self._running_on(allocation) if other != row]
            if others:
                beside = self._interference.speed(self._load(row), [*map(self._load, others)])
                # Cores prepare a step while the GPU computes one: the slower of both counts. A pair
                # may have been measured as faster than alone, which enough cores do not take away.
                by_cores = beside if by_cores >= 1.0 else min(by_cores, beside)
        speed *= by_cores
        if any(other != row for other in self._beside(allocation)):
            speed *= 1.0 - self._interference.links
        return speed

    def _true_speed(self, row: int, spec: JobSpec, allocation: Allocation) -> float:
        speeds, nodes = self.speeds, self._state.nodes
        assert speeds is not None
        phase = getattr(speeds, "phase", None)
        if phase is None:
            return speeds.speed(spec, allocation, nodes)
        work_s = self._state.work(row, self._engine.now_s)
        speed, self._until_s[row] = phase(spec, allocation, nodes, work_s)
        return float(speed)

    def _load(self, row: int) -> Load:
        spec = self._state.spec[row]
        weight = None if spec.share is None else spec.share.weight
        return Load(spec.model, 1.0 if spec.gpu_util is None else spec.gpu_util, weight)

    def is_awaited(self, confirmation: Confirmation) -> bool:
        """True if the command is still on its way: its processes were not lost with a node."""
        command = confirmation.command
        return self._state.outstanding[command.row] is command


# How each kind of command is carried out: the time that it takes, and the event that confirms it.
CARRIED_OUT: dict[type, Callable[[Machine, Any, float], tuple[float, Event]]] = {
    Launch: Machine._launch,
    Suspend: Machine._suspend,
    Resume: Machine._resume,
    Migrate: Machine._resume,
    Park: Machine._park,
    Resize: Machine._resize,
    Retune: Machine._retune,
    SetCpus: Machine._set_cpus,
    Stop: Machine._stop,
}
