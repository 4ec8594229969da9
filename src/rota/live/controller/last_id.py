"""The highest id that jobs of a state folder were given, kept beside the event log.

A log that is gone, or replaced by an older copy, leaves files of jobs on nodes. Their ids are not
given again.
"""

import logging
import os
from pathlib import Path

DIGITS = 15  # as many as ids of jobs may have

log = logging.getLogger("rota.controller")


def read_last_id(file: Path) -> int:
    """The id in the file; 0 if there is none."""
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return 0


def write_last_id(file: Path, last_id: int) -> None:
    """Write an id over the one of before: in place, for which even a full disk has room."""
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.pwrite(descriptor, f"{last_id:0{DIGITS}}\n".encode(), 0)
        finally:
            os.close(descriptor)
    except OSError as error:
        log.warning("%s can't be written: %s", file, error.strerror)
