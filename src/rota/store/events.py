"""The append-only event log in one SQLite file."""

import errno
import json
import logging
import os
import sqlite3
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, cast

from alembic import command
from alembic.config import Config
from alembic.util.exc import CommandError
from sqlalchemy import Connection, create_engine, event
from sqlalchemy.engine import URL
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import StaticPool

from rota import __version__
from rota.errors import StoreError, StoreFullError, StoreLostError, shortage_of
from rota.model.events import Event, JobSubmitted
from rota.store.codec import decode, encode

MIGRATIONS = Path(__file__).with_name("migrations")
LOCK_WAIT_S = 5.0
PAGE = 2000  # events read at once
ROOM_BYTES = 1 << 16  # a disk that has no room for so much is full
CHECKPOINT_BYTES = 4 << 20  # of new events, after which the write-ahead log goes into the file
COMMIT_BYTES = 3 * 4096  # bytes that a commit adds to the write-ahead log besides events

log = logging.getLogger("rota.store")


class Submission(NamedTuple):
    """A submission that may be repeated: the same user and key mean the same job."""

    user: str
    key: str
    body_hash: str
    row: int


class _Standing(NamedTuple):
    """Identity of the opened files, as this store has left them."""

    file: tuple[int, int]  # device and inode
    file_bytes: int
    file_changed_ns: int  # by a checkpoint: commits go to the write-ahead log
    log: tuple[int, int]


class EventStore:
    """Events in the order in which they happened, on disk.

    Events survive a kill of this process once :meth:`append` has returned; durable events survive a
    power cut too. Usable from several threads; one process at a time should write. Every failure is
    a StoreError that names the file and the remedy; on a full disk a StoreFullError, after which
    the same call can be repeated. Once the file or its write-ahead log has been moved, deleted or
    overwritten by another program, each call raises StoreLostError. ``identity`` was made with the
    file, at random, and is the same in every copy. ``set_aside`` is where a write-ahead log without
    its file was moved to, if there was one.
    """

    def __init__(self, path: Path) -> None:
        """Open the log at ``path``, making it (mode 0600) if need be, and migrate it."""
        self.path = Path(path)
        self._lock = threading.RLock()
        self._reading = threading.Lock()
        self._reader: sqlite3.Connection | None = None  # of `records`
        self._synchronous = ""
        self._write_ahead = self.path.with_name(f"{self.path.name}-wal")
        self._standing: _Standing | None = None
        self._lost = ""  # why nothing can be read or written any more
        self._new_bytes = 0  # in the write-ahead log, about
        self.set_aside: Path | None = None
        self.listeners: list[Callable[[Sequence[Event]], object]] = []  # of what was appended
        self._engine = create_engine(
            URL.create("sqlite", database=str(self.path)),
            connect_args={"check_same_thread": False, "timeout": LOCK_WAIT_S},
            poolclass=StaticPool,
        )
        event.listen(self._engine, "connect", _on_connect)
        event.listen(self._engine, "begin", _on_begin)
        try:
            self._create()
            self._migrate()
            ((self.identity,),) = self.read("SELECT identity FROM identity")
            self._standing = self._look()
        except BaseException:
            self.close()
            raise

    def append(
        self,
        events: Sequence[Event],
        *,
        submissions: Sequence[Submission] = (),
        durable: bool = False,
    ) -> None:
        """Write the events, all of them or none. Raises StoreError, with nothing written.

        ``submissions`` are written in the same transaction as their jobs' JobSubmitted, which must
        be among the events; a second one of the same user and key is refused.
        """
        if submissions and not any(isinstance(item, JobSubmitted) for item in events):
            raise StoreError(
                f"{self.path}: the submission {submissions[0].key!r} comes without its job; "
                "append it together with its JobSubmitted"
            )
        rows = [_row(item) for item in events]
        if not rows:
            return
        with self.transaction(durable=durable) as driver:
            driver.executemany("INSERT INTO event (type, body) VALUES (?, ?)", rows)
            driver.executemany(
                "INSERT INTO submission (user, key, body_hash, row) VALUES (?, ?, ?, ?)",
                submissions,
            )
        for tell in self.listeners:
            tell(events)
        self._new_bytes += sum(len(body) for _, body in rows)
        if self._new_bytes > CHECKPOINT_BYTES:
            self._checkpoint()

    def load(self) -> Iterator[Event]:
        """Every event, oldest first, as of the moments at which they are read.

        Raises StoreError at the first one that is missing, damaged, or of an unknown kind.
        """
        last = 0
        while True:
            page = self.read(
                "SELECT seq, type, body FROM event WHERE seq > ? ORDER BY seq LIMIT ?", last, PAGE
            )
            if not page:
                return
            for seq, type_, body in page:
                if seq != last + 1:
                    raise StoreError(
                        f"{self.path}: events {last + 1} to {seq - 1} are missing; "
                        "restore the file from a copy, or move it away to start anew"
                    )
                last = seq
                yield self.event(seq, type_, body)

    def records(self, after: int, upto: int, most: int) -> list[tuple[int, str, str]]:
        """(number, kind, body as JSON) of at most ``most`` events after one, up to another.

        It reads beside the writer, on a connection of its own, and delays no :meth:`append`.
        """
        query = "SELECT seq, type, body FROM event WHERE seq > ? AND seq <= ? ORDER BY seq LIMIT ?"
        with self._reading:
            try:
                if self._reader is None:
                    self._reader = sqlite3.connect(
                        f"{self.path.absolute().as_uri()}?mode=ro",
                        uri=True,
                        timeout=LOCK_WAIT_S,
                        check_same_thread=False,
                        isolation_level=None,
                    )
                return self._reader.execute(query, (after, upto, most)).fetchall()
            except sqlite3.Error as error:
                raise StoreError(f"{self.path} can't be read: {error}; {_advice(error)}") from None

    def next_epoch(self) -> int:
        """Count one more life of the controller, durably: 1, then 2, ..."""
        with self.transaction(durable=True) as driver:
            epoch = driver.execute("INSERT INTO controller_life DEFAULT VALUES").lastrowid
        assert epoch is not None
        return epoch

    def find_submission(self, user: str, key: str) -> Submission | None:
        """The user's submission under this key, if any."""
        found = self.read(
            "SELECT user, key, body_hash, row FROM submission WHERE user = ? AND key = ?", user, key
        )
        return Submission(*found[0]) if found else None

    def read(self, query: str, *values: Any) -> list[Any]:
        """The rows that a query finds. Raises StoreError."""
        with self._guarded("can't be read"):
            return self._driver.execute(query, values).fetchall()

    @contextmanager
    def transaction(self, *, durable: bool) -> Iterator[sqlite3.Connection]:
        """A transaction that is committed at the end, and undone if anything goes wrong.

        A commit to a file that has been replaced raises StoreLostError all the same.
        """
        driver = self._driver
        with self._guarded("can't be written"):
            self._set_synchronous("FULL" if durable else "NORMAL")
            driver.execute("BEGIN IMMEDIATE")
            try:
                yield driver
                driver.execute("COMMIT")
                self._new_bytes += COMMIT_BYTES
            except BaseException:
                if driver.in_transaction:  # some failures have undone it already
                    driver.execute("ROLLBACK")
                raise

    def event(self, seq: int, type_: str, body: str) -> Event:
        """The event of a record of :meth:`records`. Raises StoreError if it is damaged."""
        try:
            return decode(json.loads(body) | {"type": type_})
        except (ValueError, TypeError, RecursionError, StoreError) as error:
            raise self.unreadable(seq, error) from None

    def close(self) -> None:
        """Close the file. Closing twice does no harm."""
        with self._reading, suppress(sqlite3.Error):
            if self._reader is not None:
                self._reader.close()
                self._reader = None
        with self._lock, suppress(SQLAlchemyError, sqlite3.Error):
            self._engine.dispose()

    # -- inside --------------------------------------------------------------------------------

    def _create(self) -> None:
        """Make the file for its owner alone: SQLite by itself would leave it to the umask.

        SQLite would delete the write-ahead log of a file that was moved away, and with it the last
        events of that one.
        """
        try:
            if not self.path.exists() and self._write_ahead.exists():
                self.set_aside = _free_name(self._write_ahead)
                self._write_ahead.rename(self.set_aside)
            os.close(os.open(self.path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
        except OSError as error:
            raise StoreError(
                f"{self.path} can't be opened: {error.strerror}; "
                "set ROTA_HOME to a folder that you can write to"
            ) from None

    def _migrate(self) -> None:
        config = Config()
        config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
        with self._guarded("can't be opened"), self._engine.connect() as connection:
            config.attributes["connection"] = connection
            try:
                with connection.begin():
                    command.upgrade(config, "head")
            except CommandError as error:
                raise StoreError(
                    f"{self.path} comes from a newer version of Rota than this one; "
                    f"install that one, or set ROTA_HOME to another folder ({error})"
                ) from None
            self._driver = cast(sqlite3.Connection, connection.connection.driver_connection)

    @contextmanager
    def _guarded(self, what: str) -> Iterator[None]:
        """Use the database exclusively. Raises StoreError if it fails or is missing."""
        with self._lock:
            self._check()
            try:
                yield
            except (SQLAlchemyError, sqlite3.Error, UnicodeEncodeError) as error:
                self._check()
                cause = getattr(error, "orig", None) or error
                kind = StoreFullError if _is_full(cause, self.path.parent) else StoreError
                raise kind(f"{self.path} {what}: {cause}; {_advice(cause)}") from None
            self._check()

    def _check(self) -> None:
        """Raise StoreLostError unless the files are those that were opened."""
        if not self._lost and self._standing is not None:
            try:
                now: _Standing | None = self._look()
            except OSError:
                now = None
            if now == self._standing:
                return
            self._lost = "was moved or deleted" if now is None else "was replaced or overwritten"
        if self._lost:
            raise StoreLostError(
                f"{self.path} {self._lost} while a controller had it open; put it back as it was, "
                f"with its {self._write_ahead.name}, or as a copy without one, and start again; "
                "or start without it, which ends the jobs that run"
            )

    def _look(self) -> _Standing:
        file, write_ahead = os.stat(self.path), os.stat(self._write_ahead)
        return _Standing(
            (file.st_dev, file.st_ino),
            file.st_size,
            file.st_mtime_ns,
            (write_ahead.st_dev, write_ahead.st_ino),
        )

    def _checkpoint(self) -> None:
        """Copy the write-ahead log into the file.

        SQLite would do so by itself, but then a change by SQLite could not be told from another's.
        """
        self._new_bytes = 0
        with self._lock, suppress(OSError):
            self._check()
            try:
                self._driver.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
            except sqlite3.Error as error:
                log.warning("%s: its write-ahead log stays as it is for now: %s", self.path, error)
            self._standing = self._look()

    def _set_synchronous(self, level: str) -> None:
        if level != self._synchronous:
            self._driver.execute(f"PRAGMA synchronous={level}")
            self._synchronous = level

    def unreadable(self, seq: int, why: object) -> StoreError:
        """The error for an event that this version can't read; ``seq`` counts from 1."""
        return StoreError(
            f"{self.path}: event {seq} can't be read by this version of Rota, {__version__}: "
            f"{why}; use the version that wrote the log or a newer one, or set ROTA_HOME to "
            "another folder"
        )


def _row(item: Event) -> tuple[str, str]:
    """The columns of one event."""
    record = encode(item)
    return record.pop("type"), json.dumps(record, separators=(",", ":"))


def _on_connect(driver: Any, _: Any) -> None:
    driver.isolation_level = None  # transactions begin where _on_begin says, schema changes too
    if driver.execute("PRAGMA journal_mode=WAL").fetchone()[0] != "wal":
        raise sqlite3.OperationalError("its file system can't hold a write-ahead log")
    driver.execute("PRAGMA wal_autocheckpoint=0")  # see EventStore._checkpoint


def _free_name(path: Path) -> Path:
    """A name beside ``path`` that is not taken."""
    names = (path.with_name(f"{path.name}.set-aside-{number}") for number in count(1))
    return next(name for name in names if not name.exists())


def _on_begin(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _is_full(cause: BaseException, folder: Path) -> bool:
    """True if the database failed because there is no room.

    SQLite reports a file that can't grow, but neither a quota nor the files beside it.
    """
    code = getattr(cause, "sqlite_errorcode", 0) & 0xFF  # the rest of it tells where it happened
    if code == sqlite3.SQLITE_FULL:
        return True
    if code not in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN):
        return False
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            os.posix_fallocate(file.fileno(), 0, ROOM_BYTES)
    except OSError as error:
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    return False


def _advice(error: Exception) -> str:
    """Advice to the owner after a database failure."""
    if isinstance(error, sqlite3.IntegrityError):
        return "it is there already"
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))  # SQLite does not tell a lack of descriptors
    except OSError as lack:
        return shortage_of(lack) or str(lack)
    text = str(error).lower()
    for sign, advice in _ADVICE.items():
        if sign in text:
            return advice
    return "check the file, its folder and the disk"


DAMAGED = (
    "it is damaged; restore it from a copy and remove its -wal file, "
    "or move both away to start anew"
)
_ADVICE = {
    "locked": "another process uses it; end that one, or set ROTA_HOME to another folder",
    "full": "make room on the disk and try again",
    "disk i/o": "check that the disk has room and works",
    "not a database": DAMAGED,
    "malformed": DAMAGED,
    "readonly": "make the file and its folder writable",
    "unable to open": "make the file and its folder writable",
    "write-ahead log": "set ROTA_HOME to a folder on a local disk",
}
