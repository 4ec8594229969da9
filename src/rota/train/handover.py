"""Hands a process's state over to its successor, and measures the memory of a step."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from rota.errors import ArenaError
from rota.live.wire import UNREADABLE
from rota.train.member import Member
from rota.train.memory_cycle import BACKWARD, BOUNDARY, OPTIMIZER, Cycle, MemoryCycle
from rota.train.progress import Progress

if TYPE_CHECKING:
    import torch

    from rota.train.arena import Arena
    from rota.train.device import DeviceState
    from rota.train.replica import Replica


class Handover:
    """Writes the state of one training into an arena, and reads it back; watches the optimisers.

    Clear ``keeps_gradients`` if no step uses gradients of an earlier step, as with a loader, whose
    batches make theirs anew.
    """

    def __init__(self, member: Member, progress: Progress) -> None:
        self.keeps_gradients = True
        self._replica: Replica | None = None
        self._member = member
        self._progress = progress
        self._stepped: dict[int, int] = {}  # by optimiser: the step of its last call
        self._memory: MemoryCycle | None = None
        self._arena: Arena | None = None
        # A worker alone may end and come back: what it starts has its environment, too.
        self._is_worker = os.environ.get("ROTA_WORKER") == str(os.getpid())
        self.adopts = os.environ.get("ROTA_ADOPT") if self._is_worker else None

    def keeps(self) -> str | None:
        """The reason to keep this process during suspension; None if it may end and come back."""
        if not self._is_worker:
            return "its program is no plain `python SCRIPT`"
        if self._replica is None:
            return "its program has not called s.prepare, which says what its state is"
        if not self._member.can_return:
            return "its program has no loop over s.steps() or s.epochs() to come back to"
        return None

    def vacate(self, path: str) -> int:
        """Write everything that another process needs to continue from here. Returns its bytes.

        Call it when the device has been freed. Raises OSError if there is no room.
        """
        from rota.train.arena import Arena, random_state

        assert self._replica is not None, "a process that has prepared nothing is kept"
        if self._arena is None or self._arena.path != path:
            self._arena = Arena(path)
        state = self._replica.state() | {
            "gradients": self._unused(self._replica),
            "random": random_state(),
        }
        return self._arena.write(state)

    def stay(self) -> None:
        """Training continues in this process: mark what has been written as out of date."""
        if self._arena is not None:
            self._arena.forget()

    def adopt(self) -> bool:
        """Take over the state of an earlier process, if there is one. Raises ArenaError.

        A process that can't read it, for its versions of Python and torch, ends here: the state is
        kept for another one.
        """
        path, self.adopts = self.adopts, None
        if path is None:
            return False
        replica = self._replica
        if replica is None:
            raise ArenaError("s.prepare was called before the suspension, and not in this process")
        from rota.train.arena import Arena, OtherVersionsError, set_random_state
        from rota.train.replica import put_together, take_apart

        self._arena = Arena(path)
        try:
            state = self._arena.read(copy=os.environ.get("ROTA_ADOPT_COPY") == "1")
        except OtherVersionsError as error:
            print(f"rota: {error}", file=sys.stderr, flush=True)
            os._exit(UNREADABLE)
        skeleton, tensors = take_apart(state["plain"])
        state["plain"] = put_together(skeleton, [tensor.clone() for tensor in tensors])
        replica.load(state)
        for optimizer, gradients in zip(_optimizers(replica), state["gradients"], strict=True):
            for parameter, gradient in zip(_trained(optimizer), gradients or (), strict=False):
                if gradient is not None:
                    parameter.grad = gradient.clone().to(parameter.device)
        set_random_state(state["random"])
        return True

    def watch(
        self, optimizer: torch.optim.Optimizer, replica: Replica, on_device: DeviceState
    ) -> None:
        """Hand over this replica from now on.

        Notes when the optimiser uses its gradients: earlier ones are not needed any more.
        """
        from rota.train.optimizers import torch_optimizers

        self._replica = replica

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
        if self._memory is None and on_device.device.type == "cuda":
            from torch import cuda

            self._memory = MemoryCycle(
                lambda: cuda.memory_allocated(on_device.device),
                lambda: cuda.max_memory_allocated(on_device.device),
            )

    def measure(self) -> Cycle | None:
        """Memory over a step, once measured; called at step boundaries. None on a CPU."""
        return self._memory.at(BOUNDARY) if self._memory is not None else None

    def _unused(self, replica: Replica) -> list[list[torch.Tensor | None] | None]:
        """For each optimiser, the gradients that it has yet to use; None if it has used them.

        A program that accumulates gradients over several steps needs them.
        """
        last = self._progress.step - 1
        return [
            [p.grad for p in _trained(optimizer)]
            if self.keeps_gradients and self._stepped.get(id(optimizer)) != last
            else None
            for optimizer in _optimizers(replica)
        ]


def _optimizers(replica: Replica) -> list[Any]:
    return [part for part in replica.others if hasattr(part, "param_groups")]


def _trained(optimizer: Any) -> list[Any]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
