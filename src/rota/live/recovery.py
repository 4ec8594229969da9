"""What a controller does after its own restart, and after an agent's: compare, then mend."""

from typing import Any, NamedTuple

from rota.live.wire import Message
from rota.model.events import AttemptLost, Event, JobFinished, NodeLost, WorkerRegistered
from rota.model.job import JobState, Suspension
from rota.model.state import ClusterState

MAX_LOST_ATTEMPTS = 3
NEVER_STARTED = "it never started"
NODE_CHANGED = "its node came back with other devices"


class Findings(NamedTuple):
    """What follows from an agent's account of its attempts."""

    events: list[Event]
    forget: list[Message]  # ends that are written down: the agent need not keep them
    kill: list[Message]  # attempts that no job should have


def reconcile(
    state: ClusterState, node: str, attempts: list[Message], now_s: float, losses: dict[int, int]
) -> Findings:
    """Hold what an agent says it has against what the state says it should have.

    A job whose processes are neither alive nor known to have ended has lost its attempt. Commands
    on their way are not touched: they are sent again, and agents carry each out once. ``losses``
    counts each row's lost attempts so far.
    """
    found = {(message["job_id"], message["attempt"]): message for message in attempts}
    events: list[Event] = []
    expected: set[tuple[str, int]] = set()
    index = state.node_index[node]
    for row, spec in enumerate(state.spec):
        if not state.has_processes(row):
            continue
        place = state.held[row] or state.home[row]
        if place is None or index not in place.nodes():
            continue
        key = (spec.job_id, state.attempt[row])
        expected.add(key)
        message = found.get(key)
        if message is None:
            if state.state[row] != JobState.STARTING:  # else its launch is sent again
                events.append(lost(state, row, now_s, "the node has no trace of it", losses))
        elif message["type"] != "alive":
            events.append(ended(state, row, message, now_s, losses))
        else:
            events.append(registered(message, row, now_s))
    over = [found[key] for key in found.keys() - expected]
    return Findings(
        events,
        [_name("forget", message) for message in attempts if message["type"] != "alive"],
        [_name("kill", message) for message in over if message["type"] == "alive"],
    )


def registered(message: Message, row: int, now_s: float) -> WorkerRegistered:
    """The event for what an agent says of how an attempt can be suspended and resized."""
    kind = Suspension[message["suspension"].upper()]
    resizable, most_ranks = message.get("resizable", False), message.get("most_ranks", 0)
    return WorkerRegistered(now_s, row, kind, message["movable"], resizable, most_ranks)


def ended(
    state: ClusterState, row: int, message: Message, now_s: float, losses: dict[int, int]
) -> Event:
    """The event for an attempt that an agent reports as ended or lost."""
    if message["type"] == "lost":
        if not message["started"]:  # that took nothing from the job, and does not count
            return attempt_lost(state, row, now_s, NEVER_STARTED)
        return lost(state, row, now_s, message["error"], losses)
    code: int = message["exit_code"]
    outcome = state.stop_outcome.get(row)
    if outcome is None:
        outcome = JobState.SUCCEEDED if code == 0 else JobState.FAILED
    # The agent's time of the end, unless clocks or a late confirmation contradict the record.
    at_s = min(max(message["at_s"], state.changed_s[row]), now_s)
    return JobFinished(at_s, row, outcome, code, message["message"])


def node_changed(state: ClusterState, node: str, now_s: float) -> list[Event]:
    """The events for a node that offers other devices than before: all that ran there is lost."""
    index = state.node_index[node]
    events: list[Event] = []
    for row in range(len(state.spec)):
        places = (state.held[row], state.home[row])
        there = any(place is not None and index in place.nodes() for place in places)
        if there and state.has_processes(row):
            events.append(attempt_lost(state, row, now_s, NODE_CHANGED))
    return [*events, NodeLost(now_s, node)]


def lost(state: ClusterState, row: int, now_s: float, error: str, losses: dict[int, int]) -> Event:
    """The event for an attempt that vanished: it starts anew, but not for ever."""
    count = losses.get(row, 0) + 1
    if count >= MAX_LOST_ATTEMPTS and row not in state.stop_outcome:
        return JobFinished(now_s, row, JobState.LOST, None, f"{error}; {count} attempts were lost")
    return attempt_lost(state, row, now_s, error)


def attempt_lost(state: ClusterState, row: int, now_s: float, error: str) -> AttemptLost:
    """The event for an attempt that is gone, with all that it did: the job starts anew.

    What its script saved of that by itself, nobody but the script knows.
    """
    done_s = state.work(row, now_s)
    if state.state[row] == JobState.SUSPENDING:  # it went on until it reached its boundary
        done_s += max(0.0, now_s - state.changed_s[row]) * state.speed[row]
    return AttemptLost(now_s, row, state.attempt[row], error, max(0.0, done_s))


def _name(kind: str, message: dict[str, Any]) -> Message:
    return {"type": kind, "job_id": message["job_id"], "attempt": message["attempt"]}
