"""Stops the processes below a shim while the lease of its node is over.

The shim does so by itself: its agent may hang, or be gone.

    python -m rota.train.fence LEASE TAG PROGRAM [ARGUMENT]...

runs a program that serves others, and is never stopped itself, with what it starts behind a fence.
It ends with this process, which ends as the program does, and kills what the program has left
behind. By its TAG a watchman knows this process as a guard: see :mod:`rota.live.wire.tags`.
"""

import contextlib
import ctypes
import os
import signal
import sys
from pathlib import Path
from typing import NoReturn

from rota.live.wire import tags
from rota.live.wire.lease import Lease
from rota.live.wire.procfs import ENDED, STATE, STOPPED, below, stat_of

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
LIBC = ctypes.CDLL(None, use_errno=True)
LOOK_S = 0.25  # while the lease is over: at what was being forked, and for its renewal
LOOK_AT_MOST_S = 3600.0  # also while it never ends


class Fence:
    """Waits for the children of this process, which are stopped while the lease is over.

    What was stopped by others before stays stopped when the lease is renewed, and so does what the
    agent has stopped meanwhile: then the file ``held`` is there, with the process that may run.
    """

    def __init__(self, lease: Lease, spared: int = 0, held: Path | None = None) -> None:
        """Keeps SIGCHLD from now on for :meth:`wait`. The child ``spared`` is never stopped."""
        self._lease, self._spared, self._held = lease, spared, held
        self._stopped: set[int] = set()
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})

    def wait(self) -> tuple[int, int]:
        """As ``os.waitpid(-1, 0)``. Raises ChildProcessError without a child."""
        while True:
            ended = os.waitpid(-1, os.WNOHANG)
            if ended[0]:
                return ended
            self.look()
            pause_s = min(max(self._lease.left_s, LOOK_S), LOOK_AT_MOST_S)
            signal.sigtimedwait({signal.SIGCHLD}, pause_s)

    def look(self) -> None:
        """Stop the children if the lease is over, and let them go on if it was renewed."""
        if self._lease.left_s <= 0:
            self._stop()
        elif self._stopped:
            self._continue()

    def _stop(self) -> None:
        while new := [each for each in self._fenced() if not has_stopped(each)]:
            for pid in new:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGSTOP)
            if self._stopped.issuperset(new):  # it takes a moment, or is another user's
                break
            self._stopped.update(new)

    def _fenced(self) -> list[int]:
        return [each for each in below(os.getpid()) if each != self._spared]

    def _continue(self) -> None:
        found = self._stopped.intersection(below(os.getpid()))
        before, spared = object(), self._spared_by_agent()
        while spared != before:  # the agent writes it down first, and then sends its signals
            for pid in found:
                goes_on = spared is None or pid == spared
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGCONT if goes_on else signal.SIGSTOP)
            before, spared = spared, self._spared_by_agent()
        self._stopped.clear()

    def _spared_by_agent(self) -> int | None:
        """Return the process that may run while the agent has stopped the others; else None."""
        try:
            return int(self._held.read_text()) if self._held is not None else None
        except (OSError, ValueError):
            return None


def has_stopped(pid: int) -> bool:
    """True if a process is stopped, or dead."""
    try:
        fields = stat_of(pid)
    except OSError:
        return True
    return not fields or fields[STATE] in STOPPED + ENDED


def main() -> NoReturn:
    """See the module."""
    lease, tag, program = Lease(Path(sys.argv[1])), int(sys.argv[2]), sys.argv[3:]
    fence = os.getpid()
    LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    child = os.fork()
    if child == 0:
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() == fence:
            os.execvp(program[0], program)  # noqa: S606
        os._exit(1)
    tags.set_tag(tag | tags.GUARD)
    wait = Fence(lease, spared=child).wait
    ended = 0
    while ended != child:
        ended, status = wait()
    killed = set[int]()
    while left := set(below(fence)) - killed:
        for pid in left:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        killed |= left
    code = os.waitstatus_to_exitcode(status)
    os._exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main()
