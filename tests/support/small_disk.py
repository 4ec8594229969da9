"""A disk that is soon full, for tests."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest


@contextmanager
def small_disk(folder: Path, num_bytes: int) -> Iterator[Path]:
    """A file system of so many bytes at a folder, which is made; it is gone after the context.

    Skips the test where this process must not mount one.
    """
    folder.mkdir()
    options = f"size={num_bytes},mode=700,uid={os.getuid()}"
    mount = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    try:
        subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("only root may mount a small disk")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path, leave_bytes: int = 0) -> Path:
    """Fill the disk of a folder, but for some bytes; the file that does so.

    What others free from then on stays free: a controller gives up its reserve on a full disk.
    """
    file = folder / "filler"
    with open(file, "ab") as filler:
        while (free := _free(folder) - leave_bytes) > 0:
            with suppress(OSError):  # others take room meanwhile
                os.posix_fallocate(filler.fileno(), file.stat().st_size, free)
                break
    return file


def _free(folder: Path) -> int:
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize
