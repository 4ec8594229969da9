"""Copies another job's checkpoints for a job that starts from them."""

import ctypes
import errno
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from rota.errors import AgentError, NeverStartsError
from rota.folder import Folder
from rota.model.obstacle import Obstacle

LIBC = ctypes.CDLL(None, use_errno=True)
PIECE_BYTES = 4 << 20
BLOCK_BYTES = 512  # the unit of st_blocks


def inherit(
    folder: Folder,
    former: str,
    job_id: str,
    goes_on: Callable[[], bool] = lambda: True,
    *,
    is_shared: bool = True,
) -> None:
    """Copy a former job's checkpoints for a job, completely or not at all; the former keeps them.

    Nothing happens if the job has a checkpoint folder already: it has been started before. The
    copy is given up once the job no longer ``goes_on``. Unless the folder ``is_shared``, another
    node may have what this one lacks. Raises AgentError, and NeverStartsError for what can never be
    copied.
    """
    source, target = folder.checkpoints(former), folder.checkpoints(job_id)
    if os.path.lexists(target):
        return
    draft = target.with_name(f"{job_id}.new")
    about = f"resume_from: the checkpoints of job {former} in {source}"

    def copy(one: str, other: str) -> str:
        for _ in _copy(one, other):
            if not goes_on():
                raise AgentError(f"{about} are copied no further: the job is to end")
        return other

    if is_shared and not os.path.lexists(source):
        raise NeverStartsError(
            f"{about} are gone; submit this job again without resume_from, or put the folder back "
            "first",
            Obstacle.RESUME_FROM,
        )
    try:
        if draft.exists():  # left by an agent that was killed
            shutil.rmtree(draft)
        _check_room(about, _size(about, source), draft.parent)
        shutil.copytree(source, draft, symlinks=True, copy_function=copy)
        _write_down(draft)
        draft.rename(target)
    except (OSError, shutil.Error) as error:
        shutil.rmtree(draft, ignore_errors=True)
        if error.errno in (errno.ENAMETOOLONG, errno.ELOOP, errno.EILSEQ):
            raise NeverStartsError(
                f"{about} can't be copied: {_what(error)}; shorten it, and submit this job again",
                Obstacle.RESUME_FROM,
            ) from None
        raise AgentError(
            f"{about} can't be copied: {_what(error)}; mend that, or cancel this job and submit it "
            "without resume_from"
        ) from None
    except AgentError:
        shutil.rmtree(draft, ignore_errors=True)
        raise


def _size(about: str, source: Path) -> int:
    """The bytes that a folder takes on the disk.

    Raises OSError, and NeverStartsError for a pipe, socket or device.
    """

    def refuse(error: OSError) -> None:
        raise error

    num_bytes = 0
    for at, _, names in os.walk(source, onerror=refuse):
        for name in names:
            status = os.lstat(path := os.path.join(at, name))
            if not (stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode)):
                raise NeverStartsError(
                    f"{about} can't be copied: {path} is neither a file nor a link nor a folder; "
                    "remove it, and submit this job again",
                    Obstacle.RESUME_FROM,
                )
            num_bytes += status.st_blocks * BLOCK_BYTES
    return num_bytes


def _check_room(about: str, num_bytes: int, place: Path) -> None:
    """Raise AgentError if a disk has no room for so many bytes."""
    status = os.statvfs(place)
    if num_bytes > (room := status.f_bavail * status.f_frsize):
        raise AgentError(
            f"{about} take {num_bytes:,} bytes, and the disk of {place} has room for {room:,}: "
            "make room there, or cancel this job and submit it without resume_from"
        )


def _copy(source: str, target: str) -> Iterator[None]:
    """Copy a file piece by piece, holes left out."""
    with open(source, "rb", 0) as file, open(target, "wb", 0) as copied:
        size, at = os.fstat(file.fileno()).st_size, 0
        while at < size:
            try:
                at = os.lseek(file.fileno(), at, os.SEEK_DATA)
            except OSError as error:
                if error.errno != errno.ENXIO:
                    raise
                break  # nothing but a hole is left
            end = os.lseek(file.fileno(), at, os.SEEK_HOLE)
            while at < end:
                piece = os.pread(file.fileno(), min(PIECE_BYTES, end - at), at)
                if not piece:  # it has become shorter meanwhile
                    end = size = at
                written = 0
                while written < len(piece):
                    written += os.pwrite(copied.fileno(), piece[written:], at + written)
                at += len(piece)
                yield
        copied.truncate(size)
    shutil.copystat(source, target)
    yield


def _write_down(folder: Path) -> None:
    """Have all that a disk was told written down, so that it survives a power cut. Raises OSError.

    Once for all files: thousands of small ones would wait for the disk one after another.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if LIBC.syncfs(descriptor):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    finally:
        os.close(descriptor)


def _what(error: OSError) -> str:
    """Describes the first thing that went wrong."""
    if isinstance(error, shutil.Error) and error.args and isinstance(error.args[0], list):
        return str(error.args[0][0][-1])[:200]
    return error.strerror or str(error)[:200]
