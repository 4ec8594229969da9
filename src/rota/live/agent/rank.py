"""One process of an attempt, with the shim that watches over it and its connection."""

import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rota.errors import AgentError
from rota.live.agent.asking import Asking
from rota.live.agent.grace import Grace
from rota.live.agent.processes import (
    descendants,
    have_stopped,
    signal_below,
    started_at,
)
from rota.live.agent.waking import Waking, waiting_below
from rota.live.wire import Message, clock, encode
from rota.live.wire.lease import Lease
from rota.live.wire.messages import MAX_SECONDS
from rota.live.wire.procfs import SPARE

MAX_EXIT_BYTES = 1 << 16
MAX_REASON = 300  # characters of a shim's reason not to start
LAST_BYTES = 4096  # of an output that tell why its process failed
FENCE_AGAIN_S = 1.0
RENEWED_AGAIN_S = 0.1  # between looks at whether a lease was renewed
WOKEN_AGAIN_S = 0.05  # between looks at whether children have settled, so that parents go on
ASKED_AGAIN_S = 0.1  # between looks at whether a program that was asked to end has ended
LAST_SHARE, MOST_LAST_S = 0.1, 2.0  # the end of a grace, in which all processes are asked


class Rank:
    """One rank. What its shim wrote is in ``folder``: ``rankN.pid`` and ``rankN.exit``.

    A process that takes the place of one whose state is in an arena leads another ``life`` of the
    rank; its files are ``rankN.LIFE.pid`` and ``rankN.LIFE.exit``.
    """

    is_far = False  # True if it is on another node

    def __init__(self, index: int, folder: Path, life: int = 0, lease: Lease | None = None) -> None:
        """Its processes may run during the ``lease`` only, if there is one."""
        self.index = index
        self.name = name = life_name(index, life)  # of its files
        self.shim = 0
        self.worker = 0
        self.pidfd = -1
        self._watched = False
        self.exit: dict[str, Any] | None = None
        self.gone = False
        self.found_gone = False  # an agent that had not seen it alive found it gone
        self.never_started = False  # its agent died before: the others of its gang wait for it
        self.writer: asyncio.StreamWriter | None = None  # of its session
        self.session = 0  # the process of that session; 0 if unknown
        self.unstopped = 0  # processes of other users: they run on while it is suspended
        self.beside: list[asyncio.StreamWriter] = []  # of sessions opened while that one was open
        self.survived = False  # True if it has ended, and the others continue
        self.suspended: Message | None = None
        self.seat: str | None = None  # by which it takes turns, as it has said
        self.seat_is_told = False  # since it was last given one, or none
        self.log = folder / f"rank{index}.log"  # of all of its lives
        self._pids = folder / f"{name}.pid"
        self._exit = folder / f"{name}.exit"
        self._refused = folder / f"{name}.refused"  # where the shim tells why it can't start
        self._grace = folder / f"{name}.grace"
        self._lease = lease
        self._held = folder / f"{name}.held"  # the shim leaves stopped what the agent has stopped
        self._spared: int | None = None  # as it is written there
        self._renewed: asyncio.TimerHandle | None = None  # while it waits to go on
        self._waiting: frozenset[int] | None = None  # processes that waited as it was stopped
        self._waking: Waking | None = None  # while its processes go on, one after the other
        self._asking: Asking | None = None  # since it was asked to end
        self._begins = False  # True while it is being started

    @property
    def alive(self) -> bool:
        """True if its shim still watches over it."""
        return self.shim > 0 and self.exit is None and not self.gone

    @property
    def last_printed(self) -> bytes:
        """The last that it has printed; nothing if that can't be read."""
        try:
            with open(self.log, "rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - LAST_BYTES))
                return file.read(LAST_BYTES)
        except OSError:
            return b""

    def opened(self, writer: asyncio.StreamWriter, session: int) -> bool:
        """A process has opened a session. False if that of another one is open, and stays so."""
        over = self.session and started_at(self.session) is None  # a child holds its connection
        if self.writer is not None and not over:
            self.beside.append(writer)
            return False
        self.writer, self.session = writer, session
        return True

    def closed(self, writer: asyncio.StreamWriter) -> bool:
        """A connection was closed. False if it was not that of its session.

        After the session's connection, all others are closed: a process that is still there
        connects again, as if it were new.
        """
        if writer in self.beside:
            self.beside.remove(writer)
        if self.writer is not writer:
            return False
        self.writer, self.session = None, 0
        for other in self.beside:
            other.close()
        self.beside.clear()
        return True

    def send(self, message: Message) -> None:
        """Send a message to the worker, if it is connected."""
        if self.writer is not None and not self.writer.is_closing():
            self.writer.write(encode(message))

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the worker and all its descendants.

        They go on only during the lease: until it is renewed, SIGCONT is not sent. A rank that is
        being started does not begin after SIGKILL.
        """
        if number == signal.SIGKILL and self._begins:
            with contextlib.suppress(OSError):  # a full disk: it is killed once it has begun
                self._fence()
        if not self.alive:
            return
        self.unstopped = 0
        if number == signal.SIGSTOP:
            self._hold(0)
        elif number == signal.SIGCONT:
            self._release()
        if number != signal.SIGCONT or self._lease is None or self._lease.left_s > 0:
            signal_below(self.shim, number)
        else:
            later = asyncio.get_running_loop().call_later
            self._renewed = later(RENEWED_AGAIN_S, self.signal, number)
        if number != signal.SIGSTOP:  # should the job have stopped its own shim
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.shim, signal.SIGCONT)

    def go_on(self) -> None:
        """Let all that is stopped go on, children before their parents, during the lease."""
        if self.alive:
            self.unstopped = 0
            self._release()
            waiting, self._waiting = self._waiting, None
            self._waking = Waking(self.shim, waiting)
            self._wake(self._waking)

    def _wake(self, waking: Waking) -> None:
        loop, self._renewed = asyncio.get_running_loop(), None
        if not self.alive:
            self._wait_no_more()
            return
        if self._lease is not None and self._lease.left_s <= 0:
            self._renewed = loop.call_later(RENEWED_AGAIN_S, self._wake, waking)
        elif not waking.step(loop.time()):
            self._renewed = loop.call_later(WOKEN_AGAIN_S, self._wake, waking)
        with contextlib.suppress(ProcessLookupError):  # should the job have stopped its own shim
            os.kill(self.shim, signal.SIGCONT)

    def ask_to_end(self, grace_s: float, left_s: float | None = None) -> None:
        """Ask the program to end; later the processes that it has started.

        These are asked once the program has ended, or when ``left_s``, what is left of ``grace_s``,
        is nearly over. A rank that was asked before is not asked again.
        """
        if not self.alive or self._asking is not None:
            return
        with contextlib.suppress(OSError):  # without room, the program's end ends the others
            if not self._grace.exists():  # its time tells when the program was asked first
                self.give_grace()
        self._asking = Asking(self.shim)
        self._asking.begin()
        self.signal(signal.SIGCONT)  # should it be stopped, or the job have stopped itself
        last_s = min(MOST_LAST_S, grace_s * LAST_SHARE)
        left_s = grace_s if left_s is None else left_s
        grace = Grace(left_s - last_s, asyncio.get_running_loop().time())
        self._look_at_asked(self._asking, grace)

    def _look_at_asked(self, asking: Asking, alone: Grace) -> None:
        if not self.alive:
            return
        loop = asyncio.get_running_loop()
        if alone.left_s(loop.time()) <= 0:
            asking.ask_all()
            return
        asking.look(loop.time())
        loop.call_later(ASKED_AGAIN_S, self._look_at_asked, asking, alone)

    def _hold(self, spared: int) -> None:
        """Have the shim leave stopped what is about to be, all but the process ``spared``."""
        self._wait_no_more()
        if self._lease is not None and self._spared != spared:
            with contextlib.suppress(OSError):  # a full disk: the shim lets it go on, as before
                self._held.write_text(str(spared))
                self._spared = spared

    def _release(self) -> None:
        """Revoke :meth:`_hold`."""
        self._wait_no_more()
        self._spared = None
        if self._lease is not None:
            with contextlib.suppress(OSError):
                self._held.unlink(missing_ok=True)

    def _wait_no_more(self) -> None:
        if self._renewed is not None:
            self._renewed.cancel()
            self._renewed = None
        if self._waking is not None:
            self._waking.close()
            self._waking = None

    def stop(self, spared: int = 0) -> bool:
        """Stop the worker and all its descendants except the process ``spared``.

        False as long as one may be forking: a fork that began before its process was stopped is
        completed, and the new process runs. Call it again until it returns True.
        """
        if self.alive:
            if self._waiting is None:
                self._waiting = waiting_below(self.shim)
            self._hold(spared)
        before = self.below(spared)
        refused = signal_below(self.shim, signal.SIGSTOP, spared) if self.alive else []
        self.unstopped = len(refused)
        stopped = have_stopped(before.difference(refused))
        return stopped and self.below(spared) <= before.union(refused)

    def below(self, spared: int = 0) -> set[int]:
        """The worker and all its descendants, except the process ``spared``."""
        return set(descendants(self.shim)[1:]) - {spared} if self.alive else set()

    def give_grace(self) -> None:
        """From now on, the shim spares the processes that its worker leaves behind. Raises OSError.

        They may have a checkpoint to write: in ``bash train.sh`` the SIGTERM ends bash first.
        """
        self._grace.touch()

    def take_grace_back(self) -> None:
        """Revoke :meth:`give_grace`: the worker's end again ends what it leaves behind."""
        with contextlib.suppress(OSError):
            self._grace.unlink(missing_ok=True)

    async def start(self, fork: Callable[[dict[str, Any]], Any], request: Any) -> None:
        """Have the rank forked; returns when its worker is known. Raises AgentError."""
        self._begins = True
        try:
            await self._begin(fork, request)
        finally:
            self._begins = False

    async def _begin(self, fork: Callable[[dict[str, Any]], Any], request: Any) -> None:
        self.shim = await fork(request)
        with contextlib.suppress(ProcessLookupError):  # a short job may be over by now
            self.pidfd = os.pidfd_open(self.shim)
        while not self._pids.exists():
            if started_at(self.shim) is None and not self._pids.exists():
                raise AgentError(f"the shim of rank {self.index} died at its start{self._why()}")
            if not self._pids.parent.exists():
                raise AgentError(f"the folder of rank {self.index} went as it was started")
            await asyncio.sleep(0.001)
        self.worker = self._claimed()["worker"]
        if not self.worker:
            raise AgentError(f"rank {self.index} was told to end before it had begun")

    def _why(self) -> str:
        """The reason that its shim told for its own end, as the end of a sentence; else ""."""
        with contextlib.suppress(OSError):
            return f": {self._refused.read_text(errors='replace')[:MAX_REASON]}"
        return ""

    async def abandon(self) -> None:
        """Make sure that none of its processes runs or will run; returns then."""
        while True:
            try:
                self._fence()
                shim = self._claimed()["shim"]
                began = self._began(shim)
                break
            except FileNotFoundError:  # without its folder none can claim it but one that has
                shim, began = self.shim, started_at(self.shim) if self.shim else None
                break
            except OSError:  # not even an empty file has room
                await asyncio.sleep(FENCE_AGAIN_S)
        if began:
            signal_below(shim, signal.SIGKILL)
            while started_at(shim) == began:
                await asyncio.sleep(0.005)
        self.close()

    def find(self) -> None:
        """Take over the process that an earlier agent started, or find out how it ended."""
        self.read_exit()
        if self.exit is not None:
            return
        self._fence()
        pids = self._claimed()
        self.shim, self.worker = pids["shim"], pids["worker"]
        if self.shim:
            with contextlib.suppress(ProcessLookupError):
                self.pidfd = os.pidfd_open(self.shim)
        if self._began(self.shim) is None:
            self.gone = self.found_gone = True
            self.close()
            self.read_exit()
            self.never_started = self.shim == 0 and self.gone

    def find_after_reboot(self) -> None:
        """After a reboot: find out how the process had ended; another may have its pid now."""
        self.gone = self.found_gone = True
        self.read_exit()

    def read_exit(self) -> None:
        """Read the exit that the shim has recorded; anything else in its place is ignored."""
        if not self._exit.is_file():
            return
        with contextlib.suppress(OSError, ValueError, RecursionError):
            told = json.loads(SPARE.use(_beginning, str(self._exit)))
            if is_exit(told):
                self.exit, self.gone = told, False

    def watch(self, ended: Callable[[], object]) -> None:
        """Call ``ended`` when the shim is gone, or at once if it is gone already."""
        loop = asyncio.get_running_loop()
        if self.pidfd >= 0:
            loop.add_reader(self.pidfd, ended)
            self._watched = True
        else:
            loop.call_soon(ended)

    def close(self) -> None:
        """Stop watching the shim."""
        if self.pidfd >= 0:
            if self._watched:
                asyncio.get_running_loop().remove_reader(self.pidfd)
            os.close(self.pidfd)
            self.pidfd = -1

    def _began(self, shim: int) -> float | None:
        """Start time of the shim; None if it is gone, or another process has its pid."""
        began = started_at(shim) if shim else None
        return began if began is not None and began <= self._claimed_at() + 1 else None

    @property
    def claimed_at_s(self) -> float:
        """Time at which its shim recorded its pid; 0 if none has, or an older one."""
        with contextlib.suppress(OSError, ValueError, TypeError):
            return float(self._claimed().get("at_s", 0.0))
        return 0.0

    def _claimed_at(self) -> float:
        """Time at which the shim recorded its pid, in seconds of CLOCK_BOOTTIME."""
        told = self._claimed().get("boottime_s")
        if told is not None:
            return float(told)
        return self._pids.stat().st_mtime - time.time() + clock.boottime_s()  # an older shim

    def _fence(self) -> None:
        """Keep a shim that has not started yet from starting the worker.

        A shim continues only if it can create ``rankN.pid``: the first to create it owns it. This
        agent creates an empty one, for which even a full disk has room. Raises OSError.
        """
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with contextlib.suppress(FileExistsError):
            os.close(os.open(self._pids, flags, 0o600))

    def _claimed(self) -> dict[str, Any]:
        """The pids of the shim and its worker, 0 if there are none and never will be."""
        text = self._pids.read_text()
        return dict(json.loads(text)) if text else {"shim": 0, "worker": 0}


def _beginning(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read(MAX_EXIT_BYTES)


def is_exit(told: Any) -> bool:
    """True if this is a shim's record of an exit."""
    if not isinstance(told, dict):
        return False
    code, at_s = told.get("code"), told.get("at_s")
    whole = isinstance(code, int) and not isinstance(code, bool)
    whole = whole and isinstance(told.get("boottime_s", 0.0), int | float)  # older shims: none
    return whole and isinstance(at_s, int | float) and 0 <= at_s <= MAX_SECONDS


def life_name(index: int, life: int) -> str:
    """Name of the files of one life of a rank."""
    return f"rank{index}.{life}" if life else f"rank{index}"


def life_of(lives: Mapping[str, int], slot: int) -> int:
    """Present life of an attempt's slot, by the ``lives`` in the attempt's record."""
    return lives.get(str(slot), 0)
