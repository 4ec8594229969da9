"""The journal: events that are applied but not yet written, and the actions that follow."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from rota.errors import StoreFullError, StoreLostError
from rota.live.controller.record import Record
from rota.live.controller.recovery import left_elsewhere, node_left
from rota.live.controller.room import Room
from rota.model.events import Event, JobSubmitted
from rota.store.events import Submission

WRITE_AGAIN_S = 1.0  # after a failure for want of room

log = logging.getLogger("rota.controller")


class Journal:
    """Applies events to the record, and writes them before any action follows from them.

    ``kick`` is set when there is something to decide. ``calls_at_once`` is True if something
    besides new jobs calls for a decision. Once ``stopped`` is set the controller has ended all
    jobs, or can't continue; then ``failure`` is the reason. ``written`` is the number of the last
    event that is both applied and on disk; ``on_written`` is called when it rises.
    """

    def __init__(self, record: Record, room: Room) -> None:
        self._record = record
        self.room = room
        self.unwritten: list[Event] = []  # applied, to be written down at the end of the turn
        self.once_written: list[Callable[[], object]] = []  # actions that follow from these events
        self._write_again_s = 0.0  # by the monotonic clock; 0 unless the last try found no room
        self.written = record.state.events
        self.on_written: Callable[[], None] = lambda: None
        self.kick = asyncio.Event()
        self.calls_at_once = True
        self.failed = False
        self.failure = ""
        self.stopped = asyncio.Event()

    @property
    def is_behind(self) -> bool:
        """True if the last try to write found no room on the disk."""
        return bool(self._write_again_s)

    def try_again(self) -> None:
        """Let the next call of :meth:`write_down` try, even soon after a failure."""
        self._write_again_s = 0.0

    def apply(self, event: Event) -> None:
        """Apply an event, and note if a decision can wait for more of its kind."""
        state = self._record.state
        called, state.decision_needed = state.decision_needed, False
        state.apply(event)
        if state.decision_needed and not isinstance(event, JobSubmitted):
            self.calls_at_once = True
        state.decision_needed |= called

    def note(self, event: Event) -> None:
        """Apply an event, to be written at the end of the turn."""
        self.apply(event)
        self.unwritten.append(event)
        self.kick.set()

    def lose_node(self, node: str, now_s: float, why: str) -> None:
        """A node is gone, or offers other devices: all attempts there are lost, because of that."""
        state, outboxes = self._record.state, self._record.outboxes
        left = left_elsewhere(state, node)
        for event in node_left(state, node, now_s, why):
            self.note(event)
        self.once_written += [partial(outboxes.tell, name, message) for name, message in left]

    def write_down(self) -> bool:
        """Write the applied events, then take the actions that follow from them.

        False if the disk has no room: the events are kept, and the next call tries again, unless it
        comes shortly after such a failure.
        """
        if self.unwritten:
            if time.monotonic() < self._write_again_s:
                return False
            try:
                self.append(self.unwritten)
            except StoreFullError:
                self._write_again_s = time.monotonic() + WRITE_AGAIN_S
                return False
            self.unwritten = []
            self._tell_written()
        self._write_again_s = 0.0
        calls, self.once_written = self.once_written, []
        for call in calls:
            call()
        return True

    def _tell_written(self) -> None:
        self.written = self._record.state.events
        self.on_written()

    def append(self, events: Sequence[Event], **how: Any) -> None:
        """Write events to the log, using the reserve if needed. Raises StoreError."""
        began_s = time.perf_counter()
        with self.giving_up():
            try:
                self._record.store.append(events, **how)
            except StoreFullError:
                if not self.room.give_up():
                    raise
                self._record.store.append(events, **how)
        self._record.process_counts.transaction_s.add(time.perf_counter() - began_s)

    def give_up(self, why: str) -> None:
        """Stop the controller: its state and what is on disk may differ now."""
        if not self.failed:
            self.failed, self.failure = True, why
            self.stopped.set()

    @contextmanager
    def giving_up(self) -> Iterator[None]:
        """Give up if the event log is gone: nothing would be kept."""
        try:
            yield
        except StoreLostError as error:
            if not self.failed:
                log.critical("the controller stops, jobs go on: %s", error)
            self.give_up(str(error))
            raise

    def write_first(
        self, *events: Event, submissions: Sequence[Submission] = (), durable: bool = False
    ) -> None:
        """Write events that can't be refused, then apply them. A StoreError changes nothing."""
        every = [*self.unwritten, *events]
        self.append(every, submissions=submissions, durable=durable)
        self.unwritten = []
        for event in events:
            self.apply(event)
        self._tell_written()
        # Not at once: a decision may take long, and those who wait for an answer get it first.
        asyncio.get_running_loop().call_soon(self.kick.set)
