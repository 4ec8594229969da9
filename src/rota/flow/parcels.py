"""Tensors passed between processes of a node, as files in memory (a folder on a tmpfs).

A parcel is one tensor in one file. Its sender writes it under a draft's name and renames it, so a
reader sees all of it or nothing. A parcel belongs to the folder, not to a process: it outlives its
sender, may have several readers, and takes memory until somebody drops it (by convention the
sender, told that all have read) and the last process that mapped it lets go. Drafts of a process
that was killed begin with a dot and go with their folder.

Why files: to a process that reads all of it and answers, a parcel in a spare file takes 0.09 ms (4
bytes), 0.10 (64 KiB), 1.2 (4 MiB) at the median on two noisy cores; a pipe 0.02, 0.04, 11; a tensor
that torch shares 0.3, 0.4, 6. Below some 64 KiB, the message that tells of it had better hold it.

    header   "=4sB27s": magic, dimensions, name of the type; then the lengths, 8 bytes each
    data     at the next multiple of 64 bytes, contiguous
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
import struct
from math import prod
from typing import NamedTuple

import torch

from rota.errors import InputError
from rota.flow.layout import Region

MAGIC = b"RFP1"
HEADER = struct.Struct("=4sB27s")  # magic, dimensions, name of the type
MOST_DIMS = 64  # of a torch tensor
ALIGNMENT = 64
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")

Folder = str | os.PathLike[str]

_drafts = itertools.count()


class _Form(NamedTuple):
    """What a header says."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    data_at: int


class Spares:
    """Files of dropped parcels in one folder, for one thread to write other parcels into.

    Fresh memory costs a sender several times what copying does: a pipeline, which sends tensors of
    the same few sizes again and again, seldom needs any. At most ``most_bytes`` are kept.
    """

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes, self.bytes = most_bytes, 0
        self._by_size: dict[int, list[str]] = {}

    def keep(self, path: str, size: int) -> bool:
        """Take the file over, unless there is no room for it."""
        if self.bytes + size > self.most_bytes:
            return False
        self._by_size.setdefault(size, []).append(path)
        self.bytes += size
        return True

    def take(self, size: int) -> str | None:
        """A file of this size, which is no spare any more."""
        paths = self._by_size.get(size)
        if not paths:
            return None
        self.bytes -= size
        return paths.pop()

    def clear(self) -> None:
        """Remove all files."""
        for paths in self._by_size.values():
            for path in paths:
                with contextlib.suppress(OSError):
                    os.unlink(path)
        self._by_size, self.bytes = {}, 0


def send(folder: Folder, name: str, tensor: torch.Tensor, spares: Spares | None = None) -> int:
    """Write the tensor as parcel ``name``. Returns the bytes that it takes.

    Any dense tensor will do: one on a GPU is copied to host memory, and this waits for it.
    Gradients are left behind. A parcel of this name is replaced; who has mapped that one keeps it.
    A spare of the same size is written again; where memory is short, the others are removed.
    Raises OSError, ENOSPC above all, with nothing left behind; InputError for a name or a tensor
    that won't do.
    """
    path = _path(folder, name)
    header = _header_of(tensor)
    data = _bytes_of(tensor.detach().cpu().resolve_conj().resolve_neg().contiguous())
    size = len(header) + len(data)
    spare = spares.take(size) if spares is not None else None
    draft = spare or _draft(folder, name)
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(draft, flags, 0o600)
    try:
        try:
            if spare is None:
                _allocate(descriptor, size, spares)
            written = os.writev(descriptor, (header, data))
            while written < size:  # a call writes 2 GiB at most, and the header with the first ones
                written += os.write(descriptor, data[written - len(header) :])
        finally:
            os.close(descriptor)
        os.rename(draft, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(draft)
        raise
    return size


def arrived(folder: Folder, name: str) -> bool:
    """True if the parcel is there, all of it. Raises InputError for a name that won't do."""
    return os.path.exists(_path(folder, name))


def receive(folder: Folder, name: str, *, copy: bool, region: Region | None = None) -> torch.Tensor:
    """The tensor of a parcel, or a region of it, in host memory. The parcel stays.

    With ``copy`` the tensor is the caller's own. Without it the tensor lives in the file, mapped
    copy-on-write: what the caller writes to it costs memory of the caller's, and no other reader
    sees it. The mapping ends with the last tensor that lives in it, and stays valid when the parcel
    is dropped or replaced. Of a region, only what is needed is read.

    Raises FileNotFoundError if no parcel of this name is there, OSError (EBADMSG) if the file is no
    whole parcel, InputError for a name or a region that won't do.
    """
    path = _path(folder, name)
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        form = _read_header(descriptor, path)
        if region is not None:
            form, region = _narrowed(form, region, name)
        dtype, shape, data_at = form
        count = prod(shape)
        if not count or (copy and region is None):
            return _read(descriptor, form, path)
        # Unlike a mapping of Python's, one of torch's keeps no descriptor.
        end = data_at + count * dtype.itemsize
        mapped = torch.from_file(
            f"/proc/self/fd/{descriptor}", shared=False, size=end, dtype=torch.uint8, device="cpu"
        )
    finally:
        os.close(descriptor)
    # A storage of its own: programs save tensors with all of their storage.
    storage = mapped.untyped_storage()[data_at:end]
    tensor = torch.empty(0, dtype=dtype, device="cpu").set_(storage, 0, shape)
    if region is not None:
        tensor = tensor.narrow(region.dim, region.start, region.stop - region.start)
        if copy:
            tensor = tensor.clone(memory_format=torch.contiguous_format)
    return tensor


def drop(folder: Folder, name: str, spares: Spares | None = None) -> None:
    """Remove the parcel, if it is there. Its memory is free once nobody has it mapped.

    With ``spares`` the file is kept there, and may be written again at once. Give them only if no
    process reads the parcel any more or has it mapped: its tensor would change.
    """
    path = _path(folder, name)
    with contextlib.suppress(FileNotFoundError):
        if spares is not None:
            draft = _draft(folder, name)
            os.rename(path, draft)
            path = draft
            if spares.keep(draft, os.stat(draft).st_size):
                return
        os.unlink(path)


def pack(tensor: torch.Tensor) -> bytes:
    """The tensor as a parcel holds it, for a message. Raises InputError for one that won't do."""
    header = _header_of(tensor)
    dense = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    return header + bytes(_bytes_of(dense))


def unpack(packed: bytes) -> torch.Tensor:
    """The tensor of :func:`pack`. Raises OSError (EBADMSG) for anything else."""
    form = _form(packed, len(packed), "a message")
    if not prod(form.shape):
        return torch.empty(form.shape, dtype=form.dtype, device="cpu")
    data = bytearray(packed[form.data_at :])
    return torch.frombuffer(data, dtype=form.dtype).view(form.shape)


def _path(folder: Folder, name: str) -> str:
    if not NAME.fullmatch(name):
        raise InputError(
            f"parcel: its name is {name!r}; give 1 to 100 of A-Z a-z 0-9 _ . -, the first one "
            "neither . nor -"
        )
    return os.path.join(folder, name)


def _draft(folder: Folder, name: str) -> str:
    """A path in the folder that no parcel has, and no other draft."""
    return os.path.join(folder, f".{name}.{os.getpid()}.{next(_drafts)}")


def _allocate(descriptor: int, size: int, spares: Spares | None) -> None:
    """Take all of the file's room, or raise OSError: neither writer nor reader lacks it later."""
    os.ftruncate(descriptor, 0)  # a draft of a killed process may be in the way
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError:
        if spares is None or not spares.bytes:
            raise
        spares.clear()
        os.posix_fallocate(descriptor, 0, size)


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    """The bytes of a contiguous tensor in host memory, which stay those of the tensor."""
    return memoryview(tensor.view(-1).view(torch.uint8).numpy())


def _header_of(tensor: torch.Tensor) -> bytes:
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise InputError(
            f"tensor: its layout is {tensor.layout}, its type {tensor.dtype}; give a dense one, as "
            "to_dense() or dequantize() make it"
        )
    dtype = str(tensor.dtype).removeprefix("torch.").encode()
    lengths = struct.pack(f"={tensor.ndim}q", *tensor.shape)
    header = HEADER.pack(MAGIC, tensor.ndim, dtype) + lengths
    return header.ljust(-(-len(header) // ALIGNMENT) * ALIGNMENT, b"\0")


def _read_header(descriptor: int, path: str) -> _Form:
    head = os.pread(descriptor, HEADER.size + 8 * MOST_DIMS, 0)
    return _form(head, os.fstat(descriptor).st_size, path)


def _form(head: bytes, length: int, path: str) -> _Form:
    """What a header says of ``length`` bytes. Raises OSError (EBADMSG)."""
    try:
        magic, ndim, name = HEADER.unpack_from(head)
        shape = struct.unpack_from(f"={ndim}q", head, HEADER.size)
        dtype = getattr(torch, name.rstrip(b"\0").decode())
        data_at = -(-(HEADER.size + 8 * ndim) // ALIGNMENT) * ALIGNMENT
        size = data_at + prod(shape) * dtype.itemsize
    except (struct.error, AttributeError, ValueError):
        magic, size = b"", 0
    # A mapping beyond the end of a file would end this process.
    if magic != MAGIC or length != size:
        raise OSError(errno.EBADMSG, "this file is no whole parcel", path)
    return _Form(dtype, shape, data_at)


def _narrowed(form: _Form, region: Region, name: str) -> tuple[_Form, Region | None]:
    """The form of the region, and None, where its bytes lie side by side; else the same again."""
    dim, start, stop = region
    shape = form.shape
    if not 0 <= dim < len(shape) or not 0 <= start <= stop <= shape[dim]:
        raise InputError(f"region: {region} of parcel {name}, whose shape is {shape}")
    part = (*shape[:dim], stop - start, *shape[dim + 1 :])
    if prod(part) and prod(shape[:dim]) > 1:
        return form, region
    offset = start * prod(shape[dim + 1 :]) * form.dtype.itemsize
    return _Form(form.dtype, part, form.data_at + offset), None


def _read(descriptor: int, form: _Form, path: str) -> torch.Tensor:
    tensor = torch.empty(form.shape, dtype=form.dtype, device="cpu")
    view = _bytes_of(tensor)
    offset = form.data_at
    while view:
        count = os.preadv(descriptor, [view], offset)
        if not count:
            raise OSError(errno.EBADMSG, "this file was cut off", path)
        view, offset = view[count:], offset + count
    return tensor
