"""Removes files that jobs which have ended have left on a node: logs, reports, checkpoints.

A folder is first moved aside, all or nothing, and then removed: an agent removes what one before it
that was killed has moved aside.
"""

import contextlib
import logging
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from rota.errors import AgentError
from rota.folder import Folder, set_aside
from rota.live.agent.claim import ORIGIN, mark_of
from rota.live.wire.questions import Clean

log = logging.getLogger(__name__)

ASIDE = "cleaned"  # the folder, in a node's and beside checkpoints, of what is to be removed
UNDER_WAY = ("attempt.json", "arrival.json")  # of an attempt that the agent still has


def clean(folder: Folder, node: str, asked: Clean) -> int | None:
    """Move aside what a job has left. Returns how many bytes of the disk that takes.

    None if there is nothing of a job of another node. With ``dry_run`` all stays in place. Raises
    AgentError if the job has not left the node yet, OSError.
    """
    job = folder.node(asked.node) / "jobs" / asked.job_id
    found = [*_left_by(folder, job, asked)]
    if asked.node != node and not found:
        return None
    if asked.node == node and any(file.name in UNDER_WAY for file in job.glob("*/*.json")):
        raise AgentError(
            f"node {node} has not heard of the end of job {asked.job_id} yet; try again in a moment"
        )
    if not asked.dry_run:
        for path in found:
            _open_up(path)
    num_bytes = sum(_size_of(path) for path in found)
    if not asked.dry_run:
        copies = folder.copies(asked.node, asked.job_id)
        asides = {job: job.parents[1], copies: folder.node(node)}
        for path in found:
            set_aside(path, asides.get(path, path.parent) / ASIDE, path.name)
    return num_bytes


def remove_cleaned(folder: Folder, node: str) -> None:
    """Remove what was moved aside, here and by agents before."""
    for aside in (folder.node(node) / ASIDE, folder.path / "checkpoints" / ASIDE):
        for path in aside.glob("*"):
            try:
                if path.is_symlink() or not path.is_dir():
                    path.unlink()
                else:
                    _open_up(path)
                    shutil.rmtree(path)
            except FileNotFoundError:
                pass  # another agent of this machine was faster
            except OSError as error:
                log.warning("%s is left, and takes up room: %s", path, error)


def _open_up(path: Path) -> None:
    """Let the owner of a folder enter and change it, and the folders in it; links lead nowhere."""
    folders = [] if path.is_symlink() or not path.is_dir() else [path]
    while folders:
        folder = folders.pop()
        with contextlib.suppress(PermissionError, FileNotFoundError):  # another user's; gone
            if folder.stat().st_mode & stat.S_IRWXU != stat.S_IRWXU:
                folder.chmod(stat.S_IRWXU)
            with os.scandir(folder) as entries:
                folders += [Path(e.path) for e in entries if e.is_dir(follow_symlinks=False)]


def _left_by(folder: Folder, job: Path, asked: Clean) -> Iterator[Path]:
    """The paths of what this very job has left, not another one that had its id."""
    if os.path.lexists(job) and mark_of(job / ORIGIN) in ("", asked.origin):
        yield job
    copies = folder.copies(asked.node, asked.job_id)
    if copies.is_dir():
        yield copies
    checkpoints = folder.checkpoints(asked.job_id)
    origin = checkpoints.with_name(f"{asked.job_id}.{ORIGIN}")
    if asked.checkpoints and mark_of(origin) in ("", asked.origin):
        yield from (path for path in (checkpoints, origin) if os.path.lexists(path))
        yield from checkpoints.parent.glob(f"{asked.job_id}.probe-*")


def _size_of(path: Path) -> int:
    """Bytes of the disk that a file takes, or a folder with all that is in it; links lead nowhere.

    What vanishes meanwhile takes none, nor does what is in a folder that can't be read.
    """
    num_bytes, paths = 0, [path]
    while paths:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError):
            status = os.lstat(path := paths.pop())
            num_bytes += status.st_blocks * 512
            if stat.S_ISDIR(status.st_mode):
                with os.scandir(path) as entries:
                    paths += [Path(entry.path) for entry in entries]
    return num_bytes
