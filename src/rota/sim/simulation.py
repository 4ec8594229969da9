"""Run a trace under a policy on a simulated cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import heappop
from math import ceil, inf
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from rota.errors import NeverFitsError, SimulationError
from rota.model.cluster import Node
from rota.model.decide.decision import Decider
from rota.model.decide.diff import diff
from rota.model.events import JobFinished, JobSubmitted, joined, new
from rota.model.job import JobSpec, JobState
from rota.model.reason import SENTENCES, Reason
from rota.model.state.state import ClusterState
from rota.policy.base import Policy, checked
from rota.predict.interference import Interference
from rota.sim.engine import CONFIRM, FAULT, FILL, FINISH, PHASE, Engine
from rota.sim.machine import Costs, CpuModel, Machine, SpeedModel
from rota.sim.switching import switch
from rota.workload.trace import Trace

if TYPE_CHECKING:
    from rota.sim.cores import NoisyCoreTimes
    from rota.sim.fills import GapModel

SUCCEEDED, RUNNING = JobState.SUCCEEDED, int(JobState.RUNNING)


MOST_IN_VAIN = 10_000  # wake-ups of a policy that starts nobody, before it is given up


class Result(NamedTuple):
    """The final state (one row per job), and the number of decisions."""

    state: ClusterState
    decisions: int


class Faults(Protocol):
    """Faults during a simulation."""

    def attach(self, simulation: Simulation) -> None:
        """Put the first faults on the engine: entries of kind FAULT, called with the simulation."""
        ...


class Cloud(Protocol):
    """Source of a simulated cluster's nodes, to which they are given back."""

    def attach(self, simulation: Simulation, nodes: list[Node]) -> list[Node]:
        """Begin to follow the simulation; which of these nodes are there from the start."""
        ...

    def follow(self, simulation: Simulation) -> None:
        """Do as the policy wishes after a step of the simulation."""
        ...


class Simulation:
    """The driver of the simulated world: jumps from event to event, and asks the policy.

    One decision per instant, after all that happens at that instant: finishes, confirmations,
    arrivals. A confirmation alone causes no decision. With ``interval_s`` decisions are taken at
    its multiples alone, and what calls for one waits until then.
    """

    def __init__(
        self,
        trace: Trace,
        nodes: Iterable[Node],
        policy: Policy,
        costs: Costs | Callable[[JobSpec], Costs] | None = None,
        *,
        speeds: SpeedModel | None = None,
        faults: Faults | None = None,
        interference: Interference | None = None,
        interval_s: float | None = None,
        cloud: Cloud | None = None,
        curves: Mapping[str, Sequence[float]] | None = None,
        cpus: CpuModel | None = None,
        gaps: GapModel | None = None,
    ) -> None:
        self.policy = checked(policy)
        self.cloud = cloud
        self._core_times: NoisyCoreTimes | None = None
        self.interval_s = interval_s
        self.engine = Engine()
        self.state = ClusterState(keep_stories=False)
        costs = Costs() if costs is None else costs
        self.machine = Machine(self.engine, self.state, costs, speeds, interference, cpus, gaps)
        if policy.needs_duration or hasattr(speeds, "phase"):
            from rota.sim.truth import attach  # here: most simulations need none of it

            attach(self.state, self.machine)
        if cpus is not None and policy.cpus is not None and policy.cpus.learns:
            from rota.sim import cores  # likewise

            self._core_times = self.state.cores = cores.NoisyCoreTimes(self.state, self.machine)
            self.machine.reporters.append(self._core_times)
        if curves is not None:
            from rota.sim.curves import RecordedCurves  # likewise

            self.state.curves = RecordedCurves(self.state, curves)
        self.decisions = 0
        self._decider = Decider(self.state, policy)
        nodes = list(nodes)
        most_gpus = sum(node.num_gpus for node in nodes)
        largest = max((node.num_gpus for node in nodes), default=0)
        for node in nodes if cloud is None else cloud.attach(self, nodes):
            self.state.apply(joined(0.0, node._replace(kind="gpu")))
        for spec in trace:
            if spec.num_gpus > most_gpus:
                raise NeverFitsError(
                    f"job {spec.job_id} of {trace.name} asks for {spec.num_gpus} GPUs and the "
                    f"cluster has {most_gpus}; give a larger --cluster or drop the job"
                )
            if spec.is_background and spec.num_gpus > largest:
                raise NeverFitsError(
                    f"background job {spec.job_id} of {trace.name} asks for {spec.num_gpus} GPUs "
                    f"of one node and the largest node has {largest}; give larger nodes or drop "
                    "the job"
                )
        self.all_arrived = False
        self._is_alone = False  # nobody looks at the state, or changes it, between two steps
        self._woken_in_vain = 0
        self._decided_s = -inf
        self._arrivals = iter(trace.jobs)
        self._arriving: JobSpec | None = None
        self._expect_next()
        if faults is not None:
            faults.attach(self)

    def run(self) -> Result:
        """Simulate until every job has ended. Raises SimulationError if one never does."""
        self._is_alone = self.interval_s is None and self.cloud is None
        while self.step():
            pass
        left = [row for row in range(len(self.state.spec)) if self.state.finish_s[row] < 0]
        if left:
            spec, reason = self.state.spec[left[0]], Reason(self.state.reason[left[0]])
            raise SimulationError(
                f"nothing more happens, and {len(left)} jobs have not finished; the first is job "
                f"{spec.job_id} ({spec.num_gpus} GPUs): {reason.name}, {SENTENCES[reason]}"
            )
        return Result(self.state, self.decisions)

    def step(self) -> bool:
        """Go to the next instant at which something happens. False if there is none."""
        engine, state, interval_s = self.engine, self.state, self.interval_s
        heap, wake_at_s = engine.heap, state.wake_at_s
        if interval_s is not None:
            wake_at_s = self._next_tick_s(interval_s)
        if state.decision_needed and interval_s is None and self._has_jobs():
            now_s = engine.now_s  # a fault or a request came from outside since the last step
        else:
            now_s = heap[0][0] if heap else inf
            if engine.arrival_s < now_s:
                now_s = engine.arrival_s
            if (
                wake_at_s is not None
                and wake_at_s < now_s
                and (state.active or state.background or self._keeps_nodes())
            ):
                if now_s == inf and not any(state.held):
                    self._wake_in_vain()
                engine.now_s = now_s = wake_at_s
            elif now_s < inf:
                engine.now_s = now_s
                while heap and heap[0][0] == now_s:
                    _, kind, _, what = heappop(heap)
                    self._deliver(now_s, kind, what)
                while engine.arrival_s == now_s:
                    state.apply(new(JobSubmitted, (now_s, self._arriving)))
                    self._expect_next()
            else:
                return False
        while state.unmeetable:
            row, why = next(iter(state.unmeetable.items()))
            state.apply(JobFinished(now_s, row, JobState.CANCELLED, None, why))
        due = state.decision_needed
        if interval_s is not None:
            due, wake_at_s = False, self._next_tick_s(interval_s)
        if due or (wake_at_s is not None and wake_at_s <= now_s):
            self._decided_s = now_s
            if self._core_times is not None:
                self._core_times.catch_up(now_s)
            if self._decider.policy is not self.policy:
                self._decider = Decider(state, self.policy)
            self._decider.decide(now_s)
            self.decisions += 1
        if self._is_alone and state.unsettled and switch(state, self.machine, engine):
            return True
        while (state.unsettled or state.closed) and (commands := diff(state)):
            for command in commands:
                self.machine.execute(command)
        if self.cloud is not None:
            self.cloud.follow(self)
        return True

    def _has_jobs(self) -> bool:
        """True if there is a job that has not ended."""
        return bool(self.state.active or self.state.background or self.state.unsettled)

    def _keeps_nodes(self) -> bool:
        """True if nodes may be given back although there is no job."""
        return self.cloud is not None and not self.all_arrived

    def _next_tick_s(self, interval_s: float) -> float | None:
        """The next multiple of the interval at which there is something to decide; or None."""
        state = self.state
        at_s = self.engine.now_s if state.decision_needed else state.wake_at_s
        if at_s is None or not (self._has_jobs() or self._keeps_nodes()):
            return None
        tick_s = max(at_s, ceil(at_s / interval_s) * interval_s)
        return tick_s if tick_s > self._decided_s else self._decided_s + interval_s

    def _wake_in_vain(self) -> None:
        """Nobody runs and nobody will come: only the policy can make anything happen."""
        self._woken_in_vain += 1
        if self._woken_in_vain > MOST_IN_VAIN:
            raise SimulationError(
                f"policy {type(self.policy).__name__} was woken {MOST_IN_VAIN} times and "
                f"started none of the {len(self.state.active)} jobs that wait, while no job runs"
            )

    def _deliver(self, now_s: float, kind: int, what: Any) -> None:
        if kind == FINISH:
            # Once more, for something may have moved the job's end since this was put on the heap.
            if self.state.state[what] == RUNNING and self.machine.finish_s(what) == now_s:
                held = self.state.held[what]
                self.state.apply(new(JobFinished, (now_s, what, SUCCEEDED, None, "")))
                if held is not None:
                    self.machine.neighbours_changed(held)
        elif kind == CONFIRM:
            if self.machine.is_awaited(what):
                self.machine.confirm(what.event)
        elif kind == FAULT:
            what(self)
        elif kind == PHASE:
            self.machine.phase_ends(*what)
        elif kind == FILL:
            self.machine.fills.measured(*what)

    def _expect_next(self) -> None:
        self._arriving = spec = next(self._arrivals, None)
        if spec is None:
            self.all_arrived = True
            self.engine.arrival_s = inf
        else:
            self.engine.arrival_s = spec.submit_s


def simulate(
    trace: Trace,
    nodes: Iterable[Node],
    policy: Any,
    costs: Costs | None = None,
    *,
    speeds: SpeedModel | None = None,
    faults: Faults | None = None,
    interference: Interference | None = None,
    interval_s: float | None = None,
    cloud: Cloud | None = None,
    curves: Mapping[str, Sequence[float]] | None = None,
    cpus: CpuModel | None = None,
    gaps: GapModel | None = None,
) -> Result:
    """Run ``trace`` on ``nodes`` under ``policy``; see :class:`Simulation`."""
    more: Any = {"speeds": speeds, "faults": faults, "interference": interference}
    more |= {"interval_s": interval_s, "cloud": cloud, "curves": curves, "cpus": cpus}
    more["gaps"] = gaps
    return Simulation(trace, nodes, policy, costs, **more).run()
