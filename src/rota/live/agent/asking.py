"""Asks the processes below a shim to end: the program first, what it has started later.

The *program* is what its owner would signal: the worker, or what stands behind it. A shell gets the
signal with the commands that it runs, and without them if they are in the background and the shell
has a trap that can pass the signal on. A launcher (torchrun, accelerate, deepspeed) is passed over
for its ranks: each launcher signals whole process groups, loaders of data included, and kills after
a limit of its own. Of several commands or ranks those are asked that handle the signal, if any of
them do; a ``tee`` at the end of a pipe, for instance, outlives what prints into it.

What else there is gets the signal once all that were asked have ended, or when time is nearly over.
"""

import contextlib
import os
import signal
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from rota.live.agent.processes import children_below, descendants, started_at

LINGER_S = 0.5  # for others to end by themselves once the program has: to print the last of a pipe
SHELLS = {"ash", "bash", "busybox", "dash", "ksh", "sh", "zsh"}
LAUNCHERS = {"accelerate", "accelerate-launch", "deepspeed", "timeout"}
LAUNCHER_MODULES = {
    "accelerate.commands.accelerate_cli",
    "accelerate.commands.launch",
    "deepspeed.launcher.launch",
    "deepspeed.launcher.runner",
}
OF_TORCHRUN = b"TORCHELASTIC_RUN_ID="  # in the environment of its ranks
BLOCKED, IGNORED, CAUGHT = "SigBlk", "SigIgn", "SigCgt"


class AskedProcess(NamedTuple):
    """A process, and when it started: its number may be another's later."""

    pid: int
    began_s: float


class Tree:
    """The processes below a shim at one moment."""

    def __init__(self, shim: int) -> None:
        self._children = children_below(shim)
        self.roots = self._children.get(shim, [])

    def programs(self, pid: int) -> tuple[list[int], set[int]]:
        """The processes to ask for this one, and the launchers that are passed over for them."""
        children = self._children.get(pid, [])
        if children and _is_shell(pid):
            found, passed = self._handling(_commands(pid, children))
            return [pid, *found], passed
        ranks = list(self._ranks(pid))
        if not ranks and children and _is_launcher(pid):
            ranks = children
        if not ranks:
            return [pid], set()
        found, passed = self._handling(ranks)
        return found, passed | {pid}

    def _handling(self, pids: Iterable[int]) -> tuple[list[int], set[int]]:
        """The programs of several processes: of those that handle the signal, if any do."""
        groups = [self.programs(pid) for pid in pids]
        handle = [group for group in groups if any(map(_handles, group[0]))]
        chosen = handle or groups
        return [pid for found, _ in chosen for pid in found], {
            pid for _, passed in groups for pid in passed
        }

    def _ranks(self, pid: int) -> Iterator[int]:
        """The ranks that a launcher of torch has started below this process."""
        if _is_of_torchrun(pid):
            return
        for child in self._children.get(pid, []):
            if _is_of_torchrun(child):
                yield child
            else:
                yield from self._ranks(child)


class Asking:
    """SIGTERM for all that is below one shim, each process once, the program first."""

    def __init__(self, shim: int) -> None:
        self._shim = shim
        self._asked: set[AskedProcess] = set()
        self._passed: set[int] = set()  # launchers, while their ranks end
        self._over_s: float | None = None  # since when none that was asked is left

    def begin(self) -> None:
        """Ask the program."""
        tree = Tree(self._shim)
        for root in tree.roots:
            self._ask_for(tree, root)

    def look(self, now_s: float) -> None:
        """Ask the next processes once all that were asked have ended for LINGER_S."""
        if any(started_at(asked.pid) == asked.began_s for asked in self._asked):
            self._over_s = None
        elif self._over_s is None:
            self._over_s = now_s
        elif now_s >= self._over_s + LINGER_S:
            self.begin()

    def ask_all(self) -> None:
        """Ask all that were not asked before."""
        for pid in descendants(self._shim)[1:]:
            self._ask(pid)

    def _ask_for(self, tree: Tree, root: int) -> None:
        if root in self._passed:
            self._ask(root)
            return
        programs, passed = tree.programs(root)
        self._passed |= passed
        for pid in programs:
            self._ask(pid)

    def _ask(self, pid: int) -> None:
        began_s = started_at(pid)
        if began_s is None or (asked := AskedProcess(pid, began_s)) in self._asked:
            return
        self._asked.add(asked)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGTERM)


def _is_shell(pid: int) -> bool:
    try:
        return os.path.basename(os.readlink(f"/proc/{pid}/exe")) in SHELLS
    except OSError:
        return False


def _is_launcher(pid: int) -> bool:
    """True for launchers that are known by their command alone."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
    except OSError:
        return False
    return starts_ranks(words)


def starts_ranks(words: list[str]) -> bool:
    """True if a command is that of a launcher."""
    words = list(words)
    if os.path.basename(words[0]).startswith("python"):
        while len(words) > 1 and words[1].startswith("-") and words[1] != "-m":
            del words[1]
        if words[1:2] == ["-m"]:
            return "".join(words[2:3]) in LAUNCHER_MODULES
        del words[0]
    return os.path.basename("".join(words[:1])) in LAUNCHERS


def _is_of_torchrun(pid: int) -> bool:
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return any(each.startswith(OF_TORCHRUN) for each in environment)


def _commands(shell: int, children: list[int]) -> list[int]:
    """The commands of a shell that are to be asked beside it.

    A shell with a trap passes the signal on to those in the background, if its owner wants that;
    it can't while it waits for others. Those in the background ignore SIGQUIT.
    """
    if not _handles(shell):
        return children
    of_all = _has(shell, IGNORED, signal.SIGQUIT)
    return [pid for pid in children if of_all or not _has(pid, IGNORED, signal.SIGQUIT)]


def _handles(pid: int) -> bool:
    """True if a process catches SIGTERM, or waits for it."""
    return _has(pid, CAUGHT, signal.SIGTERM) or _has(pid, BLOCKED, signal.SIGTERM)


def _has(pid: int, mask: str, number: signal.Signals) -> bool:
    """True if a signal is in one of a process's masks."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    bits = status.partition(f"{mask}:")[2].split(maxsplit=1)
    return bool(bits) and bool(int(bits[0], 16) >> (number - 1) & 1)
