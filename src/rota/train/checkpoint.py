"""Where a training stands, and the file that the next attempt goes on from.

On a full disk training goes on, the file of before stays, and the checkpoint is *owed*: it is tried
again between steps, as training stands then, and in the end waited for.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rota.errors import InputError
from rota.train.member import Member
from rota.train.progress import Progress
from rota.train.replica import is_full
from rota.train.world import World

if TYPE_CHECKING:
    from rota.train.training import Training

FILE = "rota.pt"  # in ROTA_CHECKPOINT_DIR
AGAIN_S = 10.0  # a checkpoint that is owed is tried again after so long


class Checkpoint:
    """The checkpoint of one training: all of its replica, with the plain values kept here."""

    def __init__(
        self, training: Training, world: World, member: Member, progress: Progress
    ) -> None:
        self.extra: dict[str, Any] = {}  # values of the program's own
        self._training = training
        self._world = world
        self._member = member
        self._progress = progress
        self._looked = False
        self._again_s = 0.0  # by the monotonic clock: when to try again

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
        """Whether the checkpoint that was asked for is not written yet, for want of room."""
        return self._progress.unsaved is not None

    def settle(self) -> None:
        """Training has ended: write the checkpoint if it is owed, as soon as there is room."""
        self._again_s = 0.0
        self.again()
        if self.is_owed:
            _say("training has ended, and waits until its checkpoint can be written")
        while self.is_owed:
            time.sleep(max(0.0, self._again_s - time.monotonic()))
            self.again()

    def _save_or_owe(self, path: str) -> None:
        progress, step = self._progress, self._progress.step + self._training.in_step
        owed, progress.unsaved = progress.unsaved, None  # as it is once this one is written
        try:
            self._training.replica.save(path)
        except OSError as error:
            if not is_full(error):
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
        """Write the checkpoint from this rank, whichever it is; False if there is no folder for it,
        or if this rank has no state yet. Raises OSError."""
        path = _path()
        if path is None or self._member.rehearses:
            return False
        self._training.replica.save(str(path), draft=f".{self._world.rank}.new")
        return True

    def open(self) -> None:
        """Go on from where an attempt before this one has written its state."""
        path = _path()
        if path is not None and path.exists():
            self._training.replica.open(str(path))

    def look(self) -> None:
        """Before the first step: know the values of the program's own that are in it."""
        path = _path()
        if self._looked or self._member.rehearses or path is None:
            return
        self._looked = True
        if path.exists():
            import torch

            state = torch.load(path, map_location="cpu", weights_only=False, mmap=True)
            self.extra |= state["plain"]["extra"]

    def plain(self) -> dict[str, Any]:
        """What to go on with: in a step whose batch has been worked through, after that step; in an
        epoch whose batches have been, after that epoch.

        Without a loader, only the program knows whether a step is over: it is taken to be.
        """
        training, progress = self._training, self._progress
        position = training.loader.position if training.loader is not None else None
        batch = training.batch
        done = batch if batch is not None and batch.complete else None
        steps, samples = (1, done.samples) if done is not None else (0, 0)
        if training.loader is None:
            steps = int(training.in_step)
        place = position and (
            position.epoch,
            position.samples + samples,
            position.batches + steps,
        )
        if position is not None and training.epoch_over:
            place = (training.epoch + 1, 0, position.batches)
        return {
            "epoch": training.epoch + training.epoch_over,
            "position": place,
            "step": progress.step + steps,
            "samples": progress.samples + samples,
            "first_100_s": progress.first_100_s,
            "lr_scaling": training.lr_scaling and training.lr_scaling.state(),
            "batch": training.adaptation and training.adaptation.state(),
            "extra": self.extra,
            "unsaved": progress.unsaved,
        }

    def load_plain(self, plain: dict[str, Any]) -> None:
        """Go on with what :meth:`plain` gave, here or elsewhere."""
        training, progress = self._training, self._progress
        training.epoch, self.extra = plain["epoch"], plain["extra"]
        progress.step, progress.samples = plain["step"], plain["samples"]
        progress.first_100_s, progress.unsaved = plain["first_100_s"], plain.get("unsaved")
        if training.lr_scaling is not None and plain["lr_scaling"]:
            training.lr_scaling.load(plain["lr_scaling"])
        if training.adaptation is not None and plain.get("batch"):
            training.adaptation.load(plain["batch"])
        if training.loader is not None and plain["position"]:
            position = training.loader.position
            position.epoch, position.samples, position.batches = plain["position"]


def _say(text: str) -> None:
    """Say something in the job's output, unless there is no room for that either."""
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.flush()
        os.write(2, f"rota: {text}\n".encode())  # nothing of it may stay behind in a buffer


def _path() -> Path | None:
    folder = os.environ.get("ROTA_CHECKPOINT_DIR")
    return Path(folder, FILE) if folder else None
