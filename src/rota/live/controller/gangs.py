"""Attempts on several nodes: their agents talk to each other through here, and none is forgotten.

The agent of an attempt's first node has it, and starts its other processes through the agents of
the other nodes, its guests there. What they start, and how much of the CPU cores it may use, they
know from the controller. When the attempt is over, each of these agents is told to end its part;
until all have, or their nodes are lost, the job is launched nowhere.
"""

from collections.abc import Callable, Collection
from typing import NamedTuple

from rota.live.controller.dispatch import guest_message
from rota.live.controller.record import Record
from rota.live.controller.recovery import gang_nodes
from rota.live.wire import Message
from rota.model.events import CommandSent, Event


class Spread(NamedTuple):
    """An attempt with processes on several nodes, or on one that they have been reduced to."""

    attempt: int
    nodes: tuple[str, ...]
    millicores: int | None  # that it may use on all together


class Part(NamedTuple):
    """Processes that an ended attempt may yet have on a node; ``is_first``: with its agent."""

    node: str
    attempt: int
    is_first: bool

    @property
    def end_by(self) -> str:
        """The kind of the message that ends it."""
        return "kill" if self.is_first else "drop"


class Gangs:
    """The attempts on several nodes. ``tell`` sends an agent something, once it is written down.

    ``has_stopped`` says of a node whether no process of jobs runs there, whatever its agent was
    told, and ``freed`` is told of each job that may be launched again.
    """

    def __init__(
        self,
        record: Record,
        tell: Callable[[str, Message], object],
        has_stopped: Callable[[str], bool],
        freed: Callable[[int], object],
    ) -> None:
        self._record, self._tell = record, tell
        self._has_stopped, self._freed = has_stopped, freed
        self._spread: dict[int, Spread] = {}
        self._ending: dict[int, set[Part]] = {}  # by row
        for row in record.state.holding.keys() | set(record.state.active):
            if len((found := self._found(row)).nodes) > 1:
                self._spread[row] = found
            self._note_former(row)
        record.state.observers.append(self._note)

    def pass_on(self, sender: str, message: Message) -> None:
        """Pass a word of one node's agent on to another one, if both have parts of the attempt."""
        row = self._record.rows.get(message["job_id"])
        if row is None or self._record.is_foreign(message):
            return
        spread = self._found(row)
        if spread.attempt == message["attempt"] and {sender, message["node"]} <= {*spread.nodes}:
            self._record.outboxes.tell(message["node"], message | {"node": sender})

    def may_launch(self, row: int) -> bool:
        """False while a former attempt of the job may have processes on one of its nodes."""
        return row not in self._ending

    def has_parts(self, node: str) -> bool:
        """True if a node may have processes of attempts that are over."""
        return any(part.node == node for parts in self._ending.values() for part in parts)

    def look(self) -> None:
        """Wait no longer for what was on nodes that are lost, or whose leases are over."""
        for row, parts in list(self._ending.items()):
            self._has_ended(row, {part for part in parts if self._has_stopped(part.node)})

    def gone(self, node: str, message: Message) -> None:
        """Nothing of an attempt is left on a node."""
        row = self._record.rows.get(message["job_id"])
        if row is not None and not self._record.is_foreign(message):
            parts = self._ending.get(row, set())
            told = {part for part in parts if part[:2] == (node, message["attempt"])}
            self._has_ended(row, told)

    def came(self, node: str, there: Collection[tuple[str, int]]) -> None:
        """An agent says hello, and with it which attempts are ``there``, by job id and number."""
        for row, parts in list(self._ending.items()):
            job_id = self._record.state.spec[row].job_id
            for part in [part for part in parts if part.node == node]:
                if (job_id, part.attempt) in there:
                    self._end_part(job_id, part)
                else:
                    self._has_ended(row, {part})

    def _end_part(self, job_id: str, part: Part) -> None:
        self._tell(part.node, _about(job_id, part.attempt, part.end_by) | {"answers": True})

    def _has_ended(self, row: int, parts: set[Part]) -> None:
        if (left := self._ending.get(row)) is not None:
            left -= parts
            if not left:
                del self._ending[row]
                self._freed(row)

    def check_guests(self, node: str, guests: list[Message]) -> None:
        """Have an agent end guests, as it tells of them, that are none of its node's.

        Of those that it may have it is told anew.
        """
        for guest in guests:
            row = self._record.rows.get(guest["job_id"])
            spread = None if row is None or self._record.is_foreign(guest) else self._found(row)
            right = spread is not None and spread.attempt == guest["attempt"]
            if not right or spread is None or node not in spread.nodes[1:]:
                self._tell(node, _about(guest["job_id"], guest["attempt"], "drop"))
        for row in self._record.on_node.rows(self._record.state.node_index.get(node)):
            if row in self._spread and node in self._spread[row].nodes[1:]:
                self._tell_guest(node, row)

    def _note_former(self, row: int) -> None:
        """Take it that an attempt which an earlier controller had ended may be there still."""
        state = self._record.state
        former = state.attempt[row] - int(state.has_processes(row))
        nodes = self._record.nodes_of(row, former)
        if len(nodes) > 1:
            self._ending[row] = {Part(n, former, is_first=n == nodes[0]) for n in nodes}

    def _found(self, row: int) -> Spread:
        state = self._record.state
        nodes = gang_nodes(state, row) if state.has_processes(row) else ()
        names = tuple(state.nodes[index].name for index in nodes)
        return Spread(state.attempt[row], names, state.held_cpus.get(row))

    def _tell_guest(self, node: str, row: int) -> None:
        index = self._record.state.node_index[node]
        self._tell(node, guest_message(self._record, row, index))

    def _note(self, event: Event) -> None:
        """Have what an attempt has on nodes that are no longer its own ended."""
        row = event.command.row if isinstance(event, CommandSent) else getattr(event, "row", None)
        if row is None or not (row in self._spread or _may_spread(event)):
            return
        before, now = self._spread.pop(row, None), self._found(row)
        if before is not None:
            job_id = self._record.state.spec[row].job_id
            kept = now.nodes if now.attempt == before.attempt else ()
            for at, name in enumerate(before.nodes):
                if name not in kept:
                    part = Part(name, before.attempt, is_first=at == 0)
                    self._ending.setdefault(row, set()).add(part)
                    self._end_part(job_id, part)
        if len(now.nodes) > 1:
            back = {part for part in self._ending.get(row, ()) if part.node in now.nodes}
            self._has_ended(row, {part for part in back if part.attempt == now.attempt})
            self._spread[row] = now
            for name in now.nodes[1:] if now != before else ():
                self._tell_guest(name, row)


def _may_spread(event: Event) -> bool:
    if not isinstance(event, CommandSent):
        return False
    place = getattr(event.command, "allocation", None)
    return place is not None and len(place.parts) > 1


def _about(job_id: str, attempt: int, kind: str) -> Message:
    return {"type": kind, "job_id": job_id, "attempt": attempt}
