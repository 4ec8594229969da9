"""The session of one worker process: suspension, resizing, and reports."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from rota.errors import InputError
from rota.live.wire import COMPUTING, EVALUATING
from rota.share.gate import Gate
from rota.share.marks import LOAD, OTHER
from rota.train.batch_oom import complaint, step_back
from rota.train.boundary import Boundary
from rota.train.curve import Curve, read_params
from rota.train.link import Link
from rota.train.member import Member
from rota.train.pickle_check import check_kept
from rota.train.progress import Progress
from rota.train.pulse import Pulse
from rota.train.reports import Reports
from rota.train.segments import Segments
from rota.train.training import Training
from rota.train.turns import Turns
from rota.train.world import World

if TYPE_CHECKING:
    import torch

    from rota.train.batch import Batch
    from rota.train.loader import Loader


class Session:
    """One training run of one process. Use it through :func:`session`.

    ``rank`` and ``world_size`` say which part of a data-parallel gang this process is, which may
    change at a boundary; ``device`` is the torch device to use.
    """

    def __init__(self) -> None:
        path = os.environ.get("ROTA_AGENT_SOCKET")
        self._link = Link(path) if path else None
        self._world = World()
        self._member = Member(self._world, self._link)
        self._pulse = Pulse(os.environ.get("ROTA_PULSE"))
        self._progress = Progress()
        self._progress.step = int(os.environ.get("ROTA_STEP", "0"))
        limit = os.environ.get("ROTA_MAX_SLOWDOWN")
        self._segments = Segments(os.environ.get("ROTA_MARKS"), limit)
        self._gate = Gate.told(os.environ.get("ROTA_FILLS"), self._is_awaited)
        self._turns = Turns(self._pulse, self._gate)
        parts = (self._world, self._member, self._progress, self._segments, self._gate, self._turns)
        self._training = Training(*parts)
        self._curve = Curve()
        self._reports = Reports(self._link, self._world, self._progress, self._most_ranks)
        if self._link is not None:
            self._training.tell_plans(self._reports.planned)
        self._turns.settle, self._turns.tell = self._training.settle, self._reports.seated
        self._member.step_aside, self._member.seated = self._turns.leave, self._turns.take
        self._boundary = Boundary(
            self._link,
            self._member,
            self._training,
            self._progress,
            self._reports,
            self._pulse,
            self._turns,
        )
        self._member.formed = self._reports.introduce
        self._counting = self._in_epochs = self._attached = False

    def __enter__(self) -> Session:
        if self._link is not None:
            self._reports.introduce()
            self._link.connect()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._training.loader is not None:
            self._training.loader.close()
        try:
            if exc[0] is None and self._training.checkpoint.is_owed:
                self._reports.progress(must_arrive=True)
                self._training.checkpoint.settle()
        except OSError as failure:
            self._leave(failure)
            raise
        self._leave(exc[1])

    def _is_awaited(self, wait_s: float) -> bool:
        """Whether the agent waits for this rank to hold; waits so long for it to say so."""
        if self._link is None:
            time.sleep(wait_s)
            return False
        return self._member.is_asked_to_hold or self._link.has("pause", wait_s)

    def _leave(self, failure: object) -> None:
        """Report the end of training, and leave the other ranks."""
        self._turns.leave()
        self._segments.page.close()
        self._gate.close()
        unwritten = self._curve.close()
        error = complaint(failure, self._training.adaptation)
        repeats = step_back(failure, self._training)
        if self._link is not None:
            if unwritten:
                self._link.send({"type": "curve", "text": unwritten})
            if error is not None or repeats is not None:
                why = str(repeats or error)[:500]
                self._link.send({"type": "failing", "error": why, "again": repeats is not None})
            if repeats is not None and self._training.adaptation is not None:
                self._reports.tuned(self._training.adaptation.told())
            self._reports.last_progress()
            self._link.close()
        if failure is None and self._training.prepared:
            self._world.leave()
        if failure is None:
            self._training.check_batch()

    def _most_ranks(self) -> int | None:
        loader = self._training.loader
        return loader.most_ranks if loader is not None else None

    @property
    def rank(self) -> int:
        """The number of this process in its gang."""
        return self._world.rank

    @property
    def world_size(self) -> int:
        """Number of processes of the gang."""
        return self._world.size

    @property
    def params(self) -> dict[str, str | int | float | bool]:
        """The parameters of this trial of a sweep, by name; empty outside of a sweep.

        Raises InputError if ROTA_PARAMS is set to anything but a JSON object.
        """
        return read_params()

    @property
    def device(self) -> torch.device:
        """The device to train on: the GPU that this process was given, else the CPU."""
        return self._training.state.device

    # -- what is trained -----------------------------------------------------------------------

    def prepare(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        *others: Any,
        reduction: str | None = None,
        plan: str | os.PathLike[str] | Mapping[str, int] | None = None,
    ) -> tuple[Any, ...]:
        """Put the model on the device, and have its training shared among the ranks.

        ``others`` are learning-rate schedulers, gradient scalers and whatever else has a
        ``state_dict``: all that newcomers must have. ``reduction`` is how gradients are added up:
        ``tree``, in an order that does not depend on the number of ranks, which is the default for
        batches from :meth:`loader`; ``ddp``, by torch's DistributedDataParallel while
        ``backward`` runs, the default for batches that the program cuts itself; or ``burst``, where
        each layer runs on the ranks that it is worth. Their numbers are those of ``plan``: a
        profile of the model's layers, by which the planner chooses for each size of the gang, or a
        dict of ranks by layer; without one all layers are on all ranks. Returns its arguments; if
        there are more ranks, the model may be in a wrapper, as ``module``.

        Call it before the first step, once for each model. The scheduler is told the size of the
        model and of its largest tensor, for placement. Raises InputError if it comes later, or with
        another ``reduction`` than before, or with what can't be trained or kept equal.
        """
        if self._boundary.started:
            raise InputError(
                "s.prepare was called after the first step, when other ranks may have gone without "
                "it; prepare all models and optimizers before the loop"
            )
        model = self._training.prepare(model, optimizer, others, reduction, plan)
        self._reports.model(*self._training.state.model_sizes())
        return (model, optimizer, *others)

    def attach(
        self,
        model: torch.nn.Module,
        optimizers: Iterable[torch.optim.Optimizer],
        *,
        ranks: int,
        step: int = 0,
        total: int | None = None,
        samples: int = 0,
    ) -> None:
        """Take note of what a framework trains that owns the loop; it calls :meth:`end_step`.

        The model stays where it is, and the framework has its ``ranks`` and their data in its own
        hands: training can be suspended, and not resized. ``step`` and ``samples`` are those done
        before, ``total`` is how many steps there will be if that is known. Raises InputError if the
        job does not have so many ranks.
        """
        if self._link is not None and ranks != self.world_size:
            raise InputError(
                f"the framework trains on {ranks} ranks, and the job has {self.world_size}; "
                "tell it s.world_size, so that it neither waits for more nor trains several models"
            )
        from rota.train.optimizers import torch_optimizers

        self._attached = True
        state, optimizers = self._training.state, list(optimizers)
        for optimizer in optimizers:
            state.add(model, optimizer)
        inner = torch_optimizers(optimizers)
        self._segments.watch(model, inner)
        self._gate.watch(model, inner, state.device)
        progress = self._progress
        progress.step, progress.total, progress.samples = step, total, samples
        self._reports.introduce()
        self._reports.model(*state.model_sizes())
        self._segments.page.enter(LOAD)
        progress.begin_step()

    def loader(
        self,
        dataset: Any,
        *,
        batch_size: int | None = None,
        batch_size_per_rank: int | None = None,
        lr_scaling: str | None = None,
        adapt: bool | None = None,
        warmup_epochs: float = 0.0,
        shards: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        num_workers: int | Literal["auto"] = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
    ) -> Loader:
        """The training data: an elastic, resumable, deterministic loader of global batches.

        ``batch_size`` counts the samples of all ranks. A batch is cut into ``shards`` virtual
        shards, at least as many as there will ever be ranks; 8 by default, or fewer if a batch is
        small. With ``batch_size_per_rank`` in its place a batch grows with the gang, by a shard
        for each rank, and ``lr_scaling`` says what the learning rates of the optimisers are
        multiplied by in a step: ``linear`` (the default), ``sqrt``, ``adascale``, ``adamscale``,
        ``legw`` with ``warmup_epochs``, or ``none``; see :class:`rota.train.lr_scaling.LrScaling`.

        With ``adapt`` the scheduler chooses batches, of ``batch_size`` samples at first; by default
        it does if the job file says so (``batch: {mode: adapt}``). Then the noise in gradients is
        measured, and learning rates follow the batch, by default as suits the optimiser.

        ``num_workers`` processes load a rank's pieces ahead; with ``auto`` one for each CPU core
        that the rank may use, from 1 to 32, counted anew in each epoch: samples and augmentation
        are the same for any number. See
        :class:`rota.train.loader.Loader` for the rest, and for its errors.
        """
        loader = self._training.load(
            dataset,
            batch_size,
            batch_size_per_rank,
            lr_scaling,
            shards,
            adapt=adapt,
            warmup_epochs=warmup_epochs,
            shuffle=shuffle,
            seed=seed,
            drop_last=drop_last,
            num_workers=num_workers,
            collate_fn=collate_fn,
            batches=self._batches,
        )
        self._reports.loader()
        return loader

    # -- the loops -----------------------------------------------------------------------------

    def steps(self, total: int | None = None) -> Iterator[int]:
        """Count optimiser steps from 0 to ``total`` (None: without end).

        Between one step and the next the process can be suspended, and its gang resized: it blocks
        there until the scheduler gives it a device again. A step that is left by ``break`` counts
        as done, unless its batch from :meth:`loader` was not begun. Raises InputError at the end of
        a step whose batch was not worked through.
        """
        if self._counting:
            raise InputError(
                "s.steps() was called a second time; count all steps of all epochs in one loop"
            )
        self._counting = self._member.can_return = True
        self._progress.total = total
        self._boundary.start()
        self._progress.begin_step()
        while total is None or self._progress.step < total:
            self._progress.in_step = True
            if self._training.loader is None:
                self._turns.begin()
            try:
                yield self._progress.step
            except GeneratorExit:
                self._training.leave_step()
                raise
            self.end_step()
            if self._member.rehearses:
                self._boundary.join()

    def epochs(self, total: int) -> Iterator[int]:
        """Count epochs from 0 to ``total``; within each, and only there, iterate over the loader.

        Raises InputError if a batch was begun and not worked through.
        """
        self._member.can_return = True
        self._boundary.start()
        training = self._training
        if (loader := training.loader) is not None:
            self._progress.total = None if loader.varies else total * len(loader)
            self._progress.total_samples = total * loader.epoch_samples
        self._in_epochs = True
        try:
            while training.epoch < total:
                yield training.epoch
                training.check_batch()
                if self._member.rehearses:
                    self._boundary.join()  # somewhere in the epoch that the others are in
                else:
                    training.epoch, training.epoch_over = training.epoch + 1, False
        finally:
            self._in_epochs = False

    def _batches(self) -> Iterator[Batch]:
        """The batches left in the present epoch: what a loader iterates over."""
        training, loader = self._training, self._training.loader
        assert loader is not None
        self._boundary.start()
        training.check_batch()
        if not self._in_epochs:
            raise InputError(
                "iterate over the loader inside s.epochs(), or take s.next_batch() in s.steps(): a "
                "loop of the program's own begins anew in a rank that joins, and after a checkpoint"
            )
        if loader.position.epoch < training.epoch:
            loader.next_epoch(training.epoch)
        self._progress.begin_step()
        while training.has_batch():
            try:
                yield self.next_batch()
            except GeneratorExit:
                training.leave_step()
                training.epoch_over = not self._member.rehearses
                raise
            self.end_step()
            if self._member.rehearses:
                return
        training.epoch_over = not self._member.rehearses

    def next_batch(self) -> Batch:
        """The batch of this step, for loops over :meth:`steps`; epochs follow one another."""
        return self._training.next_batch(self._pulse)

    @property
    def scaled_steps(self) -> float:
        """Number of steps with one rank's batch that the finished batches amount to.

        Where the scheduler chooses batches, steps with the initial batch count. Where
        ``lr_scaling`` goes by the gain, schedules of learning rates go by this number. With a fixed
        ``batch_size`` it is the number of steps.
        """
        return self._training.scaled_steps

    def end_step(self) -> None:
        """A step is over: report, suspend or change the gang if asked to.

        :meth:`steps` and the loader call it. Call it yourself only where a framework owns the loop.
        """
        self._boundary.end_step()
        progress = self._progress
        if self._attached and (progress.total is None or progress.step < progress.total):
            self._turns.begin()  # nothing says where the framework's next step begins

    @contextmanager
    def evaluate(self) -> Iterator[None]:
        """Mark a validation phase: ``with s.evaluate()``; ranks that wait for it are not stuck."""
        self._pulse.enter(EVALUATING)
        segment = self._segments.page.segment
        self._segments.page.enter(OTHER)
        since_s = time.monotonic()
        try:
            yield
            self._progress.phases.evaluated(time.monotonic() - since_s)
        finally:
            self._segments.page.enter(segment)
            self._pulse.enter(COMPUTING)

    # -- what is told and kept -----------------------------------------------------------------

    def report(
        self, *, loss: float | None = None, samples: int | None = None, **metrics: float
    ) -> None:
        """Say how training goes: loss, samples in this step, and metrics of your own.

        Samples of a loader's batches are counted without being told. Costs microseconds; reports
        are sent a few times a second at most. In a trial of a sweep every report of its metric is
        kept. Raises InputError for a value that is no number.
        """
        counted = samples if self._training.loader is None else None
        figures = self._progress.note(loss, counted, metrics)
        # One that rehearses, or has yet to take over the state, repeats what has been said.
        rehearses = self._member.rehearses or self._training.handover.adopts is not None
        if self.rank == 0 and not rehearses:
            self._curve.note(self._progress.step, figures)

    def save(self, **values: Any) -> None:
        """Keep values of your own with the state of training, for :meth:`restore`.

        Raises InputError if one can't be pickled, or, where there may be other ranks, can't be
        handed over to them: numbers, text, tensors, numpy arrays, and lists, tuples, sets and dicts
        of them can.
        """
        check_kept(values, handed_over=self._world.size > 1 or "ROTA_MAX_WORLD" in os.environ)
        self._training.extra.update(values)

    def restore(self, name: str, default: Any = None) -> Any:
        """The value kept last under ``name``, by whichever rank the state came from.

        Before the first step, by the attempt before this one, if that wrote a checkpoint.
        """
        if not self._boundary.started:
            self._training.extra |= self._training.checkpoint.look().get("extra", {})
        return self._training.extra.get(name, default)

    def checkpoint(self) -> None:
        """Write the state of training to ``ROTA_CHECKPOINT_DIR``; call it on all ranks.

        Call it between steps, or at the end of one: after its optimiser's and scheduler's step.
        An attempt that begins where there is such a checkpoint goes on from it, with the step after
        that one. On a full disk training goes on, the checkpoint of before stays, and it is tried
        again every 10 s between steps; the session does not end before it is written. Raises
        InputError if the variable is not set, OSError if the file can't be written for another
        reason.
        """
        self._training.checkpoint.save()


def session() -> Session:
    """Open a session: ``with rota.train.session() as s``."""
    return Session()
