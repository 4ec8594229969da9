"""The file that the state of a suspended training lies in, and how to tell that it is whole.

    header   4096 bytes: magic, version, sizes, checksum of the table and the skeleton, and its own
    tensors  each at a multiple of 64 bytes
    table    offset, bytes and checksum of each tensor
    skeleton who wrote it, in a line, and a pickle of all else, which only the job itself reads

The header is emptied before anything else is written, and filled in when all else is there: a file
that a killed process was writing has none. The checksum of table and skeleton is also one of the
name that the file was written under, up to ``.arena``: a copy under another job's name is none.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from rota.errors import ArenaError

MAGIC, VERSION = b"ROTARENA", 2
HEADER = struct.Struct("=8sIIQQQI")  # magic, version, tensors, table at, skeleton, total, checksum
OWN_CHECKSUM = struct.Struct("=I")
PLACE = struct.Struct("=QQI")  # of one tensor: offset, bytes, checksum
FIRST_TENSOR_AT = 4096
ALIGNMENT = 64
PICKLED = b"\x80"  # begins any pickle
BLOCK_BYTES = 1 << 20  # is summed up, and written, at a time: it stays in the processor's caches


class ArenaHeader(NamedTuple):
    """Lengths and checksums of the other parts, from the header."""

    num_tensors: int
    table_at: int
    skeleton_bytes: int
    total_bytes: int
    checksum: int  # of the table and the skeleton

    def pack(self) -> bytes:
        """The header as it stands in the file."""
        fields = HEADER.pack(MAGIC, VERSION, *self)
        return fields + OWN_CHECKSUM.pack(zlib.crc32(fields))


class Checksum:
    """The checksum of bytes that are added block by block, at the speed of memory.

    It has the sum of the 8-byte words of each block, and the CRC-32 of these sums. Every piece but
    the last is a multiple of BLOCK_BYTES long.
    """

    def __init__(self) -> None:
        self.value = 0

    def add(self, piece: Any) -> None:
        """Add a piece: anything with the buffer interface."""
        import numpy

        view = memoryview(piece).cast("B")
        for first in range(0, len(view), BLOCK_BYTES):
            block = view[first : first + BLOCK_BYTES]
            whole = len(block) // 8 * 8
            words = numpy.frombuffer(block[:whole], numpy.uint64)
            total = words.sum(dtype=numpy.uint64).tobytes() + bytes(block[whole:])
            self.value = zlib.crc32(total, self.value)


def checksum_of(path: str | Path, table: bytes | bytearray, skeleton: bytes | bytearray) -> int:
    """The checksum of the table and the skeleton of the arena of this name."""
    owner = Path(path).name.partition(".arena")[0]
    return zlib.crc32(skeleton, zlib.crc32(table, zlib.crc32(os.fsencode(owner))))


def read_header(path: str | Path) -> ArenaHeader:
    """The header of an arena that was written to its end. Raises ArenaError."""
    with _open(path) as file:
        return _header(path, file)


def read_table(path: str | Path) -> tuple[list[tuple[int, int, int]], bytes]:
    """Place and checksum of each tensor, and the skeleton. Raises ArenaError."""
    with _open(path) as file:
        return _table(path, file)


def verify(path: str | Path) -> None:
    """Read all of an arena once. Raises ArenaError if anything in it has changed."""
    buffer = bytearray(BLOCK_BYTES)
    view = memoryview(buffer)
    with _open(path) as file:
        places, _ = _table(path, file)
        for number, (offset, size, expected) in enumerate(places):
            checksum = Checksum()
            file.seek(offset)
            while size:
                block = view[: min(size, BLOCK_BYTES)]
                if not _fill(file, block):
                    raise ArenaError(f"arena {path}: it ends within tensor {number}")
                checksum.add(block)
                size -= len(block)
            if checksum.value != expected:
                raise ArenaError(f"arena {path}: tensor {number} is damaged")


def writer_of(skeleton: bytes) -> tuple[str, bytes]:
    """Who wrote a skeleton, as text, and its pickle; "" if an older Rota did, which did not say."""
    if skeleton.startswith(PICKLED):
        return "", skeleton
    writer, _, pickled = skeleton.partition(b"\n")
    return writer.decode(errors="replace"), pickled


@contextmanager
def _open(path: str | Path) -> Iterator[BinaryIO]:
    """A file to read, but no link, and nothing that a reader might have to wait for.

    Raises ArenaError for each failure to read it.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb", buffering=0) as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise OSError(errno.EINVAL, "it is no file")
            yield file
    except OSError as error:
        raise ArenaError(f"arena {path}: {error.strerror}") from None


def _header(path: str | Path, file: BinaryIO) -> ArenaHeader:
    data = file.read(HEADER.size + OWN_CHECKSUM.size)
    size = os.fstat(file.fileno()).st_size
    if len(data) < HEADER.size + OWN_CHECKSUM.size or data[: len(MAGIC)] != MAGIC:
        raise ArenaError(f"arena {path}: it was not written to its end")
    _, version, *fields = HEADER.unpack_from(data)
    (own,) = OWN_CHECKSUM.unpack_from(data, HEADER.size)
    if own != zlib.crc32(data[: HEADER.size]):
        raise ArenaError(f"arena {path}: its header is damaged")
    if version != VERSION:
        raise ArenaError(
            f"arena {path}: it has version {version}, and this Rota reads {VERSION}; "
            "use the Rota that wrote it"
        )
    header = ArenaHeader(*fields)
    if size < header.total_bytes:
        raise ArenaError(f"arena {path}: {size} bytes are left of {header.total_bytes}")
    return header


def _table(path: str | Path, file: BinaryIO) -> tuple[list[tuple[int, int, int]], bytes]:
    header = _header(path, file)
    table_bytes = header.num_tensors * PLACE.size
    if header.table_at + table_bytes + header.skeleton_bytes > header.total_bytes:
        raise ArenaError(f"arena {path}: its header is damaged")
    table, skeleton = bytearray(table_bytes), bytearray(header.skeleton_bytes)
    file.seek(header.table_at)
    whole = _fill(file, memoryview(table)) and _fill(file, memoryview(skeleton))
    if not whole or checksum_of(path, table, skeleton) != header.checksum:
        raise ArenaError(f"arena {path}: its table is damaged, or another job's")
    return list(PLACE.iter_unpack(table)), bytes(skeleton)


def _fill(file: Any, block: memoryview) -> bool:
    """Read until the block is full; False at the end of the file."""
    while block:
        count = file.readinto(block)
        if not count:
            return False
        block = block[count:]
    return True
