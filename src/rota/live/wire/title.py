"""The words that ``ps``, ``top`` and ``nvidia-smi`` show for one of Rota's own processes."""

import contextlib
import ctypes
import os
import re
import sys

from rota.live.wire.procfs import ARG_END, ARG_START, stat_of

ROOM = " " * 200  # a last argument for a process that is to have longer titles than its own words
PR_SET_NAME = 15


def title(*words: str) -> None:
    """Show this process, and what it forks, as these words: its command line from now on.

    They take the place of the words that the process was started with, and are cut at the end of
    these. ``sys.argv`` and the environment stay as they are. A process whose kernel does not tell
    where its words lie keeps them. Its name in the kernel has neither spaces nor parentheses: some
    readers of ``/proc/PID/stat``, Slurm's among them, lose a process that has.
    """
    name = re.sub(r"[\s()]", "-", words[0])
    ctypes.CDLL(None).prctl(PR_SET_NAME, os.fsencode(name)[:15], 0, 0, 0)
    with contextlib.suppress(OSError, IndexError, ValueError):
        fields = stat_of("self")
        start, end = int(fields[ARG_START]), int(fields[ARG_END])
        if 0 < start < end:
            room = end - start
            text = b"\0".join(os.fsencode(word) for word in words)[: room - 1]
            ctypes.memmove(start, text.ljust(room, b"\0"), room)


def title_role(role: str) -> None:
    """Show this process as ``rota ROLE`` and its arguments: the interpreter's name is no help."""
    title(f"rota {role}", *sys.orig_argv[1:])
