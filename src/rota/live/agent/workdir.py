"""The folder that an attempt's processes run in: the job's, or a copy of a snapshot.

A copy is filled in place, since processes may be in it already, and marked once it is whole.
"""

import contextlib
import os
import shutil
import stat
import subprocess
from pathlib import Path
from typing import Any

from rota.errors import AgentError

TREE = "tree"  # in the folder of a snapshot: its files
OWN = "workdir"  # in the folder of an attempt
FILLED = ".filled"  # at the end of the name of a mark beside a copy
COPY = ("cp", "-R", "--preserve=mode,timestamps,links", "--reflink=auto", "--remove-destination")


def workdir_of(program: dict[str, Any], folder: Path) -> str:
    """The folder that an attempt of a program runs in; ``folder`` is the attempt's."""
    return str(folder / OWN) if program.get("snapshot") else str(program["workdir"])


def fill(folder: Path, source: Path) -> None:
    """Make a folder a copy of another one, unless it was made one before. Raises AgentError.

    Where the file system can share the blocks of files until one of them changes, it does.
    """
    mark = folder.with_name(folder.name + FILLED)
    try:
        if not mark.exists():
            folder.mkdir(exist_ok=True)
            command = [*COPY, "-T", "--", str(source), str(folder)]
            subprocess.run(command, check=True, capture_output=True, text=True)
            mark.write_text(str(source))
    except subprocess.CalledProcessError as error:
        words = str(error.stderr).strip().partition("\n")[0][:300]
        raise AgentError(f"{source} can't be copied to {folder}: {words}") from None
    except OSError as error:
        raise AgentError(f"{folder} can't be filled: {error.strerror or error}") from None


def thin(folder: Path) -> None:
    """Remove what a copy still has as :func:`fill` has made it: its attempt has ended.

    A file is as it was if its size and the time of its last change are. What the attempt has made
    or changed stays, and so does all in a folder that is no copy.
    """
    with contextlib.suppress(OSError):
        source = Path(folder.with_name(folder.name + FILLED).read_text())
        for place, folders, files in os.walk(folder, topdown=False):
            for path in map(Path(place).joinpath, (*files, *folders)):
                with contextlib.suppress(OSError):
                    _remove_unchanged(path, source / path.relative_to(folder))


def _remove_unchanged(path: Path, former: Path) -> None:
    """Remove a file or link that is as it was, or an empty folder that was there. OSError."""
    now, then = path.lstat(), former.lstat()
    if stat.S_IFMT(now.st_mode) != stat.S_IFMT(then.st_mode):
        return
    if stat.S_ISDIR(now.st_mode):
        path.rmdir()
    elif stat.S_ISLNK(now.st_mode):
        if os.readlink(path) == os.readlink(former):
            path.unlink()
    elif (now.st_size, now.st_mtime_ns) == (then.st_size, then.st_mtime_ns):
        path.unlink()


def empty(folder: Path) -> None:
    """Remove what :func:`fill` has made of a folder so far, and its mark. Raises OSError."""
    folder.with_name(folder.name + FILLED).unlink(missing_ok=True)
    if folder.exists():
        shutil.rmtree(folder)
