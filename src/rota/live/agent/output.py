"""Files of processes' output, of which the middle is cut out if they grow too long.

Processes write at the end of such a file, and others follow it by offsets. So what is too much is
taken out of the middle, where it leaves a gap that takes no room: the beginning and the end stay
where they are. Where the file system has no gaps, only the beginning is left, and what follows.
"""

import ctypes
import errno
import os
import stat
from pathlib import Path

ALIGNMENT = 1 << 20  # of gaps: no file system has larger blocks
LEAST_BYTES = 2 * ALIGNMENT  # are kept of a file at least

KEEP_SIZE, PUNCH_HOLE = 1, 2
LIBC = ctypes.CDLL(None, use_errno=True)


def cut(path: Path, keep_bytes: int) -> None:
    """Cut the middle out of a file so that ``keep_bytes``, or LEAST_BYTES, are left.

    A quarter of what is kept is the beginning. If a job has put something else in the file's place,
    that is left alone. Raises OSError.
    """
    descriptor = open_plain(path)
    if descriptor is None:
        return
    try:
        keep_bytes = max(keep_bytes, LEAST_BYTES)
        begin = max(ALIGNMENT, keep_bytes // 4 // ALIGNMENT * ALIGNMENT)
        size = os.fstat(descriptor).st_size
        end = (size - keep_bytes + begin) // ALIGNMENT * ALIGNMENT
        if end <= begin:
            return
        try:
            _allocate(descriptor, PUNCH_HOLE | KEEP_SIZE, begin, end - begin)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.ENOSYS):
                raise
            os.ftruncate(descriptor, begin)
            os.write(descriptor, left_out(size - begin).encode())
    finally:
        os.close(descriptor)


def keep_last_lines(path: Path, num_bytes: int) -> None:
    """Keep only the whole lines in the last bytes of a file with no other writer. OSError."""
    draft = path.with_name(f"{path.name}.new")
    with open(path, "rb") as file:
        file.seek(-num_bytes, os.SEEK_END)
        file.readline()  # the part begins within a line
        draft.write_bytes(file.read())
    os.replace(draft, path)


def take_ahead(path: Path, num_bytes: int) -> int:
    """Reserve disk space behind the end of a file, for coming output. Returns the file's length.

    0 if a job has put something else in its place. Raises OSError.
    """
    descriptor = open_plain(path)
    if descriptor is None:
        return 0
    try:
        size = os.fstat(descriptor).st_size
        _allocate(descriptor, KEEP_SIZE, size, num_bytes)
        return size
    finally:
        os.close(descriptor)


def give_back(path: Path) -> None:
    """Release the space reserved for a file that nobody writes to any more. Raises OSError."""
    descriptor = open_plain(path)
    if descriptor is not None:
        try:
            os.ftruncate(descriptor, os.fstat(descriptor).st_size)
        finally:
            os.close(descriptor)


def gap_at(descriptor: int, offset: int) -> int:
    """End of the gap at this offset of a file; the offset itself if no gap is there."""
    size = os.fstat(descriptor).st_size  # what is appended from now on is no gap
    try:
        return os.lseek(descriptor, offset, os.SEEK_DATA)
    except OSError as error:
        if error.errno != errno.ENXIO:  # the file system knows of no gaps
            return offset
        return max(offset, size)


def next_gap(descriptor: int, offset: int) -> int:
    """Start of the next gap at or after this offset; the end of the file if there is none."""
    try:
        return os.lseek(descriptor, offset, os.SEEK_HOLE)
    except OSError:
        return max(offset, os.fstat(descriptor).st_size)


def left_out_of(path: Path) -> tuple[int, int] | None:
    """Start and end of a file's first gap; None if it has none. Raises OSError."""
    with open(path, "rb") as file:
        begin = next_gap(file.fileno(), 0)
        end = gap_at(file.fileno(), begin)
    return (begin, end) if end > begin else None


def left_out(num_bytes: int) -> str:
    """The line that stands for a gap."""
    return (
        f"\nrota: {num_bytes} bytes are left out here; what is kept of a job's output is limited "
        "(rota up --log-limit)\n"
    )


def open_plain(path: Path) -> int | None:
    """A plain file without other names, open for changes; else None. Raises OSError."""
    flags = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ELOOP, errno.EISDIR, errno.ENXIO):
            return None
        raise
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode) and status.st_nlink == 1:
        return descriptor
    os.close(descriptor)
    return None


def _allocate(descriptor: int, mode: int, offset: int, num_bytes: int) -> None:
    places = ctypes.c_int64(offset), ctypes.c_int64(num_bytes)
    while LIBC.fallocate(descriptor, mode, *places):
        number = ctypes.get_errno()
        if number != errno.EINTR:
            raise OSError(number, os.strerror(number))
