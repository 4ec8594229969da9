"""The states of an attempt on its node, and the transitions between them."""

from collections import deque
from enum import StrEnum
from typing import NamedTuple


class State(StrEnum):
    """An attempt's states between its start and its end, as its agent knows them."""

    STARTING = "starting"
    ADOPTED = "adopted"  # an earlier agent's: its ranks have yet to say whether they hold
    RUNNING = "running"
    SUSPENDING = "suspending"
    SUSPENDED = "suspended"  # its processes hold or are stopped, or it has none
    RESUMING = "resuming"
    ENDING = "ending"  # no process is left, what they have said may not be read yet
    ENDED = "ended"
    LOST = "lost"
    REFUSED = "refused"  # came from another node, and can't continue here
    MOVED = "moved"  # is on another node


# From one state to another: what has happened then.
TRANSITIONS: dict[tuple[State, State], str] = {
    (State.STARTING, State.RUNNING): "all ranks were started, or found by the next agent",
    (State.STARTING, State.ADOPTED): "the next agent found its ranks",
    (State.STARTING, State.SUSPENDING): "the next agent found it leaving its node",
    (State.STARTING, State.SUSPENDED): "the next agent found it suspended, or it came here",
    (State.STARTING, State.ENDING): "no process was left when its agent looked",
    (State.STARTING, State.ENDED): "it had ended when its agent looked",
    (State.STARTING, State.LOST): "it was lost when its agent looked, or never started",
    (State.ADOPTED, State.RUNNING): "its ranks are back, or had long enough to be",
    (State.ADOPTED, State.ENDING): "no process is left",
    (State.ADOPTED, State.ENDED): "its processes have ended",
    (State.ADOPTED, State.LOST): "its processes vanished",
    (State.RUNNING, State.SUSPENDING): "it was asked to suspend",
    (State.RUNNING, State.ENDING): "no process is left",
    (State.RUNNING, State.ENDED): "its processes have ended",
    (State.RUNNING, State.LOST): "its processes vanished, or can't go on",
    (State.SUSPENDING, State.SUSPENDED): "its devices are free",
    (State.SUSPENDING, State.RUNNING): "its suspension could not be written down",
    (State.SUSPENDING, State.ENDING): "no process is left",
    (State.SUSPENDING, State.ENDED): "its processes have ended",
    (State.SUSPENDING, State.LOST): "its processes were killed",
    (State.SUSPENDED, State.RESUMING): "it was asked to go on",
    (State.SUSPENDED, State.ENDING): "no process is left",
    (State.SUSPENDED, State.ENDED): "its processes have ended, or it was told to end without any",
    (State.SUSPENDED, State.LOST): "its processes were killed, or its arenas are gone",
    (State.SUSPENDED, State.REFUSED): "it was told to end before it had gone on here",
    (State.RESUMING, State.RUNNING): "all ranks go on",
    (State.RESUMING, State.SUSPENDED): "it could not go on",
    (State.RESUMING, State.ENDING): "no process is left",
    (State.RESUMING, State.ENDED): "its processes have ended",
    (State.RESUMING, State.LOST): "its processes were killed, or its arenas are gone",
    (State.RESUMING, State.REFUSED): "it can't go on here, and lies where it came from",
    (State.ENDING, State.ENDED): "its processes have ended",
    (State.ENDING, State.LOST): "its processes vanished, or were killed while it was suspended",
    (State.ENDING, State.REFUSED): "it ended before it had gone on here",
} | {
    (before, State.MOVED): "nothing of it stays here: it goes on, or has ended, on another node"
    for before in State
    if before not in (State.STARTING, State.REFUSED, State.MOVED)
}
LONGEST_STORY = 50  # steps; of those before nothing is known


class Step(NamedTuple):
    """One step of an attempt's story."""

    at_s: float
    before: State
    after: State

    def __str__(self) -> str:
        why = TRANSITIONS.get((self.before, self.after), "which may not be")
        return f"{self.at_s:.3f} {self.before} -> {self.after}: {why}"


class Story:
    """The latest steps that an attempt has taken under this agent."""

    def __init__(self) -> None:
        self._steps: deque[Step] = deque(maxlen=LONGEST_STORY)

    def takes(self, at_s: float, before: State, after: State) -> bool:
        """Remember a step. False if the table does not allow it."""
        self._steps.append(Step(at_s, before, after))
        return (before, after) in TRANSITIONS

    def __str__(self) -> str:
        return "; ".join(map(str, self._steps))
