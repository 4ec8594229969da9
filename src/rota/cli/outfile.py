"""Files that commands write: looked at before a long run, then written whole or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from rota.errors import InputError


def require_writable(path: Path, option: str) -> None:
    """Raise InputError if a file at ``path`` can't be written, before a long run is wasted."""
    folder = path.parent
    if not folder.is_dir():
        raise InputError(f"{option} {path}: there is no folder {folder}; make it first")
    try:
        special = path.exists() and not path.is_file()
    except OSError as error:
        raise InputError(f"{option} {path}: {error.strerror}; check the path") from None
    if path.is_dir():
        raise InputError(f"{option} {path}: it is a folder; name a file")
    if special or path.is_symlink():
        raise InputError(f"{option} {path}: it is no plain file, and would be replaced; name one")
    if not os.access(folder, os.W_OK):
        raise InputError(f"{option} {path}: the folder {folder} can't be written to")


def require_folder(path: Path, option: str) -> None:
    """Make the folder ``path`` if it is not there. Raises InputError."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{option} {path}: {error.strerror}") from None
    if not os.access(path, os.W_OK):
        raise InputError(f"{option} {path}: it can't be written to")


@contextmanager
def whole_file(path: Path, option: str, *, text: bool = False) -> Iterator[IO[Any]]:
    """A file to write bytes to, or UTF-8 ``text``, that takes the place of ``path`` at the end.

    If anything goes wrong, ``path`` stays as it was. Raises InputError if it can't be written.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    how: dict[str, Any] = {"encoding": "utf-8", "newline": ""} if text else {}
    try:
        with part.open("x" if text else "xb", **how) as file:
            try:
                yield file
                file.flush()
                part.replace(path)
            finally:
                part.unlink(missing_ok=True)
    except OSError as error:
        raise InputError(f"{option} {path}: {error.strerror or error}; check the path") from None
