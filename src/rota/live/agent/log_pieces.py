"""A job's output, piece by piece: bytes of a file that may still grow, as text.

What was taken out of its middle (:mod:`rota.live.agent.output`) is one line, and so are the parts
of lines before and after it. Lines may have any length, and none is read as a whole: one of more
than LONGEST_LINE bytes counts as several.
"""

import codecs
import os
import stat
from pathlib import Path
from typing import NamedTuple

from rota.errors import AgentError
from rota.live.agent.output import gap_at, left_out, next_gap

BLOCK = 1 << 16
LONGEST_LINE = 1 << 14  # as in logs of containers


class Piece(NamedTuple):
    """Text, the offset after it, whether the file held no more, and how long it is.

    ``lines`` are the offsets at which the lines of the text begin, or go on.
    """

    text: str
    offset: int
    next_offset: int
    at_end: bool
    size: int
    lines: list[int]


def read_piece(path: Path, offset: int, limit: int, *, ended: bool) -> Piece:
    """At most ``limit`` bytes from ``offset`` on.

    A character that is not whole yet is left for the next piece, unless the job has ``ended``;
    bytes that are no UTF-8 become U+FFFD. A file that is not there yet is empty. Lines are whole,
    unless they are long or the last one has no end yet. A gap is a piece of its own, a line that
    says how much is left out, parts of lines around it included.
    """
    descriptor = _open(path)
    if descriptor is None:
        return Piece("", offset, offset, True, 0, [])
    try:
        size = os.fstat(descriptor).st_size
        offset = min(offset, size)  # the file was cut to less
        data, gap = b"", Gap(offset - 1, offset)
        while gap.begin < offset + len(data):  # else the file was cut during the reading
            gap = _next_gap(descriptor, offset)
            data = os.pread(descriptor, min(limit, gap.begin - offset), offset)
            meets_gap = gap.end > gap.begin == offset + len(data)
            whole = data.rfind(b"\n") + 1
            goes_on = meets_gap or offset + len(data) < size
            if goes_on and (whole or meets_gap) and len(data) - whole < LONGEST_LINE:
                data = data[:whole]
            if meets_gap and not data:
                end = _after_line(descriptor, gap.end)
                text = left_out(end - offset)
                lines = [offset] * text.count("\n")
                return Piece(text, offset, end, end >= size, size, lines)
            gap = _next_gap(descriptor, offset)
    finally:
        os.close(descriptor)
    end = offset + len(data)
    at_end = end >= size
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(data, final=end == gap.begin and (ended or not at_end))
    next_offset = offset + len(data) - len(decoder.getstate()[0])
    lines = _lines(data[: next_offset - offset], offset)
    return Piece(text, offset, next_offset, at_end, size, lines)


def read_bytes(path: Path, offset: int, limit: int) -> tuple[int, bytes]:
    """At most ``limit`` bytes from ``offset`` on, or from the end of a gap there, and from where.

    None at the end of the file, and if it is not there. Raises AgentError, OSError.
    """
    descriptor = _open(path)
    if descriptor is None:
        return offset, b""
    try:
        begin = gap_at(descriptor, offset)
        return begin, os.pread(descriptor, min(limit, next_gap(descriptor, begin) - begin), begin)
    finally:
        os.close(descriptor)


def _lines(data: bytes, offset: int) -> list[int]:
    """Offsets of the beginnings of lines in the data, the first of which may have begun before."""
    starts, at = [], 0
    while at < len(data):
        starts.append(offset + at)
        newline = data.find(b"\n", at)
        at = newline + 1 if newline >= 0 else len(data)
    return starts


def line_offset(path: Path, offset: int | None) -> int:
    """The offset of the first line that begins at or after an offset; None: of what is to come.

    Where no line ends for long, as with bars of progress, it is the offset itself.
    """
    descriptor = _open(path)
    if descriptor is None:
        return offset or 0
    try:
        if offset is None:
            return os.fstat(descriptor).st_size
        before = max(0, offset - 1)
        end = os.pread(descriptor, BLOCK, before).find(b"\n")
        return offset if offset == 0 or end < 0 else before + end + 1
    finally:
        os.close(descriptor)


def tail_offset(path: Path, lines: int) -> int:
    """The offset at which the last ``lines`` lines of the file begin, or the gap before these.

    It reads no more than these lines, a longest line counted as several.
    """
    descriptor = _open(path)
    if descriptor is None:
        return 0
    try:
        end = os.fstat(descriptor).st_size
        if lines <= 0:
            return end
        # A newline at the very end closes the last line and begins none.
        line_end = end - (end > 0 and os.pread(descriptor, 1, end - 1) == b"\n")
        end = line_end
        while end > 0:
            start = max(0, end - BLOCK)
            gap = _last_gap(descriptor, start, end)
            block = os.pread(descriptor, end - gap.end, gap.end)
            at = len(block)
            while (at := block.rfind(b"\n", 0, at)) >= 0:
                begin = gap.end + at + 1
                if (parts := _parts(line_end - begin)) >= lines:
                    return max(begin, _character(descriptor, line_end - lines * LONGEST_LINE))
                lines -= parts
                line_end = begin - 1
            if (limit := line_end - lines * LONGEST_LINE) >= gap.end:
                return _character(descriptor, limit)
            if gap.end > gap.begin:
                first = next_gap(descriptor, 0)
                return first if gap_at(descriptor, first) == gap.end else gap.begin
            end = start
        return 0
    finally:
        os.close(descriptor)


class Gap(NamedTuple):
    """A part of a file of which nothing is there."""

    begin: int
    end: int


def _next_gap(descriptor: int, offset: int) -> Gap:
    """The gap at or after an offset of a file; an empty one at the file's end if there is none."""
    begin = next_gap(descriptor, offset)
    return Gap(begin, gap_at(descriptor, begin))


def _after_line(descriptor: int, offset: int) -> int:
    """The offset after the line that goes on at an offset; the offset itself for a long line."""
    return offset + os.pread(descriptor, LONGEST_LINE, offset).find(b"\n") + 1


def _parts(num_bytes: int) -> int:
    """The number of lines that a line of so many bytes counts as."""
    return max(1, -(-num_bytes // LONGEST_LINE))


def _character(descriptor: int, offset: int) -> int:
    """The offset at which the first character begins at or after an offset, in UTF-8."""
    some = os.pread(descriptor, 3, max(0, offset))
    return offset + next((at for at, byte in enumerate(some) if byte & 0xC0 != 0x80), 0)


def _last_gap(descriptor: int, start: int, end: int) -> Gap:
    """The last gap between two offsets of a file; an empty one at ``start`` if there is none.

    If it began before them, that part of it alone.
    """
    last, offset = Gap(start, start), start
    while offset < end:
        data = min(end, gap_at(descriptor, offset))
        if data > offset:
            last = Gap(offset, data)
        offset = next_gap(descriptor, data)
    return last


def _open(path: Path) -> int | None:
    """Open a log, and nothing that a job may have put in its place: a link, a pipe, a device."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise AgentError(f"log {path} can't be read: {error.strerror}") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise AgentError(f"log {path} is no longer a plain file; the job replaced it")
    return descriptor
