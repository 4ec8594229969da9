"""The commands that bring jobs from what they hold to what the last plan wants."""

from rota.model.allocation import Allocation
from rota.model.commands import (
    RULES,
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
    may_follow,
)
from rota.model.decide.parking import homes_wanted
from rota.model.events import new
from rota.model.job import JobState
from rota.model.state.resizing import can_resize
from rota.model.state.state import ClusterState

STOPPING = int(JobState.STOPPING)
OVERTAKEN = RULES[Suspend].overtakes


def diff(state: ClusterState) -> list[Command]:
    """The commands that can be sent now to bring jobs' GPUs closer to the last plan's target.

    Only jobs without a command on its way get one; but a stop overtakes a suspension, and a
    suspension overtakes a change of batch or of CPU cores. GPUs are promised to a job once no other
    holds them: commands that wait for a release come out of a later call. Suspensions and stops
    come first, each group in row order; states that are sent off a node which is to be left, last.
    """
    unsettled = state.unsettled
    if not (unsettled or state.closed):
        return []
    commands: list[Command] = []
    starting: list[tuple[int, Allocation]] = []
    next_id, epoch = state.next_command_id, state.epoch
    standings, outstanding, backoff = state.state, state.outstanding, state.backoff
    target_cpus, held_cpus = state.target_cpus, state.held_cpus
    for row in unsettled if len(unsettled) == 1 else sorted(unsettled):
        if row in backoff and state.pauses(row):
            continue
        sent = outstanding[row]
        if standings[row] == STOPPING:
            stop = Stop(next_id + len(commands), row, state.attempt[row], epoch)
            if may_follow(sent, stop):
                commands.append(stop)
        elif sent is None:
            target, held = state.target[row], state.held[row]
            if held is None:
                if target is not None:
                    starting.append((row, target))
            elif target is None or (held is not target and held.parts != target.parts):
                if target is not None and _must_wait(state, row, held, target):
                    continue
                if target is None or not can_resize(state, row, held, target):
                    fields = (next_id + len(commands), row, state.attempt[row], epoch)
                    commands.append(new(Suspend, fields))
                elif (more := target.without(held)) is not None:
                    starting.append((row, more))
                else:  # the job only gives GPUs up
                    commands.append(_start(state, row, target, next_id + len(commands)))
            elif held.batch != target.batch and state.since_s[row] >= 0:
                fields = (next_id + len(commands), row, state.attempt[row], epoch)
                commands.append(Retune(*fields, target.batch))
            elif state.since_s[row] >= 0 and target_cpus.get(row) != held_cpus.get(row):
                fields = (next_id + len(commands), row, state.attempt[row], epoch)
                commands.append(SetCpus(*fields, target_cpus.get(row)))
        elif type(sent) in OVERTAKEN and state.target[row] is None:
            fields = (next_id + len(commands), row, state.attempt[row], epoch)
            commands.append(new(Suspend, fields))
    promised: dict[int, int] = {}
    shared: dict[int, int] = {}
    if state.has_background_jobs:
        starting, beside = _main_layer(state, starting), _background(state, starting)
        for row, needed in beside:
            if state.idle_background.fits(needed):
                commands.append(_start(state, row, needed, next_id + len(commands)))
    for row, needed in starting:
        if state.idle.fits(needed) and (len(starting) == 1 or _promise(promised, shared, needed)):
            target = state.target[row]
            assert target is not None
            commands.append(_start(state, row, target, next_id + len(commands)))
    if state.closed and not state.decision_needed:  # else the plan may be about to have them move
        for row, home in homes_wanted(state):
            fields = (next_id + len(commands), row, state.attempt[row], epoch)
            commands.append(Park(*fields, home))
    return commands


def _main_layer(
    state: ClusterState, starting: list[tuple[int, Allocation]]
) -> list[tuple[int, Allocation]]:
    """Those of the main layer that need not wait for the memory of a background job.

    A job waits for nothing but a suspension, and only where a GPU's memory does not suffice for
    both: there the background job has lost its GPU by the last plan.
    """
    leaving = [
        held
        for row in sorted(state.unsettled)
        if (held := state.held[row]) is not None and held.background
        if state.target[row] is not held and state.nodes[held.parts[0][0]].has_device_memory
        if row not in state.backoff
    ]
    return [
        (row, needed)
        for row, needed in starting
        if not needed.background and not any(held.meets(needed) for held in leaving)
    ]


def _background(
    state: ClusterState, starting: list[tuple[int, Allocation]]
) -> list[tuple[int, Allocation]]:
    """Those of background jobs; of two that want a GPU after another, the first."""
    taken, found = list[Allocation](), []
    for row, needed in starting:
        if needed.background and not any(needed.meets(other) for other in taken):
            taken.append(needed)
            found.append((row, needed))
    return found


def _must_wait(state: ClusterState, row: int, held: Allocation, target: Allocation) -> bool:
    """True if a job must give GPUs up, and its program has yet to say if it can while running."""
    return held.nodes() == target.nodes() and not target.without(held) and state.has_yet_to_say(row)


def _promise(promised: dict[int, int], shared: dict[int, int], target: Allocation) -> bool:
    """Add GPUs to those promised, by node; False if some of them are among these already.

    GPUs in ``shared`` are promised to jobs that share them with each other.
    """
    mine, others = (shared, promised) if target.shared else (promised, shared)
    for n, mask in target.parts:
        taken = others.get(n, 0) | (0 if target.shared else mine.get(n, 0))
        if mask & taken:
            return False
    for n, mask in target.parts:
        mine[n] = mine.get(n, 0) | mask
    return True


def _start(state: ClusterState, row: int, target: Allocation, command_id: int) -> Command:
    home, cpus = state.home[row], state.target_cpus.get(row)
    if home is None and state.held[row] is None:
        return new(Launch, (command_id, row, state.attempt[row] + 1, state.epoch, target, cpus))
    fields = (command_id, row, state.attempt[row], state.epoch, target)
    if state.held[row] is not None:
        return new(Resize, fields)
    assert home is not None
    if home is target or home.nodes() == target.nodes():
        return new(Resume, (*fields, cpus))
    return new(Migrate, (*fields, cpus))
