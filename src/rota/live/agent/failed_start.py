"""Keeps the reason why an attempt could not be started, for a command that is repeated."""

import contextlib
import json
from pathlib import Path

from rota.errors import AgentError, NeverStartsError

FILE = "failed"


def keep(folder: Path, error: Exception) -> None:
    """Write down why the attempt of this folder could not be started, if there is room for that."""
    told = {"error": str(error), "obstacle": getattr(error, "obstacle", "")}
    with contextlib.suppress(OSError):
        (folder / FILE).write_text(json.dumps(told))


def raise_if_known(folder: Path) -> None:
    """Raise the error of an attempt that could not be started: the next try is another attempt.

    Older agents have kept the text of the error alone.
    """
    if not (folder / FILE).exists():
        return
    text = (folder / FILE).read_text(errors="replace")
    try:
        told = json.loads(text)
        error, obstacle = str(told["error"]), str(told["obstacle"])
    except (ValueError, TypeError, KeyError):
        error, obstacle = text, ""
    error = error or "it could not be started"
    raise NeverStartsError(error, obstacle) if obstacle else AgentError(error)
