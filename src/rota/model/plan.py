"""What a policy wants, and the commands that bring it about."""

from typing import TYPE_CHECKING, Any, NamedTuple

from rota.model.allocation import Allocation
from rota.model.commands import Command, Launch, Migrate, Resume, Stop, Suspend, may_follow
from rota.model.events import new
from rota.model.job import JobState

if TYPE_CHECKING:
    from rota.model.state import ClusterState

STOPPING = int(JobState.STOPPING)


class Plan(NamedTuple):
    """A target for every job, written as changes against the plan before.

    ``allocations`` maps rows to the GPUs they should hold from now on (None: none), ``reasons``
    rows to the code that says why they hold none, ``marks`` rows to what the policy wants to
    remember. The policy is asked again at ``wake_at_s`` at the latest.
    """

    allocations: dict[int, Allocation | None]
    reasons: dict[int, int]
    marks: dict[int, Any]
    policy_mark: Any = None
    wake_at_s: float | None = None


def diff(state: "ClusterState") -> list[Command]:
    """The commands that can be sent now to bring what jobs hold closer to the last plan's target.

    Only jobs without a command on its way get one; but a stop overtakes a suspension. GPUs are
    promised to a job when no other holds them any more: commands that have to wait for a release
    come out of a later call. Suspensions and stops come first, each group in row order.
    """
    if not state.unsettled:
        return []
    commands: list[Command] = []
    starting: list[tuple[int, Allocation]] = []
    first_id, epoch, backoff = state.next_command_id, state.epoch, state.backoff
    for row in sorted(state.unsettled):
        outstanding = state.outstanding[row]
        if state.state[row] == STOPPING:
            stop = Stop(first_id + len(commands), row, state.attempt[row], epoch)
            if may_follow(outstanding, stop) and row not in backoff:
                commands.append(stop)
        elif outstanding is None and row not in backoff:
            target, held = state.target[row], state.held[row]
            if held is None:
                if target is not None:
                    starting.append((row, target))
            elif held is not target and held != target:
                fields = (first_id + len(commands), row, state.attempt[row], epoch)
                commands.append(new(Suspend, fields))
    promised: dict[int, int] = {}
    idle = state.idle
    for row, target in starting:
        if not idle.fits(target) or (
            promised and any(mask & promised.get(n, 0) for n, mask in target.parts)
        ):
            continue
        for n, mask in target.parts:
            promised[n] = promised.get(n, 0) | mask
        commands.append(_start(state, row, target, first_id + len(commands)))
    return commands


def _start(state: "ClusterState", row: int, target: Allocation, command_id: int) -> Command:
    home = state.home[row]
    if home is None:
        return new(Launch, (command_id, row, state.attempt[row] + 1, state.epoch, target))
    fields = (command_id, row, state.attempt[row], state.epoch, target)
    if home is target or home.nodes() == target.nodes():
        return new(Resume, fields)
    return new(Migrate, fields)
