"""Functions of flow programs that wait, fail, and spoil their process.

They are run with stand-ins of their arguments first, and do nothing then.
"""

import ctypes
import errno
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from rota import flow

FOLDER = "FLOW_TEST_FOLDER"  # of files by which tests and functions wait for each other


def is_real(x: torch.Tensor) -> bool:
    return type(x) is torch.Tensor


def entered(gate: int, rank: int) -> Path:
    """The file that says that a shard is in :func:`gated`, and holds its process."""
    return Path(os.environ[FOLDER]) / f"in{gate}.{rank}"


def opened(gate: int) -> Path:
    """The file that lets all shards go on."""
    return Path(os.environ[FOLDER]) / f"open{gate}"


def wait(x: torch.Tensor) -> None:
    gate, rank = int(x[0]), flow.shard().rank
    draft = entered(gate, rank).with_suffix(f".{rank}.new")
    draft.write_text(str(os.getpid()))
    draft.rename(entered(gate, rank))
    while not opened(gate).exists():
        time.sleep(0.002)


def add(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def gated(x: torch.Tensor) -> torch.Tensor:
    """Waits until the gate that x[0] names is open."""
    if is_real(x):
        wait(x)
    return x + 1


def waits_on_stand_ins(x: torch.Tensor) -> torch.Tensor:
    while not is_real(x):
        time.sleep(0.01)
    return x + 1


def summed(x: torch.Tensor) -> torch.Tensor:
    """The sum over all shards."""
    y = x.clone()
    dist.all_reduce(y, group=flow.shard().group)
    return y


def late(x: torch.Tensor) -> torch.Tensor:
    """The sum over all shards, of which the first one waits at the gate."""
    if is_real(x) and flow.shard().rank == 0:
        wait(x)
    return summed(x)


def process(x: torch.Tensor) -> torch.Tensor:
    """The process that runs it."""
    return torch.tensor([os.getpid()]) if is_real(x) else torch.empty(1, dtype=torch.int64)


def leaves(x: torch.Tensor) -> torch.Tensor:
    if is_real(x):
        sys.exit("enough")
    return x + 1


def interrupts(x: torch.Tensor) -> torch.Tensor:
    if is_real(x):
        raise KeyboardInterrupt
    return x + 1


def exits(x: torch.Tensor) -> torch.Tensor:
    if is_real(x):
        os._exit(7)
    return x + 1


def crashes(x: torch.Tensor) -> torch.Tensor:
    if is_real(x):
        ctypes.string_at(0)
    return x + 1


def closes(x: torch.Tensor) -> torch.Tensor:
    if is_real(x):
        os.closerange(0, 1000)
    return x + 1


def forks(x: torch.Tensor) -> torch.Tensor:
    """Returns twice."""
    if is_real(x):
        os.fork()
    return x + 1


def leaves_a_child(x: torch.Tensor) -> torch.Tensor:
    """Leaves a process behind that has all its descriptors; returns its number."""
    if not is_real(x):
        return torch.empty(1, dtype=torch.int64)
    pid = os.fork()
    if pid == 0:
        time.sleep(1000)
        os._exit(0)
    return torch.tensor([pid])


def moves(x: torch.Tensor) -> torch.Tensor:
    if is_real(x):
        os.chdir("/")
    return x + 1


def sets_defaults(x: torch.Tensor) -> torch.Tensor:
    if is_real(x):
        torch.set_default_dtype(torch.float64)
        torch.set_default_device("meta")
    return x + 1


def prints(x: torch.Tensor) -> torch.Tensor:
    if is_real(x):
        for _ in range(2000):
            print("a line of a function that prints a lot")
    return x + 1


def fills(x: torch.Tensor) -> torch.Tensor:
    """From now on there is no room in memory for what its process sends."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no room is left")

    if is_real(x):
        os.posix_fallocate = full
        Path.write_text = full  # type: ignore[assignment, method-assign]
    return x + 1
