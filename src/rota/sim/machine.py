"""The simulated world: carries out commands in virtual time, with the delays that they cost."""

from typing import NamedTuple, Protocol

from rota.model.allocation import Allocation
from rota.model.cluster import Node
from rota.model.commands import Command, Launch, Migrate, Resume, Suspend
from rota.model.events import Event, JobFinished, JobLaunched, JobResumed, JobSuspended
from rota.model.job import JobSpec, JobState
from rota.model.state import ClusterState
from rota.sim.engine import CONFIRM, FINISH, Engine


class Costs(NamedTuple):
    """Seconds for which a command keeps the GPUs of a job busy without progress.

    The defaults are measured on a live one-node cluster (docs/simulator.md tells how); the time of
    a migration between nodes is Gandiva's for a warmed destination (1-2 s, OSDI 2018).
    """

    suspend_s: float = 0.0015
    resume_s: float = 0.007
    migrate_s: float = 1.5
    cold_start_s: float = 0.04


FREE = Costs(0.0, 0.0, 0.0, 0.0)


class SpeedModel(Protocol):
    """How fast jobs truly run, by where they are placed."""

    def speed(self, spec: JobSpec, allocation: Allocation, nodes: list[Node]) -> float:
        """The job's speed on these GPUs, relative to the one that its duration is for."""
        ...


class Finish(NamedTuple):
    """A job is done if it still runs since ``since_s`` when this comes up."""

    row: int
    since_s: float


class Confirmation(NamedTuple):
    """What confirms ``command``; void if the job lost its attempt in the meantime."""

    command: Command
    event: Event


class Machine:
    """Knows the true durations; answers commands with events, at once or on the engine's heap."""

    def __init__(
        self, engine: Engine, state: ClusterState, costs: Costs, speeds: SpeedModel | None = None
    ) -> None:
        self._engine = engine
        self._state = state
        self._costs = costs
        self._speeds = speeds

    def execute(self, command: Command) -> Event | None:
        """Carry out a command: the confirmation if it takes no time, else None for the moment."""
        now_s, row, costs = self._engine.now_s, command.row, self._costs
        event: Event
        if isinstance(command, Suspend):
            delay_s = costs.suspend_s
            event = JobSuspended(now_s + delay_s, row, now_s)
        elif isinstance(command, Launch):
            delay_s = costs.cold_start_s
            event = JobLaunched(
                now_s + delay_s, row, command.attempt, self._speed(row, command.allocation)
            )
        elif isinstance(command, Resume | Migrate):
            moves = isinstance(command, Migrate)
            delay_s = costs.resume_s + (costs.migrate_s if moves else 0.0)
            event = JobResumed(now_s + delay_s, row, self._speed(row, command.allocation))
        else:
            delay_s = 0.0
            event = JobFinished(now_s, row, self._state.stop_outcome[row])
        if delay_s:
            self._engine.at(now_s + delay_s, CONFIRM, Confirmation(command, event))
            return None
        return event

    def job_runs(self, row: int) -> None:
        """Note that a job has begun to run: it will finish when its service is complete."""
        state = self._state
        since_s = state.since_s[row]
        left_s = max(0.0, state.duration_s[row] - state.service_s[row] + state.lag_s[row])
        if state.speed[row] != 1.0:
            left_s /= state.speed[row]
        self._engine.at(since_s + left_s, FINISH, Finish(row, since_s))

    def _speed(self, row: int, allocation: Allocation) -> float:
        if self._speeds is None:
            return 1.0
        return self._speeds.speed(self._state.spec[row], allocation, self._state.nodes)

    def is_awaited(self, confirmation: Confirmation) -> bool:
        """Whether the command is still on its way: its processes were not lost with a node."""
        command = confirmation.command
        return self._state.outstanding[command.row] is command

    def is_due(self, finish: Finish) -> bool:
        """Whether the job has run without a break since the finish was foreseen."""
        state = self._state
        return (
            state.state[finish.row] == JobState.RUNNING
            and state.since_s[finish.row] == finish.since_s
        )
