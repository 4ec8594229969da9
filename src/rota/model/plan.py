"""What a policy wants, and the commands that bring it about."""

from typing import TYPE_CHECKING, Any, NamedTuple

from rota.model.allocation import Allocation
from rota.model.commands import Command, Launch, Migrate, Resume, Stop, Suspend
from rota.model.job import JobState

if TYPE_CHECKING:
    from rota.model.state import ClusterState


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


NO_CHANGE = Plan({}, {}, {})


def diff(state: "ClusterState", plan: Plan = NO_CHANGE) -> list[Command]:
    """The commands that can be sent now to bring what jobs hold closer to what they should.

    Only jobs without a command on its way get one. GPUs are promised to a job when no other holds
    them any more: commands that have to wait for a release come out of a later call. Suspensions
    and stops come first, each group in row order.
    """
    rows = sorted(state.unsettled.keys() | plan.allocations.keys())
    freeing: list[Command] = []
    starting: list[tuple[int, Allocation]] = []
    next_id, epoch = state.next_command_id, state.epoch
    for row in rows:
        if state.outstanding[row] is not None:
            continue
        attempt = state.attempt[row]
        if state.state[row] == JobState.STOPPING:
            freeing.append(Stop(next_id + len(freeing), row, attempt, epoch))
            continue
        target = plan.allocations.get(row, state.target[row])
        held = state.held[row]
        if held is not None and held != target:
            freeing.append(Suspend(next_id + len(freeing), row, attempt, epoch))
        elif held is None and target is not None:
            starting.append((row, target))
    next_id += len(freeing)
    promised: dict[int, int] = {}
    commands = freeing
    for row, target in starting:
        idle = state.idle.masks
        if any(mask & ~idle[n] or mask & promised.get(n, 0) for n, mask in target.parts):
            continue
        for n, mask in target.parts:
            promised[n] = promised.get(n, 0) | mask
        commands.append(_start(state, row, target, next_id))
        next_id += 1
    return commands


def _start(state: "ClusterState", row: int, target: Allocation, command_id: int) -> Command:
    home = state.home[row]
    if home is None:
        return Launch(command_id, row, state.attempt[row] + 1, state.epoch, target)
    kind = Resume if home.nodes() == target.nodes() else Migrate
    return kind(command_id, row, state.attempt[row], state.epoch, target)
