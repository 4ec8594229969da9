"""Sets aside the folders that another event log has left under a job's id.

A log that starts anew, or is replaced by an older copy of itself, may give a job or an attempt a
number that has been used here. Each folder is marked with what it was made for.
"""

import os
import shutil
from contextlib import suppress
from pathlib import Path

from rota.folder import Folder, set_aside
from rota.live.wire import Message

ORIGIN = "origin"  # in a job's folder, and at the end of its name beside its checkpoints
LAUNCH = "launch"  # in an attempt's folder


def claim(folder: Folder, node: str, message: Message) -> list[str]:
    """Take the folders of the attempt that a command is about. Describes what was set aside.

    Folders without a mark are older than marks, and belong to the job; the attempt is a new one.
    Raises OSError.
    """
    job_id, number = message["job_id"], message["attempt"]
    origin, launch = message.get("origin"), message.get("launch")
    if origin is None or launch is None:
        return []
    attempt, aside = folder.attempt(node, job_id, number), folder.node(node) / "set-aside"
    job, checkpoints = attempt.parent, folder.checkpoints(job_id)
    beside = checkpoints.with_name(f"{job_id}.{ORIGIN}")
    said = []
    if mark_of(job / ORIGIN) not in ("", origin):
        said.append(f"{job} is of another job; it is {set_aside(job, aside, job_id)} now")
    if os.path.lexists(checkpoints) and mark_of(beside) not in ("", origin):
        place = set_aside(checkpoints, checkpoints.parent / "set-aside", job_id)
        said.append(f"{checkpoints} is of another job; it is {place} now")
    if attempt.exists() and mark_of(attempt / LAUNCH) != launch and any(attempt.iterdir()):
        place = set_aside(attempt, aside, f"{job_id}-{number}")
        said.append(f"{attempt} is of another attempt; it is {place} now")
    attempt.mkdir(parents=True, exist_ok=True)
    checkpoints.parent.mkdir(parents=True, exist_ok=True)
    for file, mark in ((job / ORIGIN, origin), (beside, origin), (attempt / LAUNCH, launch)):
        write_mark(file, mark)
    return said


def release(attempt: Path) -> None:
    """Remove the folder of an attempt, and that of its job if nothing else is in it."""
    shutil.rmtree(attempt, ignore_errors=True)
    job = attempt.parent
    with suppress(OSError):
        if os.listdir(job) == [ORIGIN]:
            (job / ORIGIN).unlink()
        job.rmdir()


def write_mark(file: Path, mark: str) -> None:
    """Write a mark, completely or not at all, unless it exists."""
    if mark_of(file) != mark:
        draft = file.with_name(f"{file.name}.new")
        draft.write_text(mark)
        os.replace(draft, file)


def mark_of(file: Path) -> str:
    """The mark; empty if there is none."""
    try:
        return file.read_text(errors="replace")
    except (FileNotFoundError, NotADirectoryError):
        return ""
