"""What one process trains: models and all that goes with them, the data, and how far it is."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rota.errors import InputError
from rota.train.member import Member
from rota.train.memory_cycle import BACKWARD, BOUNDARY, OPTIMIZER, Cycle, MemoryCycle
from rota.train.progress import Progress
from rota.train.pulse import Pulse
from rota.train.world import World

if TYPE_CHECKING:
    import torch

    from rota.train.arena import Arena
    from rota.train.batch import Batch
    from rota.train.device import DeviceState
    from rota.train.loader import Loader
    from rota.train.lr_scaling import LrScaling
    from rota.train.optimizers import Optimizers
    from rota.train.replica import Replica

TREE, DDP = "tree", "ddp"
CHECKPOINT = "rota.pt"


class Training:
    """The parts of a training, made when they are needed: torch is loaded by the first of them."""

    def __init__(self, world: World, member: Member, progress: Progress) -> None:
        self.loader: Loader | None = None
        self.batch: Batch | None = None  # of the present step
        self.lr_scaling: LrScaling | None = None
        self.extra: dict[str, Any] = {}  # values of the program's own
        self.epoch = 0
        self.prepared = False
        self.in_step = False  # between the beginning of a step of ``Session.steps`` and its end
        self.epoch_over = False  # the loop over the batches of this epoch has been left
        self._world = world
        self._member = member
        self._progress = progress
        self._state: DeviceState | None = None
        self._replica: Replica | None = None
        self._reduction: Any = None
        self._wrapped: list[Any] = []  # models for DDP, and those of which it is not known yet
        self._undecided: list[Any] = []
        self._asked_for: set[str | None] = set()  # kinds of reduction
        self._optimizers: Optimizers | None = None
        self._looked = False  # into the checkpoint
        self._stepped: dict[int, int] = {}  # by optimiser: the step in which it was called last
        self._memory: MemoryCycle | None = None
        self._arena: Arena | None = None
        # A worker alone may end and come back: what it starts has its environment, too.
        self._is_worker = os.environ.get("ROTA_WORKER") == str(os.getpid())
        self._adopts = os.environ.get("ROTA_ADOPT") if self._is_worker else None

    @property
    def state(self) -> DeviceState:
        """What is on the device."""
        if self._state is None:
            from rota.train.device import DeviceState, choose_device

            index = os.environ.get("ROTA_DEVICE")
            self._state = DeviceState(choose_device(int(index) if index else None))
        return self._state

    @property
    def replica(self) -> Replica:
        """What must be equal on all ranks."""
        if self._replica is None:
            from rota.train.replica import Replica

            self._replica = Replica(self.state.device)
            self._replica.plain, self._replica.load_plain = self._plain, self._load_plain
        return self._replica

    # -- before the first step -----------------------------------------------------------------

    def prepare(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        others: tuple[Any, ...],
        reduction: str | None,
    ) -> Any:
        """Take in a model and what belongs to it.

        Returns the model, perhaps wrapped. Raises InputError.
        """
        from rota.train.optimizers import check_parts

        if reduction not in (None, TREE, DDP):
            raise InputError(f"s.prepare: reduction={reduction!r} must be 'tree' or 'ddp'")
        check_parts(model, optimizer, others)
        self._asked_for.add(reduction)
        if len(self._asked_for) > 1:
            raise InputError(
                f"s.prepare: reduction={reduction!r} differs from that of a model before; the "
                "gradients of all models come together in one way, so give the same each time"
            )
        model = model.to(self.state.device)
        self.state.add(model, optimizer)
        self._progress.counts_cpu = self.state.device.type == "cpu"
        self.replica.add(model, optimizer, *others)
        self._watch(optimizer)
        self.prepared = True
        self._open_world()
        if reduction == DDP or (reduction is None and self._world.size > 1):
            from rota.train.parallel import Replicated

            model = Replicated(model, self.state.device, self._world)
            if reduction == DDP:
                model.wrap()
                self._wrapped.append(model)
            else:
                self._undecided.append(model)
        return model

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
        **options: Any,
    ) -> Loader:
        """Make the loader of the training data. Raises InputError."""
        from rota.train.loader import Loader, batch_policy, default_shards

        if self.loader is not None:
            raise InputError(
                "s.loader was called a second time; it is for the training data alone, "
                "use torch's DataLoader for validation"
            )
        most = max(int(os.environ.get("ROTA_MAX_WORLD", "1")), self._world.size)
        size, per_rank = batch_policy(batch_size, batch_size_per_rank, lr_scaling, shards, most)
        if per_rank is not None:
            from rota.train.lr_scaling import LrScaling

            self.lr_scaling = LrScaling(lr_scaling or "linear")
            shards = most
        elif shards is None:
            shards = default_shards(dataset, size, most)
        self.loader = Loader(
            dataset,
            size,
            shards=shards,
            per_rank=per_rank,
            world=self._world,
            **options,
        )
        self.loader.fit()
        return self.loader

    def start(self) -> bool:
        """Before the first step: everybody has the same state. Raises InputError, ArenaError.

        Returns whether that is the state of a process before this one, to go on from.
        """
        if self.loader is None:
            self._start_without_loader()
        else:
            self._start_with_loader()
        if self._adopts is None:
            return False
        self._adopt(self._adopts)
        return True

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
        if self._adopts is not None:
            return
        self._open_checkpoint()
        self._member.share_state()

    def _open_checkpoint(self) -> None:
        """Go on from where an attempt before this one has written its state."""
        folder = os.environ.get("ROTA_CHECKPOINT_DIR")
        if folder and Path(folder, CHECKPOINT).exists():
            self.replica.open(str(Path(folder, CHECKPOINT)))

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
        for model in self._undecided:
            model.wrap()
        reduced = self._wrapped or self._undecided
        if self._world.size > 1 and self.prepared and not reduced:
            raise InputError(
                f"this is rank {self._world.rank} of {self._world.size}, and nothing says how "
                "their gradients come together: take batches from s.loader(...), or call "
                "s.prepare(..., reduction='ddp') if the program cuts its batches itself"
            )
        if self._adopts is None:
            self._open_checkpoint()

    def _follow(self, lr_scaling: LrScaling) -> None:
        """Have the learning rates follow the size of the batch."""
        from rota.train.optimizers import torch_optimizers

        if lr_scaling.measures and self._wrapped:
            raise InputError(
                "s.loader: lr_scaling='adascale' compares the gradients of the ranks, which "
                "s.prepare(..., reduction='ddp') adds up before they can be seen; leave that out"
            )
        for optimizer in torch_optimizers(self.replica.others):
            lr_scaling.follow(optimizer)

    # -- batches and steps ---------------------------------------------------------------------

    def has_batch(self) -> bool:
        """Whether the present epoch goes on."""
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
            self.batch = Batch(loader, self._gradients(), self.lr_scaling, self._member, pulse)
        return self.batch

    def end_step(self) -> bool:
        """Count the step, and the batch that was worked through in it; whether to report.

        Raises InputError if it was not.
        """
        self.check_batch()
        due = self._progress.end_step()
        self.in_step = False
        if self.batch is not None:
            assert self.loader is not None
            self._progress.note(None, self.batch.samples, {})
            if not self._member.rehearses:
                self.loader.advance()
            self.batch = None
        return due

    def leave_step(self) -> None:
        """The loop was left by a break. The step counts as done, unless its batch is not."""
        batch = self.batch
        if batch is None or batch.complete or self._member.rehearses:
            self.end_step()
        elif not batch.begun:
            self.batch = None  # it is still the next one

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
        if self._reduction is None:
            assert self.loader is not None
            models = self.replica.models
            if self._wrapped:
                from rota.train.parallel import DdpGradients

                self.loader.whole = True
                gradients: Any = DdpGradients(self._wrapped)
            else:
                from rota.train.gradients import Gradients

                parameters = [p for model in models for p in model.parameters()]
                buffers = [b for model in models for b in model.buffers()]
                measure = self.lr_scaling is not None and self.lr_scaling.measures
                gradients = Gradients(parameters, buffers, measure=measure)
            self._reduction = gradients
            self._member.settle = lambda: gradients.settle(self._world.rank, self._world.size)
            self._member.moved = self._moved
        return self._reduction

    def _moved(self) -> None:
        """The ranks are in a new group."""
        for model in self._wrapped:
            model.wrap()
        self._reduction.met = False

    # -- suspended, saved and handed over --------------------------------------------------------

    def offload(self) -> None:
        """Free the device."""
        if self._state is not None:
            self._state.offload()

    def restore(self, device: int | None) -> None:
        """Take the device back, or another one."""
        if self._state is not None:
            self._state.restore(device)
            if self._member.replica is not None:
                self._member.device = self._member.replica.device = self._state.device

    def save(self) -> None:
        """Write the checkpoint. Raises InputError if there is no folder for it, OSError."""
        folder = os.environ.get("ROTA_CHECKPOINT_DIR")
        if not folder:
            raise InputError("s.checkpoint: ROTA_CHECKPOINT_DIR is not set; it says where to write")
        if self._world.rank == 0 and not self._member.rehearses:
            self.replica.save(str(Path(folder, CHECKPOINT)))

    def look_into_checkpoint(self) -> None:
        """Before the first step: know the values of the program's own that are in it."""
        folder = os.environ.get("ROTA_CHECKPOINT_DIR")
        if self._looked or self._member.rehearses or not folder:
            return
        self._looked = True
        path = Path(folder, CHECKPOINT)
        if path.exists():
            import torch

            state = torch.load(path, map_location="cpu", weights_only=False, mmap=True)
            self.extra |= state["plain"]["extra"]

    def enlist(self) -> None:
        """Let the member know what it is to hand over."""
        self._member.replica, self._member.device = self.replica, self.state.device
        self._member.state = self._state

    def join(self) -> None:
        """The rehearsal is over: take over everything from the others."""
        self.enlist()
        self._member.join()
        if self.loader is not None and self._reduction is not None:
            self._reduction.reduced_batch = self.loader.position.batches - 1

    # -- in an arena -----------------------------------------------------------------------------

    def keeps(self) -> str | None:
        """Why this process must be kept while it is suspended; None if it may end and come back."""
        if not self._is_worker:
            return "its program does not run in a worker of the zygote"
        if not self.prepared:
            return "its program has not called s.prepare, which says what its state is"
        if not self._member.can_return:
            return "its program has no loop over s.steps() or s.epochs() to come back to"
        return None

    def vacate(self, path: str) -> int:
        """Write all that another process needs to go on from here; its size in bytes.

        Call it after :meth:`offload`. Raises OSError if there is no room.
        """
        from rota.train.arena import Arena, random_state

        if self._arena is None or self._arena.path != path:
            self._arena = Arena(path)
        state = self.replica.state() | {"gradients": self._unused(), "random": random_state()}
        return self._arena.write(state)

    def stay(self) -> None:
        """Training goes on in this process: what has been written of it is out of date."""
        if self._arena is not None:
            self._arena.forget()

    def _adopt(self, path: str) -> None:
        """Take over the state that a process before this one wrote. Raises ArenaError."""
        from rota.train.arena import Arena, set_random_state
        from rota.train.replica import put_together, take_apart

        self._arena = Arena(path)
        state = self._arena.read(copy=os.environ.get("ROTA_ADOPT_COPY") == "1")
        skeleton, tensors = take_apart(state["plain"])
        state["plain"] = put_together(skeleton, [tensor.clone() for tensor in tensors])
        self.replica.load(state)
        for optimizer, gradients in zip(self._with_parameters(), state["gradients"], strict=True):
            for parameter, gradient in zip(_trained(optimizer), gradients or (), strict=False):
                if gradient is not None:
                    parameter.grad = gradient.clone().to(parameter.device)
        set_random_state(state["random"])
        self._adopts = None

    def _watch(self, optimizer: torch.optim.Optimizer) -> None:
        """Note when the optimiser uses its gradients: those of before are not needed any more."""
        from rota.train.optimizers import torch_optimizers

        def before(*_: Any) -> None:
            if self._memory is not None:
                self._memory.at(BACKWARD)

        def after(*_: Any) -> None:
            self._stepped[id(optimizer)] = self._progress.step
            if self._memory is not None:
                self._memory.at(OPTIMIZER)

        for inner in torch_optimizers([optimizer]):
            inner.register_step_pre_hook(before)
            inner.register_step_post_hook(after)
        if self._memory is None and self.state.device.type == "cuda":
            from torch import cuda

            self._memory = MemoryCycle(
                lambda: cuda.memory_allocated(self.state.device),
                lambda: cuda.max_memory_allocated(self.state.device),
            )

    def measure(self) -> Cycle | None:
        """At a step boundary: the memory over a step, once it has been measured; not on a CPU."""
        return self._memory.at(BOUNDARY) if self._memory is not None else None

    def _with_parameters(self) -> list[Any]:
        return [part for part in self.replica.others if hasattr(part, "param_groups")]

    def _unused(self) -> list[list[torch.Tensor | None] | None]:
        """For each optimiser the gradients that it has yet to use; None if it has used them.

        A program that accumulates them over several steps needs them. Those of a loader's batch
        are made anew.
        """
        last = self._progress.step - 1
        return [
            None
            if self.loader is not None or self._stepped.get(id(optimizer)) == last
            else [p.grad for p in _trained(optimizer)]
            for optimizer in self._with_parameters()
        ]

    def _plain(self) -> dict[str, Any]:
        """What to go on with: in a step whose batch has been worked through, after that step; in an
        epoch whose batches have been, after that epoch.

        Without a loader, only the program knows whether a step is over: it is taken to be.
        """
        position = self.loader.position if self.loader is not None else None
        done = self.batch if self.batch is not None and self.batch.complete else None
        steps, samples = (1, done.samples) if done is not None else (0, 0)
        if self.loader is None:
            steps = int(self.in_step)
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
            "step": self._progress.step + steps,
            "samples": self._progress.samples + samples,
            "first_100_s": self._progress.first_100_s,
            "lr_scaling": self.lr_scaling and self.lr_scaling.state(),
            "extra": self.extra,
        }

    def _load_plain(self, plain: dict[str, Any]) -> None:
        self.epoch, self.extra = plain["epoch"], plain["extra"]
        self._progress.step, self._progress.samples = plain["step"], plain["samples"]
        self._progress.first_100_s = plain["first_100_s"]
        if self.lr_scaling is not None and plain["lr_scaling"]:
            self.lr_scaling.load(plain["lr_scaling"])
        if self.loader is not None and plain["position"]:
            position = self.loader.position
            position.epoch, position.samples, position.batches = plain["position"]


def _trained(optimizer: Any) -> list[Any]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
