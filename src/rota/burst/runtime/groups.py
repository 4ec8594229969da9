"""Process groups of some of the ranks, made in one order on all of them."""

from __future__ import annotations

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


def device_of(group: Any = None) -> torch.device:
    """Where tensors must be that the group's ranks exchange."""
    if dist.get_backend(group) == "nccl":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")
