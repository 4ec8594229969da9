"""Snapshots on a node: fetched and unpacked once, and copied for each attempt that runs in one.

The folder of a snapshot, :meth:`~rota.folder.Folder.unpacked`, has its files in ``tree``; ``boot``
names the boot in which they were written: a power cut may have taken what was not on the disk yet.
In ``users`` is an empty file for each attempt, ``JOB.NUMBER``. The folder is removed with the files
of the last of them. :mod:`rota.live.agent.setup` keeps what setups have made there as well.
"""

import asyncio
import errno
import logging
import os
import shutil
import tarfile
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from rota.errors import AgentError, InputError, NeverStartsError
from rota.folder import Folder, set_aside
from rota.live.agent.blocking import to_its_end
from rota.live.agent.cleaning import ASIDE
from rota.live.agent.endpoint import Address
from rota.live.agent.record import Record
from rota.live.agent.workdir import TREE, fill, workdir_of
from rota.live.wire import clock
from rota.model.obstacle import Obstacle
from rota.model.snapshot import DIGEST, Check
from rota.model.unpacking import extract

BOOT, USERS = "boot", "users"
TIMEOUT_S = 30.0  # without a byte from the controller

log = logging.getLogger("rota.agent")


class Snapshots:
    """The snapshots of one node; ``address`` tells where the controller is."""

    def __init__(self, folder: Folder, node: str, address: Callable[[], Address]) -> None:
        self._folder, self._node, self._address = folder, node, address
        self._locks: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def prepare(self, record: Record, folder: Path) -> Path | None:
        """Make the workdir of an attempt that runs in a snapshot; if it has a setup, that fills it.

        ``folder`` is the attempt's. Returns where the snapshot's files are, None for an attempt
        that runs in none. Raises AgentError.
        """
        digest = record.program.get("snapshot")
        if not digest:
            return None
        if not isinstance(digest, str) or not DIGEST.match(digest):
            raise NeverStartsError(f"snapshot {digest!r:.80}: it is no digest", Obstacle.SNAPSHOT)
        place = self._folder.unpacked(self._node, digest)
        workdir = Path(workdir_of(record.program, folder))
        try:
            (place / USERS).mkdir(parents=True, exist_ok=True)
            (place / USERS / f"{record.job_id}.{record.attempt}").touch()
            async with self._locks[digest]:
                if not _is_whole(place):
                    await to_its_end(self._unpack, digest, place)
            workdir.mkdir(exist_ok=True)
            if not record.program.get("setup"):
                await to_its_end(fill, workdir, place / TREE)
        except (AgentError, InputError, OSError, tarfile.TarError) as error:
            told = f"snapshot {digest:.12}: {_what(error)}"
            if _is_for_good(error):
                raise NeverStartsError(told, Obstacle.SNAPSHOT) from None
            raise AgentError(told) from None
        return place / TREE

    def set_needless_aside(self) -> None:
        """Move the snapshots aside that no attempt has whose files are kept, to be removed."""
        node = self._folder.node(self._node)
        for place in (node / "snapshots").glob("*"):
            if not any(map(self._is_kept, (place / USERS).glob("*"))):
                try:
                    set_aside(place, node / ASIDE, place.name)
                except OSError as error:
                    log.warning("%s is left, and takes up room: %s", place, error)

    def _is_kept(self, user: Path) -> bool:
        job_id, _, number = user.name.partition(".")
        return self._folder.attempt(self._node, job_id, int(number)).exists()

    def _unpack(self, digest: str, place: Path) -> None:
        """Fetch a snapshot and unpack it. Raises AgentError, InputError, OSError, TarError."""
        draft, tree, archive = place / f"{TREE}.part", place / TREE, place / "archive.part"
        for old in (draft, tree):
            if old.exists():  # of a boot before, or left by an agent that was killed
                shutil.rmtree(old)
        try:
            self._fetch(digest, archive)
            unpack(archive, draft)
        finally:
            archive.unlink(missing_ok=True)
        draft.mkdir(exist_ok=True)
        draft.rename(tree)
        mark = place / f"{BOOT}.part"
        mark.write_text(clock.boot_id())
        mark.rename(place / BOOT)
        log.info("snapshot %s is unpacked", digest)

    def _fetch(self, digest: str, path: Path) -> None:
        """Write the archive of a snapshot to a file. Raises AgentError, InputError, OSError."""
        import httpx  # here: few jobs have a snapshot

        address, check = self._address(), Check(digest)
        url = f"{address.url.replace('ws', 'http', 1)}/snapshots/{digest}"
        headers = {"Authorization": f"Bearer {address.token}", "Accept-Encoding": "identity"}
        trust = address.context or True
        try:
            with (
                httpx.Client(verify=trust, timeout=TIMEOUT_S, trust_env=False) as http,
                http.stream("GET", url, headers=headers) as answer,
                open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file,
            ):
                if answer.status_code == httpx.codes.NOT_FOUND:
                    raise NeverStartsError("the controller has it no longer (404)")
                if answer.status_code != httpx.codes.OK:
                    raise AgentError(f"the controller does not hand it out ({answer.status_code})")
                for piece in answer.iter_raw():
                    check.feed(piece)
                    file.write(piece)
        except httpx.HTTPError as error:
            raise AgentError(f"it can't be fetched from the controller: {error}") from None
        check.end()


def unpack(archive: Path, place: Path) -> None:
    """Unpack the archive of a snapshot in a folder, and nothing outside of it.

    Raises OSError, TarError.
    """
    with tarfile.open(archive, "r:gz") as packed:
        extract(packed, place)


def _is_for_good(error: Exception) -> bool:
    """True if another try to unpack a snapshot meets the same fault.

    The controller has checked an archive when it took it: one that lacks its digest was damaged
    there.
    """
    if isinstance(error, OSError):
        return error.errno in (errno.ENAMETOOLONG, errno.EILSEQ, errno.ELOOP)
    return isinstance(error, NeverStartsError | InputError | tarfile.TarError)


def _is_whole(place: Path) -> bool:
    """True if the files of a snapshot were written in this boot, all of them."""
    try:
        return (place / BOOT).read_text() == clock.boot_id() and (place / TREE).is_dir()
    except OSError:
        return False


def _what(error: Exception) -> str:
    """Describes the fault in a line."""
    if isinstance(error, OSError):
        return f"{error.filename or 'its files'}: {error.strerror or error}"
    return str(error)
