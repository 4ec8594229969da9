"""Nodes that the provider has for the cluster: they come and go, are asked for and given up."""

import logging
from functools import partial
from typing import Any

from rota.errors import AgentError
from rota.live.controller.journal import Journal
from rota.live.controller.outboxes import Process, process_of
from rota.live.controller.record import Record
from rota.live.controller.recovery import NODE_GONE
from rota.live.provider.base import Provider
from rota.live.wire import Message
from rota.model.decide.departures import closings_due
from rota.model.decide.in_use import nodes_in_use
from rota.model.decide.nodes_wanted import nodes_wanted
from rota.model.events import Event, NodeDeadlineChanged, NodeLost

SHRINK_AFTER_S = 60.0  # nodes are not given up for a pause between two jobs

log = logging.getLogger("rota.controller")
notice = logging.getLogger("rota.notice")  # what whoever has started `rota up` must see as well


class Supply:
    """The controller's requests to a provider, and the news it gets from it.

    Nodes that are asked for are none of the cluster's until their agents have said hello. A node
    that must go is left in time for the turns of ``turn_s`` that the policy gives jobs.
    """

    def __init__(self, record: Record, journal: Journal, provider: Provider, turn_s: float) -> None:
        self._record, self._journal, self._provider = record, journal, provider
        self._turn_s = turn_s
        self._wanted = 0  # nodes, by the queue
        self._fewer_since_s: float | None = None  # the time since which that is too many
        self._state = record.state
        # Nodes, and which agent of each was told to end.
        self._given_up: dict[str, Process | None] = {}

    def look(self) -> bool:
        """Take note of nodes that are gone or are about to go; True if of any."""
        for error in self._provider.errors():
            notice.warning("%s", error)
        state, now_s = self._state, self._record.now_s()
        provided = self._provider.nodes()
        names = {node.name for node in provided}
        self._record.about = {node.name: node.about for node in provided}
        events: list[Event] = []
        gone = [node.name for node in state.nodes if node.alive and node.name not in names]
        for name in gone:
            self._journal.lose_node(name, now_s, NODE_GONE)
        for name, leaves_s in ((node.name, node.leaves_s) for node in provided):
            index = state.node_index.get(name)
            if index is None or not state.nodes[index].alive:
                continue
            if state.leaves_s.get(index) != leaves_s:
                events.append(NodeDeadlineChanged(now_s, name, leaves_s))
        for event in events:
            self._journal.note(event)
        more = [*closings_due(state, now_s, self._turn_s), *self._ask()]
        for event in more:
            self._journal.note(event)
        return bool(gone or events or more)

    @property
    def names(self) -> set[str]:
        """The names of the provider's nodes."""
        return self._provider.names

    def check(self, hello: Message) -> None:
        """Refuse an agent whose node is none of the cluster's. Raises AgentError."""
        name, names = hello["node"], self._provider.names
        if name not in names:
            raise AgentError(
                f"node: {name!r:.80} can't be used; it must be a node of this cluster: "
                f"{', '.join(sorted(names))}"
            )

    def is_given_up(self, hello: Message) -> bool:
        """True if an agent was told to end, because nobody needs its node. Another one may come."""
        name, agent = hello["node"], process_of(hello)
        if name in self._given_up and self._given_up[name] != agent:
            del self._given_up[name]
        return name in self._given_up

    def most_nodes(self) -> int:
        """The most nodes that there can be; 0 if none can be asked for."""
        bounds = self._provider.bounds
        return 0 if bounds is None else bounds[1]

    def awaited(self) -> list[dict[str, Any]]:
        """The nodes that were asked for and are not there yet, each with the reason."""
        return [node._asdict() for node in self._provider.awaited()]

    def _ask(self) -> list[Event]:
        """Ask for as many nodes as are wanted, and give up those without jobs that are more.

        Those go first that take no jobs, then the last ones. Where too few are without, others go
        when their jobs have ended or have gone elsewhere. Nodes that are wanted back are given up
        in any case, once their jobs have left them.
        """
        wish, bounds, state = self._state.notes.nodes, self._provider.bounds, self._state
        if bounds is None:
            return []
        desired = self._wanted_by_queue() if wish is None else wish.desired
        desired = min(max(desired, bounds[0]), bounds[1])
        try:
            self._provider.scale(desired)
        except OSError as error:  # a full disk: what can't be written down is not asked for
            log.warning("%s nodes can't be asked for: %s", desired, error)
        used, events = nodes_in_use(state), list[Event]()
        provided = self._provider.nodes()
        stay = {node.name for node in provided if node.stays}
        wanted_back = {node.name for node in provided if node.wanted_back}
        there = [index for index, node in enumerate(state.nodes) if node.alive]
        surplus = len(there) - desired
        for index in sorted(there, key=lambda index: (index not in state.shut, -index)):
            name = state.nodes[index].name
            is_free = index not in used and name not in stay
            is_over = surplus > 0 or (name in wanted_back and index in state.shut)
            if is_over and is_free and name in self._record.outboxes.queues:
                surplus -= 1
                self._given_up[name] = self._record.outboxes.agents[name]
                events.append(NodeLost(self._record.now_s(), name, given_back=True))
                self._journal.once_written.append(partial(self._give_up, name))
        return events

    def _wanted_by_queue(self) -> int:
        """As many nodes as the queue asks for; no fewer before it has asked for fewer for long."""
        wanted, now_s = nodes_wanted(self._state, self.most_nodes()), self._record.now_s()
        if wanted >= self._wanted:
            self._wanted, self._fewer_since_s = wanted, None
        elif self._fewer_since_s is None:
            self._fewer_since_s = now_s
        elif now_s >= self._fewer_since_s + SHRINK_AFTER_S:
            self._wanted, self._fewer_since_s = wanted, None
        return self._wanted

    def _give_up(self, name: str) -> None:
        self._record.outboxes.tell(name, {"type": "shutdown"})
        self._provider.release(name)
