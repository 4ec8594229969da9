"""Packs a folder for jobs that run on machines which can't see it."""

import gzip
import hashlib
import io
import os
import stat
import subprocess
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from rota.errors import InputError
from rota.model.snapshot import MAX_BYTES
from rota.model.unpacking import extract

MAX_FILES = 50_000
MOST_NAMED = 5  # of the largest files
TIME_S = 315_619_200  # 1980-01-02: archives of other kinds know no earlier day
LEVEL = 1  # of compression: source text shrinks to a third in a moment
GIT = ("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
# Where git looks for a repository, as hooks of git set it.
OF_A_HOOK = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX")


class Snapshot(NamedTuple):
    """A packed folder: the digest of its content, and the compressed archive."""

    digest: str
    archive: bytes


class _Entry(NamedTuple):
    """An entry below the folder, by its path; an empty folder is one as well."""

    name: str
    status: os.stat_result


def pack(workdir: str) -> Snapshot:
    """Pack a folder: what git knows or does not ignore, all files where there is no repository.

    The same content gives the same digest: names, data, links, and who may execute files count, and
    neither times nor owners. Raises InputError for more than 64 MiB, a link that leads out of the
    folder, and for what is no file.
    """
    root = Path(os.path.realpath(workdir))
    if not root.is_dir():
        raise _refused(workdir, "there is no such folder here")
    names = _known_to_git(root) if _is_in_repository(root) else _all_in(root)
    entries = [each for name in sorted(set(names)) if (each := _entry(root, name)) is not None]
    if not entries:
        raise _refused(workdir, "no file in it is one that git would not ignore, or there is none")
    if len(entries) > MAX_FILES:
        raise _refused(workdir, f"it has more than {MAX_FILES} files; {_LEAVE_OUT}")
    files = [each for each in entries if stat.S_ISREG(each.status.st_mode)]
    _check_size(workdir, sum(each.status.st_size for each in files), files)
    _check_links(root, [each for each in entries if stat.S_ISLNK(each.status.st_mode)])
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for entry in entries:
            _add(archive, root, entry)
            _check_size(workdir, data.tell(), files)
    whole = data.getvalue()
    _check_size(workdir, len(whole), files)
    return Snapshot(hashlib.sha256(whole).hexdigest(), gzip.compress(whole, LEVEL, mtime=0))


_LEAVE_OUT = (
    "have git ignore what the job does not need (git init, .gitignore), or leave snapshot out and "
    "use a folder that all machines share"
)


def _refused(path: object, why: str) -> InputError:
    return InputError(f"snapshot: {str(path)!r:.300}: {why}")


def _check_size(workdir: str, num_bytes: int, files: Iterable[_Entry]) -> None:
    """Raises InputError, with the largest files, if a snapshot takes too many bytes."""
    if num_bytes <= MAX_BYTES:
        return
    by_size = sorted(files, key=lambda each: -each.status.st_size)
    named = [f"{each.name!r:.200} ({_mib(each.status.st_size)})" for each in by_size[:MOST_NAMED]]
    raise _refused(
        workdir,
        f"it takes {_mib(num_bytes)} at least, and a snapshot has at most {_mib(MAX_BYTES)}; the "
        f"largest: {', '.join(named)}; {_LEAVE_OUT}",
    )


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / (1 << 20):.1f} MiB"


# -- which files -----------------------------------------------------------------------------------


def _is_in_repository(root: Path) -> bool:
    return any(os.path.lexists(folder / ".git") for folder in (root, *root.parents))


def _known_to_git(root: Path, below: str = "") -> Iterator[str]:
    """Paths of files that git knows or does not ignore, those of repositories in it as well."""
    environment = {key: value for key, value in os.environ.items() if key not in OF_A_HOOK}
    folder = root / below
    try:
        told = subprocess.run(GIT, cwd=folder, env=environment, capture_output=True, check=False)
    except FileNotFoundError:
        why = "it is in a git repository, and there is no git here to tell what it ignores"
        raise _refused(folder, f"{why}; install git") from None
    if told.returncode:
        words = told.stderr.decode(errors="replace").strip().partition("\n")[0]
        raise _refused(folder, f"git does not tell its files: {words}")
    for name in filter(None, os.fsdecode(told.stdout).split("\0")):
        path = os.path.join(below, name.rstrip("/"))
        if not os.path.islink(root / path) and os.path.isdir(root / path):
            if os.path.lexists(root / path / ".git"):
                yield from _known_to_git(root, path)
        else:
            yield path


def _all_in(root: Path) -> Iterator[str]:
    """Paths of all files and links, and of empty folders."""

    def refuse(error: OSError) -> None:
        raise _refused(error.filename, f"it can't be read: {error.strerror}") from None

    number = 0
    for folder, folders, files in os.walk(root, onerror=refuse):
        links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
        found = [os.path.join(folder, name) for name in (*files, *links)]
        if not (found or folders or folder == str(root)):
            found = [folder]
        yield from (os.path.relpath(path, root) for path in found)
        number += len(found)
        if number > MAX_FILES:
            return


def _entry(root: Path, name: str) -> _Entry | None:
    """The entry at a path; None if it is gone, behind a link or a socket. Raises InputError."""
    path = root / name
    if any(os.path.islink(root / folder) for folder in Path(name).parents):
        return None  # the folder that git knows is a link now, which is an entry of its own
    try:
        status = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise _refused(path, f"it can't be read: {error.strerror}") from None
    kind = stat.S_IFMT(status.st_mode)
    if kind == stat.S_IFSOCK:
        return None  # nothing is in it, and git knows none
    if kind == stat.S_IFLNK:
        target = os.readlink(path)
        inside = Path(os.path.realpath(path)).is_relative_to(root)
        if os.path.isabs(target) or not inside:
            why = f"this link leads out of the folder, to {target!r:.200}"
            raise _refused(path, f"{why}; remove it, or have git ignore it (git init, .gitignore)")
    elif kind not in (stat.S_IFREG, stat.S_IFDIR):
        raise _refused(path, "it is neither a file nor a link nor a folder; remove it")
    return _Entry(name, status)


# -- the archive -----------------------------------------------------------------------------------


def _add(archive: tarfile.TarFile, root: Path, entry: _Entry) -> None:
    """Add what an entry is. Raises InputError if it can't be read."""
    told = tarfile.TarInfo(entry.name)
    told.mtime, told.mode, data = TIME_S, 0o644, b""
    if stat.S_ISLNK(entry.status.st_mode):
        told.type, told.linkname = tarfile.SYMTYPE, os.readlink(root / entry.name)
    elif stat.S_ISDIR(entry.status.st_mode):
        told.type, told.mode = tarfile.DIRTYPE, 0o755
    else:
        if entry.status.st_mode & stat.S_IXUSR:
            told.mode = 0o755
        data = _content(root / entry.name)
        told.size = len(data)
    archive.addfile(told, io.BytesIO(data))


def _check_links(root: Path, links: list[_Entry]) -> None:
    """Unpack the links, as agents do, elsewhere. Raises InputError for one that they would refuse.

    A link may stay in the folder as long as that is here, and lead out of it in any other place.
    """
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for entry in links:
            _add(archive, root, entry)
    data.seek(0)
    with tempfile.TemporaryDirectory(prefix="rota-") as place, tarfile.open(fileobj=data) as packed:
        try:
            extract(packed, Path(place))
        except tarfile.TarError as error:
            told = getattr(error, "tarinfo", None)
            what = str(error) if told is None else f"{told.name!r} leads out of the folder"
            why = f"{what} once that is elsewhere: shorten the way of this link, or remove it"
            raise _refused(root, why) from None


def _content(path: Path) -> bytes:
    """The contents of a file, or a little more than a snapshot may have. Raises InputError."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            return file.read(MAX_BYTES + 1)
    except OSError as error:
        raise _refused(path, f"it can't be read: {error.strerror}") from None
