"""The state of a training in one flat file, from which another process continues.

Tensors are written from where they lie, without a copy in between. They are read by mapping the
file: what takes over whole tensors, as torch's optimisers do, goes on with those in the file, at
no cost, and the next time only the rest has to be written. First touch of fresh memory costs far
more than copying, so a file that is there already is written over where it lies.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import pickle
import random
import sys
from collections.abc import Sequence
from typing import Any

import torch

from rota.errors import ArenaError
from rota.live.wire.arena_file import (
    ALIGNMENT,
    BLOCK_BYTES,
    FIRST_TENSOR_AT,
    PLACE,
    ArenaHeader,
    Checksum,
    checksum_of,
    read_table,
    writer_of,
)
from rota.train.replica import put_together, take_apart

BYTES_A_BLOCK = 512  # unit of ``st_blocks`` on every file system
# Stands before the pickle: its objects are those of these versions.
WRITTEN_BY = f"Python {sys.version_info.major}.{sys.version_info.minor}, torch {torch.__version__}"

# How a tensor lies in its part of the file: shape, strides, type.
Form = tuple[tuple[int, ...], tuple[int, ...], Any]


class OtherVersionsError(ArenaError):
    """An arena was written by other versions of Python or torch; nothing was read."""


class Arena:
    """One file. Tensors that :meth:`read` gave may live in it until the process ends."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._map: mmap.mmap | None = None
        self._base: torch.Tensor | None = None  # all bytes of the mapped file
        self._file: tuple[int, int] | None = None  # device and inode of the mapped file

    # -- writing -------------------------------------------------------------------------------

    def write(self, state: Any) -> int:
        """Write ``state``, whose tensors are in host memory. Returns its size in bytes.

        On return the file is complete. Raises OSError if there is no room for it, and then leaves
        no file unless tensors in use live in it; raises whatever pickling raises.
        """
        skeleton, tensors = take_apart(state)
        tensors = [dense(tensor) for tensor in tensors]
        forms: list[Form] = [(tuple(t.shape), t.stride(), t.dtype) for t in tensors]
        rest = WRITTEN_BY.encode() + b"\n" + pickle.dumps((skeleton, forms))
        offsets, end = lay_out(tensors)
        if self._can_stay(tensors, offsets):
            self._write_to(self.path, tensors, offsets, end, rest)
        else:
            draft = f"{self.path}.new"
            self._write_to(draft, tensors, offsets, end, rest)
            os.replace(draft, self.path)
        return end + len(tensors) * PLACE.size + len(rest)

    def forget(self) -> None:
        """Mark the file as out of date, because training continues."""
        with contextlib.suppress(OSError):
            descriptor = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
            os.pwrite(descriptor, bytes(FIRST_TENSOR_AT), 0)
            os.close(descriptor)

    def _can_stay(self, tensors: Sequence[torch.Tensor], offsets: Sequence[int]) -> bool:
        """True if no tensor that lives in the file would have to move within it."""
        homes = [self._home(tensor) for tensor in tensors]
        if all(home is None for home in homes):
            return True
        return self._is_mapped(self.path) and all(
            home in (None, offset) for home, offset in zip(homes, offsets, strict=True)
        )

    def _home(self, tensor: torch.Tensor) -> int | None:
        """Offset in the mapped file at which the tensor lives; None if it lives elsewhere."""
        if self._base is None or not tensor.numel():
            return None
        distance = tensor.data_ptr() - self._base.data_ptr()
        return distance if 0 <= distance < self._base.numel() else None

    def _is_mapped(self, path: str) -> bool:
        try:
            status = os.stat(path)
        except OSError:
            return False
        return (status.st_dev, status.st_ino) == self._file

    def _write_to(
        self,
        path: str,
        tensors: Sequence[torch.Tensor],
        offsets: Sequence[int],
        end: int,
        rest: bytes,
    ) -> None:
        mapped = self._is_mapped(path)
        total = end + len(tensors) * PLACE.size + len(rest)
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(path, flags, 0o600)
        try:
            # No reader takes this file for a whole one until its header is there again.
            _write(descriptor, bytes(FIRST_TENSOR_AT), 0)
            if os.fstat(descriptor).st_blocks * BYTES_A_BLOCK < total:
                os.posix_fallocate(descriptor, 0, total)  # or nothing: others need room, too
            table = b"".join(
                PLACE.pack(
                    offset,
                    tensor.nbytes,
                    write_tensor(
                        descriptor, tensor, offset, skip=mapped and self._home(tensor) is not None
                    ),
                )
                for tensor, offset in zip(tensors, offsets, strict=True)
            )
            _write(descriptor, table + rest, end)
            os.ftruncate(descriptor, total)
            os.fsync(descriptor)  # costs nothing where files are host memory
            checksum = checksum_of(path, table, rest)
            header = ArenaHeader(len(tensors), end, len(rest), total, checksum)
            _write(descriptor, header.pack(), 0)
            os.fsync(descriptor)
        except BaseException:
            if not mapped:
                with contextlib.suppress(OSError):
                    os.unlink(path)  # gives its room back: others may need it
            raise
        finally:
            os.close(descriptor)

    # -- reading -------------------------------------------------------------------------------

    def read(self, *, copy: bool = False) -> Any:
        """The state that was written. Raises ArenaError, OtherVersionsError.

        Its tensors live in the file unless ``copy`` is True, which suits files on a disk: the file
        is then read to its end and checked.
        """
        places, rest = read_table(self.path)
        writer, pickled = writer_of(rest)
        if writer not in ("", WRITTEN_BY):
            raise OtherVersionsError(f"arena {self.path} is of {writer}, and this is {WRITTEN_BY}")
        skeleton, forms = pickle.loads(pickled)  # noqa: S301 (this job wrote it)
        with open(self.path, "r+b") as file:
            status = os.fstat(file.fileno())
            mapped = mmap.mmap(file.fileno(), 0)
        base = torch.frombuffer(mapped, dtype=torch.uint8)
        tensors = []
        for number, ((offset, size, expected), form) in enumerate(zip(places, forms, strict=True)):
            shape, strides, dtype = form
            if not size:
                tensors.append(torch.empty(shape, dtype=dtype))
                continue
            # Each has a storage of its own: programs save tensors with all of their storage.
            count = size // dtype.itemsize
            flat = torch.frombuffer(mapped, dtype=dtype, count=count, offset=offset)
            if copy:
                flat = flat.clone()
                checksum = Checksum()
                checksum.add(flat.view(torch.uint8).numpy())
                if checksum.value != expected:
                    raise ArenaError(f"arena {self.path}: tensor {number} is damaged")
            tensors.append(flat.as_strided(shape, strides))
        if not copy:
            self._map, self._base = mapped, base
            self._file = (status.st_dev, status.st_ino)
        return put_together(skeleton, tensors)


def lay_out(tensors: Sequence[torch.Tensor]) -> tuple[list[int], int]:
    """Offset in the file at which each tensor begins, and the one at which the last one ends."""
    offsets, end = [], FIRST_TENSOR_AT
    for tensor in tensors:
        offsets.append(end)
        end += -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT
    return offsets, end


def dense(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or a contiguous copy if its elements don't lie side by side in host memory."""
    tensor = tensor.detach().cpu().resolve_conj().resolve_neg()
    sizes = sorted(
        (stride, length)
        for stride, length in zip(tensor.stride(), tensor.shape, strict=True)
        if length != 1
    )
    expected = 1
    for stride, length in sizes:
        if stride != expected:
            return tensor.contiguous()
        expected *= length
    return tensor


def write_tensor(descriptor: int, tensor: torch.Tensor, offset: int, *, skip: bool) -> int:
    """Write a dense tensor, unless ``skip`` says that it is there. Returns its checksum."""
    checksum = Checksum()
    if not tensor.numel():
        return checksum.value
    flat = tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8).numpy()
    view = memoryview(flat)
    for first in range(0, len(view), BLOCK_BYTES):
        block = view[first : first + BLOCK_BYTES]
        checksum.add(block)
        if not skip:
            _write(descriptor, block, offset + first)
    return checksum.value


def random_state() -> dict[str, Any]:
    """The state of the generators of Python, torch, its GPU, and of NumPy if that is loaded."""
    numpy = sys.modules.get("numpy")
    return {
        "python": random.getstate(),
        "numpy": numpy.random.get_state() if numpy is not None else None,
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None,
    }


def set_random_state(state: dict[str, Any]) -> None:
    """Take over what :func:`random_state` gave."""
    random.setstate(state["python"])
    if state["numpy"] is not None:
        import numpy

        numpy.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"].clone())
    if state["cuda"] is not None and torch.cuda.is_available():  # for any GPU
        torch.cuda.set_rng_state(state["cuda"].clone())


def _write(descriptor: int, data: Any, offset: int) -> None:
    """Write all of it. Raises OSError, above all when there is no room."""
    view = memoryview(data)
    while view:
        count = os.pwrite(descriptor, view, offset)
        view, offset = view[count:], offset + count
