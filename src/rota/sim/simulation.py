"""Run a trace under a policy on a simulated cluster."""

from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

from rota.errors import NeverFitsError, SimulationError
from rota.model.cluster import Node
from rota.model.commands import Command
from rota.model.decision import take_decision
from rota.model.events import (
    CommandSent,
    JobFinished,
    JobLaunched,
    JobResumed,
    JobSubmitted,
    NodeJoined,
)
from rota.model.job import JobState
from rota.model.plan import diff
from rota.model.reason import SENTENCES, Reason
from rota.model.state import ClusterState
from rota.sim.engine import ARRIVE, CONFIRM, FAULT, FINISH, Engine
from rota.sim.machine import Costs, Machine, SpeedModel
from rota.workload.trace import Trace


class Result(NamedTuple):
    """What came out: the final state (one row per job), and how many decisions it took."""

    state: ClusterState
    decisions: int


class Faults(Protocol):
    """What goes wrong during a simulation."""

    def attach(self, simulation: "Simulation") -> None:
        """Put the first faults on the engine: entries of kind FAULT, called with the simulation."""
        ...


class Simulation:
    """The driver of the simulated world: jumps from event to event, and asks the policy.

    One decision per instant, after all that happens at that instant: finishes, confirmations,
    arrivals. A confirmation alone causes no decision.
    """

    def __init__(
        self,
        trace: Trace,
        nodes: Iterable[Node],
        policy: Any,
        costs: Costs | None = None,
        *,
        speeds: SpeedModel | None = None,
        faults: Faults | None = None,
    ) -> None:
        self.policy = policy
        self.engine = Engine()
        self.state = ClusterState(keep_stories=False)
        costs = Costs() if costs is None else costs
        self.machine = Machine(self.engine, self.state, costs, speeds)
        self.decisions = 0
        for node in nodes:
            self.state.apply(
                NodeJoined(
                    0.0, node.name, node.num_gpus, "gpu", node.gpu_type, node.rack, node.island
                )
            )
        for spec in trace:
            if spec.num_gpus > self.state.total_gpus:
                raise NeverFitsError(
                    f"job {spec.job_id} of {trace.name} asks for {spec.num_gpus} GPUs and the "
                    f"cluster has {self.state.total_gpus}; give a larger --cluster or drop the job"
                )
        self._arrivals = iter(trace.jobs)
        self._schedule_arrival()
        if faults is not None:
            faults.attach(self)

    def run(self) -> Result:
        """Simulate until every job has ended. Raises SimulationError if one never does."""
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
        engine, state = self.engine, self.state
        due_s, wake_at_s = engine.next_time_s(), state.wake_at_s
        if state.decision_needed and (state.active or state.unsettled):
            now_s = engine.now_s  # a fault or a request came from outside since the last step
        elif due_s is None and wake_at_s is None:
            return False
        elif due_s is None or (wake_at_s is not None and wake_at_s < due_s):
            assert wake_at_s is not None
            engine.now_s = now_s = wake_at_s
        else:
            now_s = due_s
            while engine.next_time_s() == now_s:
                self._deliver(*engine.pop())
        if state.decision_needed or (wake_at_s is not None and wake_at_s <= now_s):
            take_decision(state, self.policy, now_s)
            self.decisions += 1
        while commands := diff(state):
            self._send(commands)
        return True

    def _deliver(self, kind: int, what: Any) -> None:
        if kind == FINISH:
            if self.machine.is_due(what):
                self.state.apply(JobFinished(self.engine.now_s, what.row, JobState.SUCCEEDED))
        elif kind == CONFIRM:
            if self.machine.is_awaited(what):
                self._confirm(what.event)
        elif kind == FAULT:
            what(self)
        elif kind == ARRIVE:
            self.state.apply(what)
            self._schedule_arrival()

    def _send(self, commands: list[Command]) -> None:
        now_s = self.engine.now_s
        for command in commands:
            self.state.apply(CommandSent(now_s, command))
            event = self.machine.execute(command)
            if event is not None:
                self._confirm(event)

    def _confirm(self, event: Any) -> None:
        self.state.apply(event)
        if isinstance(event, JobLaunched | JobResumed):
            self.machine.job_runs(event.row)

    def _schedule_arrival(self) -> None:
        spec = next(self._arrivals, None)
        if spec is not None:
            self.engine.at(spec.submit_s, ARRIVE, JobSubmitted(spec.submit_s, spec))


def simulate(
    trace: Trace,
    nodes: Iterable[Node],
    policy: Any,
    costs: Costs | None = None,
    *,
    speeds: SpeedModel | None = None,
    faults: Faults | None = None,
) -> Result:
    """Run ``trace`` on ``nodes`` under ``policy``; see :class:`Simulation`."""
    return Simulation(trace, nodes, policy, costs, speeds=speeds, faults=faults).run()
