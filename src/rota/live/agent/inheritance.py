"""Copies another job's checkpoints for a job that starts from them."""

import os
import shutil

from rota.errors import AgentError
from rota.folder import Folder


def inherit(folder: Folder, former: str, job_id: str) -> None:
    """Copy a former job's checkpoints for a job, completely or not at all; the former keeps them.

    Nothing happens if the job has a checkpoint folder already: it has been started before. Raises
    AgentError.
    """
    source, target = folder.checkpoints(former), folder.checkpoints(job_id)
    if os.path.lexists(target):
        return
    draft = target.with_name(f"{job_id}.new")
    try:
        if draft.exists():  # left by an agent that was killed
            shutil.rmtree(draft)
        shutil.copytree(source, draft, symlinks=True, copy_function=_copy)
        draft.rename(target)
    except (OSError, shutil.Error) as error:
        shutil.rmtree(draft, ignore_errors=True)
        raise AgentError(
            f"resume_from: the checkpoints of job {former} in {source} can't be copied: "
            f"{_what(error)}; mend that, or cancel this job and submit it without resume_from"
        ) from None


def _copy(source: str, target: str) -> str:
    """Copy a file so that it survives a power cut, since a job may start from it."""
    copied = str(shutil.copy2(source, target))
    with open(copied, "rb") as file:
        os.fsync(file.fileno())
    return copied


def _what(error: OSError) -> str:
    """Describes the first thing that went wrong."""
    if isinstance(error, shutil.Error) and error.args and isinstance(error.args[0], list):
        return str(error.args[0][0][-1])[:200]
    return error.strerror or str(error)[:200]
