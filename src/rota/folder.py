"""The files of one Rota cluster on this machine, by the XDG rules."""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import IO, Any, NamedTuple

from rota.errors import InputError, shortage_of

JOB_ID = re.compile(r"[0-9]{1,15}")
MEMBERSHIP = "joined.json"  # in a node's folder: the cluster that its machine has joined
REMOVED = "removed"  # in a membership: true once the cluster has said that the node was removed
HOST_MEMORY = Path("/dev/shm")  # noqa: S108 - a folder of this user's own is made in it
OWNER = "owner.json"  # in a folder outside of the state folder: {"home", "device"} of that one

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
        self.tls = self.path / "tls"  # the cluster's CA and the server's certificate
        self.server = self.path / "server.json"  # {"url", "pid"} of the running controller
        self.ui = self.path / "ui.json"  # {"url", "pid"} of the running dashboard
        self.ui_lock = self.path / "ui.lock"
        self.controller_lock = self.path / "controller.lock"
        self.controller_log = self.path / "controller.log"
        self.clock = (
            self.path / "clock.json"
        )  # how the cluster's time goes on: rota.live.controller.clock
        self.snapshots = self.path / "snapshots"  # packed folders that jobs run in, by digest
        self.failed_decisions = self.path / "failed-decisions"  # at which a policy failed
        self.machine_name = self.path / "machine-name"  # after which its nodes are called
        self.last_id = self.path / "last-id"  # the highest id that a job was given
        self.commands = self.path / "notify"  # programs that hooks may run, put there by hand
        self.lease = self.path / "lease.json"  # how long leases of machines that have joined last
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
        if (shortage := shortage_of(error)) is not None:
            return InputError(f"state folder {self.path}: {shortage}")
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
        folders = [self.path / name for name in ("nodes", "checkpoints", "copies", "snapshots")]
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

    def copies(self, node: str, job_id: str) -> Path:
        """Folder of copies of what a job has printed on a node of another machine, by attempt."""
        return self.path / "copies" / node / job_id

    def checkpoints(self, job_id: str) -> Path:
        """Folder of a job's own checkpoints, the same on every node and for every attempt."""
        return self.path / "checkpoints" / job_id

    def unpacked(self, node: str, digest: str) -> Path:
        """Folder of a snapshot on a node: its files, and what its setups have made of them."""
        return self.node(node) / "snapshots" / digest

    def log(self, node: str, job_id: str, attempt: int, rank: int) -> Path:
        """Output and errors of one rank."""
        return self.attempt(node, job_id, attempt) / f"rank{rank}.log"

    def socket(self, node: str) -> Path:
        """The socket of a node's agent; its path may be longer than a socket's address can hold."""
        return self.node(node) / "agent.sock"

    def outside_socket(self, name: str) -> Path:
        """A path for a second socket, outside of the state folder, where only this user can enter.

        Raises InputError if that folder can't be, because somebody else owns it, for example.
        """
        return self._own_folder_in(_base_of_sockets()) / f"{name}.sock"

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

    def hold(self) -> contextlib.ExitStack:
        """Keep what the cluster has outside of the state folder, until what is returned is closed.

        Nobody removes it meanwhile, not even if the state folder can't be found.
        """
        held = contextlib.ExitStack()
        for base in _bases():
            with contextlib.suppress(InputError):  # then there is nothing to keep
                folder = self._own_folder_in(base)
                while (lock := hold_outside(folder)) is not None:
                    held.callback(lock.close)
                    if is_in_place(lock, folder / OWNER):
                        break
                    self._own_folder_in(base)  # it was removed, just before this held it
        return held

    def leave(self) -> None:
        """Remove the folders outside of the state folder that are empty, and that nobody holds.

        Sockets of agents that were killed don't count, and are removed as well.
        """
        for base in _bases():
            folder = base / self._short_name()
            with contextlib.suppress(OSError):
                if not (folder / OWNER).exists():
                    folder.rmdir()
                elif _is_own(folder):
                    with _held_alone(folder):
                        for socket in folder.glob("*.sock"):
                            socket.unlink()
                        if os.listdir(folder) == [OWNER]:
                            (folder / OWNER).unlink()
                            folder.rmdir()

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
                self._sign(folder)
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

    def _sign(self, folder: Path) -> None:
        """Tell in a folder outside of the state folder whose it is, if there is room for that."""
        with contextlib.suppress(OSError):
            owner = {"home": str(self.path), "device": self.path.stat().st_dev}
            told = json.dumps(owner).encode()
            if not (folder / OWNER).exists() or (folder / OWNER).read_bytes() != told:
                with open(folder / OWNER, "ab") as file:  # in place: somebody may hold it
                    file.truncate(0)
                    file.write(told)


def hold_outside(folder: Path) -> IO[bytes] | None:
    """Share in the lock of a folder outside of the state folder, until what is returned is closed.

    Processes that inherit it hold it as well. None if the folder does not tell whose it is.
    """
    try:
        file = open(folder / OWNER, "rb")  # noqa: SIM115 - open is locked
    except OSError:
        return None
    fcntl.flock(file, fcntl.LOCK_SH)
    return file


def remove_homeless() -> list[Path]:
    """Remove this user's folders outside of state folders that are gone; returns which.

    Left alone are folders that a process holds, that do not tell whose they are, or whose state
    folder was on a disk that is not there now.
    """
    removed = []
    for base in _bases():
        for folder in base.glob(f"rota-{os.getuid()}-*"):
            with contextlib.suppress(OSError):
                if _is_own(folder) and _is_homeless(folder):  # a disk may take long to tell that
                    with _held_alone(folder):
                        if _is_homeless(folder):
                            shutil.rmtree(folder)
                            removed.append(folder)
    return removed


@contextlib.contextmanager
def _held_alone(folder: Path) -> Iterator[None]:
    """Lock a folder outside of a state folder. Raises OSError if somebody holds it, or it is gone.

    Whoever waits for the lock meanwhile finds out that the folder was removed.
    """
    with open(folder / OWNER, "rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not is_in_place(lock, folder / OWNER):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(folder))
        yield


def _is_homeless(folder: Path) -> bool:
    """True if the state folder is gone that a folder outside of it tells of. Raises OSError."""
    if (folder / OWNER).is_symlink():
        return False
    try:
        owner = json.loads((folder / OWNER).read_bytes())
        home, device = Path(owner["home"]), int(owner["device"])
    except (ValueError, KeyError, TypeError):
        return False
    if not home.is_absolute() or _is_there(home):
        return False
    return next(each for each in home.parents if _is_there(each)).stat().st_dev == device


def _is_there(path: Path) -> bool:
    """True if there is something at a path. Raises OSError if that can't be known."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _is_own(folder: Path) -> bool:
    """True if this is a folder of this user, and no link to one."""
    try:
        status = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()


def _bases() -> tuple[Path, Path]:
    """Where the folders outside of state folders are: those of sockets, and of arenas."""
    return _base_of_sockets(), HOST_MEMORY


def _base_of_sockets() -> Path:
    return Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir())


def membership(place: Path) -> dict[str, Any]:
    """The cluster that a node's machine has joined, by the node's folder; empty if not readable."""
    try:
        told = json.loads((place / MEMBERSHIP).read_text())
    except (OSError, ValueError):
        return {}
    return told if isinstance(told, dict) else {}


def keep_membership(place: Path, told: dict[str, Any]) -> None:
    """Write down the cluster that a node's machine has joined, for this user alone.

    Raises OSError.
    """
    draft = place / f"{MEMBERSHIP}.{secrets.token_hex(4)}"
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            json.dump(told, file)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(place / MEMBERSHIP)
    finally:
        draft.unlink(missing_ok=True)


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


def is_in_place(lock: IO[Any], path: Path) -> bool:
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
