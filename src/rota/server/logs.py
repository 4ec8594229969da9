"""A job's output, piece by piece: bytes of a file that may still grow, as text."""

import codecs
import os
import stat
from pathlib import Path
from typing import NamedTuple

from rota.errors import ServerError

MAX_PIECE_BYTES = 1 << 20
BLOCK = 1 << 16


class Piece(NamedTuple):
    """Text, the offset after it, and whether the file held no more."""

    text: str
    offset: int
    next_offset: int
    at_end: bool


def read_piece(path: Path, offset: int, limit: int, *, ended: bool) -> Piece:
    """At most ``limit`` bytes from ``offset`` on.

    A character that is not whole yet is left for the next piece, unless the job has ``ended``;
    bytes that are no UTF-8 become U+FFFD. A file that is not there yet is empty.
    """
    descriptor = _open(path)
    if descriptor is None:
        return Piece("", offset, offset, True)
    try:
        data = os.pread(descriptor, limit, offset)
        size = os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)
    at_end = offset + len(data) >= size
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(data, final=at_end and ended)
    next_offset = offset + len(data) - len(decoder.getstate()[0])
    return Piece(text, offset, next_offset, at_end)


def tail_offset(path: Path, lines: int) -> int:
    """The offset at which the last ``lines`` lines of the file begin."""
    descriptor = _open(path)
    if descriptor is None:
        return 0
    try:
        end = os.fstat(descriptor).st_size
        if lines <= 0:
            return end
        # A newline at the very end closes the last line and begins none.
        missing = lines + (end > 0 and os.pread(descriptor, 1, end - 1) == b"\n")
        while end > 0:
            start = max(0, end - BLOCK)
            block = os.pread(descriptor, end - start, start)
            at = len(block)
            while (at := block.rfind(b"\n", 0, at)) >= 0:
                missing -= 1
                if missing == 0:
                    return start + at + 1
            end = start
        return 0
    finally:
        os.close(descriptor)


def _open(path: Path) -> int | None:
    """Open a log, and nothing that a job may have put in its place: a link, a pipe, a device."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ServerError(f"log {path} can't be read: {error.strerror}") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ServerError(f"log {path} is no longer a plain file; the job replaced it")
    return descriptor
