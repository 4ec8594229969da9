"""The checkpoints of a job that moves to a node with a checkpoint folder of its own.

Beside the checkpoints the node that hands them out puts an empty file with a name that never was:
where the other node sees the file, both have one folder, and nothing has to move. Else a copy takes
the place of whatever is there. What was handed out stays, so that the job finds it if the other
machine is lost. A long list of the folder's contents does not fit into a message: it becomes a file
that moves as all others do, piece by piece.
"""

import json
import os
import secrets
import shutil
import stat
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

from rota.errors import AgentError
from rota.live.wire import Message

PREFIX = "checkpoints/"  # of the names of these files among those of a job that moves
LISTING = "checkpoints.list"  # the file of a long list, in an attempt's folder
MOST_LISTED_BYTES = 1 << 18  # of a list in a message


def describe(checkpoints: Path, note: Callable[[], object] = lambda: None) -> Message:
    """What is in a checkpoint folder, and the name of a new probe beside it. Raises OSError.

    Links are told as they are, and lead where they lead; what is neither link, file nor folder is
    left out. ``note`` is called for each folder that is looked into.
    """
    remove_probes(checkpoints)
    probe = checkpoints.with_name(f"{checkpoints.name}.probe-{secrets.token_hex(8)}")
    checkpoints.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    probe.touch(0o600)
    told: dict[str, Any] = {"probe": probe.name, "files": [], "folders": [], "links": {}}
    if checkpoints.is_symlink():  # to a folder that its user has chosen
        return told | {"link": os.readlink(checkpoints)}
    for at, folders, files in os.walk(checkpoints):
        note()
        for path in sorted(Path(at, name) for name in (*folders, *files)):
            status, name = path.lstat(), path.relative_to(checkpoints).as_posix()
            if stat.S_ISLNK(status.st_mode):
                told["links"][name] = os.readlink(path)
            elif stat.S_ISDIR(status.st_mode):
                told["folders"].append(name)
            elif stat.S_ISREG(status.st_mode):
                mode = stat.S_IMODE(status.st_mode)
                told["files"].append(
                    {"name": PREFIX + name, "slot": None, "bytes": status.st_size, "mode": mode}
                )
    return told


def abridged(told: Message, folder: Path) -> Message:
    """``told``, or if it is long the name of a file in ``folder`` that has it. Raises OSError."""
    text = json.dumps(told)
    if len(text) <= MOST_LISTED_BYTES:
        return told
    (folder / LISTING).write_text(text)
    return {"probe": told["probe"], "list": {"name": LISTING, "slot": None, "bytes": len(text)}}


def listed(file: Path) -> Message:
    """The list in a file that has come. Raises AgentError, OSError."""
    try:
        told = json.loads(file.read_bytes())
        return {key: told[key] for key in ("probe", "files", "folders", "links")}
    except (ValueError, KeyError, TypeError):
        raise AgentError("the list of the checkpoints was damaged on its way") from None


def remove_probes(checkpoints: Path) -> None:
    """Remove what told others whether a folder is theirs as well. Raises OSError."""
    for probe in checkpoints.parent.glob(f"{checkpoints.name}.probe-*"):
        probe.unlink(missing_ok=True)


def inside(folder: Path, name: str) -> Path:
    """The path of a file in a folder. Raises AgentError for a name that leads out of it."""
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or ".." in parts or "\0" in name:
        raise AgentError(f"{name!r:.80} is no name of a checkpoint")
    return folder.joinpath(*parts)


class Coming:
    """Checkpoints on their way here: into ``draft``, and then in the place of ``checkpoints``."""

    def __init__(self, checkpoints: Path) -> None:
        self._checkpoints = checkpoints
        self._draft = checkpoints.with_name(f"{checkpoints.name}.coming")

    def are_here(self, told: Message) -> bool:
        """True if the node that told this has the same folder."""
        probe = inside(self._checkpoints.parent, str(told["probe"]))
        return probe.exists()

    def path_of(self, name: str) -> Path:
        """Where a file is written to, in a folder that is there. Raises AgentError, OSError."""
        path = inside(self._draft, name.removeprefix(PREFIX))
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def settle(self, told: Message) -> None:
        """Put everything in place, now that all files have come. Raises AgentError, OSError."""
        self._checkpoints.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if (target := told.get("link")) is not None:
            self.discard()
            self._draft.symlink_to(target)
            if not self._draft.is_dir():
                raise AgentError(
                    f"{self._checkpoints} is a link to {target} where the job comes from, and "
                    "there is no such folder here"
                )
        else:
            self._fill(told)
        before = self._checkpoints.with_name(f"{self._checkpoints.name}.before")
        _remove(before)
        if os.path.lexists(self._checkpoints):
            self._checkpoints.rename(before)
        self._draft.rename(self._checkpoints)
        _remove(before)

    def _fill(self, told: Message) -> None:
        """Make what no file has made."""
        self._draft.mkdir(exist_ok=True)
        for name in told["folders"]:
            inside(self._draft, name).mkdir(parents=True, exist_ok=True)
        for name, target in told["links"].items():
            link = self.path_of(name)
            link.unlink(missing_ok=True)
            link.symlink_to(target)
        for file in told["files"]:
            self.path_of(file["name"]).chmod(int(file["mode"]) & 0o777)

    def discard(self) -> None:
        """Remove what has come."""
        _remove(self._draft)


def _remove(path: Path) -> None:
    """Remove a folder or a link, as far as that can be."""
    if path.is_symlink():
        path.unlink(missing_ok=True)
    else:
        shutil.rmtree(path, ignore_errors=True)
