"""Recovery after a restart of the controller or of an agent: compare, then mend."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from rota.live.wire import Message
from rota.model.allocation import Allocation
from rota.model.commands import Migrate, Park
from rota.model.ending import end_text
from rota.model.events import (
    AttemptLost,
    CommandFailed,
    Event,
    JobFinished,
    JobResumed,
    NodeLost,
    WorkerRegistered,
)
from rota.model.job import JobState, Suspension
from rota.model.state.state import ClusterState

MAX_LOST_ATTEMPTS = 3  # in a row, of which none got on
GOT_ON_S = 120.0  # of work; who breaks down at the start does so sooner
SHUT_DOWN = "the cluster was shut down"
REBOOTED = "its node was rebooted"
NEVER_STARTED = "it never started"
NODE_CHANGED = "its node came back with other devices"
NO_MEMORY = "out of memory"  # beginning of an error about a batch that did not fit
LEASE_OVER = "its node was not heard for its whole lease"
NODE_GONE = "its node is no longer part of the cluster"
DRAINED = "its node was drained"
RETRY_S = 5.0  # a failed launch is tried again after so long, times the number of failures
UNCOUNTED = (
    SHUT_DOWN,
    REBOOTED,
    NEVER_STARTED,
    NODE_CHANGED,
    NODE_GONE,
    DRAINED,
    NO_MEMORY,  # each time with smaller batches, and so not for ever
)  # how losses begin that say nothing about the job


class Findings(NamedTuple):
    """Results of comparing an agent's account of its attempts with the state."""

    events: list[Event]
    forget: list[Message]  # ends that are written down: the agent need not keep them
    kill: list[Message]  # attempts that no job should have
    drop: list[Message]  # attempts that are elsewhere by now
    left: list[tuple[str, Message]]  # for other nodes: of attempts that ended while they moved


def seats(state: ClusterState, row: int) -> tuple[int, ...]:
    """The nodes whose agents may rightly have the job's attempt, the one with its state first.

    There are two while it moves: until it has continued at the other, or is to wait there, its
    state is at the first.
    """
    held, home, command = state.held[row], state.home[row], state.outstanding[row]
    if home is None:
        return held.nodes()[:1] if held is not None else ()
    first = home.nodes()[:1]
    return first + command.allocation.nodes()[:1] if isinstance(command, Migrate | Park) else first


def has_copy(state: ClusterState, row: int, node: str) -> bool:
    """True if what a node has of the attempt is a copy of a state that is still elsewhere.

    It is being sent there to wait. Should it end there, nothing is lost.
    """
    if not isinstance(state.outstanding[row], Park):
        return False
    return state.nodes[state.parking[row].nodes()[0]].name == node


def parking_failed(state: ClusterState, row: int, now_s: float, message: Message) -> CommandFailed:
    """The event for a state that could not get to another node, or for a lost copy of it there."""
    command = state.outstanding[row]
    assert command is not None
    error = str(message.get("error") or message.get("message") or "it was told to end")
    pause_s = RETRY_S * (1 + sum(state.parked_in_vain.get(row, {}).values()))
    return CommandFailed(now_s, row, command.command_id, error, now_s + pause_s)


def gang_nodes(state: ClusterState, row: int) -> tuple[int, ...]:
    """The nodes that a job's processes are on, its agent's first."""
    place = placement(state, row)
    return place.nodes() if place is not None else ()


def placement(state: ClusterState, row: int) -> Allocation | None:
    """The GPUs whose nodes a job's processes are on."""
    return state.home[row] or state.held[row]


def places_of(state: ClusterState, row: int) -> tuple[int, ...]:
    """The nodes that may have processes of a job that has any."""
    return (*seats(state, row), *gang_nodes(state, row))


def overdue(state: ClusterState, now_s: float) -> list[tuple[int, int]]:
    """(node, row) of each job that should have left a draining node by now.

    Jobs on their way are left out. A suspended background job that can't go on elsewhere has no
    time to leave in: it waits for gaps that never come there.
    """
    found = []
    for index, closing in state.closed.items():
        if not closing.drains:
            continue
        late = closing.by_s is not None and closing.by_s <= now_s
        stuck = [row for row in state.background if _waits_for_its_node(state, row)]
        found += [
            (index, row)
            for row in (sorted(state.placed_rows()) if late else stuck)
            if state.has_processes(row)
            and index in places_of(state, row)
            and not isinstance(state.outstanding[row], Migrate | Park)
        ]
    return found


def _waits_for_its_node(state: ClusterState, row: int) -> bool:
    return state.home[row] is not None and state.held[row] is None and not state.portable[row]


def reconcile(
    state: ClusterState,
    node: str,
    attempts: list[Message],
    now_s: float,
    losses: dict[int, int],
    last_nodes: Mapping[tuple[int, int], str],
    rows: Iterable[int] | None = None,
) -> Findings:
    """Compare what an agent reports with what the state says it should have.

    A job whose processes are neither alive nor known to have ended has lost its attempt. Commands
    on their way are not touched: they are sent again, and agents carry each out once. ``losses``
    counts each row's lost attempts so far, ``last_nodes`` has the node of each attempt of a row.
    ``rows`` are those that may have something on the node, rising; None: all that are somewhere.
    """
    found = {(message["job_id"], message["attempt"]): message for message in attempts}
    findings = Findings([], [], [], [], [])
    rows = sorted(state.placed_rows()) if rows is None else rows
    expected = _check_expected(state, node, rows, found, now_s, losses, findings)
    for key, message in found.items():
        if message["type"] not in ("alive", "arriving"):
            findings.forget.append(_name("forget", message))
        elif key not in expected:
            row = state.row_of(key[0])
            is_present = row is not None and state.attempt[row] == key[1]
            ran_on = last_nodes.get((row, key[1])) if row is not None and is_present else None
            if message["type"] == "alive" and ran_on not in (None, node):
                findings.drop.append(_name("drop", message))
            else:
                findings.kill.append(_name("kill", message))
    return findings


def _check_expected(
    state: ClusterState,
    node: str,
    rows: Iterable[int],
    found: dict[tuple[str, int], Message],
    now_s: float,
    losses: dict[int, int],
    findings: Findings,
) -> set[tuple[str, int]]:
    """Look for each attempt that should be on the node among those found. Returns their keys."""
    expected: set[tuple[str, int]] = set()
    index = state.node_index[node]
    for row in rows:
        places = seats(state, row) if state.has_processes(row) else ()
        if index not in places:
            continue
        key = (state.spec[row].job_id, state.attempt[row])
        message, moves = found.get(key), len(places) > 1
        if message is not None and message["type"] == "arriving" and not moves:
            continue
        expected.add(key)
        if message is None or message["type"] == "arriving":
            # Its launch is sent again; and of a move it is told by those who ask in vain.
            if state.state[row] != JobState.STARTING and not moves:
                unseen = {"error": "the node has no trace of it"}
                findings.events.append(lost(state, row, unseen, now_s, losses))
        elif message["type"] != "alive" and has_copy(state, row, node):
            findings.events.append(parking_failed(state, row, now_s, message))
        elif message["type"] != "alive":
            findings.events.extend(end_of_attempt(state, row, node, message, now_s, losses))
            others = [state.nodes[place].name for place in places if place != index]
            findings.left.extend((name, _name("drop", message)) for name in others)
        else:
            findings.events.append(registered(message, row, now_s))
    return expected


def registered(message: Message, row: int, now_s: float) -> WorkerRegistered:
    """The event for an agent's report of how an attempt can be suspended and resized."""
    kind = Suspension[message["suspension"].upper()]
    resizable, most_ranks = message.get("resizable", False), message.get("most_ranks", 0)
    more = resizable, most_ranks, message.get("portable", False)
    words = message.get("why", ""), message.get("started", "")
    return WorkerRegistered(now_s, row, kind, message["movable"], *more, *words)


def end_of_attempt(
    state: ClusterState,
    row: int,
    node: str,
    message: Message,
    now_s: float,
    losses: dict[int, int],
) -> list[Event]:
    """The events for an attempt that a node reports as ended or lost.

    If it was moving there, its arrival comes first, which no living agent reported.
    """
    end = ended(state, row, message, now_s, losses)
    places = seats(state, row)
    if len(places) > 1 and state.nodes[places[0]].name != node:
        return [JobResumed(state.changed_s[row], row), end]
    return [end]


def ended(
    state: ClusterState, row: int, message: Message, now_s: float, losses: dict[int, int]
) -> Event:
    """The event for an attempt that an agent reports as ended or lost."""
    if message["type"] == "lost":
        return lost(state, row, message, now_s, losses)
    code: int = message["exit_code"]
    outcome = state.stop_outcome.get(row)
    if outcome is None:
        outcome = JobState.SUCCEEDED if code == 0 else JobState.FAILED
    # The agent's time of the end, unless clocks or a late confirmation contradict the record.
    at_s = min(max(message["at_s"], state.changed_s[row]), now_s)
    if outcome == JobState.FAILED:
        causes = ["failed", f"exit-{code if code > 0 else 128 - code}"]
        causes += ["out_of_memory"] if message.get("out_of_memory") else []
        words = f"exit code {code}" + (f": {message['message']}" if message["message"] else "")
        if (retry := retry_after(state, row, at_s, causes, words)) is not None:
            return retry._replace(exit_code=code)
    words = end_text(state.spec[row], outcome, message["message"])
    return JobFinished(at_s, row, outcome, code, words)


def node_left(state: ClusterState, node: str, now_s: float, error: str) -> list[Event]:
    """The events for a node that is gone, or now offers other devices.

    All attempts there are lost, because of ``error``.
    """
    index = state.node_index[node]
    events: list[Event] = []
    for row in sorted(state.placed_rows()):
        places = (state.held[row], state.home[row])
        there = any(place is not None and index in place.nodes() for place in places)
        if there and state.has_processes(row):
            events.append(attempt_lost(state, row, now_s, error))
    return [*events, NodeLost(now_s, node)]


def left_elsewhere(state: ClusterState, node: str) -> list[tuple[str, Message]]:
    """A ``drop`` for each other node that has attempts which are lost with this one.

    They are on their way from one of the two to the other.
    """
    index, found = state.node_index[node], []
    for row in sorted(state.placed_rows()):
        places = seats(state, row) if state.has_processes(row) else ()
        about = {"job_id": state.spec[row].job_id, "attempt": state.attempt[row]}
        if index in places and not has_copy(state, row, node):
            others = [state.nodes[place].name for place in places if place != index]
            found += [(name, _name("drop", about)) for name in others]
    return found


def lost(
    state: ClusterState, row: int, message: Message, now_s: float, losses: dict[int, int]
) -> Event:
    """The event for a vanished attempt: the job starts anew, but not for ever."""
    if message.get("started") is False:  # this takes nothing from the job, and does not count
        return attempt_lost(state, row, now_s, NEVER_STARTED)
    if message.get("goes_on") is True:  # from where it was: nothing is lost but a batch
        return AttemptLost(now_s, row, state.attempt[row], message["error"])
    told = message.get("progress") or {}
    # An attempt that no agent saw end has not run, as far as is known, since it was last heard of.
    at_s = message.get("at_s") or last_heard_s(told or state.progress[row] or {})
    at_s = min(max(at_s, state.changed_s[row]), now_s)
    error = REBOOTED if message.get("rebooted") is True else message["error"]
    event = attempt_lost(state, row, at_s, error)
    got_on = (told.get("step") or 0) > 0 or message.get("checkpointed") is True
    event = event._replace(got_on=got_on or event.lost_s >= GOT_ON_S)
    count = losses_after(losses.get(row, 0), event)
    if count < MAX_LOST_ATTEMPTS or row in state.stop_outcome:
        return event
    what = f"{error}; {count} attempts in a row were lost before they got on"
    if (retry := retry_after(state, row, at_s, ["node_failure"], what)) is not None:
        return retry
    return JobFinished(at_s, row, JobState.LOST, None, what)


def retry_after(
    state: ClusterState, row: int, at_s: float, causes: Sequence[str], error: str
) -> AttemptLost | None:
    """The event that a job which would have ended starts anew; None if its retries don't say so."""
    retries, retried = state.spec[row].retries, state.retried.get(row, 0)
    if retries is None or retried >= retries.most or set(causes).isdisjoint(retries.on):
        return None
    event = attempt_lost(state, row, at_s, error)
    return event._replace(retry_at_s=at_s + retries.pause_s(retried))


def losses_after(count: int, event: AttemptLost) -> int:
    """Number of consecutive losses of a job's attempts without progress in between.

    ``count`` is the number before this one. Losses that say nothing about the job leave it as it
    is.
    """
    if event.got_on or event.retry_at_s is not None:
        return 0
    return count if event.error.startswith(UNCOUNTED) else count + 1


def last_heard_s(progress: Mapping[str, Any]) -> float:
    """Time of the last report from a job, or from its agent about it."""
    told: float = max(progress.get("at_s") or 0.0, progress.get("cpu_at_s") or 0.0)
    return told


def attempt_lost(state: ClusterState, row: int, at_s: float, error: str) -> AttemptLost:
    """The event for an attempt that is gone, with all its work: the job starts anew.

    Only the job's script knows what it saved by itself.
    """
    done_s = state.work(row, at_s)
    if state.state[row] == JobState.SUSPENDING:  # the job continued until its boundary
        done_s += max(0.0, at_s - state.changed_s[row]) * state.speed[row]
    return AttemptLost(at_s, row, state.attempt[row], error, max(0.0, done_s))


def _name(kind: str, message: dict[str, Any]) -> Message:
    return {"type": kind, "job_id": message["job_id"], "attempt": message["attempt"]}
