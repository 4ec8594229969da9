"""Checks the members of a snapshot, where one is made and where one is unpacked."""

import os
import tarfile
from collections.abc import Iterator
from pathlib import Path


def extract(packed: tarfile.TarFile, place: Path) -> None:
    """Unpack an archive in a folder, and nothing outside of it. Raises OSError, TarError."""
    if hasattr(tarfile, "data_filter"):
        packed.extractall(place, filter="data")
    else:  # Python 3.11.3 and older; that of Debian 12 is one
        members = _checked(packed, os.path.realpath(place))
        packed.extractall(place, members=members)  # noqa: S202 - each one is checked


def _checked(packed: tarfile.TarFile, place: str) -> Iterator[tarfile.TarInfo]:
    """The members of a snapshot, each checked when those before it are there. Raises TarError."""
    for member in packed:
        path = os.path.join(place, member.name)
        leads_to = [os.path.realpath(path)]
        if member.issym():
            leads_to.append(os.path.realpath(os.path.join(path, os.pardir, member.linkname)))
            leads_to += ["/"] if os.path.isabs(member.linkname) else []
        elif not (member.isreg() or member.isdir()):
            raise tarfile.TarError(f"{member.name!r} is a special file")
        if any(os.path.commonpath([each, place]) != place for each in leads_to):
            raise tarfile.TarError(f"{member.name!r} leads out of the folder")
        member.mode = 0o755 if member.isdir() else member.mode & 0o755 | 0o600
        member.uid, member.gid, member.uname, member.gname = os.geteuid(), os.getegid(), "", ""
        yield member
