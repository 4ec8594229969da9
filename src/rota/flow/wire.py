"""Messages of clients, workers and hosts of an island: each kind declared once.

A message is a length of four bytes and MessagePack. Between a client and a worker they come in
program order, and are worked off in that order but for an :class:`Outline`.
"""

from __future__ import annotations

import socket
import struct
from typing import Any

import msgspec
from msgspec import Struct

from rota.errors import FlowError
from rota.flow.functions import Spec
from rota.flow.naming import Named

LENGTH = struct.Struct("=I")
MOST_BYTES = 1 << 28
READ_BYTES = 1 << 18
PACKED_BYTES = 1 << 16  # a tensor that is not larger goes with the message


# -- steps of a program, as lowered for one worker -----------------------------------------------


class Compute(Struct, array_like=True, tag=0):
    """One gang operation, the ``offset``-th of its program; registers in, registers out.

    It runs only if each of the predicates in the registers ``when`` is as wanted. ``specs`` are
    those that outputs had in the trial; empty where only their data tell.
    """

    function: int
    offset: int
    inputs: list[int]
    outputs: list[int]
    when: list[tuple[int, bool]] = []
    specs: list[Spec] = []


class Region(Struct, array_like=True):
    """A part of the tensor in a register, along a dimension; all of it if ``stop`` is None."""

    register: int
    dim: int = 0
    start: int = 0
    stop: int | None = None


class Send(Struct, array_like=True, tag=1):
    """A region goes into a parcel for the worker of a slot."""

    region: Region
    parcel: str
    slot: int


class Receive(Struct, array_like=True, tag=2):
    """A register is put together from parcels and own regions, behind each other along ``dim``.

    Without any it is ``empty``. ``slots`` are those of the workers that send the parts.
    """

    register: int
    parts: list[str | Region]
    slots: list[int]
    dim: int
    empty: Spec | None


class Discard(Struct, array_like=True, tag=3):
    """Nobody needs what is in these registers any more."""

    registers: list[int]


class Choose(Struct, array_like=True, tag=4):
    """A register becomes one of two others, by the predicate in a third one."""

    register: int
    predicate: int
    yes: int
    no: int


Step = Compute | Send | Receive | Discard | Choose


# -- from a client to a worker -------------------------------------------------------------------


class DefineSlice(Struct, array_like=True, tag=10):
    """The worker is shard ``rank`` of those in these slots; they meet in a file of that name.

    The slots have lost so many devices before: see :meth:`rota.flow.page.Page.has_lost`.
    """

    slice: int
    rank: int
    slots: list[int]
    meeting: str
    losses: int = 0


class DefineFunction(Struct, array_like=True, tag=11):
    """A function on a slice; ``most_bytes`` is what an output of unknown shape may take."""

    function: int
    slice: int
    named: Named
    most_bytes: int | None = None


class Outline(Struct, array_like=True, tag=12):
    """What would the function give for such inputs? Answered at once, or within ``most_s``."""

    request: int
    function: int
    inputs: list[Spec]
    most_s: float | None = None


class DefineProgram(Struct, array_like=True, tag=13):
    """The steps of a program on this worker; its inputs are in the first registers."""

    program: int
    steps: list[Step]
    registers: int
    outputs: list[int]
    labels: list[str]  # of its operations, by offset


class Run(Struct, array_like=True, tag=14):
    """Run a program. ``number`` is that of its first operation among all of the client's."""

    program: int
    number: int
    inputs: list[int]  # buffers; 0 where the shard is on another worker
    outputs: list[int]


class Put(Struct, array_like=True, tag=15):
    """A buffer: packed, or in a parcel of the client's, which is the worker's then."""

    buffer: int
    parcel: str
    packed: bytes = b""


class Free(Struct, array_like=True, tag=16):
    """The client has no handle of these buffers any more."""

    buffers: list[int]


class Fetch(Struct, array_like=True, tag=17):
    """Answer with a buffer once it is there: packed if it is small, else in a parcel."""

    request: int
    buffer: int
    parcel: str


class Tell(Struct, array_like=True, tag=18):
    """Answer once all that was told before is done."""

    request: int


class Describe(Struct, array_like=True, tag=19):
    """Answer with the spec of a buffer, once there is one."""

    request: int
    buffer: int


class Await(Struct, array_like=True, tag=20):
    """Answer once the worker's operations up to this one are over."""

    request: int
    operation: int


ToWorker = (
    DefineSlice
    | DefineFunction
    | Outline
    | DefineProgram
    | Run
    | Put
    | Free
    | Fetch
    | Tell
    | Describe
    | Await
)


# -- from a worker to its client -----------------------------------------------------------------


class Answer(Struct, array_like=True, tag=30):
    """To a request; ``error`` says what is wrong with it."""

    request: int
    error: str | None = None
    kind: str = ""
    outputs: list[Spec] = []
    single: bool = True
    most_bytes: int = 0
    packed: bytes = b""


FromWorker = Answer


# -- between a client and its host ---------------------------------------------------------------


class Hello(Struct, array_like=True, tag=40):
    """A client asks for workers on so many devices."""

    name: str
    devices: list[int] | int  # those, or so many of the least loaded
    weight: float
    memory_bytes: int | None  # at most held on a device
    op_timeout_s: float | None = None  # what an operation may last
    key: str = ""  # of a job's seat, which says devices, weight and memory instead


class Welcome(Struct, array_like=True, tag=41):
    """The client's devices, and the slots of its workers; their sockets come with it."""

    client: int
    devices: list[int]
    slots: list[int]
    island_devices: int
    island_slots: int
    memory_bytes: int


class Refused(Struct, array_like=True, tag=42):
    """There are no such devices, or no room for another client."""

    error: str


class DefineGangs(Struct, array_like=True, tag=43):
    """The gang operations of a program: the workers of each, by index, and its function.

    ``losses`` are those of their slices, as in :class:`DefineSlice`; ``labels`` name the operations
    to people.
    """

    program: int
    gangs: list[list[int]]
    functions: list[int]
    losses: list[int]
    labels: list[str]


class Want(Struct, array_like=True, tag=46):
    """A client asks to use so much memory, by slot; see :mod:`rota.flow.memory`.

    It is answered unless the client asks again before; numbers grow, from 1.
    """

    number: int
    bytes: dict[int, int]


class Given(Struct, array_like=True, tag=47):
    """The client may use what it wanted by the request of that number, or why not."""

    number: int
    error: str | None


class Lost(Struct, array_like=True, tag=45):
    """A worker of the client's has ended; why, or which operation of it ran for too long."""

    slot: int
    why: str
    operation: int = 0


class Placed(Struct, array_like=True, tag=50):
    """The client's workers are on these devices now; -1 for one that has none."""

    devices: list[int]


class Recover(Struct, array_like=True, tag=48):
    """A client asks for workers in place of the lost ones in these slots; it runs nothing now."""

    slots: list[int]


class Recovered(Struct, array_like=True, tag=49):
    """The slots of new workers by those of the lost ones; their sockets come with it.

    ``error`` says why not all could be started.
    """

    slots: dict[int, int]
    error: str | None = None


ToHost = Hello | DefineGangs | Want | Recover
FromHost = Welcome | Refused | Lost | Given | Placed | Recovered

_encoder = msgspec.msgpack.Encoder()


def encoded(messages: Any) -> bytes:
    """One message, or a list of them, with its length."""
    body = _encoder.encode(messages if isinstance(messages, list) else [messages])
    return LENGTH.pack(len(body)) + body


class Reader:
    """Takes messages of some kinds out of a stream of bytes."""

    def __init__(self, kinds: Any) -> None:
        self._decoder = msgspec.msgpack.Decoder(list[kinds])
        self._parts: list[bytes] = []  # of a message that is not whole
        self._missing = 0  # bytes at least until one is

    def take(self, data: bytes) -> list[Any]:
        """The whole messages that have come by now. Raises FlowError."""
        self._missing -= len(data)
        self._parts.append(data)
        if self._missing > 0:
            return []
        stream, at, messages = b"".join(self._parts), 0, list[Any]()
        self._missing = 0
        while len(stream) - at >= LENGTH.size:
            (length,) = LENGTH.unpack_from(stream, at)
            if length > MOST_BYTES:
                raise FlowError(f"a message of {length} bytes is too long")
            end = at + LENGTH.size + length
            if len(stream) < end:
                self._missing = end - len(stream)
                break
            try:
                messages += self._decoder.decode(stream[at + LENGTH.size : end])
            except (msgspec.DecodeError, msgspec.ValidationError) as error:
                raise FlowError(f"a message can't be read: {error}") from None
            at = end
        self._parts = [stream[at:]]
        return messages


def received(connection: socket.socket) -> bytes | None:
    """What has come on a socket that does not block; None at its end, empty if nothing has."""
    try:
        data = connection.recv(READ_BYTES)
    except BlockingIOError:
        return b""
    except OSError:
        return None
    return data or None
