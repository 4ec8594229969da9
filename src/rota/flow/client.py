"""A program's side: slices of virtual devices, functions on them, buffers as futures.

A client is for one thread. Nothing here waits for what was called but :meth:`ShardedBuffer.result`
and what asks for it; a call waits where too many before it are outstanding.
"""

from __future__ import annotations

import contextlib
import math
import select
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from rota.errors import (
    FlowError,
    FlowMemoryError,
    InputError,
    OperationError,
    SliceChangedError,
    WorkerLostError,
)
from rota.flow import wire
from rota.flow.forks import keep_from_forks
from rota.flow.functions import Spec
from rota.flow.layout import Each, Layout, Replicated, Split, shard_shape, whole_shape
from rota.flow.naming import Named, named
from rota.flow.page import (
    ALLOWED_BYTES,
    FINISHED,
    HOST,
    LOG,
    SOCKET,
    TAKEN,
    TOLD,
    USED_BYTES,
    Barrier,
    Bells,
    Log,
    Page,
)
from rota.flow.program import Call, Choose, Lies, Trace, extra_bytes, lowered
from rota.live.wire.unixpath import short

if TYPE_CHECKING:
    import torch

MOST_AHEAD = 1000  # operations of a worker that are not done as a program is called
MOST_WORKERS = 253  # of a client: as many descriptors as come at once
ANSWERS_S = 60.0  # within which a host answers
LOSS_S = 1.0  # within which the end of a worker is heard of that others know of
MOST_FREE_PARTS = 16  # a program tells of freed buffers at once beyond its memory over so many
_NO_HOST = "the island's host is gone, and its workers with it"


class Client:
    """A connection to an island; :func:`rota.flow.connect` and :func:`rota.flow.local` make it."""

    def __init__(
        self,
        folder: Path,
        name: str,
        devices: Sequence[int] | int,
        weight: float,
        memory_bytes: int | None,
        op_timeout_s: float | None = None,
        on_close: Callable[[], None] | None = None,
        key: str = "",
    ) -> None:
        """Raises FlowError; InputError for a time limit that is not positive and finite."""
        if op_timeout_s is not None and not 0 < op_timeout_s < math.inf:
            raise InputError(f"op_timeout_s is {op_timeout_s!r}: give seconds above 0, or None")
        wanted = _wanted(devices)
        if memory_bytes is not None and (type(memory_bytes) is not int or memory_bytes < 1):
            raise InputError(f"memory_bytes is {memory_bytes!r}; give bytes, 1 or more")
        self._on_close, self._op_timeout_s = on_close, op_timeout_s
        self._host = socket.socket(socket.AF_UNIX)
        self._host.settimeout(ANSWERS_S)
        try:
            with short(folder / SOCKET) as path:
                self._host.connect(path)
            hello = wire.Hello(name, wanted, weight, memory_bytes, op_timeout_s, key)
            self._host.sendall(wire.encoded(hello))
            data, descriptors, _, _ = socket.recv_fds(self._host, wire.READ_BYTES, MOST_WORKERS)
        except OSError as error:
            self._host.close()
            raise FlowError(f"the island at {folder} does not answer: {error}") from None
        self._host.settimeout(None)
        self._from_host = wire.Reader(wire.FromHost)
        answers = self._from_host.take(data)
        if not answers or isinstance(answers[0], wire.Refused):
            self._host.close()
            raise FlowError(answers[0].error if answers else f"the island at {folder} is gone")
        welcome: wire.Welcome = answers[0]
        self.devices = welcome.devices
        self.memory_bytes = welcome.memory_bytes
        self._slots = welcome.slots
        self._workers = [socket.socket(fileno=each) for each in descriptors]
        self._readers = [wire.Reader(wire.FromWorker) for _ in self._workers]
        self._page = Page(folder / "page", welcome.island_devices, welcome.island_slots)
        self.parcels = folder / f"client{welcome.client}"
        self._log, self._bells = Log(self.parcels / LOG), Bells(folder)
        Barrier()  # as the host relies on
        self._answers: dict[int, wire.Answer] = {}
        self._unwanted: dict[int, str] = {}  # parcels, or "", that nobody waits for, by request
        self._lost: dict[int, str] = {}  # by worker: why
        self._recovered: wire.Recovered | None = None  # the host's answer
        self._descriptors: list[int] = []  # of new workers, which the host has sent
        self._era = 0  # how often it has recovered
        self._slices: dict[int, Slice] = {}  # by number
        self._functions: dict[int, wire.DefineFunction] = {}
        self._numbers = dict.fromkeys(
            ("operation", "buffer", "program", "slice", "function", "request", "want"), 0
        )
        self._programs: dict[Any, Ready] = {}
        self._first = [0] * len(self._workers)  # buffers of before were lost
        self._losses: dict[int, int] = {}  # of the slice of each function
        self._last = [0] * len(self._workers)  # the last operation that was called on each
        self._before = [0] * len(self._workers)  # the one before its first
        self._frees: list[list[int]] = [[] for _ in self._workers]
        self._frees_bytes = 0
        self._telling = False
        self._extra = [0] * len(self._workers)  # bytes that operations need besides, at most
        self._given = wire.Given(0, None)  # the last answer
        self._granted = 0  # the last request for memory that was granted
        self._held = [0] * len(self._workers)  # bytes of live buffers
        self._load = [0] * len(self._workers)  # slices on each
        self._poll = select.poll()
        for each in (self._host, *self._workers):
            self._poll.register(each, select.POLLIN)
        self.closed = False
        keep_from_forks(self)

    # -- what programs use -----------------------------------------------------------------------

    def slice(self, size: int | tuple[int, ...]) -> Slice:
        """So many virtual devices, on the client's devices that have the fewest slices.

        Raises InputError if the client has not so many, WorkerLostError if too many are lost.
        """
        sizes = tuple(size) if isinstance(size, tuple | list) else (size,)
        if any(type(each) is not int or each < 1 for each in sizes):
            raise InputError(f"slice: its size is {size!r}; give whole numbers, 1 or more")
        number = _product(sizes)
        self._check_open()
        self._look(0)
        placed = [worker for worker, device in enumerate(self.devices) if device >= 0]
        if not 1 <= number <= len(placed):
            raise InputError(
                f"slice: {number} devices are asked for; this program has {len(placed)}"
            )
        here = [each for each in placed if each not in self._lost]
        if number > len(here):
            raise WorkerLostError(
                f"slice: {number} devices are asked for; this program has {len(here)} whose "
                "workers are alive: call client.recover()"
            )
        order = sorted(here, key=lambda each: (self._load[each], each))
        workers = tuple(sorted(order[:number]))
        for each in workers:
            self._load[each] += 1
        return Slice(self, self._next("slice"), workers)

    def program(self, function: Callable[..., Any]) -> Program:
        """A function of buffers, traced at its first call for such inputs; then one message."""
        return Program(self, function)

    def wait(self) -> None:
        """Wait until all that was called is done."""
        requests = [self._ask(each, wire.Tell) for each in range(len(self._workers))]
        for worker, request in enumerate(requests):
            self._answer(worker, request)

    def recover(self) -> None:
        """Start new workers in place of lost ones, and mend slices whose operations have failed.

        Waits until all that was called is over. Buffers with a shard on a lost worker stay lost.
        Raises FlowError if there is no room for a worker; others are started all the same.
        """
        for worker in range(len(self._workers)):
            with contextlib.suppress(WorkerLostError):
                self._answer(worker, self._ask(worker, wire.Tell))
        self._unwanted.clear()
        for path in self.parcels.iterdir():  # what nobody takes any more
            if path.name != LOG and not path.name.startswith("slice"):
                path.unlink(missing_ok=True)
        error, new = self._replace_lost() if self._lost else (None, set[int]())
        self._era += 1
        for each in self._slices.values():
            if len(each.workers) > 1 or new.issuperset(each.workers):
                self._define_slice(each)
        for told in self._functions.values():
            for worker in new.intersection(self._slices[told.slice].workers):
                self._tell_living(worker, told)
        if error is not None:
            raise FlowError(f"recover: {error}")

    def close(self) -> None:
        """End the client's workers; buffers are gone."""
        if self.closed:
            return
        self.closed = True
        for each in (self._host, *self._workers):
            each.close()
        self._page.close()
        self._log.close()
        self._bells.close()
        if self._on_close is not None:
            self._on_close()

    def forked(self) -> None:
        """In a process that the program has forked: the client is its parent's alone."""
        self._on_close = None
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # -- messages --------------------------------------------------------------------------------

    def _next(self, kind: str, count: int = 1) -> int:
        first = self._numbers[kind] + 1
        self._numbers[kind] += count
        return first

    def _check_open(self) -> None:
        if self.closed:
            raise FlowError(
                "the client is closed, or was interrupted amid a call; make another one by "
                "flow.connect or flow.local"
            )

    def _tell(self, worker: int, *messages: Any) -> None:
        self._check_open()
        if worker in self._lost:
            raise WorkerLostError(self._lost[worker])
        words = list(messages)
        if self._frees[worker]:
            words.insert(0, wire.Free(self._frees[worker]))
            self._frees[worker] = []
            if not any(self._frees):
                self._frees_bytes = 0
        self._telling = True  # a handle may be let go of meanwhile
        try:
            self._workers[worker].sendall(wire.encoded(words))
        except OSError:
            self._telling = False
            self._hear_of_loss(worker)
            raise WorkerLostError(self._lost[worker]) from None
        except BaseException:  # half a message may have gone
            self.close()
            raise
        self._telling = False

    def _tell_host(self, message: Any) -> None:
        self._check_open()
        try:
            self._host.sendall(wire.encoded(message))
        except OSError:
            self._hear_host()
            raise WorkerLostError(self._lost.get(0, _NO_HOST)) from None
        except BaseException:
            self.close()
            raise

    def _tell_living(self, worker: int, message: Any) -> None:
        with contextlib.suppress(WorkerLostError):
            self._tell(worker, message)

    def _define_slice(self, where: Slice) -> None:
        """Tell the workers of a slice of each other."""
        slots = [self._slots[worker] for worker in where.workers]
        meeting = f"slice{where.number}.{self._era}"
        for rank, worker in enumerate(where.workers):
            told = wire.DefineSlice(where.number, rank, slots, meeting, where.losses)
            self._tell_living(worker, told)

    def _replace_lost(self) -> tuple[str | None, set[int]]:
        """Have the host start workers; returns what is wrong if anything is, and which are new."""
        self._recovered = None
        self._tell_host(wire.Recover([self._slots[worker] for worker in self._lost]))
        while self._recovered is None:
            self._look(None)
        slots = self._recovered.slots.values()
        return self._recovered.error, {self._slots.index(slot) for slot in slots}

    def _take_in(self, recovered: wire.Recovered) -> None:
        """Workers were started in place of lost ones."""
        self._recovered = recovered
        for old, slot in recovered.slots.items():
            worker = self._slots.index(old)
            with contextlib.suppress(KeyError):
                self._poll.unregister(self._workers[worker])
            self._workers[worker].close()
            self._workers[worker] = socket.socket(fileno=self._descriptors.pop(0))
            self._readers[worker] = wire.Reader(wire.FromWorker)
            self._poll.register(self._workers[worker], select.POLLIN)
            self._slots[worker], self._frees[worker] = slot, []
            self._first[worker] = self._numbers["buffer"] + 1
            self._last[worker] = self._held[worker] = self._extra[worker] = 0
            del self._lost[worker]

    def _hear_of_loss(self, worker: int) -> None:
        """Wait for the host's word on a worker whose connection has ended."""
        until_s = time.monotonic() + LOSS_S
        while worker not in self._lost and time.monotonic() < until_s:
            self._look(0.05)
        device = self.devices[worker]
        self._lost.setdefault(worker, f"the worker on device {device} is gone, or its host")

    def _look_for_loss(self, buffer: ShardedBuffer, failed: int) -> None:
        """Raises WorkerLostError if an operation failed on a worker because another one has ended.

        The others are asked for their shards, and not waited for where they compute these yet.
        """
        asked = []
        for worker in buffer._lies.workers:
            if worker != failed:
                asked.append(self._ask(worker, wire.Describe, buffer.number))
        until_s = time.monotonic() + LOSS_S
        while asked and time.monotonic() < until_s:
            for worker in buffer._lies.workers:
                if worker in self._lost:
                    raise WorkerLostError(self._lost[worker])
            asked = [each for each in asked if self._answers.pop(each, None) is None]
            if asked:
                self._look(0.05)
        self._unwanted |= dict.fromkeys(asked, "")

    def _ask(self, worker: int, kind: Callable[..., Any], *fields: Any) -> int:
        request = self._next("request")
        self._tell(worker, kind(request, *fields))
        return request

    def _answer(self, worker: int, request: int) -> wire.Answer:
        while request not in self._answers:
            if worker in self._lost:
                raise WorkerLostError(self._lost[worker])
            self._look(None)
        return self._answers.pop(request)

    def _look(self, timeout_s: float | None) -> None:
        """Take in what host and workers say, waiting for it so long."""
        wait_ms = None if timeout_s is None else 1000 * timeout_s
        for descriptor, _ in self._poll.poll(wait_ms):
            if descriptor == self._host.fileno():
                self._hear_host()
                continue
            worker = next((i for i, s in enumerate(self._workers) if s.fileno() == descriptor), -1)
            if worker < 0:  # it was replaced a moment ago
                continue
            data = self._heard(self._workers[worker])
            if data == b"":
                self._hear_of_loss(worker)
            for answer in self._readers[worker].take(data or b""):
                if (name := self._unwanted.pop(answer.request, None)) is None:
                    self._answers[answer.request] = answer
                elif name:
                    self._drop(name)

    def _heard(self, connection: socket.socket) -> bytes | None:
        """Returns what has come; None if nothing has, empty at its end."""
        try:
            if connection is self._host:
                most, flags = len(self._workers), socket.MSG_DONTWAIT
                data, found, _, _ = socket.recv_fds(connection, wire.READ_BYTES, most, flags)
                self._descriptors += found
            else:
                data = connection.recv(wire.READ_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return None
        except OSError:
            data = b""
        if not data:
            with contextlib.suppress(KeyError):
                self._poll.unregister(connection)
        return data

    def _hear_host(self) -> None:
        data = self._heard(self._host)
        for message in self._from_host.take(data or b""):
            if isinstance(message, wire.Given):
                self._given = message
                continue
            if isinstance(message, wire.Placed):
                self.devices = message.devices
                continue
            if isinstance(message, wire.Recovered):
                self._take_in(message)
                continue
            if isinstance(message, wire.Refused):
                self._lose_all(f"the island's host has let this program go: {message.error}")
                continue
            worker = self._slots.index(message.slot)
            device = self.devices[worker]
            why = self._overran(message.operation) if message.operation else message.why
            self._lost[worker] = f"the worker on device {device} has ended: {why}"
        if data == b"":
            self._lose_all(_NO_HOST)

    def _overran(self, operation: int) -> str:
        program, first = self._log.find(operation)
        traces = [each.trace for each in self._programs.values() if each.number == program]
        labels = [f"{trace.name}{trace.calls()[operation - first].label}" for trace in traces]
        what = labels[0] if labels else "an operation"
        return f"{what} ran there for longer than op_timeout_s={self._op_timeout_s}"

    def _lose_all(self, why: str) -> None:
        self._recovered = wire.Recovered({}, why)
        for worker in range(len(self._workers)):
            self._lost.setdefault(worker, why)

    # -- buffers ---------------------------------------------------------------------------------

    def _free(self, buffer: int, lies: Lies) -> None:
        """Its handle is gone."""
        self._let_go(buffer, lies)
        for worker, spec in zip(lies.workers, lies.specs, strict=True):
            if buffer >= self._first[worker]:
                self._frees[worker].append(buffer)
                self._frees_bytes += spec.nbytes
        if self._frees_bytes * MOST_FREE_PARTS > self.memory_bytes and not self._telling:
            self._flush_frees()

    def _let_go(self, buffer: int, lies: Lies) -> None:
        """Give back the memory that was taken for a buffer."""
        for worker, spec in zip(lies.workers, lies.specs, strict=True):
            if buffer >= self._first[worker]:
                self._held[worker] -= spec.nbytes
                self._count(worker)

    def _flush_frees(self) -> None:
        for worker, frees in enumerate(self._frees):
            if frees and worker not in self._lost:
                self._tell(worker)

    def _count(self, worker: int, more_bytes: int = 0) -> int:
        """Say what memory is counted on; returns it."""
        used_bytes = self._held[worker] + max(self._extra[worker], 0) + more_bytes
        self._page.tell(self._slots[worker], USED_BYTES, used_bytes)
        return used_bytes

    def _hold(self, lies: Sequence[Lies], extra_bytes: int, label: str) -> None:
        """Take memory for buffers, and for what their operations need besides.

        Waits while other programs have it. Raises FlowMemoryError.
        """
        if self.closed:
            self._tell(0)  # which says so
        more = dict.fromkeys((each for one in lies for each in one.workers), 0)
        for one in lies:
            for worker, spec in zip(one.workers, one.specs, strict=True):
                more[worker] += spec.nbytes
        for worker, more_bytes in more.items():
            extra = max(self._extra[worker], extra_bytes)
            if self._held[worker] + more_bytes + extra > self.memory_bytes:
                raise FlowMemoryError(
                    f"{label} needs {more_bytes + extra_bytes:,} bytes of device "
                    f"{self.devices[worker]}, where this program's buffers have "
                    f"{self._held[worker]:,} of {self.memory_bytes:,}; let go of buffers, or ask "
                    "for more by memory_bytes="
                )
        before = {worker: self._extra[worker] for worker in more}
        while True:
            wanted = {}
            if self._lost and (lost := sorted(more.keys() & self._lost.keys())):
                raise WorkerLostError(self._lost[lost[0]])
            for worker, more_bytes in more.items():
                self._extra[worker] = max(self._extra[worker], extra_bytes)
                used_bytes = self._count(worker, more_bytes)
                if self.devices[worker] >= 0:  # else its buffers are in host memory
                    wanted[self._slots[worker]] = used_bytes
            if all(self._page.of(slot, ALLOWED_BYTES) >= b for slot, b in wanted.items()):
                break
            for worker in more:
                self._extra[worker] = before[worker]
                self._count(worker)
            self._want(wanted, label)
        for worker, more_bytes in more.items():
            self._held[worker] += more_bytes
            self._page.tell(self._slots[worker], TAKEN, self._granted)

    def _want(self, wanted: dict[int, int], label: str) -> None:
        """Wait for the host to give so much memory. Raises FlowMemoryError, WorkerLostError."""
        self._flush_frees()
        number = self._next("want")
        self._tell_host(wire.Want(number, wanted))
        try:
            while self._given.number < number:
                if len(self._lost) == len(self._workers):
                    raise WorkerLostError(next(iter(self._lost.values())))
                self._look(None)
        except BaseException:  # interrupted: others may have what was asked for
            with contextlib.suppress(FlowError):
                self._tell_host(wire.Want(self._next("want"), {}))
                for slot in wanted:
                    self._page.tell(slot, TAKEN, number)
            raise
        if self._given.error is not None:
            raise FlowMemoryError(f"{label}: {self._given.error}")
        self._granted = number

    def _described(self, buffer: ShardedBuffer, lies: Lies) -> Lies:
        """How a buffer lies, once it is computed; gives back what it does not take of its memory.

        Raises OperationError, WorkerLostError.
        """
        asked = [(each, self._ask(each, wire.Describe, buffer.number)) for each in lies.workers]
        answers = [self._answer(*each) for each in asked]
        for answer in answers:
            if answer.error is not None:
                raise _problem(answer)
        specs = tuple(answer.outputs[0] for answer in answers)
        for worker, spec, before in zip(lies.workers, specs, lies.specs, strict=True):
            self._held[worker] += spec.nbytes - before.nbytes
            self._count(worker)
        return lies._replace(specs=specs, known=True)

    def _fetch(self, buffer: ShardedBuffer, shards: Sequence[int]) -> list[torch.Tensor]:
        from rota.flow.parcels import receive, unpack

        asked: dict[int, tuple[int, str]] = {}
        tensors = []
        try:
            for shard in shards:
                worker, name = buffer._lies.workers[shard], f"fetch{self._next('request')}"
                asked[self._ask(worker, wire.Fetch, buffer.number, name)] = (worker, name)
            for request in list(asked):
                worker, name = asked[request]
                answer = self._answer(worker, request)
                del asked[request]
                if answer.error is not None:
                    problem = _problem(answer)
                    if isinstance(problem, OperationError):
                        self._look_for_loss(buffer, worker)
                    raise problem
                if answer.packed:
                    tensors.append(unpack(answer.packed))
                    continue
                tensors.append(receive(self.parcels, name, copy=True))
                self._drop(name)
        finally:
            for request, (_, name) in asked.items():  # it has failed, or was interrupted
                if self._answers.pop(request, None) is None:
                    self._unwanted[request] = name
                else:
                    self._drop(name)
        return tensors

    def _drop(self, name: str) -> None:
        from rota.flow.parcels import drop

        drop(self.parcels, name)

    # -- programs --------------------------------------------------------------------------------

    def _apply(self, key: Any, inputs: Sequence[Any], build: Build) -> list[Any]:
        """Have what ``build`` adds to a trace done: at once, or by the program being traced.

        ``key`` tells it from all else that is built for such inputs; with None it is built each
        time, and told by what was built.
        """
        for each in inputs:
            if not isinstance(each, ShardedBuffer | Traced):
                raise InputError(
                    f"an argument is a {type(each).__name__}; bring arrays onto devices by "
                    "slice.put(tensor), and write constants into the function"
                )
        if traced := [each for each in inputs if isinstance(each, Traced)]:
            trace = traced[0].trace
            if trace.closed:
                raise InputError(
                    "what stands for a buffer in a program is used outside of it; return it from "
                    "the program, and use the buffer that the program's call gives"
                )
            if len(traced) < len(inputs) or any(each.trace is not trace for each in traced):
                raise InputError(
                    "a program uses a buffer from outside of it; make it an argument of the program"
                )
            outputs = build(trace, [each.value for each in inputs])
            return [Traced(self, trace, each) for each in outputs]
        for each in inputs:
            if each._client is not self:
                raise InputError("a buffer is another program's; fetch it by .result() and put it")
            each._live()
        lies = [each.lies for each in inputs]
        built = _traced(lies, build) if key is None else None
        if built is not None:
            key = built.structure()
        place = (key, tuple(lies))
        ready = self._programs.get(place)
        if ready is None:
            ready = self._programs[place] = self._define(built or _traced(lies, build))
        elif ready.era != self._era:  # it tells of workers that were lost
            ready = self._programs[place] = self._define(ready.trace)
        return self._run(ready, inputs)

    def _define(self, trace: Trace) -> Ready:
        """Lower a program and tell workers and host of it."""
        number, calls = self._next("program"), trace.calls()
        labels = [f"{trace.name}{each.label}" for each in calls]
        steps = {}
        for worker in range(len(self._workers)):
            own = lowered(trace, worker, self._slots)
            if own.steps or own.kept:
                steps[worker] = own
                told = wire.DefineProgram(number, own.steps, own.registers, own.outputs, labels)
                self._tell(worker, told)
        gangs = [list(each.workers) for each in calls]
        functions = [each.function for each in calls]
        losses = [self._losses[each] for each in functions]
        self._tell_host(wire.DefineGangs(number, gangs, functions, losses, labels))
        slices = {
            (tuple(self._slots[worker] for worker in gang), before)
            for gang, before in zip(gangs, losses, strict=True)
        }
        return Ready(number, trace, steps, slices, self._era)

    def _run(self, ready: Ready, inputs: Sequence[ShardedBuffer]) -> list[ShardedBuffer]:
        self._check_open()
        trace = ready.trace
        for worker in ready.steps:
            if worker in self._lost:
                raise WorkerLostError(self._lost[worker])
        if any(self._page.has_lost(slots, losses) for slots, losses in ready.slices):
            raise SliceChangedError(
                f"{ready.label}: its slice has lost a device; make another slice, and bring its "
                "buffers there by .to"
            )
        self._wait_for_room(ready.steps)
        held = [trace.values[each] for each in trace.outputs]
        self._hold(held, ready.extra_bytes, ready.label)
        first = self._next("operation", max(1, ready.operations))
        numbers = [self._next("buffer") for _ in trace.outputs]
        buffers = [
            ShardedBuffer(self, number, lies) for number, lies in zip(numbers, held, strict=True)
        ]
        last = first + max(0, ready.operations - 1)
        ins = [each.number for each in inputs]
        problem = None
        try:
            if ready.operations:
                self._log.add(ready.number, first)
            for worker, own in ready.steps.items():
                run = wire.Run(
                    ready.number,
                    first,
                    [ins[each] for each in own.inputs],
                    [numbers[each] for each in own.kept],
                )
                try:
                    self._tell(worker, run)
                except WorkerLostError as error:
                    problem = error  # the others are told all the same: some have been
                if worker in ready.last:
                    if not self._last[worker]:
                        self._before[worker] = first - 1
                    self._last[worker] = first + ready.last[worker]
            for worker in ready.steps:
                self._page.tell(self._slots[worker], TOLD, last)
            if ready.operations and not self._stands():
                self._bells.ring(HOST)
        except BaseException:  # interrupted: some would wait for others for ever
            self.close()
            raise
        if problem is not None:
            raise problem
        return buffers

    def _stands(self) -> bool:
        """True if its workers need no turns: then the host need not be told of what they do."""
        pairs = zip(self.devices, self._slots, strict=True)
        return all(self._page.standing(device) == slot for device, slot in pairs if device >= 0)

    def _wait_for_room(self, workers: Any) -> None:
        for worker in workers:
            done = max(self._page.of(self._slots[worker], FINISHED), self._before[worker])
            if self._last[worker] - done > MOST_AHEAD:
                half = self._last[worker] - MOST_AHEAD // 2  # the rest keeps the worker busy
                self._answer(worker, self._ask(worker, wire.Await, half))


class Ready:
    """A program as the workers know it."""

    def __init__(
        self,
        number: int,
        trace: Trace,
        steps: dict[int, Any],
        slices: set[tuple[Any, int]],
        era: int,
    ) -> None:
        self.number, self.trace, self.steps, self.slices = number, trace, steps, slices
        self.era = era
        calls = trace.calls()
        self.operations = len(calls)
        # By worker: its last operation, counted from the program's first.
        self.last = {worker: i for i, each in enumerate(calls) for worker in each.workers}
        self.extra_bytes = max((extra_bytes(trace, each) for each in steps), default=0)
        self.label = calls[0].label if calls else "a transfer"


class Slice:
    """Virtual devices: shards lie on them, and functions run on all of them together."""

    def __init__(self, client: Client, number: int, workers: tuple[int, ...]) -> None:
        self.client, self.number, self.workers = client, number, workers
        self.losses = client._page.losses([client._slots[worker] for worker in workers])
        client._slices[number] = self
        client._define_slice(self)

    @property
    def size(self) -> int:
        """How many devices it has."""
        return len(self.workers)

    def function(
        self,
        function: Callable[..., Any] | str,
        out: Layout | Sequence[Layout] | None = None,
        *,
        most_bytes: int | None = None,
    ) -> Function:
        """Compile a function for this slice; see :class:`Function`. Raises InputError."""
        return Function(self, named(function), out, most_bytes)

    def put(self, tensor: torch.Tensor, layout: Layout | None = None) -> ShardedBuffer:
        """Bring an array onto the slice: replicated, or split along a dimension.

        Raises FlowMemoryError, InputError.
        """
        import torch
        from torch._subclasses.fake_tensor import FakeTensor

        from rota.flow.parcels import pack, send

        if not isinstance(tensor, torch.Tensor):
            raise InputError(
                f"put: a {type(tensor).__name__} is no tensor; write torch.tensor(...)"
            )
        if tensor.is_meta or isinstance(tensor, FakeTensor):
            raise InputError(
                f"put: a tensor {list(tensor.shape)} on the device meta, or a fake one, has no "
                "data; put one that has, such as torch.zeros_like(x, device='cpu')"
            )
        layout = layout or Replicated()
        shape, client = tuple(tensor.shape), self.client
        dtype = str(tensor.dtype).removeprefix("torch.")
        shards = range(self.size)
        specs = tuple(Spec(shard_shape(shape, layout, self.size, i), dtype) for i in shards)
        parts = [tensor] * self.size
        if isinstance(layout, Split):
            parts = list(tensor.tensor_split(self.size, layout.dim))
        lies = Lies(self.number, self.workers, layout, specs)
        client._hold([lies], 0, "put")
        number = client._next("buffer")
        names = [f"put{number}.{shard}" for shard in shards]
        packed = [b""] * self.size
        try:
            for shard, part in enumerate(parts):
                if specs[shard].nbytes <= wire.PACKED_BYTES:
                    packed[shard] = pack(part)
                else:
                    send(client.parcels, names[shard], part)
        except BaseException as error:
            client._let_go(number, lies)
            for name in names:
                client._drop(name)
            if isinstance(error, OSError):
                raise FlowMemoryError(f"put: there is no room for the array: {error}") from None
            raise
        buffer = ShardedBuffer(client, number, lies)
        for worker, name, words in zip(self.workers, names, packed, strict=True):
            client._tell(worker, wire.Put(number, name, words))
        return buffer


class ShardedBuffer:
    """An array on a slice, which may not be computed yet: one handle, whatever its shards."""

    def __init__(self, client: Client, number: int, lies: Lies) -> None:
        self._client, self.number, self._lies = client, number, lies

    @property
    def lies(self) -> Lies:
        """Where and how it lies. Waits if its shape depends on data; raises as result()."""
        if not self._lies.known:
            self._lies = self._client._described(self._live(), self._lies)
        return self._lies

    @property
    def shape(self) -> tuple[int, ...]:
        """The logical array's, or each shard's if there is none. Waits if it depends on data."""
        return self.lies.shape

    @property
    def layout(self) -> Layout:
        """How it lies on its shards."""
        return self._lies.layout

    def result(self) -> torch.Tensor:
        """Wait for the whole array. Raises OperationError, WorkerLostError; InputError for Each."""
        import torch

        lies, layout = self._lies, self._lies.layout
        if isinstance(layout, Each) and len(lies.workers) > 1:
            raise InputError(
                f"result: the {len(lies.workers)} shards are no parts of a whole; take .shards(), "
                "or say the layout of the function's outputs"
            )
        if isinstance(layout, Split):
            return torch.cat(self.shards(), layout.dim)
        return self._client._fetch(self._live(), [0])[0]

    def shards(self) -> list[torch.Tensor]:
        """Wait for all shards. Raises OperationError, WorkerLostError."""
        return self._client._fetch(self._live(), range(len(self._lies.workers)))

    def to(self, where: Slice, layout: Layout | None = None) -> ShardedBuffer:
        """The same array on a slice, in a layout (its own). Raises InputError."""
        return _moved(self._client, self, where, layout)

    def free(self) -> None:
        """Let go of it now, and not when the last reference is gone."""
        if self.number:
            number, self.number = self.number, 0
            self._client._free(number, self._lies)

    def _live(self) -> ShardedBuffer:
        if not self.number:
            raise InputError("the buffer was freed; keep it until its last use")
        for worker in self._lies.workers:
            if self.number < self._client._first[worker]:
                device = self._client.devices[worker]
                raise WorkerLostError(
                    f"the buffer had a shard on device {device}, whose worker has ended since; put "
                    "or compute it again"
                )
        return self

    def __del__(self) -> None:
        if self.number and not self._client.closed:
            self.free()


class Traced:
    """A stand-in for a buffer while a program is traced."""

    def __init__(self, client: Client, trace: Trace, value: int) -> None:
        self._client, self.trace, self.value = client, trace, value

    @property
    def lies(self) -> Lies:
        """Where and how it will lie."""
        return self.trace.values[self.value]

    @property
    def shape(self) -> tuple[int, ...]:
        """As :attr:`ShardedBuffer.shape`."""
        return self.lies.shape

    def to(self, where: Slice, layout: Layout | None = None) -> Traced:
        """As :meth:`ShardedBuffer.to`."""
        return _moved(self._client, self, where, layout)

    def result(self) -> torch.Tensor:
        """Refused: it does not exist yet."""
        raise InputError("a program asks for a result while it is traced; return it, and ask then")

    shards = result


Build = Callable[[Trace, Sequence[int]], Sequence[int]]


def _traced(inputs: Sequence[Lies], build: Build) -> Trace:
    trace = Trace(inputs)
    try:
        trace.outputs = tuple(build(trace, range(len(inputs))))
    finally:
        trace.closed = True
    return trace


class Function:
    """A compiled function on a slice: called with buffers, it returns buffers at once.

    It runs on all shards together, and knows which it has by :func:`rota.flow.shard`. An argument
    that is on another slice is brought here in its layout. ``out`` is the layout of its outputs:
    one for all, or one each; shards of outputs that nothing is said of are no parts of a whole.

    With ``most_bytes`` the shapes of outputs may depend on data. An output takes at most so much of
    a device, and a call as much again in between, which is counted before the call. There is one
    output, or as many as ``out`` has layouts.
    """

    def __init__(
        self,
        where: Slice,
        called: Named,
        out: Layout | Sequence[Layout] | None = None,
        most_bytes: int | None = None,
    ) -> None:
        if most_bytes is not None and (type(most_bytes) is not int or most_bytes < 0):
            raise InputError(f"most_bytes is {most_bytes!r}: give bytes, 0 or more")
        self._most_bytes = most_bytes
        self._slice, self._named = where, called
        self._out: Layout | Sequence[Layout]
        self._out = out if out is not None else Each() if where.size > 1 else Replicated()
        self._client = where.client
        self._number = self._client._next("function")
        self._client._losses[self._number] = where.losses
        self._single: dict[Any, bool] = {}  # by the inputs: it returns one tensor, and no tuple
        self._outlines: dict[Any, tuple[list[Lies], bool, int]] = {}
        told = wire.DefineFunction(self._number, where.number, called, most_bytes)
        self._client._functions[self._number] = told
        for worker in where.workers:
            self._client._tell(worker, told)

    @property
    def name(self) -> str:
        """As people know it."""
        return self._named.name

    def __call__(self, *arguments: Any) -> Any:
        """Buffers of what it returns. Raises InputError for what can't be its arguments."""

        def build(trace: Trace, values: Sequence[int]) -> Sequence[int]:
            here = [self._brought(trace, each) for each in values]
            if self._most_bytes is None:
                lies, is_single, most_bytes = self._outline([trace.values[each] for each in here])
            else:
                lies, is_single, most_bytes = self._bounded(self._most_bytes)
            self._single[key] = is_single
            outputs = tuple(trace.add(each) for each in lies)
            call = (self._number, self.name, self._slice.workers, tuple(here), outputs, most_bytes)
            trace.nodes.append(Call(*call, when=trace.when))
            return outputs

        if self._most_bytes is not None and any(isinstance(each, Traced) for each in arguments):
            raise InputError(
                f"{self.name} is called in a program, which must know shapes before there are "
                "data; call it outside, and give the program what it returns"
            )
        key = tuple(each.lies for each in arguments if isinstance(each, ShardedBuffer | Traced))
        made = self._client._apply(("call", self._number), arguments, build)
        return made[0] if self._single[key] else tuple(made)

    def _brought(self, trace: Trace, value: int) -> int:
        lies = trace.values[value]
        if lies.workers == self._slice.workers:
            return value
        return trace.transfer(value, _elsewhere(lies, self._slice, lies.layout))

    def _bounded(self, most_bytes: int) -> tuple[list[Lies], bool, int]:
        """As :meth:`_outline`, of outputs of which only the most is known that they take."""
        single, where = isinstance(self._out, _LAYOUTS), self._slice
        layouts = [self._out] if isinstance(self._out, _LAYOUTS) else list(self._out)
        specs = (Spec((most_bytes,), "uint8"),) * where.size
        lies = [Lies(where.number, where.workers, each, specs, known=False) for each in layouts]
        return lies, single, most_bytes

    def _outline(self, inputs: Sequence[Lies]) -> tuple[list[Lies], bool, int]:
        """How the outputs will lie, whether there is just one, and the memory in between."""
        key = tuple(each.specs for each in inputs)
        if (known := self._outlines.get(key)) is not None:
            return known
        client, limit_s, asked = self._client, self._client._op_timeout_s, []
        for rank, worker in enumerate(self._slice.workers):
            specs = [each.specs[rank] for each in inputs]
            asked.append(client._ask(worker, wire.Outline, self._number, specs, limit_s))
        pairs = zip(self._slice.workers, asked, strict=True)
        answers = [client._answer(worker, request) for worker, request in pairs]
        for answer in answers:
            if answer.error is not None:
                raise _problem(answer)
        number = len(answers[0].outputs)
        if any(len(each.outputs) != number for each in answers):
            raise InputError(f"{self.name} returns more tensors on some shards than on others")
        layouts = [self._out] * number if isinstance(self._out, _LAYOUTS) else list(self._out)
        if len(layouts) != number:
            raise InputError(f"out: {self.name} returns {number} tensors, not {len(layouts)}")
        lies = []
        for i, layout in enumerate(layouts):
            made = tuple(each.outputs[i] for each in answers)
            whole_shape([tuple(each.shape) for each in made], layout)  # refuses what can't be
            lies.append(Lies(self._slice.number, self._slice.workers, layout, made))
        most_bytes = max(
            each.most_bytes - sum(spec.nbytes for spec in each.outputs) for each in answers
        )
        found = self._outlines[key] = (lies, answers[0].single, most_bytes)
        return found


_LAYOUTS = (Each, Replicated, Split)


class Program:
    """A function of buffers that is traced; its calls go to the workers in one message."""

    def __init__(self, client: Client, function: Callable[..., Any]) -> None:
        self._client, self._function = client, function
        self._number = client._next("program")
        self._name = str(getattr(function, "__name__", type(function).__name__))
        self._single: dict[Any, bool] = {}
        self._is_traced = False  # now

    def __call__(self, *arguments: Any) -> Any:
        """Buffers of what it returns. Raises InputError."""

        def build(trace: Trace, values: Sequence[int]) -> Sequence[int]:
            if self._is_traced:
                raise InputError(
                    f"program {self._name} calls itself; write a loop, flow.repeat or flow.cond"
                )
            trace.name = trace.name or f"{self._name}: "
            self._is_traced = True
            try:
                returned = self._function(*(Traced(self._client, trace, each) for each in values))
            finally:
                self._is_traced = False
            self._single[key] = not isinstance(returned, tuple | list)
            return _returned("a program", trace, returned)

        key = tuple(each.lies for each in arguments if isinstance(each, ShardedBuffer | Traced))
        made = self._client._apply(("program", self._number), arguments, build)
        return made[0] if self._single[key] else tuple(made)


def _returned(who: str, trace: Trace, returned: Any) -> list[int]:
    """The values that a traced function has returned. Raises InputError for anything else."""
    outputs = list(returned) if isinstance(returned, tuple | list) else [returned]
    for each in outputs:
        if not isinstance(each, Traced) or each.trace is not trace:
            raise InputError(
                f"{who} returned {each!r}; return what its functions gave, alone or in a tuple"
            )
    return [each.value for each in outputs]


def _moved(client: Client, value: Any, where: Slice, layout: Layout | None) -> Any:
    """A buffer, or what stands for one, on a slice and in a layout."""

    def build(trace: Trace, values: Sequence[int]) -> Sequence[int]:
        lies = trace.values[values[0]]
        return [trace.transfer(values[0], _elsewhere(lies, where, layout or lies.layout))]

    if where.client is not client:
        raise InputError("to: the slice is another program's")
    [moved] = client._apply(("to", where.number, layout), [value], build)
    return moved


def _elsewhere(lies: Lies, where: Slice, layout: Layout) -> Lies:
    """How an array will lie there. Raises InputError."""
    dtype, shape = lies.specs[0].dtype, lies.shape
    if isinstance(layout, Each) and where.size != len(lies.workers):
        if len(lies.workers) > 1:
            raise InputError(
                f"an array of {len(lies.workers)} shards that are no parts of a whole can't come "
                f"onto {where.size} devices; say the layout of the function's outputs"
            )
        layout = Replicated()
    shards = range(where.size)
    specs = tuple(Spec(shard_shape(shape, layout, where.size, i), dtype) for i in shards)
    return Lies(where.number, where.workers, layout, specs)


def _problem(answer: wire.Answer) -> Exception:
    kinds = {"input": InputError, "room": FlowMemoryError, "lost": WorkerLostError}
    kinds["changed"] = SliceChangedError
    return kinds.get(answer.kind, OperationError)(answer.error)


def _wanted(devices: Sequence[int] | int) -> list[int] | int:
    """The devices that a program names, or how many. Raises InputError."""
    if type(devices) is int and devices >= 1:
        return devices
    named = list(devices) if isinstance(devices, Sequence) else []
    if not named or any(type(each) is not int or each < 0 for each in named):
        raise InputError(
            f"devices: {devices!r}; write how many, 1 or more, or their numbers, such as [0, 1]"
        )
    if twice := [each for each in named if named.count(each) > 1]:
        raise InputError(f"devices: {devices!r} names {twice[0]} twice; name each device once")
    return named


def _product(shape: Sequence[int]) -> int:
    found = 1
    for each in shape:
        found *= each
    return found


def repeat(times: int, body: Callable[..., Any], *values: Any) -> Any:
    """``body`` applied so many times, each time to what it gave before. Raises InputError."""
    if type(times) is not int or times < 0:
        raise InputError(f"repeat: times is {times!r}; give a whole number, 0 or more")
    for _ in range(times):
        given = body(*values)
        values = given if isinstance(given, tuple) else (given,)
    return values[0] if len(values) == 1 else values


def cond(predicate: Any, yes: Callable[..., Any], no: Callable[..., Any], *values: Any) -> Any:
    """``yes`` of the values if the predicate, an array of one element, is not 0; else ``no``.

    Both are traced, and only one is computed. Raises InputError unless both give the same shapes,
    types and layouts on the same devices.
    """
    if isinstance(predicate, Traced):
        return _either(predicate, yes, no, values)
    if not isinstance(predicate, ShardedBuffer):
        raise InputError(
            f"cond: the predicate is a {type(predicate).__name__}; give a buffer of one element"
        )

    client, single = predicate._client, False

    def build(trace: Trace, at: Sequence[int]) -> Sequence[int]:
        nonlocal single
        trace.name = "cond: "
        first, *others = (Traced(client, trace, each) for each in at)
        returned = _either(first, yes, no, others)
        single = not isinstance(returned, tuple)
        return _returned("cond", trace, returned)

    made = client._apply(None, (predicate, *values), build)
    return made[0] if single else tuple(made)


def _either(
    predicate: Traced, yes: Callable[..., Any], no: Callable[..., Any], values: Sequence[Any]
) -> Any:
    client, trace, lies = predicate._client, predicate.trace, predicate.lies
    if isinstance(lies.layout, Each) and len(lies.workers) > 1:
        raise InputError("cond: the predicate's shards are no parts of a whole; say its layout")
    if _product(lies.shape) != 1:
        raise InputError(f"cond: the predicate has the shape {lies.shape}; it has one element")
    at, before, single, branches = len(trace.nodes), trace.when, [], []
    holds = trace.add(lies)
    try:
        for wanted, body in ((True, yes), (False, no)):
            trace.when = (*before, (holds, wanted))
            returned = body(*values)
            single.append(not isinstance(returned, tuple | list))
            branches.append(_returned("a branch of cond", trace, returned))
        lay = [[trace.values[each] for each in branch] for branch in branches]
        if single[0] != single[1] or len(lay[0]) != len(lay[1]):
            counts = [
                "one array" if alone else f"a tuple of {len(branch)}"
                for alone, branch in zip(single, lay, strict=True)
            ]
            raise InputError(
                f"cond: yes gives {counts[0]}, and no {counts[1]}; both must give the same"
            )
        for i, (one, other) in enumerate(zip(*lay, strict=True)):
            if difference := _difference(client, one, other):
                raise InputError(f"cond: output {i} {difference}; both must give the same")
    except BaseException:
        del trace.nodes[at:]
        raise
    finally:
        trace.when = before
    trace.bring(predicate.value, holds, at, branches[0])
    made = []
    for one, other in zip(*branches, strict=True):
        target = trace.add(trace.values[one])
        trace.nodes.append(Choose(holds, one, other, target))
        made.append(Traced(client, trace, target))
    return made[0] if single[0] else tuple(made)


def _difference(client: Client, yes: Lies, no: Lies) -> str | None:
    """How two arrays differ, if they do."""
    devices = [[client.devices[worker] for worker in each.workers] for each in (yes, no)]
    types = [each.specs[0].dtype for each in (yes, no)]
    for what, one, other in (
        ("is on devices", *devices),
        ("has the layout", yes.layout, no.layout),
        ("has the type", *types),
        ("has the shape", yes.shape, no.shape),
    ):
        if one != other:
            return f"{what} {one} by yes, and {other} by no"
    return None
