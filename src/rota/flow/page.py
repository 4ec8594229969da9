"""The page of an island: words of shared memory by which workers take turns on its devices.

Each device has two rings of turns, 1, 2, 3 ...: a ring of the device's own number, and one behind
that for trainings in the background. The island's host writes which worker has each, and how
many it has given out; whoever has the turn after those that are done works, says that it is done,
and wakes the next one. A word has one writer at a time, so that nothing needs a lock: the host
writes what it has given out, and how many turns are done is written by the worker at the head, or
by the host if that worker is dead.

A *bell* is a named pipe that wakes its owner, who may wait for it and for sockets at once. A ring
is never lost, and several may count as one.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import mmap
import os
from collections.abc import Sequence
from pathlib import Path

from rota.live.wire.island import NO_DEVICE

# Turns of a device that may be given out and not yet done: the island's window, of some 40 turns at
# the least cost of each, and two of each worker.
RING = 1024
SLOTS = 256  # of the host, of workers, and of ranks of trainings
DEVICE_WORDS = 8 + RING
SLOT_WORDS = 24
DONE, ISSUED, STANDING, TURNS = 0, 1, 2, 8
# Of a worker: the last operation that it has finished, that has its inputs, that it has begun under
# a grant, and that it may run without a turn although the grant is gone; the bytes of its buffers.
# And the function that it has run last, and what that usually takes.
FINISHED, READY, BEGUN, ALLOWED, HELD_BYTES, FUNCTION, TAKES_NS = range(7)
# And what its client counts on using of the device's memory, and may use without asking the host;
# the last of its requests for more that was granted and is counted on; and the last operation of
# which it has told all workers that it concerns.
USED_BYTES, ALLOWED_BYTES, TAKEN, TOLD = 7, 8, 9, 10
# And the device that its host has put it on, the last of its host's MOVES that it has made, and how
# long it has computed.
DEVICE, PLACED, SPENT_NS = 11, 12, 13
AWAY = -2  # its program is suspended, and its buffers are in host memory
PRESENT = 14  # the operation that a worker has begun last, with a turn or a grant
MOVES = 16  # how often its host has told it to be on a device, or on none
LOSSES = 15  # how often its device was taken from it for a while: see Page.has_lost
OPEN = 17  # of a training's rank in the background: 1 while its gate lets it begin
OWNER = 18  # of a training's rank: the mark of its seat's key; another one once the seat is not its
MOST_RUNS = 1 << 16  # in a log that may not be over, of programs that have operations
LOG = "log"  # in the folder of a client
DOING = "doing"  # begins a file there, by slot: what a worker is at, beside its operations
GONE = 1 << 62  # what a worker has finished and is ready for that has ended before its client
MEMBARRIER = {"x86_64": 324, "aarch64": 283}
GLOBAL_EXPEDITED, REGISTER_GLOBAL_EXPEDITED = 2, 4
HOST = 0  # the slot of the host itself
SOCKET = "island.sock"  # where clients find the host, beside the page


def mark_of(key: str) -> int:
    """A number by which the page knows the key of a training's seat."""
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=7).digest())


def rings_of(devices: int) -> range:
    """The numbers of the rings of so many devices: see :class:`Page`."""
    return range(2 * devices)


class Page:
    """The words of ``devices`` devices and ``slots`` workers, in a file that all map.

    Rings have the numbers of their devices; those of trainings in the background follow them.
    """

    def __init__(self, path: Path, devices: int, slots: int, *, make: bool = False) -> None:
        """Raises OSError, as on a full disk."""
        self.devices, self.slots = devices, slots
        words = 2 * devices * DEVICE_WORDS + slots * SLOT_WORDS
        self._words, self._map = _mapped(path, words, make=make)
        self._slot0 = 2 * devices * DEVICE_WORDS

    @property
    def rings(self) -> range:
        """The rings of turns, by which the methods below know devices."""
        return rings_of(self.devices)

    def behind(self, device: int) -> int:
        """The ring of a device's turns for trainings in the background."""
        return device + self.devices

    def close(self) -> None:
        """Let go of it."""
        self._words.release()
        self._map.close()

    # -- devices -------------------------------------------------------------------------------

    def done(self, device: int) -> int:
        """The last turn on the device that is over; 0 before the first."""
        return self._words[device * DEVICE_WORDS + DONE]

    def issued(self, device: int) -> int:
        """The last turn that was given out."""
        return self._words[device * DEVICE_WORDS + ISSUED]

    def owner(self, device: int, turn: int) -> int:
        """The slot that has a turn which was given out."""
        return self._words[device * DEVICE_WORDS + TURNS + turn % RING]

    def give(self, device: int, turn: int, slot: int) -> None:
        """The host gives the next turn out; at most RING are not yet done."""
        at = device * DEVICE_WORDS
        self._words[at + TURNS + turn % RING] = slot
        self._words[at + ISSUED] = turn

    def pass_on(self, device: int, turn: int) -> None:
        """The turn at the head is over."""
        self._words[device * DEVICE_WORDS + DONE] = turn

    def head(self, device: int) -> int:
        """The slot whose turn it is; -1 if nobody has the next one."""
        at = device * DEVICE_WORDS
        turn = self._words[at + DONE] + 1
        if turn > self._words[at + ISSUED]:
            return -1
        return self._words[at + TURNS + turn % RING]

    def standing(self, device: int) -> int:
        """The slot that needs no turns on the device; 0: none."""
        return self._words[device * DEVICE_WORDS + STANDING]

    def grant(self, device: int, slot: int) -> None:
        """Give a slot the standing grant of a device, or take it back: 0."""
        self._words[device * DEVICE_WORDS + STANDING] = slot

    # -- slots ---------------------------------------------------------------------------------

    def of(self, slot: int, word: int) -> int:
        """A word of a worker."""
        return self._words[self._slot0 + slot * SLOT_WORDS + word]

    def tell(self, slot: int, word: int, value: int) -> None:
        """A worker writes words of its own; its host ALLOWED and DEVICE, its client TOLD."""
        self._words[self._slot0 + slot * SLOT_WORDS + word] = value

    def has_lost(self, slots: Sequence[int], losses: int) -> bool:
        """True if a slice of these slots, which had lost so many devices before, has lost one.

        Once true it stays so, for whoever looks: host, client and workers agree on what can't run.
        """
        words, since = self._words, 0
        for slot in slots:
            at = self._slot0 + slot * SLOT_WORDS
            if words[at + DEVICE] == NO_DEVICE:
                return True
            since += words[at + LOSSES]
        return since != losses

    def losses(self, slots: Sequence[int]) -> int:
        """How many devices these slots have lost and got back."""
        return sum(self.of(slot, LOSSES) for slot in slots)

    def clear(self, slot: int, device: int) -> None:
        """The slot is to be another worker's, on this device."""
        at = self._slot0 + slot * SLOT_WORDS
        for word in range(SLOT_WORDS):
            self._words[at + word] = 0
        self._words[at + DEVICE] = device


class Log:
    """What a client has run: programs and the numbers of their first operations, in order.

    The client writes and the host reads. While the client has a standing grant nobody needs to be
    told; the barrier by which the host takes grants back shows it all that was written.
    """

    def __init__(self, path: Path, *, make: bool = False) -> None:
        """Raises OSError."""
        self._words, self._map = _mapped(path, 1 + 2 * MOST_RUNS, make=make)
        self.seen = 0

    def add(self, program: int, number: int) -> None:
        """The client runs a program."""
        words = self._words
        at = 1 + 2 * (words[0] % MOST_RUNS)
        words[at], words[at + 1] = program, number
        words[0] += 1

    def take(self) -> list[tuple[int, int]]:
        """The runs written since the last call, but for those overwritten: they are over."""
        words, written = self._words, self._words[0]
        first, found = max(self.seen, written - MOST_RUNS), list[tuple[int, int]]()
        for run in range(first, written):
            at = 1 + 2 * (run % MOST_RUNS)
            found.append((words[at], words[at + 1]))
        self.seen = written
        return found[max(0, words[0] - MOST_RUNS + 1 - first) :]  # the client may write meanwhile

    def find(self, operation: int) -> tuple[int, int]:
        """The program of an operation, and the number of its first one; (0, 0) if not known."""
        words = self._words
        for run in range(words[0] - 1, max(0, words[0] - MOST_RUNS) - 1, -1):
            at = 1 + 2 * (run % MOST_RUNS)
            if words[at + 1] <= operation:
                return words[at], words[at + 1]
        return 0, 0

    def close(self) -> None:
        """Let go of it."""
        self._words.release()
        self._map.close()


def _mapped(path: Path, words: int, *, make: bool) -> tuple[memoryview, mmap.mmap]:
    flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT | os.O_EXCL if make else 0)
    descriptor = os.open(path, flags, 0o600)
    try:
        if make:  # to write into memory that has no room would end the process
            os.posix_fallocate(descriptor, 0, 8 * words)
        made = mmap.mmap(descriptor, 8 * words)
    finally:
        os.close(descriptor)
    return memoryview(made).cast("q"), made


class Barrier:
    """Makes all running threads of registered processes pass a memory barrier (membarrier(2))."""

    def __init__(self) -> None:
        """Registers this process. ``works`` is False where the kernel has no such call."""
        self._call = ctypes.CDLL(None, use_errno=True).syscall
        self._number = MEMBARRIER.get(os.uname().machine)
        self.works = self._do(REGISTER_GLOBAL_EXPEDITED)

    def __call__(self) -> None:
        """Return once all have passed it."""
        self._do(GLOBAL_EXPEDITED)

    def _do(self, command: int) -> bool:
        return self._number is not None and self._call(self._number, command, 0, 0) == 0


class Bells:
    """The bells of an island, by slot, in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open: dict[int, int] = {}

    def make(self, slot: int) -> None:
        """Hang up a bell. Raises OSError."""
        os.mkfifo(self._folder / f"bell{slot}", 0o600)

    def own(self, slot: int) -> int:
        """The descriptor to wait for, of this process's own bell."""
        return self._descriptor(slot)

    def ring(self, slot: int) -> None:
        """Wake the owner of a bell. One who is gone hears nothing."""
        with contextlib.suppress(OSError):  # the pipe is full: the owner has much to hear already
            os.write(self._descriptor(slot), b"\0")

    def heard(self, slot: int) -> None:
        """Forget the rings until now of this process's own bell."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._descriptor(slot), 4096)

    def forget(self, slot: int) -> None:
        """Close the descriptor of a bell that is another's from now on."""
        if (descriptor := self._open.pop(slot, None)) is not None:
            os.close(descriptor)

    def close(self) -> None:
        """Close all descriptors."""
        for slot in list(self._open):
            self.forget(slot)

    def _descriptor(self, slot: int) -> int:
        if (known := self._open.get(slot)) is not None:
            return known
        flags = os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC  # both ends: opening never waits
        self._open[slot] = os.open(self._folder / f"bell{slot}", flags)
        return self._open[slot]
