"""A worker of a client on one device: works off what the client tells it, in that order.

Operations need a turn on the device; all else (parcels, memory) does not, so that nothing that
waits for others holds a device.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from rota.errors import InputError
from rota.flow import wire
from rota.flow.accelerator import Accelerator, Launch
from rota.flow.functions import Spec, call, check_results
from rota.flow.gangs import Gang
from rota.flow.naming import found
from rota.flow.outline import outline
from rota.flow.page import (
    ALLOWED,
    AWAY,
    BEGUN,
    DEVICE,
    DOING,
    FINISHED,
    FUNCTION,
    GONE,
    HELD_BYTES,
    HOST,
    MOVES,
    PLACED,
    PRESENT,
    READY,
    SPENT_NS,
    TAKES_NS,
    TOLD,
    Barrier,
    Bells,
    Page,
)
from rota.flow.parcels import arrived, drop, pack, receive, send, unpack

MEMORY_RUNS = 15  # of a function: what it takes is their median
_LEAVES = (SystemExit, KeyboardInterrupt, GeneratorExit)  # what a function must not end a worker by
MOST_YIELDS = 100  # to a client that tells others, before it is waited for by the clock
LISTEN_EVERY_NS = 300_000  # while there is something to do
MOST_LAUNCHED = 64  # operations that a device has before it and that are not over
LOOK_EVERY_MS = 1  # for whether they are over, while there is nothing else to do


class Poison(NamedTuple):
    """In place of a buffer: why there is none."""

    kind: str
    text: str


SKIPPED = "skipped"  # the kind of what was not computed: it is in a branch that was not taken


class Function:
    """A function on a slice, as this worker has found it."""

    def __init__(
        self,
        name: str,
        call: Callable[..., Any] | None,
        gang: Gang,
        error: str,
        most_bytes: int | None,
    ) -> None:
        self.name, self.call, self.gang = name, call, gang
        self.error, self.most_bytes = error, most_bytes
        self._is_new = True
        self._spent_ns: deque[int] = deque(maxlen=MEMORY_RUNS)

    def took(self, spent_ns: int) -> int:
        """A run took so long; what runs usually take. 0: not known.

        The first run is longer than others. A run in which another process had the core is longer
        as well, so that a mean would be what other programs do rather than what this function does.
        """
        if self._is_new:
            self._is_new = False
            return 0
        self._spent_ns.append(spent_ns)
        return sorted(self._spent_ns)[len(self._spent_ns) // 2]


class Launched(NamedTuple):
    """An operation that has returned, and may go on on the device."""

    number: int
    function: int  # -1: nothing was run
    has_turn: bool
    began_ns: int
    launch: Launch


class Running:
    """A program that has been begun, or will be."""

    __slots__ = ("at", "checked", "number", "program", "registers", "run")

    def __init__(self, program: wire.DefineProgram, run: wire.Run) -> None:
        self.program, self.run, self.number = program, run, run.number
        self.registers: list[Any] = []  # none before it begins
        self.at = 0  # the next step
        self.checked = 0  # the first step whose parcels may not be there yet

    def begin(self, buffers: dict[int, Any]) -> None:
        """Take the inputs, which are there by now."""
        inputs = [buffers.get(each) if each else None for each in self.run.inputs]
        self.registers = inputs + [None] * (self.program.registers - len(inputs))


class Worker:
    """See the module. ``slot`` is its own on the page, ``parcels`` the folder of its client's."""

    def __init__(
        self,
        client: socket.socket,
        page: Page,
        bells: Bells,
        *,
        slot: int,
        parcels: Path,
        on: Accelerator,
    ) -> None:
        self._client, self._on = client, on
        self._page, self._bells = page, bells
        self._slot, self._parcels = slot, parcels
        self._device, self._moved = AWAY, -1  # until the first look
        page.tell(slot, PLACED, -1)
        self._reader = wire.Reader(wire.ToWorker)
        self._gangs: dict[int, Gang] = {}
        self._functions: dict[int, Function] = {}
        self._programs: dict[int, wire.DefineProgram] = {}
        self._buffers: dict[int, Any] = {}
        self._process = os.getpid()
        self._queue: deque[Any] = deque()
        self._held_bytes = 0
        self._has_turn = self._has_grant = False  # in the present operation
        self._launched: deque[Launched] = deque()  # under a grant, and not known to be over
        self._ended_ns = 0  # when the last of these was known to be over
        self._untold = 0  # looks for whether others have been told of the next operation
        self._unready: deque[Running] = deque()  # programs that may wait for parcels
        self._asked: dict[int, list[wire.Fetch | wire.Describe]] = {}  # by buffer
        self._awaited: deque[wire.Await] = deque()  # of operations that are not over

    def serve(self) -> None:
        """Work until the client is gone."""
        self._client.setblocking(False)
        poll = select.poll()
        bell = self._bells.own(self._slot)
        for each in (self._client, bell):
            poll.register(each, select.POLLIN)
        Barrier()  # as the host relies on
        self._bells.ring(HOST)  # it may wait to hear that this worker is away
        while True:
            self._settle()
            waits, until_ns = False, time.monotonic_ns() + LISTEN_EVERY_NS
            while not waits and time.monotonic_ns() < until_ns:
                waits = not self._work()
            wait_ms = None if waits else 0
            if self._launched and self._look_for_ends():
                wait_ms = LOOK_EVERY_MS if waits else 0
            if waits and self._untold:  # it takes the client some microseconds, or it is stopped
                os.sched_yield()
                wait_ms = int(self._untold > MOST_YIELDS)
            for descriptor, _ in poll.poll(wait_ms):
                if descriptor == bell:
                    self._bells.heard(self._slot)
                elif not self._hear():
                    return

    def _settle(self) -> None:
        """Be where the host says; nothing runs here while that is another device."""
        moves = self._moves()
        if moves != self._moved:  # the same device, too: others of a slice may have left theirs
            if self._device >= 0:
                self._leave_device()
            self._device, self._moved = self._page.of(self._slot, DEVICE), moves
            if self._device >= 0:
                self._on.take(self._device)
                self._each_value(self._on.bring)
            self._page.tell(self._slot, PLACED, moves)
            self._bells.ring(HOST)

    def _leave_device(self) -> None:
        """Bring all to host memory that is bound to the device, where nothing runs any more."""
        self._await_ends()
        if self._on.moves:
            self._each_value(self._on.host)
            for gang in self._gangs.values():
                gang.part()
        self._on.leave()

    def _each_value(self, moved: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Put what this gives in the place of each tensor that the worker has."""
        if not self._on.moves:
            return
        for number, value in self._buffers.items():
            if isinstance(value, torch.Tensor):
                self._buffers[number] = moved(value)
        for running in self._queue:
            if isinstance(running, Running):
                for register, value in enumerate(running.registers):
                    if isinstance(value, torch.Tensor):
                        running.registers[register] = moved(value)

    def _hear(self) -> bool:
        """Take in what the client tells; False if it is gone."""
        data = wire.received(self._client)
        if data is None:
            return False
        for message in self._reader.take(data):
            match message:
                case wire.Run():
                    running = Running(self._programs[message.program], message)
                    self._queue.append(running)
                    self._unready.append(running)
                case wire.DefineSlice():
                    self._meet(message)
                case wire.DefineFunction():
                    self._define(message)
                case wire.DefineProgram():
                    self._programs[message.program] = message
                case wire.Outline():
                    self._outline(message)
                case wire.Fetch() | wire.Describe():  # not behind what was called later
                    self._asked.setdefault(message.buffer, []).append(message)
                    if message.buffer in self._buffers:
                        self._answer_of(message.buffer)
                case wire.Await():
                    self._awaited.append(message)
                    self._answer_awaited()
                case _:
                    self._queue.append(message)
        return True

    # -- the stream ------------------------------------------------------------------------------

    def _work(self) -> bool:
        """Do one thing that can be done now; False if there is none."""
        if self._unready:
            self._look_for_parcels()
        if not self._queue:
            return False
        first = self._queue[0]
        if isinstance(first, Running):
            return self._step(first)
        self._queue.popleft()
        match first:
            case wire.Put():
                self._hold(first.buffer, self._put(first))
            case wire.Free():
                for buffer in first.buffers:
                    self._release(buffer)
            case wire.Tell():
                self._await_ends()
                self._answer(wire.Answer(first.request))
        return True

    def _look_for_parcels(self) -> None:
        """Tell the host up to which operation all inputs are there."""
        ready = 0
        while self._unready:
            running = self._unready[0]
            steps = running.program.steps
            while running.checked < len(steps):
                step = steps[running.checked]
                if isinstance(step, wire.Compute):
                    ready = running.number + step.offset
                elif isinstance(step, wire.Receive) and not self._has_arrived(running, step):
                    break
                running.checked += 1
            if running.checked < len(steps):
                break
            self._unready.popleft()
        if ready:
            self._page.tell(self._slot, READY, ready)
            if self._device < 0 or self._page.standing(self._device) != self._slot:
                self._bells.ring(HOST)

    def _meet(self, message: wire.DefineSlice) -> None:
        def lost() -> bool:
            return any(self._is_lost(slot) for slot in message.slots)

        meeting = self._parcels / message.meeting
        gang = Gang(
            message.rank, message.slots, meeting, lost, self._on, self._moves, message.losses
        )
        before, self._gangs[message.slice] = self._gangs.get(message.slice), gang
        if before is not None:
            before.end()
            for function in self._functions.values():
                if function.gang is before:
                    function.gang = gang

    def _moves(self) -> int:
        return self._page.of(self._slot, MOVES)

    def _is_lost(self, slot: int) -> bool:
        return self._page.of(slot, READY) == GONE

    def _define(self, message: wire.DefineFunction) -> None:
        call, error, name = None, "", message.named.name
        try:
            with self._at(f"the loading of {name}"):
                call = found(message.named)
        except _LEAVES as problem:
            error = f"{name} can't be loaded: it exited: {problem!r}"
        except Exception as problem:
            error = str(problem)
        gang = self._gangs[message.slice]
        self._functions[message.function] = Function(name, call, gang, error, message.most_bytes)

    @contextlib.contextmanager
    def _at(self, what: str) -> Iterator[None]:
        """Let the host tell what this worker is at, where it is to leave its device meanwhile."""
        told = self._parcels / f"{DOING}{self._slot}"
        with contextlib.suppress(OSError):  # host memory is full
            told.write_text(what)
        try:
            yield
        finally:
            told.unlink(missing_ok=True)

    def _outline(self, message: wire.Outline) -> None:
        """Answer what a function would give."""
        function = self._functions[message.function]
        if function.call is None:
            self._answer(wire.Answer(message.request, function.error, "input"))
            return
        gang = function.gang
        try:
            trial = self._at(f"the trial of {function.name} with fake tensors")
            with trial, _limited(message.most_s):
                place = (gang.rank, gang.size)
                told = outline(function.call, message.inputs, *place, device=self._on.kind)
        except InputError as error:
            self._answer(wire.Answer(message.request, str(error), "input"))
        except (Exception, *_LEAVES):
            self._answer(wire.Answer(message.request, traceback.format_exc(), "raised"))
        else:
            answer = wire.Answer(message.request, None, "", list(told.outputs), told.single)
            answer.most_bytes = told.peak_bytes
            self._answer(answer)

    def _step(self, running: Running) -> bool:
        """The next step of a program, if it can be taken; True if it was."""
        steps = running.program.steps
        if not running.registers:
            running.begin(self._buffers)
        if running.at < len(steps):
            step = steps[running.at]
            match step:
                case wire.Compute():
                    function = self._functions[step.function]
                    if self._page.has_lost(function.gang.slots, function.gang.losses):
                        self._omit(running, step)
                    elif not self._may_run(running.number + step.offset):
                        return False
                    else:
                        self._compute(running, step)
                case wire.Receive():
                    if running.checked <= running.at:
                        return False
                    self._receive(running, step)
                case wire.Send():
                    self._send(running, step)
                case wire.Choose():
                    holds = running.registers[step.predicate]
                    if not isinstance(holds, Poison):
                        holds = running.registers[step.yes if bool(holds) else step.no]
                    running.registers[step.register] = holds
                case wire.Discard():
                    for register in step.registers:
                        running.registers[register] = None
            running.at += 1
        if running.at == len(steps):
            for buffer, register in zip(running.run.outputs, running.program.outputs, strict=True):
                if buffer:
                    self._hold(buffer, running.registers[register])
            self._queue.popleft()
        return True

    # -- operations ------------------------------------------------------------------------------

    def _omit(self, running: Running, step: wire.Compute) -> None:
        label = running.program.labels[step.offset]
        poison = Poison("changed", f"{label}: its slice has lost a device; make another slice")
        self._await_ends()
        for register in step.outputs:
            running.registers[register] = poison
        self._page.tell(self._slot, FINISHED, running.number + step.offset)
        self._bells.ring(HOST)
        self._answer_awaited()

    def _compute(self, running: Running, step: wire.Compute) -> None:
        number = running.number + step.offset
        if not self._has_grant:
            self._await_ends()
        elif len(self._launched) >= MOST_LAUNCHED:
            self._launched[0].launch.wait()
            self._look_for_ends()
        began_ns = time.monotonic_ns()
        if not self._launched:
            self._page.tell(self._slot, PRESENT, number)
        launch = self._on.launch()
        function, label = self._functions[step.function], running.program.labels[step.offset]
        inputs = [running.registers[each] for each in step.inputs]
        poison = self._barred(running, step) if step.when else None
        if poison is None:
            poison = next((each for each in inputs if isinstance(each, Poison)), None)
        if poison is None:
            outputs = self._called(function, inputs, label, step)
        else:
            if poison.kind != SKIPPED:  # the others of the gang are not to wait for this one
                function.gang.leave()
            outputs = [poison] * len(step.outputs)
        if os.getpid() != self._process:  # the function has forked, and returned twice
            os._exit(1)
        for register, value in zip(step.outputs, outputs, strict=True):
            running.registers[register] = value
        ran = step.function if poison is None or poison.kind != SKIPPED else -1
        if launch is not None:
            launch.end()
            self._launched.append(Launched(number, ran, self._has_turn, began_ns, launch))
            if not self._has_grant:
                self._await_ends()
        else:
            self._over(number, ran, time.monotonic_ns() - began_ns, has_turn=self._has_turn)

    def _await_ends(self) -> None:
        """Return once all that was launched is over, and known to be."""
        if self._launched:
            self._launched[-1].launch.wait()
            self._look_for_ends()

    def _look_for_ends(self) -> bool:
        """Tell what is over of what was launched; True if anything is not.

        Operations that are seen to be over at once count as equally long. Without a grant the
        device is awaited: others may come only then.
        """
        if self._page.standing(self._device) != self._slot:
            self._launched[-1].launch.wait()
        ended = []
        while self._launched and self._launched[0].launch.over():
            ended.append(self._launched.popleft())
        if not ended:
            return True
        if self._launched:
            self._page.tell(self._slot, PRESENT, self._launched[0].number)
        now_ns = time.monotonic_ns()
        each_ns = (now_ns - max(ended[0].began_ns, self._ended_ns)) // len(ended)
        self._ended_ns = now_ns
        for each in ended:
            self._over(each.number, each.function, each_ns, has_turn=each.has_turn)
        return bool(self._launched)

    def _over(self, number: int, ran: int, spent_ns: int, *, has_turn: bool) -> None:
        """An operation is over, in which this function was run; -1: none."""
        self._page.tell(self._slot, SPENT_NS, self._page.of(self._slot, SPENT_NS) + spent_ns)
        if ran >= 0:
            self._learn(ran, self._functions[ran], spent_ns)
        self._page.tell(self._slot, FINISHED, number)
        if has_turn:
            self._pass_on()
        elif self._page.standing(self._device) != self._slot:
            self._bells.ring(HOST)
        if self._awaited:
            self._answer_awaited()

    def _barred(self, running: Running, step: wire.Compute) -> Poison | None:
        """What an operation gives that is not to run, as it is in a branch that is not taken."""
        for register, wanted in step.when:
            holds = running.registers[register]
            if isinstance(holds, Poison):
                return holds
            if bool(holds) != wanted:
                return Poison(SKIPPED, "it is of a branch of flow.cond that was not taken")
        return None

    def _may_run(self, number: int) -> bool:
        """Whether an operation may begin: by the grant, by what is left of it, or by a turn."""
        page, device, slot = self._page, self._device, self._slot
        self._has_turn = self._has_grant = False
        if device < 0:
            return False
        if page.standing(device) == slot:
            if number > page.of(slot, TOLD):  # begun now, it might wait for one who is never told
                self._untold += 1
                return False
            self._untold = 0
            page.tell(slot, BEGUN, number)
            if page.standing(device) == slot:
                self._has_grant = True
                return True
        if number <= page.of(slot, ALLOWED):
            return True
        self._has_turn = page.head(device) == slot
        return self._has_turn

    def _pass_on(self) -> None:
        """The turn is over: the next one's worker is to know, or the host."""
        page, device = self._page, self._device
        turn = page.done(device) + 1
        page.pass_on(device, turn)
        following = page.head(device)
        if following != self._slot:
            self._bells.ring(following if following >= 0 else HOST)
        if page.issued(device) - turn < 2:
            self._bells.ring(HOST)

    def _called(
        self, function: Function, inputs: Sequence[Any], label: str, step: wire.Compute
    ) -> Sequence[Any]:
        outputs = len(step.outputs)
        try:
            if function.call is None:
                raise InputError(function.error)
            values, _ = call(function.call, inputs, function.gang.shard())
            if len(values) != outputs:
                raise InputError(f"{label} gave {len(values)} tensors, not {outputs}")
            if step.specs:
                check_results(label, step.specs, values)
            if (most_bytes := function.most_bytes) is not None:
                made_bytes = max(each.nbytes for each in values)
                if made_bytes > most_bytes:
                    raise InputError(
                        f"an output of {label} has {made_bytes:,} bytes; its most_bytes is "
                        f"{most_bytes:,}"
                    )
            return values
        except _LEAVES as error:
            problem = Poison("raised", f"{label} on device {self._device} exited: {error!r}")
        except Exception:
            where = f"{label} on device {self._device}"
            problem = Poison("raised", f"{where} raised\n{traceback.format_exc()}")
        function.gang.leave()
        return [problem] * outputs

    def _learn(self, number: int, function: Function, spent_ns: int) -> None:
        """Tell the host what the function takes."""
        if takes_ns := function.took(spent_ns):
            self._page.tell(self._slot, FUNCTION, number)
            self._page.tell(self._slot, TAKES_NS, takes_ns)

    # -- parcels ---------------------------------------------------------------------------------

    def _send(self, running: Running, step: wire.Send) -> None:
        name, value = f"{running.number}.{step.parcel}", _region(running, step.region)
        if not isinstance(value, Poison):
            try:
                send(self._parcels, name, value)
            except OSError as error:
                value = Poison("room", f"no room for what device {self._device} sends: {error}")
        if isinstance(value, Poison):
            draft = self._parcels / f"{name}.new"
            with contextlib.suppress(OSError):  # no room for words
                draft.write_text(f"{value.kind}\n{value.text}")
            draft.touch()
            draft.rename(self._poison(name))
        self._bells.ring(step.slot)

    def _has_arrived(self, running: Running, step: wire.Receive) -> bool:
        """Whether all parcels are there, or never will be."""
        for part, slot in zip(step.parts, step.slots, strict=True):
            if isinstance(part, str):
                lost = self._is_lost(slot)  # looked at first: it may have sent before it ended
                name = f"{running.number}.{part}"
                if not (arrived(self._parcels, name) or self._poison(name).exists() or lost):
                    return False
        return True

    def _poison(self, name: str) -> Path:
        return self._parcels / f"{name}.poison"

    def _receive(self, running: Running, step: wire.Receive) -> None:
        if step.empty is not None:
            dtype = getattr(torch, step.empty.dtype)
            empty = torch.empty(step.empty.shape, dtype=dtype)
            running.registers[step.register] = self._on.bring(empty)
            return
        values = [self._part(running, each) for each in step.parts]
        poison = next((each for each in values if isinstance(each, Poison)), None)
        whole = poison or (values[0] if len(values) == 1 else torch.cat(values, step.dim))
        running.registers[step.register] = whole

    def _part(self, running: Running, part: str | wire.Region) -> Any:
        if isinstance(part, wire.Region):
            return _region(running, part)
        name = f"{running.number}.{part}"
        poison = self._poison(name)
        if poison.exists():
            kind, _, text = poison.read_text().partition("\n")
            poison.unlink()
            return Poison(kind, text) if text else Poison("room", "no room for what another sends")
        try:
            value = receive(self._parcels, name, copy=True)
        except FileNotFoundError:
            return Poison("lost", "a worker has ended before it sent what this one needs")
        drop(self._parcels, name)  # it had this one reader
        return self._on.bring(value)

    # -- buffers ---------------------------------------------------------------------------------

    def _hold(self, buffer: int, value: Any) -> None:
        self._buffers[buffer] = value
        self._count(value, 1)
        if buffer in self._asked:
            self._answer_of(buffer)

    def _release(self, buffer: int) -> None:
        self._count(self._buffers.pop(buffer, None), -1)

    def _count(self, value: Any, sign: int) -> None:
        if isinstance(value, torch.Tensor):
            self._held_bytes += sign * value.nbytes
            self._page.tell(self._slot, HELD_BYTES, self._held_bytes)

    def _put(self, message: wire.Put) -> torch.Tensor:
        if message.packed:
            return self._on.bring(unpack(message.packed))
        value = receive(self._parcels, message.parcel, copy=True)
        drop(self._parcels, message.parcel)
        return self._on.bring(value)

    def _answer_of(self, buffer: int) -> None:
        """Answer all who asked about a buffer that is there now."""
        value = self._buffers[buffer]
        for message in self._asked.pop(buffer):
            if isinstance(value, Poison):
                self._answer(wire.Answer(message.request, value.text, value.kind))
            elif isinstance(message, wire.Fetch):
                self._fetch(message, value)
            else:
                self._answer(wire.Answer(message.request, outputs=[Spec.of(value)]))

    def _answer_awaited(self) -> None:
        """Answer who awaited the end of what is over by now."""
        done = self._page.of(self._slot, FINISHED)
        while self._awaited and self._awaited[0].operation <= done:
            self._answer(wire.Answer(self._awaited.popleft().request))

    def _fetch(self, message: wire.Fetch, value: torch.Tensor) -> None:
        if value.nbytes <= wire.PACKED_BYTES:
            self._answer(wire.Answer(message.request, packed=pack(value)))
            return
        try:
            send(self._parcels, message.parcel, value)
        except OSError as error:
            self._answer(wire.Answer(message.request, f"no room for the result: {error}", "room"))
            return
        self._answer(wire.Answer(message.request))

    def _answer(self, answer: wire.Answer) -> None:
        self._client.setblocking(True)
        with contextlib.suppress(OSError):  # the client is gone, which the next look shows
            self._client.sendall(wire.encoded(answer))
        self._client.setblocking(False)


@contextlib.contextmanager
def _limited(seconds: float | None) -> Iterator[None]:
    """Raises TimeoutError in what runs for longer."""

    def late(*_: object) -> None:
        raise TimeoutError(f"it ran for longer than op_timeout_s={seconds}")

    signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds or 0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)


def _region(running: Running, region: wire.Region) -> Any:
    value = running.registers[region.register]
    if isinstance(value, Poison) or region.stop is None:
        return value
    return value.narrow(region.dim, region.start, region.stop - region.start).clone()
