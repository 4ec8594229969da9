"""Lightning programs: suspension and progress for its Trainer, resizing for Fabric.

    Fabric(strategy=ElasticStrategy(s))     the program owns the loop: s.prepare, s.loader
    Trainer(callbacks=[RotaCallback(s)])    Lightning owns it: suspended, but not resized

Needs the package ``lightning`` (the extra ``lightning``).
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import torch
import torch.distributed as dist
from lightning.fabric.strategies import Strategy
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.strategies import SingleDeviceStrategy
from lightning.pytorch.utilities.data import extract_batch_size
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from rota.errors import GangError
from rota.train.progress import FASTEST_REPORTS_S
from rota.train.session import Session
from rota.train.values import broadcast


class ElasticStrategy(Strategy):
    """Gives Fabric this process's present rank, number of ranks, and device.

    Gradients, batches and the state of newcomers are the session's: give what ``fabric.setup``
    returns to ``s.prepare``, and take batches from ``s.loader``. Collectives of Fabric go through
    the session's present process group. They belong between two steps: unlike the reduction of
    gradients, they are not repeated when a rank is lost.
    """

    def __init__(self, session: Session) -> None:
        super().__init__()
        self._session = session

    @property
    def root_device(self) -> torch.device:
        """The device of this process, which may change in a suspension."""
        return self._session.device

    @property
    def global_rank(self) -> int:
        """The number of this process in its gang."""
        return self._session.rank

    @property
    def local_rank(self) -> int:
        """The same: a gang is on one node."""
        return self._session.rank

    @property
    def world_size(self) -> int:
        """Number of processes of the gang."""
        return self._session.world_size

    @property
    def is_global_zero(self) -> bool:
        """True if this process is the one that prints and saves."""
        return self._session.rank == 0

    def module_to_device(self, module: torch.nn.Module) -> None:
        """Move a module to the device."""
        module.to(self.root_device)

    def all_reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        """The ``mean`` or ``sum`` over all ranks, or another operation of torch.distributed."""
        if not isinstance(tensor, torch.Tensor) or _size(group) == 1:
            return tensor
        mean = str(reduce_op).lower() in ("mean", "avg")
        by_name = reduce_op.upper() if isinstance(reduce_op, str) else reduce_op
        operation = dist.ReduceOp.SUM if mean else getattr(dist.ReduceOp, by_name, reduce_op)
        result = tensor.clone()
        dist.all_reduce(result, operation, group=group)
        return result / _size(group) if mean else result

    def all_gather(
        self, tensor: torch.Tensor, group: Any = None, sync_grads: bool = False
    ) -> torch.Tensor:
        """The tensors of all ranks, along a new first dimension; gradients do not flow back."""
        if _size(group) == 1:
            return tensor
        parts = [torch.empty_like(tensor) for _ in range(_size(group))]
        dist.all_gather(parts, tensor.contiguous(), group=group)
        return torch.stack(parts)

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        """The object of rank ``src``, of JSON's kinds and tensors. Raises TypeError for others."""
        return broadcast(obj, src) if _size() > 1 else obj

    def barrier(self, *_: Any, **__: Any) -> None:
        """Wait for all ranks."""
        if _size() > 1:
            dist.barrier()


class RotaCallback(Callback):
    """Lets a Trainer be suspended at its optimiser steps, and reports them.

    Loss, step and samples are reported, what the module logs at each validation, and the size of
    the model. The number of steps and samples is kept in Lightning's checkpoints.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._steps = self._samples = 0
        self._global_step = 0
        self._unreported = 0  # samples since the last optimiser step
        self._loss_at = 0.0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Tell the size of the model, and how many steps there will be."""
        total = trainer.estimated_stepping_batches if pl_module.automatic_optimization else math.inf
        self._session.attach(
            pl_module,
            trainer.optimizers,
            ranks=trainer.world_size,
            step=self._steps,
            total=int(total) if math.isfinite(total) else None,
            samples=self._samples,
        )
        self._global_step = trainer.global_step

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Report an optimiser step, if one was made, and suspend here if asked to."""
        with suppress(MisconfigurationException):  # a batch that does not tell how large it is
            self._unreported += extract_batch_size(batch) * trainer.world_size
        if trainer.global_step == self._global_step:
            return
        self._global_step = trainer.global_step
        self._steps += 1
        self._samples += self._unreported
        self._session.report(loss=self._loss(trainer, pl_module, outputs), samples=self._unreported)
        self._unreported = 0
        self._session.end_step()
        _follow(self._session.device, trainer, pl_module)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Report the figures that the module logs, at each validation."""
        if trainer.sanity_checking:
            return
        figures = {
            name: value.item()
            for name, value in trainer.callback_metrics.items()
            if value.numel() == 1 and name not in ("loss", "samples")
        }
        self._session.report(**figures)

    def state_dict(self) -> dict[str, int]:
        """The state that checkpoints keep."""
        return {"steps": self._steps, "samples": self._samples}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        """Take over the kept numbers."""
        self._steps, self._samples = state_dict["steps"], state_dict["samples"]

    def _loss(self, trainer: Trainer, pl_module: LightningModule, outputs: Any) -> float | None:
        """The loss, no more often than it is sent, because reading it waits for the GPU."""
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        now = time.monotonic()
        if not isinstance(loss, torch.Tensor) or now - self._loss_at < FASTEST_REPORTS_S:
            return None
        self._loss_at = now
        # With automatic optimisation Lightning has divided it by the batches that it accumulates.
        parts = trainer.accumulate_grad_batches if pl_module.automatic_optimization else 1
        return loss.item() * parts


def _follow(device: torch.device, trainer: Trainer, pl_module: LightningModule) -> None:
    """Tell Lightning that the job continues on another GPU. Raises GangError if it can't."""
    strategy = trainer.strategy
    if device == strategy.root_device or device.type != "cuda":
        return
    if not isinstance(strategy, SingleDeviceStrategy):
        raise GangError(
            f"the job goes on on {device}, and Lightning's {type(strategy).__name__} can't leave "
            f"{strategy.root_device}; use Fabric with s.loader(...) for gangs that can move"
        )
    strategy._root_device = device
    pl_module.to(device)  # the tensors are there already; Lightning writes the device down


def _size(group: Any = None) -> int:
    return dist.get_world_size(group) if dist.is_initialized() else 1
