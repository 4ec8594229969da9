"""The training of one process: models with their optimisers, the data, and the progress."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rota.errors import InputError
from rota.share.gate import Gate
from rota.train.checkpoint import Checkpoint
from rota.train.gradient_clock import GradientClock
from rota.train.handover import Handover
from rota.train.member import Member
from rota.train.progress import Progress
from rota.train.pulse import Pulse
from rota.train.reduction import Reduction
from rota.train.segments import Segments
from rota.train.turns import Turns
from rota.train.world import World

if TYPE_CHECKING:
    import torch

    from rota.burst.runtime.outlook import Planned
    from rota.train.adaptation import Adaptation
    from rota.train.batch import Batch
    from rota.train.device import DeviceState
    from rota.train.loader import Loader
    from rota.train.lr_scaling import LrScaling
    from rota.train.optimizers import Optimizers
    from rota.train.replica import Replica


class Training:
    """The parts of a training, made when they are needed: torch is loaded by the first of them."""

    def __init__(
        self,
        world: World,
        member: Member,
        progress: Progress,
        segments: Segments,
        gate: Gate,
        turns: Turns,
    ) -> None:
        self.segments, self.gate = segments, gate
        self._turns = turns
        self.loader: Loader | None = None
        self.batch: Batch | None = None  # of the present step
        self.lr_scaling: LrScaling | None = None
        self.epoch = 0
        self.prepared = False
        self.epoch_over = False  # the loop over the batches of this epoch has been left
        self._world = world
        self._member = member
        self._progress = progress
        self._state: DeviceState | None = None
        self._replica: Replica | None = None
        self._reduction = Reduction(world)
        self._optimizers: Optimizers | None = None
        self._clock: GradientClock | None = None
        self.extra: dict[str, Any] = {}  # values of the program's own, kept with the state
        self.handover = Handover(member, progress)
        self.checkpoint = Checkpoint(lambda: self.replica, world, member, progress)

    @property
    def state(self) -> DeviceState:
        """The state on the device."""
        if self._state is None:
            from rota.train.device import DeviceState, choose_device

            index = os.environ.get("ROTA_DEVICE")
            self._state = DeviceState(choose_device(int(index) if index else None))
        return self._state

    @property
    def replica(self) -> Replica:
        """The state that must be equal on all ranks."""
        if self._replica is None:
            from rota.train.replica import Replica

            self._replica = Replica(self.state.device)
            self._replica.plain, self._replica.load_plain = self._plain, self._load_plain
        return self._replica

    # -- before the first step -----------------------------------------------------------------

    def tell_plans(self, tell: Callable[[Planned], None]) -> None:
        """Have plans by layer told, by a function that is called on rank 0."""
        self._reduction.tell = tell

    def prepare(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        others: tuple[Any, ...],
        reduction: str | None,
        plan: Any = None,
    ) -> Any:
        """Take in a model and what belongs to it.

        Returns the model, perhaps wrapped. Raises InputError.
        """
        from rota.train.optimizers import check_parts, torch_optimizers

        check_parts(model, optimizer, others)
        self._reduction.ask(reduction, plan)
        model = model.to(self.state.device)
        self.state.add(model, optimizer)
        self._progress.counts_cpu = self.state.device.type == "cpu"
        self.replica.add(model, optimizer, *others)
        inner = torch_optimizers([optimizer])
        self.segments.watch(model, inner)
        self.gate.watch(model, inner, self.state.device)
        self.handover.watch(optimizer, self.replica, self.state)
        self.prepared = True
        self._open_world()
        if self._reduction.by_layer:
            from rota.train.burst import check_others, leave_alone

            check_others(others)
            for each in inner:
                leave_alone(each, model)
        return self._reduction.take(model, self.state.device, plan)

    def _open_world(self) -> None:
        """Have a process group, unless there is one rank for good: it takes time and ports."""
        import torch.distributed as dist

        if self._member.rehearses and not dist.is_initialized():
            self._world.open_alone(self.state.device)
        elif self._world.size > 1 or "ROTA_MAX_WORLD" in os.environ:
            self._world.open(self.state.device)

    def load(
        self,
        dataset: Any,
        batch_size: int | None,
        batch_size_per_rank: int | None,
        lr_scaling: str | None,
        shards: int | None,
        *,
        adapt: bool | None,
        warmup_epochs: float,
        **options: Any,
    ) -> Loader:
        """Make the loader of the training data. Raises InputError."""
        from rota.train.adaptation import Adaptation, is_asked_for, limits_of
        from rota.train.loader import Loader, batch_policy, check_dataset, default_shards
        from rota.train.lr_scaling import BY_OPTIMIZER, LrScaling

        if self.loader is not None:
            raise InputError(
                "s.loader was called a second time; it is for the training data alone, "
                "use torch's DataLoader for validation"
            )
        most = max(int(os.environ.get("ROTA_MAX_WORLD", "1")), self._world.size)
        adapts, adaptation = is_asked_for(adapt), None
        asked = (batch_size, batch_size_per_rank, lr_scaling, shards, most)
        size, per_rank = batch_policy(*asked, adapts=adapts, warmup_epochs=warmup_epochs)
        check_dataset(dataset)
        warmup_steps = warmup_epochs * len(dataset) / (per_rank or size)
        if adapts:
            world = int(os.environ.get("ROTA_MIN_WORLD", self._world.size))
            adaptation = Adaptation(limits_of(size, len(dataset), world))
            self._member.tune = adaptation.want
            self._progress.adaptation = self._describe
            rule = lr_scaling or BY_OPTIMIZER
            self.lr_scaling = LrScaling(rule, counts_gains=True, warmup_steps=warmup_steps)
            shards = max(world, min(most, adaptation.limits.most_ranks))
        elif per_rank is not None:
            self.lr_scaling = LrScaling(lr_scaling or "linear", warmup_steps=warmup_steps)
            shards = most
        elif shards is None:
            shards = default_shards(dataset, size, most)
        self.loader = Loader(
            dataset,
            size,
            shards=shards,
            per_rank=per_rank,
            adaptation=adaptation,
            world=self._world,
            **options,
        )
        self.loader.fit()
        self.handover.keeps_gradients = False
        return self.loader

    def start(self) -> bool:
        """Before the first step: everybody has the same state. Raises InputError, ArenaError.

        Returns whether that is the state of a process before this one, to go on from.
        """
        if self.loader is None:
            self._start_without_loader()
        else:
            self._start_with_loader()
        adopted = self.handover.adopt()
        if adopted:
            self._reduction.adopted()
        return adopted

    def _start_with_loader(self) -> None:
        if not self.prepared:
            raise InputError(
                "there is a loader and nothing to train: call s.prepare(model, optimizer), so that "
                "the gradients of its batches are added up"
            )
        self._check_optimizers()
        if self.lr_scaling is not None:
            self._follow(self.lr_scaling)
        if self._member.rehearses:
            return
        self.enlist()
        if self.handover.adopts is not None:
            return
        self.checkpoint.open()
        self._member.share_state()

    def _check_optimizers(self) -> None:
        from rota.train.optimizers import Optimizers, torch_optimizers

        optimizers = torch_optimizers(self.replica.others)
        self._optimizers = Optimizers(optimizers, self.replica.models, self._in_pieces)
        self._optimizers.check()
        several = int(os.environ.get("ROTA_MAX_WORLD", "1")) > 1 or self._world.size > 1
        self._optimizers.watch(several=several)

    def _in_pieces(self) -> bool:
        return self.batch is not None and self.batch.begun and not self.batch.complete

    def _start_without_loader(self) -> None:
        if self._world.size > 1:
            self._check_optimizers()
        reduced = self._reduction.without_loader()
        if self._world.size > 1 and self.prepared and not reduced:
            raise InputError(
                f"this is rank {self._world.rank} of {self._world.size}, and nothing says how "
                "their gradients come together: take batches from s.loader(...), or call "
                "s.prepare(..., reduction='ddp') if the program cuts its batches itself"
            )
        if self.handover.adopts is None:
            self.checkpoint.open()

    def _follow(self, lr_scaling: LrScaling) -> None:
        """Have the learning rates follow the size of the batch."""
        from rota.train.optimizers import torch_optimizers

        if lr_scaling.measures and self._reduction.wrapped:
            raise InputError(
                f"s.loader: lr_scaling={lr_scaling.rule!r}, or a batch that the scheduler chooses, "
                "needs the gradients of the ranks one by one, and s.prepare(..., "
                f"reduction={'burst' if self._reduction.by_layer else 'ddp'!r}) adds them up "
                "before they can be seen; leave reduction out"
            )
        for optimizer in torch_optimizers(self.replica.others):
            lr_scaling.follow(optimizer)

    @property
    def adaptation(self) -> Adaptation | None:
        """The adaptation of batch sizes, if the scheduler chooses them."""
        return self.loader.adaptation if self.loader is not None else None

    # -- batches and steps ---------------------------------------------------------------------

    def has_batch(self) -> bool:
        """True if the present epoch goes on."""
        assert self.loader is not None
        self.loader.fit()
        return bool(len(self.loader.indices()))

    def next_batch(self, pulse: Pulse) -> Batch:
        """The batch of this step. Raises InputError if there is no loader."""
        from rota.train.batch import Batch

        loader = self.loader
        if loader is None:
            raise InputError("s.next_batch: there is no loader; make one with s.loader(...)")
        if self.batch is None:
            if not self.has_batch():
                loader.next_epoch(loader.position.epoch + 1)
            if self._optimizers is not None:
                self._optimizers.check()
            gradients = self._gradients()
            if loader.adaptation is not None and self._clock is None:
                self._clock = GradientClock(self.state.device)
            parts = (gradients, self.lr_scaling, self._member, pulse, self.segments.page)
            self.batch = Batch(loader, *parts, self._turns, self._clock)
            if self._reduction.wrapped:  # its ranks tell each other of a batch before it is loaded
                self._turns.begin()
        return self.batch

    def end_step(self) -> bool:
        """Count the step, and the batch that was worked through in it; whether to report.

        Raises InputError if it was not.
        """
        self.check_batch()
        wait_s = 0.0
        if self.batch is not None and self.loader is not None:
            wait_s = self.loader.take_wait_s()
            self._progress.phases.loaded(wait_s, self.loader.workers)
        due = self._progress.end_step()
        self._progress.in_step = False
        if self.batch is not None:
            assert self.loader is not None
            if self._clock is not None:
                self._time(self.batch, self._clock, wait_s)
            self._progress.note(None, self.batch.samples, {})
            if not self._member.rehearses:
                self.loader.advance()
            self.batch = None
        return due

    @property
    def cut(self) -> tuple[Any, ...]:
        """What the time of a step depends on: the group of ranks, and how batches are cut."""
        loader = self.loader
        sizes = (loader.batch_size, loader.shards) if loader is not None else None
        return (self._world.generation, self._world.size, sizes, self._member.rehearses)

    def _time(self, batch: Batch, clock: GradientClock, wait_s: float) -> None:
        """Note how long a step took that had a whole batch, and the ranks for which it was cut."""
        gradient_s, cut = clock.read(), batch.cut
        whole = self.loader is not None and batch.samples == self.loader.batch_size
        if gradient_s is not None and whole and cut is not None and cut[0] == self._world.size:
            self._progress.times.note(cut, self._progress.step_s, gradient_s, wait_s)

    def _describe(self) -> dict[str, Any]:
        """The part of a report about batches that the scheduler chooses."""
        adaptation, lr_scaling = self.adaptation, self.lr_scaling
        assert adaptation is not None
        assert lr_scaling is not None
        assert self.loader is not None
        known = lr_scaling.noise.known
        cut = (adaptation.world, adaptation.per_rank, adaptation.accumulation)
        return {
            "initial": adaptation.limits.initial,
            "most": adaptation.limits.most,
            "least_per_gpu": adaptation.limits.least_per_rank,
            "most_per_gpu": adaptation.limits.most_per_rank,
            "size": adaptation.size,
            **dict(zip(("gpus", "per_gpu", "accumulation"), cut, strict=True)),
            "scaled_steps": lr_scaling.scaled_steps,
            "sqr": lr_scaling.noise.sqr if known else None,
            "var": lr_scaling.noise.var if known else None,
            "epoch_samples": self.loader.epoch_samples,
            **self._progress.times.of(cut),
        }

    def leave_step(self) -> None:
        """The loop was left by a break. The step counts as done, unless its batch is not."""
        batch = self.batch
        if batch is None or batch.complete or self._member.rehearses:
            self.end_step()
        elif not batch.begun:
            self.batch = None  # the batch is still the next one

    def check_batch(self) -> None:
        """Raises InputError if a batch was taken and not worked through."""
        batch = self.batch
        if batch is None or batch.complete or self._member.rehearses:
            return
        if batch.begun:
            raise InputError(
                "the loop over the pieces of a batch was left before its end, by break or by an "
                "exception, so that the batch has no gradient; let that loop end, or let the "
                "exception end the program"
            )
        raise InputError(
            "a batch was taken and not worked through: iterate over it (for x, y in batch: ...), "
            "on all ranks; to shorten an epoch, break out of the loop over the loader"
        )

    @property
    def scaled_steps(self) -> float:
        """Steps with one rank's batch, to which the batches that are done amount."""
        if self.lr_scaling is not None:
            return self.lr_scaling.scaled_steps
        done = self.batch is not None and self.batch.complete
        return float(self._progress.step + done)

    def _gradients(self) -> Any:
        reduction = self._reduction
        if reduction.gradients is None:
            assert self.loader is not None
            measures = self.lr_scaling is not None and self.lr_scaling.measures
            others = (lambda: self.replica.others) if measures else None
            reduction.with_loader(self.loader, self.replica, others)
            self._member.settle, self._member.moved = reduction.settle, reduction.moved
            self._member.gather = reduction.gather
        return reduction.gradients

    # -- suspended and handed over ---------------------------------------------------------------

    def _plain(self) -> dict[str, Any]:
        """The position to continue from.

        After the last part of a step's batch, it is after that step; after the last batch of an
        epoch, after that epoch. Without a loader only the program knows whether a step is over: the
        step is assumed to be over.
        """
        progress = self._progress
        position = self.loader.position if self.loader is not None else None
        batch = self.batch
        done = batch if batch is not None and batch.complete else None
        steps, samples = (1, done.samples) if done is not None else (0, 0)
        if self.loader is None:
            steps = int(progress.in_step)
        place = position and (
            position.epoch,
            position.samples + samples,
            position.batches + steps,
        )
        if position is not None and self.epoch_over:
            place = (self.epoch + 1, 0, position.batches)
        return {
            "epoch": self.epoch + self.epoch_over,
            "position": place,
            "step": progress.step + steps,
            "samples": progress.samples + samples,
            "first_100_s": progress.first_100_s,
            "lr_scaling": self.lr_scaling and self.lr_scaling.state(),
            "batch": self.adaptation and self.adaptation.state(),
            "extra": self.extra,
            "unsaved": progress.unsaved,
        }

    def _load_plain(self, plain: dict[str, Any]) -> None:
        """Go on with what :meth:`_plain` gave, here or elsewhere."""
        progress = self._progress
        self.epoch, self.extra = plain["epoch"], plain["extra"]
        progress.step, progress.samples = plain["step"], plain["samples"]
        progress.first_100_s, progress.unsaved = plain["first_100_s"], plain.get("unsaved")
        if self.lr_scaling is not None and plain["lr_scaling"]:
            self.lr_scaling.load(plain["lr_scaling"])
        if self.adaptation is not None and plain.get("batch"):
            self.adaptation.load(plain["batch"])
        if self.loader is not None and plain["position"]:
            position = self.loader.position
            position.epoch, position.samples, position.batches = plain["position"]

    def settle(self) -> None:
        """Wait for what the device has yet to do."""
        if self._state is not None and self._state.device.type == "cuda":
            import torch

            torch.cuda.synchronize(self._state.device)

    def offload(self) -> None:
        """Free the device."""
        self.gate.leave()
        if self._state is not None:
            self._state.offload()

    def restore(self, device: int | None) -> None:
        """Take the device back, or another one."""
        if self._state is not None:
            self._state.restore(device)
            if self._member.replica is not None:
                self._member.device = self._member.replica.device = self._state.device
        self.segments.go_on()

    def enlist(self) -> None:
        """Let the member know what it is to hand over."""
        self._member.replica, self._member.device = self.replica, self.state.device
        self._member.state = self._state

    def join(self) -> None:
        """The rehearsal is over: take over everything from the others."""
        self.enlist()
        self._member.join()
        if self.loader is not None and self._reduction.gradients is not None:
            self._reduction.gradients.reduced_batch = self.loader.position.batches - 1
