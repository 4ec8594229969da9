"""Hugging Face programs: suspension and progress for Trainer, resizing for Accelerate.

    ElasticAccelerator(s)                   the program owns the loop: s.prepare, s.loader
    Trainer(callbacks=[RotaCallback(s)])    transformers owns it: suspended, but not resized

Needs ``accelerate`` and ``transformers`` (the extra ``huggingface``).
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable
from typing import Any

import torch
from accelerate import Accelerator, DistributedType
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import patch_environment
from transformers.trainer_callback import (
    TrainerCallback,
    TrainerControl,
    TrainerState,
)
from transformers.training_args import ParallelMode, TrainingArguments

from rota.errors import GangError, InputError
from rota.train.session import Session


class ElasticAccelerator(Accelerator):
    """An Accelerator that leaves the gang to the session, which may change it at any step.

    It sees one process, on the session's device: mixed precision, loss scaling and clipping are
    Accelerate's; gradients, batches and the state of newcomers are the session's. Give what
    ``prepare`` returns to ``s.prepare``, and take batches from ``s.loader``. ``settings`` are
    Accelerator's. Raises InputError if Accelerate is set up for several processes already, or is
    to accumulate gradients: the pieces of a batch from ``s.loader`` are what is accumulated.
    """

    def __init__(self, session: Session, **settings: Any) -> None:
        self._session = session
        device = session.device
        alone = {"local_rank": -1, "world_size": 1, "accelerate_torch_device": device}
        with patch_environment(**alone):
            super().__init__(cpu=device.type == "cpu", **settings)
        if self.distributed_type != DistributedType.NO:
            raise InputError(
                f"Accelerate is set up as {self.distributed_type.value} already; make the "
                "ElasticAccelerator before any Accelerator, PartialState or TrainingArguments"
            )
        if self.gradient_accumulation_steps != 1:
            raise InputError(
                f"gradient_accumulation_steps={self.gradient_accumulation_steps} must be 1 for an "
                "ElasticAccelerator; s.loader(batch_size=..., shards=...) gives a batch in as many "
                "pieces as there are shards, and their gradients are added up"
            )

    @property
    def device(self) -> torch.device:
        """The device of this process, which may change in a suspension."""
        return self._session.device

    @property
    def is_main_process(self) -> bool:
        """True if this process is the one that prints and saves."""
        return self._session.rank == 0

    @property
    def is_local_main_process(self) -> bool:
        """The same: a gang is on one node."""
        return self.is_main_process

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Print on rank 0."""
        if self.is_main_process:
            print(*args, **kwargs)

    def on_main_process(self, function: Callable[..., Any] | None = None) -> Any:
        """Have the decorated function run on rank 0 only; elsewhere it returns None."""
        if function is None:
            return self.on_main_process

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs) if self.is_main_process else None

        return run

    on_local_main_process = on_main_process


class RotaCallback(TrainerCallback):
    """Lets a Trainer be suspended at its optimiser steps, and reports them.

    Step, samples and what Trainer logs (the loss, as often as ``logging_steps`` says) are reported,
    and the size of the model. Samples are counted as full batches.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._batch = 0

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **parts: Any,
    ) -> None:
        """Tell the size of the model, and how many steps there will be."""
        on_one = state.train_batch_size or args.train_batch_size
        self._batch = on_one * args.gradient_accumulation_steps * args.world_size
        self._session.attach(
            parts["model"],
            [parts["optimizer"]],
            ranks=args.world_size,
            step=state.global_step,
            total=state.max_steps,
            samples=state.global_step * self._batch,
        )

    def on_step_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **parts: Any,
    ) -> None:
        """Report the step, and suspend here if asked to."""
        self._session.report(samples=self._batch)
        self._session.end_step()
        _follow(self._session.device, args, parts["train_dataloader"])

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **parts: Any,
    ) -> None:
        """Report the loss and the other figures that Trainer logs."""
        figures: dict[str, Any] = {
            name: value
            for name, value in (logs or {}).items()
            if isinstance(value, int | float) and name != "samples"
        }
        self._session.report(**figures)


def training_arguments(
    session: Session, kind: type[TrainingArguments] = TrainingArguments, **settings: Any
) -> TrainingArguments:
    """Trainer's arguments, of the class ``kind``, for the devices of this job and no others.

    A job of one process sees other GPUs of its node, so that it can continue on one of them. Left
    to itself, Trainer would take them all, or wrap the model in DistributedDataParallel, which ties
    it to one GPU.
    """
    settings.setdefault("use_cpu", session.device.type == "cpu")
    if session.world_size > 1:
        return kind(**settings)
    with patch_environment(local_rank=-1, world_size=1):
        arguments = kind(**settings)
        arguments._n_gpu = min(arguments.n_gpu, 1)
    return arguments


def last_checkpoint(folder: str | os.PathLike[str]) -> str | None:
    """The newest complete ``checkpoint-STEP`` of Trainer in a folder; None if there is none.

    Unlike ``transformers.trainer_utils.get_last_checkpoint`` it ignores a checkpoint that was being
    written when its attempt ended.
    """
    if not os.path.isdir(folder):
        return None
    found = []
    for name in os.listdir(folder):
        prefix, _, step = name.partition("-")
        if prefix == "checkpoint" and step.isdecimal() and _is_whole(os.path.join(folder, name)):
            found.append((int(step), os.path.join(folder, name)))
    return max(found)[1] if found else None


def _is_whole(checkpoint: str) -> bool:
    """True if the file that Trainer writes last exists and is complete."""
    try:
        with open(os.path.join(checkpoint, "trainer_state.json")) as file:
            json.load(file)
    except (OSError, ValueError):
        return False
    return True


def _follow(device: torch.device, args: TrainingArguments, batches: Any) -> None:
    """Tell Trainer that the job continues on another GPU. Raises GangError if it can't."""
    if device == args.device or device.type != "cuda":
        return
    if args.parallel_mode == ParallelMode.DISTRIBUTED:
        raise GangError(
            f"the job goes on on {device}, and DistributedDataParallel can't leave {args.device}; "
            "make the arguments of a job of one process by training_arguments(s, ...), and use "
            "Accelerate with s.loader(...) for gangs that can move"
        )
    args.__dict__["_setup_devices"] = device  # a cached property
    for state in (PartialState, AcceleratorState):
        state._shared_state["device"] = device
    batches.device = device
