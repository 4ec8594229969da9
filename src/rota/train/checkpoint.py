"""Where a training stands, and the file that the next attempt goes on from."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rota.errors import InputError
from rota.train.member import Member
from rota.train.progress import Progress
from rota.train.world import World

if TYPE_CHECKING:
    from rota.train.training import Training

FILE = "rota.pt"  # in ROTA_CHECKPOINT_DIR


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

    def save(self) -> None:
        """Write the checkpoint. Raises InputError if there is no folder for it, OSError."""
        path = _path()
        if path is None:
            raise InputError("s.checkpoint: ROTA_CHECKPOINT_DIR is not set; it says where to write")
        if self._world.rank == 0 and not self._member.rehearses:
            self._training.replica.save(str(path))

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
        }

    def load_plain(self, plain: dict[str, Any]) -> None:
        """Go on with what :meth:`plain` gave, here or elsewhere."""
        training, progress = self._training, self._progress
        training.epoch, self.extra = plain["epoch"], plain["extra"]
        progress.step, progress.samples = plain["step"], plain["samples"]
        progress.first_100_s = plain["first_100_s"]
        if training.lr_scaling is not None and plain["lr_scaling"]:
            training.lr_scaling.load(plain["lr_scaling"])
        if training.adaptation is not None and plain.get("batch"):
            training.adaptation.load(plain["batch"])
        if training.loader is not None and plain["position"]:
            position = training.loader.position
            position.epoch, position.samples, position.batches = plain["position"]


def _path() -> Path | None:
    folder = os.environ.get("ROTA_CHECKPOINT_DIR")
    return Path(folder, FILE) if folder else None
