"""Messages between an agent and the host of its node's island: each kind declared once.

Each is a line of JSON. The agent asks and the host answers with the same number; :class:`Called`
comes by itself. A *seat* is a flow job's place on the island, whether its program is there or not.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from rota.errors import FlowError

CONTROL = "control.sock"  # where agents find the host, in the island's folder
FOLDER, KEY = "ROTA_FLOW_ISLAND", "ROTA_FLOW_KEY"  # by which a job's program finds its seat
NO_DEVICE = -1  # of a worker whose slices can't work
MOST_BYTES = 1 << 24  # of a line

Number = Annotated[int, Meta(ge=0, lt=1 << 53)]
Key = Annotated[str, Meta(min_length=1)]
Cores = list[list[Annotated[int, Meta(ge=0, lt=1 << 16)]]]


# -- from an agent ---------------------------------------------------------------------------------


class Seat(Struct, tag="seat", kw_only=True):
    """A job may have a client on these devices, one worker each; -1: none for now.

    Workers are bound to ``cores``, one list each, join ``groups`` (files that take a pid), and have
    the job's ``tag``, environment, folder and log. A seat that exists stays as it is.
    """

    number: Number
    key: Key
    devices: list[int]
    cores: Cores
    weight: Annotated[float, Meta(gt=0)]
    memory_bytes: Annotated[int, Meta(gt=0, lt=1 << 62)] | None
    log: str
    workdir: str
    env: dict[str, str]
    groups: list[str] = []
    tag: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)] | None = None


class Ranks(Struct, tag="ranks", kw_only=True):
    """The ranks of a training take turns on these devices, one each; answered with their slots.

    ``pids`` are their processes. The seat is given up when each of them has ended or left it, or by
    :class:`Dismiss`, whatever they do then. Those in the ``background`` take turns among each other
    alone: nobody in the foreground ever waits for one of them.
    """

    number: Number
    key: Key
    devices: list[int]
    pids: list[Annotated[int, Meta(gt=0, lt=1 << 31)]]
    background: bool = False


class Pause(Struct, tag="pause"):
    """Take a seat's workers off their devices; answered once nothing of them is there."""

    number: Number
    key: Key


class Place(Struct, tag="place"):
    """Put a seat's workers on these devices; answered once they are there."""

    number: Number
    key: Key
    devices: list[int]
    cores: Cores


class Dismiss(Struct, tag="dismiss"):
    """The job is over: end its workers; answered once they are gone."""

    number: Number
    key: Key


class Look(Struct, tag="look"):
    """Tell of all seats."""

    number: Number


class End(Struct, tag="end"):
    """End all workers, and the host."""

    number: Number


ToIsland = Seat | Ranks | Pause | Place | Dismiss | Look | End


# -- from the host ---------------------------------------------------------------------------------


class Runs(Struct):
    """An operation that is under way on a device, and the time since which it was seen there.

    Or what else a worker is at that is to leave its device.
    """

    operation: str
    device: int
    since_s: float


class Seen(Struct, kw_only=True):
    """A seat and its program by now.

    ``devices`` are those of its workers. ``operations`` are over, of all of the seat's programs one
    after another; ``outstanding`` are not.
    ``spent_s`` is the computing of each worker, ``held_bytes`` what its
    buffers have; ``pids`` are those that live. ``waits`` says what the next operation waits for
    (see :class:`rota.flow.island.Wait`), on which device, behind which seat. ``runs`` are the
    operations that its workers are in.
    """

    key: str
    present: bool
    away: bool
    devices: list[int]
    operations: int
    outstanding: int
    spent_s: list[float]
    held_bytes: list[int]
    memory_bytes: int
    pids: list[int]
    slices: list[list[int]]
    waits: str
    device: int | None = None
    behind: str = ""
    runs: list[Runs] = []


class Done(Struct, tag="done"):
    """What was asked for is done, or why not; after a look with what was seen.

    For ranks of a training their ``slots`` and the ``rings`` of their turns on the island's page,
    and the process of the ``host``.
    """

    number: int
    error: str | None = None
    seen: list[Seen] = []
    slots: list[int] = []
    rings: list[int] = []
    host: int = 0


class Called(Struct, tag="called"):
    """A program whose workers are off their devices has called something that needs them."""

    key: str


FromIsland = Done | Called

_encoder = msgspec.json.Encoder()


def line_of(message: Any) -> bytes:
    """A message as a line."""
    return _encoder.encode(message) + b"\n"


class Lines:
    """Takes messages of some kinds out of a stream of bytes."""

    def __init__(self, kinds: Any) -> None:
        self._decoder = msgspec.json.Decoder(kinds)
        self._rest = b""

    def take(self, data: bytes) -> list[Any]:
        """The whole messages that have come by now. Raises FlowError."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MOST_BYTES:
            raise FlowError(f"a message has more than {MOST_BYTES:,} bytes")
        try:
            return [self._decoder.decode(line) for line in lines]
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            raise FlowError(f"a message can't be read: {error}") from None
