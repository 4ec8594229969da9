"""The file from which the next attempt continues.

On a full disk training continues and the previous file stays. The checkpoint is then *owed*: it is
tried again between steps, with the state of that moment, and the program's end waits for it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rota.errors import InputError
from rota.train.member import Member
from rota.train.progress import Progress
from rota.train.world import World

if TYPE_CHECKING:
    from rota.train.replica import Replica

FILE = "rota.pt"  # in ROTA_CHECKPOINT_DIR
AGAIN_S = 10.0  # a checkpoint that is owed is tried again after so long


class Checkpoint:
    """The checkpoint of one training: its whole replica, made on request."""

    def __init__(
        self, replica: Callable[[], Replica], world: World, member: Member, progress: Progress
    ) -> None:
        self._replica = replica
        self._world = world
        self._member = member
        self._progress = progress
        self._looked = False
        self._again_s = 0.0  # time of the next try, by the monotonic clock

    def save(self) -> None:
        """Write the checkpoint, or owe it if there is no room for it.

        Raises InputError if there is no folder for it, and OSError if it can't be written for any
        other reason.
        """
        path = _path()
        if path is None:
            raise InputError("s.checkpoint: ROTA_CHECKPOINT_DIR is not set; it says where to write")
        if self._world.rank == 0 and not self._member.rehearses:
            self._save_or_owe(str(path))

    def again(self) -> None:
        """Between two steps: write the checkpoint if it is owed, it is time, and there is room."""
        if not self.is_owed or time.monotonic() < self._again_s:
            return
        path = _path()
        if path is None or self._world.rank != 0 or self._member.rehearses:
            self._progress.unsaved = None  # another rank writes by now
            return
        self._save_or_owe(str(path))

    @property
    def is_owed(self) -> bool:
        """True if the requested checkpoint is not written yet, because the disk has no room."""
        return self._progress.unsaved is not None

    def settle(self) -> None:
        """After the last step: write the checkpoint if it is owed, as soon as there is room."""
        self._again_s = 0.0
        self.again()
        if self.is_owed:
            _say("training has ended, and waits until its checkpoint can be written")
        while self.is_owed:
            time.sleep(max(0.0, self._again_s - time.monotonic()))
            self.again()

    def _save_or_owe(self, path: str) -> None:
        progress, step = self._progress, self._progress.step + self._progress.in_step
        owed, progress.unsaved = progress.unsaved, None  # the state after this checkpoint
        try:
            self._replica().save(path)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):  # no room now, maybe later
                raise
            progress.unsaved = error.strerror
            self._again_s = time.monotonic() + AGAIN_S
            if owed is None:
                again = f"training goes on, and it is tried again every {AGAIN_S:.0f} s"
                _say(f"after {step} steps {error.strerror}; {again}")
            return
        if owed is not None:
            _say(f"the checkpoint is written, after {step} steps")

    def save_alone(self) -> bool:
        """Write the checkpoint from this rank alone.

        Returns False if there is no folder for it, or if this rank has no state yet. Raises
        OSError.
        """
        path = _path()
        if path is None or self._member.rehearses:
            return False
        self._replica().save(str(path), draft=f".{self._world.rank}.new")
        return True

    def open(self) -> None:
        """Continue from the state that an earlier attempt has written."""
        path = _path()
        if path is not None and path.exists():
            self._replica().open(str(path))

    def look(self) -> dict[str, Any]:
        """Before the first step: the checkpoint's plain values; empty without a new file."""
        path = _path()
        if self._looked or self._member.rehearses or path is None:
            return {}
        self._looked = True
        if not path.exists():
            return {}
        import torch

        state = torch.load(path, map_location="cpu", weights_only=False, mmap=True)
        plain: dict[str, Any] = state["plain"]
        return plain


def _say(text: str) -> None:
    """Print to the job's output, if there is room for that."""
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.flush()
        os.write(2, f"rota: {text}\n".encode())  # nothing of it may stay behind in a buffer


def _path() -> Path | None:
    folder = os.environ.get("ROTA_CHECKPOINT_DIR")
    return Path(folder, FILE) if folder else None
