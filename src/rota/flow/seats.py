"""The seats of jobs on an island: what their agent asks of the island's host, and the answers.

A seat outlives the connection of its agent: the next agent tells of it again, and nothing changes.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from rota.errors import FlowError, InputError
from rota.flow import wire
from rota.live.wire import island
from rota.live.wire.island import CONTROL, Called, Done, Lines, Seen, ToIsland, line_of


class Seated(Protocol):
    """A program that has taken a seat, as its host knows it."""

    @property
    def settled(self) -> bool:
        """True if its workers are where they were last told to be."""


class Taken:
    """A job's seat. ``program`` is the one that has it now, if any."""

    def __init__(self, told: island.Seat) -> None:
        self.told = told
        self.devices, self.cores = told.devices, told.cores
        self.away = False
        self.program: Seated | None = None
        self.asked: int | None = None  # the message that is answered once the program is settled
        self.called = False  # the agent was told that a program that is away has called


class Holder(Protocol):
    """What a host does for a seat."""

    def check(self, devices: list[int], cores: list[list[int]]) -> None:
        """Raises FlowError if there can be no such seat."""

    def withdraw(self, seat: Taken) -> None:
        """Take the workers of its program off their devices."""

    def put(self, seat: Taken, devices: list[int], cores: list[list[int]]) -> None:
        """Put the workers of its program on these devices, if it has one. Raises FlowError."""

    def dismiss(self, seat: Taken) -> None:
        """End its program's workers."""

    def seen(self, seat: Taken) -> Seen:
        """The seat by now."""


class Seats:
    """See the module. ``watch`` and ``forget`` have a descriptor looked at, with what is called."""

    def __init__(
        self,
        folder: Path,
        holder: Holder,
        watch: Callable[[int, Callable[[], None]], None],
        forget: Callable[[int], None],
    ) -> None:
        self._holder, self._watch, self._forget = holder, watch, forget
        self._seats: dict[str, Taken] = {}
        self._agent: socket.socket | None = None
        self._lines = Lines(ToIsland)
        self.ended = False
        self._door = socket.socket(socket.AF_UNIX)
        self._door.setblocking(False)
        self._door.bind(str(folder / CONTROL))
        self._door.listen()
        watch(self._door.fileno(), self._welcome)

    @property
    def is_forsaken(self) -> bool:
        """True if there is neither an agent nor a seat."""
        return self._agent is None and not self._seats

    def take(self, key: str) -> Taken:
        """The seat with this key, for a program that says hello. Raises FlowError."""
        seat = self._seats.get(key)
        if seat is None:
            raise FlowError(
                "this island is for jobs alone: submit the program with `processes: flow`"
                if not key
                else "the job that this program is of is over"
            )
        if seat.program is not None:
            raise FlowError("the job has a client already: close that one first")
        return seat

    def settle(self) -> None:
        """Answer for programs that are where they were told to be."""
        for seat in self._seats.values():
            program_settled = seat.program is None or seat.program.settled
            if seat.asked is not None and program_settled:
                self._say(Done(seat.asked))
                seat.asked = None

    def called(self, seat: Taken) -> None:
        """A program that is away has called something."""
        if not seat.called:
            seat.called = True
            self._say(Called(seat.told.key))

    def let_go(self) -> None:
        """In a worker: close what is the host's."""
        self._door.close()
        if self._agent is not None:
            self._agent.close()

    # -- the agent -------------------------------------------------------------------------------

    def _welcome(self) -> None:
        try:
            connection, _ = self._door.accept()
        except OSError:
            return
        self._hang_up()
        connection.setblocking(False)
        self._agent, self._lines = connection, Lines(ToIsland)
        self._watch(connection.fileno(), self._hear)
        for seat in self._seats.values():
            seat.asked, seat.called = None, False  # another agent's

    def _hang_up(self) -> None:
        if self._agent is not None:
            self._forget(self._agent.fileno())
            self._agent.close()
            self._agent = None

    def _hear(self) -> None:
        assert self._agent is not None
        data = wire.received(self._agent)
        if data is None:
            self._hang_up()
            return
        try:
            for message in self._lines.take(data):
                self._take(message)
        except FlowError:  # it is no agent
            self._hang_up()

    def _take(self, message: ToIsland) -> None:
        try:
            self._obey(message)
        except (FlowError, InputError) as error:
            self._say(Done(message.number, str(error)))

    def _obey(self, message: ToIsland) -> None:
        match message:
            case island.Look():
                seen = [self._holder.seen(each) for each in self._seats.values()]
                self._say(Done(message.number, None, seen))
                return
            case island.End():
                self.ended = True
                self._say(Done(message.number))
                return
            case island.Seat():
                self._holder.check(message.devices, message.cores)
                if message.key not in self._seats:
                    self._seats[message.key] = Taken(message)
                self._say(Done(message.number))
                return
        seat = self._seats.get(message.key)
        if isinstance(message, island.Dismiss):
            if seat is not None:
                self._holder.dismiss(seat)
                del self._seats[message.key]
            self._say(Done(message.number))
            return
        if seat is None:
            raise FlowError("the island has no such seat")
        if seat.asked is not None:
            self._say(Done(seat.asked, "another command came before it was done"))
        seat.asked, seat.called = message.number, False
        if isinstance(message, island.Pause):
            self._holder.withdraw(seat)
            seat.away = True
            return
        try:
            if len(message.devices) != len(seat.devices):
                raise FlowError(f"the seat has {len(seat.devices)} workers")
            self._holder.put(seat, message.devices, message.cores)
        except FlowError:
            seat.asked = None
            raise
        seat.devices, seat.cores, seat.away = message.devices, message.cores, False

    def _say(self, message: Done | Called) -> None:
        if self._agent is None:
            return
        self._agent.setblocking(True)
        self._agent.settimeout(1.0)
        with contextlib.suppress(OSError):  # it is gone, which the next look shows
            self._agent.sendall(line_of(message))
        with contextlib.suppress(OSError):
            self._agent.setblocking(False)
