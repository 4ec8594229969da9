"""Data parallelism by torch's DDP, for models whose batches the program cuts itself."""

import ctypes
from collections.abc import Sequence
from inspect import signature
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from rota.burst.runtime.groups import gather_numbers
from rota.errors import InputError
from rota.train.agreement import Places, compare
from rota.train.values import broadcast

if TYPE_CHECKING:
    from rota.train.world import World


class Replicated(torch.nn.Module):
    """A model wrapped in ``DistributedDataParallel``, and wrapped again in each new group.

    ``module`` is the model itself.
    """

    def __init__(self, module: torch.nn.Module, device: torch.device, world: "World") -> None:
        super().__init__()
        self.module = module
        self._device = device
        self._world = world
        self._wrapped: list[DistributedDataParallel] = []  # in a list, so that it is no submodule
        self._weighs = False
        self.batch_share = 0.0  # this rank's part of the batch
        self.failure: BaseException | None = None
        self._added_up: set[int] = set()  # the parameters, in this batch

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The model's own forward pass."""
        inner = self._wrapped[0] if self._wrapped else self.module
        return inner(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        """Attributes that this wrapper lacks are the model's."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("module"), name)

    def wrap(self) -> None:
        """Join the present group; a group of one needs no wrapper."""
        self._wrapped.clear()
        if self._world.size == 1:
            return
        devices = [self._device.index] if self._device.type == "cuda" else None
        wrapped = DistributedDataParallel(self.module, device_ids=devices, **self._buffer_options())
        if self._weighs:
            wrapped.register_comm_hook(None, self._add_up)
        # The reducer is never freed: it would take gloo's process group with it, whose end, with
        # the GIL held, joins a thread that may itself be waiting for the GIL (seen in torch 2.13).
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(wrapped.reducer))
        self._wrapped.append(wrapped)

    def _buffer_options(self) -> dict[str, bool]:
        """Without collectives in ``forward``, where a lost rank would be an error."""
        if not self._weighs:
            return {}
        known = signature(DistributedDataParallel).parameters  # torch has renamed the argument
        name = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
        return {name: False}

    def begin(self, share: float) -> None:
        """Start a batch; this rank has the part ``share`` of its samples."""
        self.batch_share, self.failure = share, None
        self._added_up.clear()

    def check_complete(self) -> None:
        """Raise InputError if a backward pass has left a part of the model out.

        The reduction of that part never began on this rank, and the others would wait for ever.
        """
        parameters = [(n, p) for n, p in self.module.named_parameters() if p.requires_grad]
        if not self._wrapped or all(p.grad is None for _, p in parameters):
            return  # alone, or a model that has no part in this batch
        if all(id(p) in self._added_up for _, p in parameters):
            return
        unused = [name for name, p in parameters if p.grad is None]
        raise InputError(
            f"s.prepare(..., reduction='ddp'): on rank {self._world.rank} the loss of a batch did "
            f"not depend on {len(unused)} of {len(parameters)} parameters "
            f"({', '.join(unused[:3])}), so that torch's DDP never gets their sum; use "
            "reduction='tree', which takes models whose forward differs across ranks, or let the "
            "loss depend on all of them"
        )

    def weigh(self) -> None:
        """From now on, ranks may have unequal parts of a batch, and a lost rank is no error."""
        self._weighs = True
        for wrapped in self._wrapped:
            wrapped.register_comm_hook(None, self._add_up)

    def _add_up(self, _: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """The weighted sum over all ranks; a failure is remembered, not raised in ``backward``."""
        self._added_up.update(map(id, bucket.parameters()))
        buffer = bucket.buffer()
        buffer.mul_(self.batch_share)
        try:
            work = dist.all_reduce(buffer, async_op=True)
        except RuntimeError as error:
            self.failure = error
            done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
            done.set_result(buffer)
            return done
        return work.get_future().then(lambda future: self._outcome(future, buffer))

    def _outcome(self, future: Any, buffer: torch.Tensor) -> torch.Tensor:
        try:
            future.wait()
        except RuntimeError as error:
            self.failure = error
        return buffer


class DdpGradients:
    """The interface of ``Gradients`` for models that DDP reduces while ``backward`` runs."""

    def __init__(self, models: Sequence[Replicated]) -> None:
        self._models = models
        for model in models:
            model.weigh()
        self._parameters = [p for model in models for p in model.parameters()]
        self._active = [p.requires_grad for p in self._parameters]
        self._asked: Places | None = None
        self.met = False  # as in ``Gradients``; here, ranks compare in each batch
        self._kept: list[torch.Tensor | None] = []
        self._handed_over = False
        self.reduced_batch = -1
        self.squares = None  # not known here
        self.measured_in = (0, 1)

    def begin(
        self, weight: float, *, alone: bool, place: int = 0, last: int = 0, number: int = 0
    ) -> None:
        """Start a batch; this rank has the part ``weight`` of its samples.

        ``place`` is a number that identifies the batch. Raises InputError if parameters have been
        frozen or unfrozen, which DDP would ignore.
        """
        if [p.requires_grad for p in self._parameters] != self._active:
            raise InputError(
                "parameters were frozen or unfrozen after s.prepare(..., reduction='ddp'); do it "
                "before, or leave reduction out"
            )
        self._asked = Places(place) if dist.is_initialized() else None
        for model in self._models:
            model.begin(weight)
        for parameter in self._parameters:
            parameter.grad = None

    def next_shard(self) -> None:
        """Nothing: a rank has one piece."""

    def make_room(self) -> None:
        """Nothing: torch's buckets come with the group."""

    def take(self, shard: int, weight: float) -> None:
        """Nothing: the gradients are where they belong."""

    def reduce(self, shards_of: Sequence[Sequence[int]], rank: int, batch: int) -> None:
        """Check that the reduction succeeded.

        Raises RuntimeError if it did not, InputError if the ranks work on different batches, or a
        rank has left out a part of a model.
        """
        asked, self._asked = self._asked, None
        if asked is not None and len(shards_of) > 1:
            compare(asked.answers(), rank)
        for model in self._models:
            if model.failure is not None:
                raise RuntimeError(str(model.failure))
        for model in self._models:
            model.check_complete()
        if len(shards_of) > 1:
            self._kept = [None if p.grad is None else p.grad.clone() for p in self._parameters]
        self.reduced_batch, self._handed_over = batch, False

    def settle(self, rank: int, size: int) -> None:
        """After a loss: ranks that have the sum of the last batch send it to those that don't."""
        if size == 1:
            return
        known = gather_numbers(self.reduced_batch)
        newest = max(known)
        if min(known) == newest:
            return
        kept = broadcast(self._kept, known.index(newest))
        if self.reduced_batch < newest:
            self._kept, self._handed_over, self.reduced_batch = kept, True, newest

    def give(self, parts: int = 1, scale: float = 1.0) -> None:
        """Put sums that were handed over where optimisers look for them."""
        if self._handed_over:
            for parameter, value in zip(self._parameters, self._kept, strict=True):
                parameter.grad = value
            self._handed_over = False
