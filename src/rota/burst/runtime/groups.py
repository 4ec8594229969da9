"""Process groups of some of the ranks, made in one order on all of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from rota.errors import InputError

Ranks = tuple[int, ...]
MOST_GROUPS = 64  # each has connections and threads of its own on every member


class PeerLost(RuntimeError):
    """An operation among ranks failed, because one of them is gone."""


def talk(operation: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """The result of an operation among ranks. Raises PeerLost where torch raises RuntimeError."""
    try:
        return operation(*args, **options)
    except RuntimeError as error:
        raise PeerLost(str(error)) from None


def on_high_priority(ranks: Iterable[int], timeout: timedelta | None = None) -> Any:
    """A group of these ranks; with NCCL, its kernels run before those of other streams."""
    options: Any = None
    if dist.get_backend() == "nccl":
        options = dist.ProcessGroupNCCL.Options(is_high_priority_stream=True)
    return dist.new_group(list(ranks), timeout=timeout, pg_options=options)


class Groups:
    """Process groups by their ranks; ``make`` makes one, on all ranks at the same time.

    They are ``apart`` from torch's default group, or have it as that of all ranks.
    """

    def __init__(
        self, make: Callable[[Ranks], Any] = on_high_priority, *, apart: bool = False
    ) -> None:
        self._make = make
        self._made: dict[Ranks, Any] = {}
        if not apart and dist.get_backend() != "nccl":  # whose default group has no priority
            self._made[tuple(range(dist.get_world_size()))] = None

    def ensure(self, wanted: Iterable[Ranks]) -> None:
        """Have groups of all these ranks; every rank calls it with the same ones.

        Raises InputError if they would be too many, PeerLost if a rank is gone.
        """
        missing = sorted({ranks for ranks in wanted if len(ranks) > 1} - set(self._made))
        if len(self._made) + len(missing) > MOST_GROUPS:
            raise InputError(
                f"the plan needs {len(self._made) + len(missing)} process groups, more than "
                f"{MOST_GROUPS}; give it fewer different groups of ranks"
            )
        for ranks in missing:
            self._made[ranks] = talk(self._make, ranks)

    def of(self, ranks: Ranks) -> Any:
        """The group of these ranks; None is torch's default group, of all."""
        return self._made[ranks]


def broadcast_bytes(data: bytes, source: int) -> bytes:
    """The bytes of rank ``source``, on all ranks. Raises RuntimeError if a rank is lost."""
    device = device_of()
    length = torch.tensor([len(data)], device=device)
    dist.broadcast(length, source)
    sent = torch.zeros(int(length.item()), dtype=torch.uint8, device=device)
    if dist.get_rank() == source:
        sent.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
    dist.broadcast(sent, source)
    return sent.cpu().numpy().tobytes()


def broadcast_json(value: Any, source: int) -> Any:
    """The value of rank ``source``, of what JSON has, on all ranks. Raises RuntimeError."""
    return json.loads(broadcast_bytes(json.dumps(value).encode(), source))


def gather_numbers(number: int) -> list[int]:
    """The numbers of all ranks, in their order. Raises RuntimeError if a rank is lost."""
    own = torch.tensor([number], device=device_of())
    found = [torch.zeros_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(found, own)
    return [int(each.item()) for each in found]


def name_of(dtype: torch.dtype) -> str:
    """The name of a tensor's type, such as ``float32``."""
    return str(dtype).removeprefix("torch.")


def dtype_of(name: str) -> torch.dtype:
    """The inverse of :func:`name_of`. Raises ValueError."""
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"{name} is no type of tensors")
    return found


def device_of(group: Any = None) -> torch.device:
    """Where tensors must be that the group's ranks exchange."""
    if dist.get_backend(group) == "nccl":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")
