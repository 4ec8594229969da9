"""The seats of jobs on an island: what their agent asks of the island's host, and the answers.

A seat outlives the connection of its agent: the next agent finds it as it was. Whoever connects is
answered, and nobody takes another's place, so that a stranger who comes by costs the agent nothing.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from rota.errors import FlowError, InputError
from rota.flow import wire
from rota.live.wire import island
from rota.live.wire.island import CONTROL, Called, Done, Lines, Seen, ToIsland, line_of
from rota.live.wire.unixpath import short

MOST_ASKERS = 8  # connections at once; the oldest that has asked for nothing makes room


class Seated(Protocol):
    """A program that has taken a seat, as its host knows it."""

    @property
    def settled(self) -> bool:
        """True if its workers are where they were last told to be."""


class Asker:
    """Who has connected: an agent, once it has asked for something."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection, self.lines = connection, Lines(ToIsland)
        self.has_asked = self.gone = False


class Taken:
    """A job's seat. ``program`` is the one that has it now, if any."""

    def __init__(self, told: island.Seat) -> None:
        self.told = told
        self.devices, self.cores = told.devices, told.cores
        self.away = False
        self.program: Seated | None = None
        # Whose message is answered once the program is settled, and which.
        self.asked: tuple[Asker, int] | None = None
        self.called = False  # the agent was told that a program that is away has called
        self.operations = 0  # that are over, of programs that have left


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

    def admit(self, told: island.Ranks) -> tuple[list[int], list[int]]:
        """Let ranks of a training take turns; their slots and rings. Raises FlowError."""

    def part(self, key: str) -> None:
        """Let them take no more turns; a key that is not known is ignored."""

    @property
    def serves_trainings(self) -> bool:
        """True while ranks of some training take turns."""


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
        self._askers: list[Asker] = []
        self.ended = False
        self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self._door = socket.socket(socket.AF_UNIX)
        self._door.setblocking(False)
        with short(folder / CONTROL) as path:
            self._door.bind(path)
        self._door.listen()
        watch(self._door.fileno(), self._welcome)

    @property
    def is_forsaken(self) -> bool:
        """True if there is neither an agent nor a program, nor a training."""
        if self._askers or self._holder.serves_trainings:
            return False
        return all(each.program is None for each in self._seats.values())

    def take(self, key: str) -> Taken:
        """The seat with this key, for a program that says hello. Raises FlowError.

        Another program may have it.
        """
        seat = self._seats.get(key)
        if seat is None:
            raise FlowError(
                "this island is for jobs alone: submit the program with `processes: flow`"
                if not key
                else "the job that this program is of is over"
            )
        return seat

    def settle(self) -> None:
        """Answer for programs that are where they were told to be."""
        for seat in self._seats.values():
            program_settled = seat.program is None or seat.program.settled
            if seat.asked is not None and program_settled:
                self._answer(seat)

    def called(self, seat: Taken) -> None:
        """A program that is away has called something."""
        if not seat.called:
            seat.called = True
            for asker in list(self._askers):
                self._say(asker, Called(seat.told.key))

    def let_go(self) -> None:
        """In a worker: close what is the host's."""
        os.close(self._spare)
        self._door.close()
        for asker in self._askers:
            asker.connection.close()

    # -- agents ----------------------------------------------------------------------------------

    def _welcome(self) -> None:
        try:
            connection, _ = self._door.accept()
        except BlockingIOError:
            return
        except OSError:  # no descriptor is free: who waits there would be told of for ever
            os.close(self._spare)
            with contextlib.suppress(OSError):
                self._door.accept()[0].close()
            self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            return
        if len(self._askers) >= MOST_ASKERS:
            silent = next((each for each in self._askers if not each.has_asked), None)
            if silent is None:
                connection.close()
                return
            self._hang_up(silent)
        connection.setblocking(False)
        asker = Asker(connection)
        self._askers.append(asker)
        self._watch(connection.fileno(), lambda: self._hear(asker))

    def _hang_up(self, asker: Asker) -> None:
        if asker.gone:
            return
        asker.gone = True
        self._askers.remove(asker)
        self._forget(asker.connection.fileno())
        asker.connection.close()
        for seat in self._seats.values():
            if seat.asked is not None and seat.asked[0] is asker:
                seat.asked = None

    def _hear(self, asker: Asker) -> None:
        if asker.gone:  # a moment ago
            return
        data = wire.received(asker.connection)
        if data is None:
            self._hang_up(asker)
            return
        try:
            for message in asker.lines.take(data):
                self._take(asker, message)
        except FlowError as error:  # it is no agent
            self._say(asker, Done(0, str(error)))
            self._hang_up(asker)

    def _take(self, asker: Asker, message: ToIsland) -> None:
        if not asker.has_asked:
            asker.has_asked = True
            for seat in self._seats.values():
                seat.called = False  # as this one has not heard
        try:
            self._obey(asker, message)
        except (FlowError, InputError) as error:
            self._say(asker, Done(message.number, str(error)))

    def _obey(self, asker: Asker, message: ToIsland) -> None:
        match message:
            case island.Look():
                seen = [self._holder.seen(each) for each in self._seats.values()]
                self._say(asker, Done(message.number, None, seen))
                return
            case island.End():
                self.ended = True
                self._say(asker, Done(message.number))
                return
            case island.Seat():
                self._holder.check(message.devices, message.cores)
                if message.key not in self._seats:
                    self._seats[message.key] = Taken(message)
                self._say(asker, Done(message.number))
                return
            case island.Ranks():
                slots, rings = self._holder.admit(message)
                done = Done(message.number, slots=slots, rings=rings, host=os.getpid())
                self._say(asker, done)
                return
        seat = self._seats.get(message.key)
        if isinstance(message, island.Dismiss):
            self._holder.part(message.key)
            if seat is not None:
                self._holder.dismiss(seat)
                self._answer(seat, "its job is over")
                del self._seats[message.key]
            self._say(asker, Done(message.number))
            return
        if seat is None:
            raise FlowError("the island has no such seat")
        if isinstance(message, island.Pause):
            self._holder.withdraw(seat)
            seat.away = True
        else:
            if len(message.devices) != len(seat.devices):
                raise FlowError(f"the seat has {len(seat.devices)} workers")
            self._holder.put(seat, message.devices, message.cores)
            seat.devices, seat.cores, seat.away = message.devices, message.cores, False
        self._answer(seat, "another command came before it was done")
        seat.asked, seat.called = (asker, message.number), False

    def _answer(self, seat: Taken, error: str | None = None) -> None:
        """Answer what was asked last for a seat, if that is open."""
        if seat.asked is not None:
            (asker, number), seat.asked = seat.asked, None
            self._say(asker, Done(number, error))

    def _say(self, asker: Asker, message: Done | Called) -> None:
        if asker.gone:
            return
        try:
            asker.connection.settimeout(1.0)
            asker.connection.sendall(line_of(message))
            asker.connection.setblocking(False)
        except OSError:  # it is gone, or does not listen
            self._hang_up(asker)
