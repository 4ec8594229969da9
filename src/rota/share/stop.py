"""Runs a process tree in slices of time, by stopping it: for programs without ``rota.train``.

:class:`Duty` decides and is pure; :class:`Throttle` sends what it decides. Whoever throttles may
end in any way: a guard, a process of its own, has the tree continue as soon as it is gone.
"""

import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

from rota.share.controllers import Controller, Totals
from rota.share.marks import Seen

STOP_AGAIN_S = 0.1
SLICE_S = 0.02  # that a tree runs at once; a signal, and the wake-up after it, are short beside it
LONG_SLICE_S = 0.5  # where there is no foreground

# It waits for the end of its input, which no death of its parent prevents. A word in it says that
# there is nothing to do.
GUARD = """
import os, signal, sys
if sys.stdin.buffer.read():
    sys.exit()
seen, todo = set(), [int(pid) for pid in sys.argv[1:]]
while todo:
    pid = todo.pop()
    if pid in seen:
        continue
    seen.add(pid)
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children") as children:
                todo += map(int, children.read().split())
    except OSError:
        pass
    try:
        os.kill(pid, signal.SIGCONT)
    except OSError:
        pass
"""


class Move(NamedTuple):
    """What is to be done: the tree ``runs`` from now on, or does not; look again in ``again_s``."""

    runs: bool
    again_s: float
    why: str = ""


class Duty:
    """Decides when a tree runs, by controllers whose pieces are slices of 20 ms.

    There is one controller for each device that the tree computes on: it runs when all of them let
    it, on all of them at once.
    """

    def __init__(self, controllers: Sequence[Controller]) -> None:
        self._controllers = controllers
        self.runs = True  # as every tree does before it is first told otherwise
        self._slice_ends_s: float | None = None

    def turn(self, seen: Sequence[Seen], now_s: float) -> Move:
        """What to do now, by what is seen on each device; call it again after ``again_s``."""
        if self._slice_ends_s is not None:
            if now_s < self._slice_ends_s:
                return Move(True, self._slice_ends_s - now_s)
            self._end_slice(now_s)
        asked = zip(self._controllers, seen, strict=True)
        verdicts = [controller.ask(each, now_s) for controller, each in asked]
        closed = [each for each in verdicts if not each.go]
        self.runs = not closed
        if closed:
            return Move(False, max(each.again_s for each in closed), closed[0].why)
        alone = all(each.mark is None and not each.torn for each in seen)
        slice_s = LONG_SLICE_S if alone else SLICE_S
        for controller in self._controllers:
            controller.began(now_s)
        self._slice_ends_s = now_s + slice_s
        # A foreground that comes meanwhile must not wait for the end of a long slice.
        return Move(True, SLICE_S)

    def totals(self) -> list[Totals]:
        """How things went since the beginning, by device."""
        return [each.totals() for each in self._controllers]

    def pause(self, now_s: float) -> None:
        """The tree was stopped, or has ended, for another reason."""
        if self._slice_ends_s is not None:
            self._end_slice(now_s)

    def _end_slice(self, now_s: float) -> None:
        self._slice_ends_s = None
        for controller in self._controllers:
            controller.ended(now_s)


class Waker:
    """A process that lets the trees below processes go on once this process is gone."""

    def __init__(self, pids: Sequence[int]) -> None:
        """Raises OSError."""
        words = [sys.executable, "-IS", "-c", GUARD, *map(str, pids)]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(words, bufsize=0, stdin=pipe, start_new_session=True)

    def call_off(self) -> None:
        """It has nothing more to do, and ends soon."""
        stdin = self._process.stdin
        if stdin is not None and not stdin.closed:
            with suppress(BrokenPipeError):  # somebody has killed the guard
                stdin.write(b"over")
            stdin.close()
            threading.Thread(target=self._process.wait, daemon=True).start()


class Throttle:
    """Stops and continues the trees below processes as a :class:`Duty` says; a context manager.

    ``send`` sends a signal to the whole trees, children included, and may be called often:
    ``lambda number: signal_below(shim, number)`` in an agent. The trees run again when the context
    ends, and when this process does.
    """

    def __init__(
        self, pids: Sequence[int], duty: Duty, send: Callable[[signal.Signals], object]
    ) -> None:
        self._duty, self._send = duty, send
        self._stopped, self._stop_at_s = False, 0.0
        self._guard = Waker(pids)

    def __enter__(self) -> "Throttle":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def turn(self, seen: Sequence[Seen], now_s: float) -> float:
        """Do what is due, and return the seconds until the next look."""
        move = self._duty.turn(seen, now_s)
        if not move.runs:
            # Again at the next look, and then now and then: for what was being forked meanwhile.
            if not self._stopped or now_s >= self._stop_at_s:
                self._send(signal.SIGSTOP)
                self._stop_at_s = now_s + STOP_AGAIN_S if self._stopped else now_s
                self._stopped = True
        elif self._stopped:
            self._send(signal.SIGCONT)
            self._stopped = False
        return move.again_s

    def close(self) -> None:
        """Let the tree run, and whatever stops it later be."""
        if self._stopped:
            self._send(signal.SIGCONT)
            self._stopped = False
        self._guard.call_off()
