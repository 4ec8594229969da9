"""Where one Rota cluster keeps its things on this machine, by the XDG rules."""

import fcntl
import hashlib
import os
import stat
import tempfile
from pathlib import Path
from typing import IO

from rota.errors import InputError


class Folder:
    """The paths of one cluster's state folder. Nothing is created until it is asked for.

    The folder is ``path``, else ``$ROTA_HOME``, else ``$XDG_DATA_HOME/rota``, else
    ``~/.local/share/rota``.
    """

    def __init__(self, path: str | Path | None = None) -> None:
        if path is None:
            path = os.environ.get("ROTA_HOME") or Path(
                os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share", "rota"
            )
        self.path = Path(path).expanduser().absolute()
        self.database = self.path / "rota.db"
        self.token = self.path / "token"  # what users show the controller
        self.agent_token = self.path / "agent.token"  # what agents show it
        self.server = self.path / "server.json"  # {"url", "pid"} of the running controller
        self.controller_lock = self.path / "controller.lock"
        self.controller_log = self.path / "controller.log"

    def create(self) -> "Folder":
        """Make the folder, for its owner alone. Raises InputError if that can't be."""
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise InputError(
                f"state folder {self.path}: {error.strerror}; set ROTA_HOME to a folder of yours"
            ) from None
        return self

    def node(self, name: str) -> Path:
        """The folder of the agent of one node."""
        return self.path / "nodes" / name

    def attempt(self, node: str, job_id: str, attempt: int) -> Path:
        """What one attempt of a job leaves on a node: its logs, its processes' exit statuses."""
        return self.node(node) / "jobs" / job_id / str(attempt)

    def log(self, node: str, job_id: str, attempt: int, rank: int) -> Path:
        """Output and errors of one rank."""
        return self.attempt(node, job_id, attempt) / f"rank{rank}.log"

    def socket(self, name: str) -> Path:
        """A short path for a Unix socket, in a folder that only this user can enter.

        Socket paths are limited to about 100 characters, so it is not inside the state folder.
        Raises InputError if somebody else owns that folder.
        """
        base = Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir())
        digest = hashlib.sha256(os.fsencode(self.path)).hexdigest()[:10]
        folder = base / f"rota-{os.getuid()}-{digest}"
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
            raise InputError(f"{folder} belongs to somebody else; set XDG_RUNTIME_DIR")
        folder.chmod(0o700)
        return folder / f"{name}.sock"


def hold_lock(path: Path) -> IO[str] | None:
    """Lock a file until what is returned is closed or this process ends; None if another has it."""
    file = open(path, "w")  # noqa: SIM115 - open is locked
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        return None
    return file


def is_locked(path: Path) -> bool:
    """Whether another process holds the lock of an existing file."""
    lock = hold_lock(path)
    if lock is not None:
        lock.close()
    return lock is None
