"""The files of one Rota cluster on this machine, by the XDG rules."""

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import stat
import tempfile
from itertools import count
from pathlib import Path
from typing import IO, NamedTuple

from rota.errors import InputError

JOB_ID = re.compile(r"[0-9]{1,15}")
HOST_MEMORY = Path("/dev/shm")  # noqa: S108 - a folder of this user's own is made in it

RESERVE_BYTES = 64 << 20  # at most,
RESERVE_SHARE = 16  # and at most one part in so many of the disk
LOW_RESERVES = 2  # with less free than so many reserves, there is little room


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
        self.reserve = self.path / "reserve"  # room on the disk, given up when that is full
        self.token = self.path / "token"  # the token of users
        self.agent_token = self.path / "agent.token"  # the token of agents
        self.server = self.path / "server.json"  # {"url", "pid"} of the running controller
        self.ui = self.path / "ui.json"  # {"url", "pid"} of the running dashboard
        self.ui_lock = self.path / "ui.lock"
        self.controller_lock = self.path / "controller.lock"
        self.controller_log = self.path / "controller.log"
        self.clock = (
            self.path / "clock.json"
        )  # how the cluster's time goes on: rota.live.controller.clock
        self.last_id = self.path / "last-id"  # the highest id that a job was given
        self.commands = self.path / "notify"  # programs that hooks may run, put there by hand
        self.sweep_log = self.path / "sweep.log"  # of the process that drives searches

    def create(self) -> "Folder":
        """Make the folder, for its owner alone. Raises InputError if that can't be."""
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise self.unusable(error) from None
        return self

    def unusable(self, error: OSError) -> InputError:
        """The message for an error that concerns the folder as a whole."""
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            fix = "make room there"
        elif error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
            fix = "set ROTA_HOME, or --home, to a folder that you may write to"
        else:
            fix = "set ROTA_HOME, or --home, to a folder of yours"
        file = Path(os.fsdecode(error.filename2 or error.filename or self.path))
        name = f" ({file.relative_to(self.path)})" if self.path in file.parents else ""
        return InputError(f"state folder {self.path}{name}: {error.strerror or error}; {fix}")

    def close_to_others(self) -> list[str]:
        """Let nobody else read what jobs and users say, also in a folder that others may enter.

        What was open to others is returned. Raises OSError.
        """
        opened = []
        folders = (self.path / "nodes", self.path / "checkpoints")
        for folder in folders:
            folder.mkdir(exist_ok=True, mode=0o700)
        files = (self.controller_log, self.sweep_log)
        for file in files:
            file.touch(mode=0o600)
        for path in (*folders, *files):
            mode = stat.S_IMODE(path.lstat().st_mode)
            if mode & 0o077 and not path.is_symlink():  # a link was made by whoever knows why
                path.chmod(mode & 0o700)
                opened.append(path.name)
        return opened

    def node(self, name: str) -> Path:
        """The folder of the agent of one node."""
        return self.path / "nodes" / name

    def cpu_groups(self, node: str) -> Path:
        """File that tells where the control groups of a node's jobs are."""
        return self.node(node) / "cpu-groups.json"

    def attempt(self, node: str, job_id: str, attempt: int) -> Path:
        """Folder of an attempt on a node: logs, and exit statuses of its processes."""
        return self.node(node) / "jobs" / job_id / str(attempt)

    def checkpoints(self, job_id: str) -> Path:
        """Folder of a job's own checkpoints, the same on every node and for every attempt."""
        return self.path / "checkpoints" / job_id

    def log(self, node: str, job_id: str, attempt: int, rank: int) -> Path:
        """Output and errors of one rank."""
        return self.attempt(node, job_id, attempt) / f"rank{rank}.log"

    def socket(self, name: str) -> Path:
        """A short path for a Unix socket, in a folder that only this user can enter.

        Socket paths are limited to about 100 characters, so it is not inside the state folder.
        Raises InputError if that folder can't be, because somebody else owns it, for example.
        """
        base = Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir())
        return self._own_folder_in(base) / f"{name}.sock"

    def arenas(self, name: str) -> Path:
        """Folder of suspended jobs' state on a node: in host memory, where that is a file system.

        It is in the node's folder if there is no writable ``/dev/shm``.
        """
        arenas = self.node(name) / "arenas"
        with contextlib.suppress(InputError):
            if os.access(HOST_MEMORY, os.W_OK):
                arenas = self._own_folder_in(HOST_MEMORY) / name
        arenas.mkdir(mode=0o700, parents=True, exist_ok=True)
        return arenas

    def island(self, name: str) -> Path:
        """Folder of the island of flow jobs on a node, which its host makes: in host memory."""
        with contextlib.suppress(InputError):
            if os.access(HOST_MEMORY, os.W_OK):
                return self._own_folder_in(HOST_MEMORY) / f"{name}-island"
        return self.node(name) / "island"

    def _short_name(self) -> str:
        digest = hashlib.sha256(os.fsencode(self.path)).hexdigest()[:10]
        return f"rota-{os.getuid()}-{digest}"

    def _own_folder_in(self, base: Path) -> Path:
        """A folder that only this user can enter. Raises InputError if there can be none."""
        folder = base / self._short_name()
        try:
            with contextlib.suppress(FileExistsError):
                folder.mkdir(mode=0o700)
            status = folder.lstat()
            if stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid():
                folder.chmod(0o700)
                return folder
            why = f"it is there, and belongs to user {status.st_uid}"
            if status.st_uid == os.getuid():
                why = "something else is there"
        except OSError as error:
            why = str(error.strerror)
        raise InputError(
            f"{folder} can't be the folder for the sockets of this cluster's agents: {why}; set "
            "XDG_RUNTIME_DIR to a folder of yours, or have it removed"
        )


def set_aside(path: Path, folder: Path, name: str) -> Path:
    """Move what is at ``path`` into a folder, as ``NAME.1`` or the next free number; where to."""
    folder.mkdir(parents=True, exist_ok=True)
    places = (folder / f"{name}.{number}" for number in count(1))
    place = next(place for place in places if not os.path.lexists(place))
    path.rename(place)
    return place


class Disk(NamedTuple):
    """A disk: how large it is, and how much of it anybody may still take."""

    total_bytes: int
    free_bytes: int

    @property
    def reserve_bytes(self) -> int:
        """Bytes of it that are kept in reserve."""
        return min(RESERVE_BYTES, self.total_bytes // RESERVE_SHARE)

    @property
    def is_low(self) -> bool:
        """True if so little is free that the reserve may be needed soon."""
        return self.free_bytes < LOW_RESERVES * self.reserve_bytes


def disk_of(path: Path) -> Disk:
    """The disk that a folder is on. Raises OSError."""
    status = os.statvfs(path)
    return Disk(status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize)


def hold_lock(path: Path) -> IO[str] | None:
    """Lock a file until what is returned is closed or this process ends; None if another has it."""
    file = open(path, "w")  # noqa: SIM115 - open is locked
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        return None
    return file


def is_in_place(lock: IO[str], path: Path) -> bool:
    """Return True if a held lock is that of the file at this path.

    It is not if somebody has moved or removed the file, or its folder, and maybe made another one.
    """
    held = os.fstat(lock.fileno())
    try:
        found = path.stat()
    except FileNotFoundError:
        return False
    except OSError:  # of a disk that does not answer, nobody knows
        return True
    return os.path.samestat(held, found)


def is_locked(path: Path) -> bool:
    """True if another process holds the lock of an existing file."""
    lock = hold_lock(path)
    if lock is not None:
        lock.close()
    return lock is None


def in_host_memory(path: str | Path) -> bool:
    """True if what is at this path takes up memory of the host."""
    return Path(path).is_relative_to(HOST_MEMORY)
