"""Functions that workers of flow tests import, and the gates by which a test holds them.

A function runs once on fake tensors before it runs on an island; only then it counts.
"""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensor

from rota import flow

FOLDER = "ROTA_TEST_FLOW_FOLDER"  # where gates and records are


class Gate:
    """Holds the operations of :func:`gated` whose first element is ``number``."""

    def __init__(self, folder: Path, number: int) -> None:
        self.number = number
        self._pipes = []
        for name in (f"gate{number}", f"begun{number}"):
            os.mkfifo(folder / name)
            self._pipes.append(os.open(folder / name, os.O_RDWR))

    def wait_begun(self, shards: int = 1) -> None:
        """Wait until so many shards are held."""
        for _ in range(shards):
            os.read(self._pipes[1], 1)

    def open(self, shards: int = 1) -> None:
        """Let so many shards go on."""
        os.write(self._pipes[0], b"." * shards)

    def close(self) -> None:
        """Let all go on that are held yet."""
        self.open(64)
        for pipe in self._pipes:
            os.close(pipe)


def gated(x: torch.Tensor) -> torch.Tensor:
    """The next number, once the gate of the first element's number is open."""
    if not isinstance(x, FakeTensor):
        _pass(int(x.flatten()[0]))
    return x + 1


def gated_when_tried(x: torch.Tensor) -> torch.Tensor:
    """The next numbers; with fake tensors once the gate of their count is open."""
    if isinstance(x, FakeTensor):
        _pass(len(x))
    return x + 1


def _pass(number: int) -> None:
    begun, gate = (_opened(f"{name}{number}") for name in ("begun", "gate"))
    os.write(begun, b".")
    os.read(gate, 1)
    os.close(begun)
    os.close(gate)


def _opened(name: str) -> int:
    return os.open(Path(os.environ[FOLDER]) / name, os.O_RDWR)


def recorded(x: torch.Tensor) -> torch.Tensor:
    """Its input; the first element's character is written behind those of earlier operations."""
    if not isinstance(x, FakeTensor):
        with open(Path(os.environ[FOLDER]) / "record", "ab", buffering=0) as record:
            record.write(bytes([int(x.flatten()[0])]))
    return x


# -- without collectives ---------------------------------------------------------------------------


def scaled(x: torch.Tensor) -> torch.Tensor:
    return x * 3 + 1


def added(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x + y


def two(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return y - x, x * 2


def doubled_ranks(x: torch.Tensor) -> torch.Tensor:
    return x * 2 + flow.shard().rank


def longer_than_tried(x: torch.Tensor) -> torch.Tensor:
    return x if isinstance(x, FakeTensor) else torch.cat([x, x[:1]])


def wider_than_tried(x: torch.Tensor) -> torch.Tensor:
    return x if isinstance(x, FakeTensor) else x.double()


def to_meta(x: torch.Tensor) -> torch.Tensor:
    return x.to("meta")


# -- with collectives ------------------------------------------------------------------------------


def plus_total(x: torch.Tensor) -> torch.Tensor:
    """Plus the sum over all shards."""
    total = x.sum()
    dist.all_reduce(total, group=flow.shard().group)
    return x + total.to(x.dtype)


def plus_largest(x: torch.Tensor) -> torch.Tensor:
    """Plus the largest of the shards' sums."""
    total = x.sum()
    dist.all_reduce(total, dist.ReduceOp.MAX, group=flow.shard().group)
    return x + total.to(x.dtype)


def plus_first(x: torch.Tensor) -> torch.Tensor:
    """Plus the first shard's sum."""
    total = x.sum()
    dist.broadcast(total, group_src=0, group=flow.shard().group)
    return x + total.to(x.dtype)


def sums(x: torch.Tensor) -> torch.Tensor:
    """The shards' sums."""
    total = x.sum()
    found = [torch.empty_like(total) for _ in range(flow.shard().size)]
    dist.all_gather(found, total, group=flow.shard().group)
    return torch.stack(found)


def positive(x: torch.Tensor) -> torch.Tensor:
    """True if a shard's sum is above 0."""
    total = x.sum()
    dist.all_reduce(total, dist.ReduceOp.MAX, group=flow.shard().group)
    return total > 0


# -- whose shapes depend on data -------------------------------------------------------------------


def above_zero(x: torch.Tensor) -> torch.Tensor:
    return x[x > 0]


def counted(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The different elements, and how often each is there."""
    values, counts = x.unique(return_counts=True)
    return values, counts


# -- that are wrong --------------------------------------------------------------------------------


def raises(x: torch.Tensor) -> torch.Tensor:
    if not isinstance(x, FakeTensor):
        raise ArithmeticError("the number is wrong")
    return x + 1


def raises_on_second(x: torch.Tensor) -> torch.Tensor:
    """Raises on the second shard, where the first waits for it."""
    if flow.shard().rank == 1 and not isinstance(x, FakeTensor):
        raise ArithmeticError("the second is wrong")
    return plus_total(x)


def exits(x: torch.Tensor) -> torch.Tensor:
    if not isinstance(x, FakeTensor):
        sys.exit(7)
    return x + 1


def dies(x: torch.Tensor) -> torch.Tensor:
    if not isinstance(x, FakeTensor):
        os._exit(7)
    return x + 1


def writes_to_input(x: torch.Tensor) -> torch.Tensor:
    return x.add_(1)


def writes_unseen(x: torch.Tensor) -> torch.Tensor:
    """Writes to its input only when it has data."""
    if not isinstance(x, FakeTensor):
        x.add_(1)
    return x + 1


def gives_none(x: torch.Tensor) -> None:
    return None


def needs_much(x: torch.Tensor) -> torch.Tensor:
    """Makes 8 MB on the way."""
    return x + torch.zeros(1_000_000, dtype=torch.float64).sum().to(x.dtype)


def gives_much(x: torch.Tensor) -> torch.Tensor:
    return x.repeat(1_000_000)


# -- of the programs of jobs -----------------------------------------------------------------------


def late_total(x: torch.Tensor) -> torch.Tensor:
    """Its input plus the sum over all shards; the first one waits at the gate of its number."""
    if flow.shard().rank == 0:
        gated(x)
    return plus_total(x)


def place(x: torch.Tensor) -> torch.Tensor:
    """The process that it runs in, the core that this is bound to, and its limit RLIMIT_RTTIME."""
    if isinstance(x, FakeTensor):
        return torch.empty(3, dtype=torch.int64)
    print("a line of a worker", flush=True)
    core = min(os.sched_getaffinity(0))
    return torch.tensor([os.getpid(), core, resource.getrlimit(resource.RLIMIT_RTTIME)[0]])
