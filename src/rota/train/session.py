"""The session of one worker process: where it can be suspended or resized, and what it reports."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rota.errors import InputError
from rota.live.wire import Message
from rota.train.link import Link
from rota.train.member import Member
from rota.train.progress import Progress
from rota.train.pulse import COMPUTING, EVALUATING, WAITING, Pulse
from rota.train.world import World

if TYPE_CHECKING:
    import torch

    from rota.train.batch import Batch
    from rota.train.device import DeviceState
    from rota.train.growth import Growth
    from rota.train.loader import Loader
    from rota.train.replica import Replica

TREE, DDP = "tree", "ddp"
CHECKPOINT = "rota.pt"


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
        self._member.formed = self._introduce
        self._pulse = Pulse(os.environ.get("ROTA_PULSE"))
        # How the agent calls this process, whatever its rank is.
        self._slot = int(os.environ.get("ROTA_SLOT", self._world.rank))
        self._progress = Progress()
        self._progress.step = int(os.environ.get("ROTA_STEP", "0"))
        self._state: DeviceState | None = None
        self._replica: Replica | None = None
        self._loader: Loader | None = None
        self._growth: Growth | None = None
        self._wrapped: list[Any] = []  # models for DDP, and those of which it is not known yet
        self._undecided: list[Any] = []
        self._extra: dict[str, Any] = {}
        self._epoch = 0
        self._prepared = self._started = self._counting = False
        self._batch: Batch | None = None
        self._model: Message | None = None  # its size, and that of its largest tensor

    def __enter__(self) -> Session:
        if self._link is not None:
            self._introduce()
            self._link.connect()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._loader is not None:
            self._loader.close()
        if self._link is not None:
            self._report_now(must_arrive=True)
            self._link.close()
        if exc[0] is None and self._prepared:
            self._world.leave()

    @property
    def rank(self) -> int:
        """The number of this process in its gang."""
        return self._world.rank

    @property
    def world_size(self) -> int:
        """How many processes the gang has."""
        return self._world.size

    @property
    def device(self) -> torch.device:
        """The device to train on: the GPU that this process was given, else the CPU."""
        return self._device_state().device

    # -- what is trained -----------------------------------------------------------------------

    def prepare(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        *others: Any,
        reduction: str | None = None,
    ) -> tuple[Any, ...]:
        """Put the model on the device, and have its training shared among the ranks.

        ``others`` are learning-rate schedulers, gradient scalers and whatever else has a
        ``state_dict``: all that newcomers must have. ``reduction`` is how gradients are added up:
        ``tree``, in an order that does not depend on the number of ranks, which is the default for
        batches from :meth:`loader`; or ``ddp``, by torch's DistributedDataParallel while
        ``backward`` runs, the default for batches that the program cuts itself. Returns its
        arguments; if there are more ranks, the model may be in a wrapper, as ``module``.

        Call it before the first step, once for each model. The scheduler is told the size of the
        model and of its largest tensor, for placement.
        """
        if reduction not in (None, TREE, DDP):
            raise InputError(f"s.prepare: reduction={reduction!r} must be 'tree' or 'ddp'")
        state = self._device_state()
        model = model.to(state.device)
        state.add(model, optimizer)
        self._parts().add(model, optimizer, *others)
        if self._link is not None:
            self._tell_model(self._link, *state.model_sizes())
        self._prepared = True
        if self._link is not None and not self._elastic() and self.world_size == 1:
            return (model, optimizer, *others)
        self._open_world()
        if reduction == DDP or (reduction is None and self.world_size > 1):
            from rota.train.parallel import Replicated

            model = Replicated(model, state.device, self._world)
            if reduction == DDP:
                model.wrap()
                self._wrapped.append(model)
            else:
                self._undecided.append(model)
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
        state = self._device_state()
        for optimizer in optimizers:
            state.add(model, optimizer)
        progress = self._progress
        progress.step, progress.total, progress.samples = step, total, samples
        if self._link is not None:
            self._introduce()
            self._tell_model(self._link, *state.model_sizes())
        progress.begin_step()

    def loader(
        self,
        dataset: Any,
        *,
        batch_size: int | None = None,
        batch_size_per_rank: int | None = None,
        lr_scaling: str | None = None,
        shards: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
    ) -> Loader:
        """The training data: an elastic, resumable, deterministic loader of global batches.

        ``batch_size`` counts the samples of all ranks. A batch is cut into ``shards`` virtual
        shards, at least as many as there will ever be ranks; by default as many as the job may
        have GPUs. With ``batch_size_per_rank`` in its place a batch grows with the gang, by a shard
        for each rank, and ``lr_scaling`` says what the learning rates of the optimisers are
        multiplied by in a step: ``linear`` (the default), ``sqrt``, ``adascale`` or ``none``; see
        :class:`rota.train.growth.Growth`. See :class:`rota.train.loader.Loader` for the rest, and
        for its errors.
        """
        from rota.train.loader import Loader, batch_policy

        if self._loader is not None:
            raise InputError(
                "s.loader was called a second time; it is for the training data alone, "
                "use torch's DataLoader for validation"
            )
        most = max(int(os.environ.get("ROTA_MAX_WORLD", "1")), self.world_size)
        size, per_rank = batch_policy(batch_size, batch_size_per_rank, lr_scaling, shards, most)
        if per_rank is not None:
            from rota.train.growth import Growth

            self._growth = Growth(lr_scaling or "linear")
        self._loader = Loader(
            dataset,
            size,
            shards=shards if shards is not None else most,
            per_rank=per_rank,
            shuffle=shuffle,
            seed=seed,
            drop_last=drop_last,
            num_workers=num_workers,
            collate_fn=collate_fn,
            world=self._world,
            batches=self._batches,
        )
        if self._link is not None:
            self._introduce()
            self._link.send({"type": "elastic", "shards": self._loader.most_ranks})
        return self._loader

    # -- the loops -----------------------------------------------------------------------------

    def steps(self, total: int | None = None) -> Iterator[int]:
        """Count optimiser steps from 0 to ``total`` (None: without end).

        Between one step and the next the process can be suspended, and its gang resized: it blocks
        there until the scheduler gives it a device again. A step that is left by ``break`` counts
        as done.
        """
        if self._counting:
            raise InputError(
                "s.steps() was called a second time; count all steps of all epochs in one loop"
            )
        self._counting = self._member.can_return = True
        self._progress.total = total
        self._start()
        self._progress.begin_step()
        while total is None or self._progress.step < total:
            try:
                yield self._progress.step
            except GeneratorExit:  # the loop was left by a break, at the end of this step
                self._advance()
                raise
            self.end_step()
            if self._member.rehearses:
                self._join()

    def epochs(self, total: int) -> Iterator[int]:
        """Count epochs from 0 to ``total``; within each, iterate over the loader."""
        self._member.can_return = True
        self._start()
        while self._epoch < total:
            yield self._epoch
            if self._member.rehearses:
                self._join()  # somewhere in the epoch that the others are in
            else:
                self._epoch += 1

    def _batches(self) -> Iterator[Batch]:
        """The batches that are left of the present epoch: what a loader iterates over."""
        loader = self._loader
        assert loader is not None
        self._start()
        if loader.position.epoch < self._epoch:
            loader.next_epoch(self._epoch)
        self._progress.begin_step()
        while self._has_batch(loader):
            try:
                yield self.next_batch()
            except GeneratorExit:
                self._advance()
                raise
            if self._counting:
                raise InputError(
                    "iterate over the loader inside s.epochs(), or take s.next_batch() in s.steps()"
                )
            self.end_step()
            if self._member.rehearses:
                return

    def next_batch(self) -> Batch:
        """The batch of this step, for loops over :meth:`steps`; epochs follow one another."""
        from rota.train.batch import Batch

        loader = self._loader
        if loader is None:
            raise InputError("s.next_batch: there is no loader; make one with s.loader(...)")
        if self._batch is None:
            if not self._has_batch(loader):
                loader.next_epoch(loader.position.epoch + 1)
            gradients = self._gradients()
            self._batch = Batch(loader, gradients, self._growth, self._member, self._pulse)
        return self._batch

    @staticmethod
    def _has_batch(loader: Loader) -> bool:
        loader.fit()
        return bool(len(loader.indices()))

    @property
    def scaled_steps(self) -> float:
        """How many steps with one rank's batch the batches that are done amount to.

        Where ``lr_scaling`` is ``adascale``, schedules of learning rates go by this number.
        Without ``batch_size_per_rank`` it is the number of steps.
        """
        if self._growth is not None:
            return self._growth.scaled_steps
        done = self._batch is not None and self._batch.complete
        return float(self._progress.step + done)

    @contextmanager
    def evaluate(self) -> Iterator[None]:
        """Mark a validation phase: ``with s.evaluate()``; ranks that wait for it are not stuck."""
        self._pulse.enter(EVALUATING)
        try:
            yield
        finally:
            self._pulse.enter(COMPUTING)

    # -- what is told and kept -----------------------------------------------------------------

    def report(
        self, *, loss: float | None = None, samples: int | None = None, **metrics: float
    ) -> None:
        """Say how training goes: loss, samples in this step, and metrics of your own.

        Samples of a loader's batches are counted without being told. Costs microseconds; reports
        are sent a few times a second at most.
        """
        self._progress.note(loss, samples if self._loader is None else None, metrics)

    def save(self, **values: Any) -> None:
        """Keep values of your own with the state of training, for :meth:`restore`."""
        self._extra.update(values)

    def restore(self, name: str, default: Any = None) -> Any:
        """The value kept last under ``name``, by whichever rank the state came from."""
        return self._extra.get(name, default)

    def checkpoint(self) -> None:
        """Write the state of training to ``ROTA_CHECKPOINT_DIR``; call it on all ranks.

        Call it between steps, or at the end of one: after its optimiser's and scheduler's step.
        An attempt that begins where there is such a checkpoint goes on from it. Raises InputError
        if the variable is not set, OSError if the file can't be written.
        """
        folder = os.environ.get("ROTA_CHECKPOINT_DIR")
        if not folder:
            raise InputError("s.checkpoint: ROTA_CHECKPOINT_DIR is not set; it says where to write")
        if self.rank == 0 and not self._member.rehearses:
            self._parts().save(str(Path(folder, CHECKPOINT)))

    # -- the step boundary ---------------------------------------------------------------------

    def _start(self) -> None:
        """Before the first step: everybody has the same state."""
        if self._started:
            return
        self._started = True
        if self._loader is None:
            for model in self._undecided:
                model.wrap()
            reduced = self._wrapped or self._undecided
            if self.world_size > 1 and self._prepared and not reduced:
                raise InputError(
                    f"this is rank {self.rank} of {self.world_size}, and nothing says how their "
                    "gradients come together: take batches from s.loader(...), or call "
                    "s.prepare(..., reduction='ddp') if the program cuts its batches itself"
                )
            return
        if not self._prepared:
            raise InputError(
                "there is a loader and nothing to train: call s.prepare(model, optimizer), so that "
                "the gradients of its batches are added up"
            )
        if self._growth is not None:
            self._follow(self._growth)
        if self._member.rehearses:
            return
        folder = os.environ.get("ROTA_CHECKPOINT_DIR")
        if folder and Path(folder, CHECKPOINT).exists():
            self._parts().open(str(Path(folder, CHECKPOINT)))
        self._enlist()
        self._member.share_state()

    def _follow(self, growth: Growth) -> None:
        """Have the learning rates follow the size of the batch."""
        import torch

        if self._measures() and self._wrapped:
            raise InputError(
                "s.loader: lr_scaling='adascale' compares the gradients of the ranks, which "
                "s.prepare(..., reduction='ddp') adds up before they can be seen; leave that out"
            )
        for part in self._parts().others:
            if isinstance(part, torch.optim.Optimizer):
                growth.follow(part)

    def _measures(self) -> bool:
        return self._growth is not None and self._growth.rule == "adascale"

    def _enlist(self) -> None:
        """Let the member know what it is to hand over."""
        self._member.replica, self._member.device = self._parts(), self.device
        self._member.state = self._state

    def _advance(self) -> bool:
        """Count the step, and the batch that was worked through in it; whether to report."""
        due = self._progress.end_step()
        if self._batch is not None:
            assert self._loader is not None
            self._progress.note(None, self._batch.samples, {})
            if not self._member.rehearses:
                self._loader.advance()
            self._batch = None
        return due

    def end_step(self) -> None:
        """A step is over: report, suspend or change the gang if asked to.

        :meth:`steps` and the loader call it. Call it yourself only where a framework owns the loop.
        """
        due = self._advance()
        if self._link is not None and not self._member.rehearses:
            if due:
                self._report_now()
            for message in self._link.poll():
                self._member.obey(message, self._progress.step)
            if self._member.must_hold(self._progress.step):
                self._hold(self._link)
        self._progress.begin_step()

    def _hold(self, link: Link) -> None:
        """Suspend here, or change the gang, once all of it holds at this step."""
        stopped_s = time.time()
        self._pulse.enter(WAITING)
        what = self._member.agree(self._progress.step)
        if what == "offload":
            self._suspend(link, stopped_s)
        elif what == "vote":
            self._member.change()
        self._pulse.enter(COMPUTING)

    def _suspend(self, link: Link, stopped_s: float) -> None:
        self._report_now(must_arrive=True)
        if self._state is not None:
            self._state.offload()
        link.introduce(self._hello() | {"suspended": True, "stopped_s": stopped_s})
        suspended = {"type": "suspended", "step": self._progress.step, "stopped_s": stopped_s}
        link.send(suspended | {"at_s": time.time()})
        device = self._await_resume(link)
        if self._state is not None:
            self._state.restore(device)
            if self._member.replica is not None:
                self._member.device = self._member.replica.device = self._state.device
        self._introduce()
        link.send({"type": "resumed", "at_s": time.time()})

    def _await_resume(self, link: Link) -> int | None:
        while True:
            message = link.wait()
            if message is not None and message["type"] == "resume":
                return message["device"]

    def _join(self) -> None:
        """The rehearsal is over: take over everything from the others."""
        self._enlist()
        self._member.join()
        if self._loader is not None and self._member.settle is not None:
            self._reduction.reduced_batch = self._loader.position.batches - 1
        self._introduce()
        self._progress.begin_step()

    # -- the parts, made when they are needed ----------------------------------------------------

    def _elastic(self) -> bool:
        return "ROTA_MAX_WORLD" in os.environ

    def _open_world(self) -> None:
        import torch.distributed as dist

        if self._member.rehearses and not dist.is_initialized():
            self._world.open_alone(self.device)
        elif self.world_size > 1 or self._elastic():
            self._world.open(self.device)

    def _parts(self) -> Replica:
        if self._replica is None:
            from rota.train.replica import Replica

            self._replica = Replica(self.device)
            self._replica.plain, self._replica.load_plain = self._plain, self._load_plain
        return self._replica

    def _gradients(self) -> Any:
        if self._member.settle is None:
            models = self._parts().models
            if self._wrapped:
                from rota.train.parallel import DdpGradients

                assert self._loader is not None
                self._loader.whole = True
                gradients: Any = DdpGradients(self._wrapped)
            else:
                from rota.train.gradients import Gradients

                parameters = [p for model in models for p in model.parameters() if p.requires_grad]
                buffers = [b for model in models for b in model.buffers()]
                gradients = Gradients(parameters, buffers, measure=self._measures())
            self._reduction = gradients
            self._member.settle = lambda: gradients.settle(self.rank, self.world_size)
            self._member.moved = lambda: [model.wrap() for model in self._wrapped]
        return self._reduction

    def _plain(self) -> dict[str, Any]:
        """What to go on with; in a step whose batch has been worked through, after that step."""
        position = self._loader.position if self._loader is not None else None
        done = self._batch if self._batch is not None and self._batch.complete else None
        steps, samples = (1, done.samples) if done is not None else (0, 0)
        return {
            "epoch": self._epoch,
            "position": position
            and (position.epoch, position.samples + samples, position.batches + steps),
            "step": self._progress.step + steps,
            "samples": self._progress.samples + samples,
            "first_100_s": self._progress.first_100_s,
            "growth": self._growth and self._growth.state(),
            "extra": self._extra,
        }

    def _load_plain(self, plain: dict[str, Any]) -> None:
        self._epoch, self._extra = plain["epoch"], plain["extra"]
        self._progress.step, self._progress.samples = plain["step"], plain["samples"]
        self._progress.first_100_s = plain["first_100_s"]
        if self._growth is not None and plain["growth"]:
            self._growth.load(plain["growth"])
        if self._loader is not None and plain["position"]:
            position = self._loader.position
            position.epoch, position.samples, position.batches = plain["position"]

    # -- reports -------------------------------------------------------------------------------

    def _tell_model(self, link: Link, model_bytes: int, largest_tensor_bytes: int) -> None:
        """Report all models so far as one; an agent that is away learns it by the next hello."""
        if not model_bytes:
            return
        self._model = {"model_bytes": model_bytes, "largest_tensor_bytes": largest_tensor_bytes}
        self._introduce()
        link.send({"type": "model", **self._model})

    def _report_now(self, *, must_arrive: bool = False) -> None:
        assert self._link is not None
        message = self._progress.message()
        if must_arrive:
            self._link.send(message)
        elif not self._link.offer(message):
            return
        self._progress.sent()

    def _introduce(self) -> None:
        if self._link is not None:
            self._link.introduce(self._hello())

    def _hello(self) -> Message:
        return {
            "type": "hello",
            "job_id": os.environ.get("ROTA_JOB_ID"),
            "attempt": int(os.environ.get("ROTA_ATTEMPT", "0")),
            "rank": self._slot,
            "suspended": False,
            "step": self._progress.step,
            "total": self._progress.total,
            "generation": self._world.generation,
            "model": self._model,
            "shards": self._loader.most_ranks if self._loader is not None else None,
        }

    def _device_state(self) -> DeviceState:
        if self._state is None:
            from rota.train.device import DeviceState, choose_device

            index = os.environ.get("ROTA_DEVICE")
            self._state = DeviceState(choose_device(int(index) if index else None))
        return self._state


def session() -> Session:
    """Open a session: ``with rota.train.session() as s``."""
    return Session()
