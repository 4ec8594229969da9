"""The event store against crashes, full disks, locks, damage, and newer versions."""

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import create_engine

from rota.errors import StoreError, StoreFullError, StoreLostError
from rota.model.events import RetryDue, WorkerReported
from rota.store import events
from rota.store.events import EventStore, Submission
from rota.testing.store_contract import every_event
from support.small_disk import fill, small_disk
from support.tables import metadata

WRITER = """
import sys
from pathlib import Path
from rota.model.events import JobSubmitted, RetryDue
from rota.model.job import JobSpec
from rota.store.events import EventStore, Submission

store = EventStore(Path(sys.argv[1]))
durable = sys.argv[2] == "durable"
batch = 0
while True:
    job = JobSubmitted(float(batch), JobSpec(str(batch), 1, float(batch)))
    rest = [RetryDue(float(batch), n) for n in range(batch % 5)]
    submission = Submission("me", f"key-{batch}", "hash", batch)
    store.append([job, *rest], submissions=[submission], durable=durable)
    print(batch, flush=True)
    batch += 1
"""

FULL_DISK = """
import resource, sys
from pathlib import Path
from rota.errors import StoreError, StoreLostError
from rota.model.events import RetryDue, WorkerReported
from rota.store.events import EventStore

store = EventStore(Path(sys.argv[1]))
store.append([RetryDue(1.0, 0)])
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 18, resource.RLIM_INFINITY))
big = WorkerReported(2.0, 0, {"text": "x" * (1 << 20)})
for durable in (False, True):
    try:
        store.append([RetryDue(2.0, 1), big], durable=durable)
    except StoreError as error:
        print(error)
store.append([RetryDue(3.0, 2)])
print([event.row for event in store.load()])
store.close()
"""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "rota.db"


@pytest.mark.process
@pytest.mark.parametrize("durable", ["durable", "normal"])
@pytest.mark.parametrize("after", [0, 1, 7, 40])
def test_a_killed_writer_leaves_all_it_acknowledged_and_nothing_half(path, durable, after):
    command = [sys.executable, "-c", WRITER, str(path), durable]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        try:
            for _ in range(after + 1):
                acknowledged = int(writer.stdout.readline())
        finally:
            writer.kill()
        for line in writer.stdout:  # what it still managed to say before it died
            if line.endswith("\n"):
                acknowledged = int(line)
        assert writer.wait() == -signal.SIGKILL
    with closing(EventStore(path)) as store:
        loaded = list(store.load())
        batches = [int(event.at_s) for event in loaded]
        written = batches[-1]
        assert acknowledged <= written <= acknowledged + 1
        assert batches == [b for b in range(written + 1) for _ in range(1 + b % 5)]
        for batch in range(written + 1):
            assert store.find_submission("me", f"key-{batch}").row == batch
        assert store.find_submission("me", f"key-{written + 1}") is None
        store.append([RetryDue(9.0, 9)])


@pytest.mark.process
def test_a_full_disk_is_told_and_leaves_nothing_half_written(path):
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(path)], capture_output=True, text=True, check=True
    )
    *errors, rows = done.stdout.splitlines()
    assert len(errors) == 2
    assert all(str(path) in error and "disk" in error for error in errors)
    assert rows == "[0, 2]"


@pytest.mark.process
@pytest.mark.parametrize("durable", [False, True], ids=["normal", "durable"])
def test_on_a_full_disk_it_says_so_and_goes_on_when_there_is_room(tmp_path, durable):
    with small_disk(tmp_path / "disk", 4 << 20) as disk:
        store = EventStore(disk / "rota.db")
        filler = fill(disk)
        written = 0
        with pytest.raises(StoreFullError, match="make room on the disk"):
            while True:
                big = WorkerReported(float(written), 0, {"text": "x" * 9000})
                store.append([big, RetryDue(float(written), 1)], durable=durable)
                written += 1
        with pytest.raises(StoreFullError):
            store.append([big], durable=durable)
        filler.unlink()
        store.append([RetryDue(9.0, 9)], durable=durable)
        store.close()
        with closing(EventStore(disk / "rota.db")) as store:
            assert len(list(store.load())) == 2 * written + 1
        with closing(sqlite3.connect(disk / "rota.db")) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


@pytest.mark.process
def test_where_the_log_can_not_even_be_opened_for_want_of_room_that_is_said(tmp_path):
    with small_disk(tmp_path / "disk", 4 << 20) as disk:
        EventStore(disk / "rota.db").close()
        fill(disk)
        with pytest.raises(StoreFullError, match=str(disk)):
            EventStore(disk / "rota.db").next_epoch()


def test_the_file_is_for_its_owner_alone(path):
    before = os.umask(0)
    try:
        with closing(EventStore(path)) as store:
            store.append(every_event())
            modes = {file.name: file.stat().st_mode & 0o777 for file in path.parent.iterdir()}
    finally:
        os.umask(before)
    assert modes == {"rota.db": 0o600, "rota.db-shm": 0o600, "rota.db-wal": 0o600}


def test_migrations_lead_to_the_tables_of_the_code(path):
    EventStore(path).close()
    engine = create_engine(f"sqlite:///{path}")
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
    engine.dispose()


def test_a_newer_schema_is_left_alone(path):
    with closing(EventStore(path)) as store:
        store.append(every_event())
    edit(path, "UPDATE alembic_version SET version_num = '9999'")
    before = path.read_bytes()
    with pytest.raises(StoreError, match="newer version of Rota") as caught:
        EventStore(path)
    assert str(path) in str(caught.value)
    assert path.read_bytes() == before


def test_the_log_cannot_be_rewritten(path):
    with closing(EventStore(path)) as store:
        store.append(every_event())
    for statement in ("DELETE FROM event", "UPDATE event SET body = ''"):
        with pytest.raises(sqlite3.IntegrityError, match="append-only"):
            edit(path, statement)


@pytest.mark.parametrize("content", [b"not a database at all" * 100, b"\0" * 5000])
def test_something_else_in_its_place_is_an_error(path, content):
    path.write_bytes(content)
    with pytest.raises(StoreError, match="damaged") as caught:
        EventStore(path)
    assert str(path) in str(caught.value)
    assert path.read_bytes() == content


def test_damage_within_is_found_when_it_is_read(path):
    with closing(EventStore(path)) as store:
        for _ in range(200):
            store.append(every_event())
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(size // 4)
        file.write(b"\xff" * (size // 2))
    with pytest.raises(StoreError, match=str(path)), closing(EventStore(path)) as store:
        list(store.load())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("DELETE FROM event WHERE seq BETWEEN 3 AND 4", "events 3 to 4 are missing"),
        ("UPDATE event SET body = '{' WHERE seq = 2", "event 2 can't be read"),
        ("UPDATE event SET body = '[]' WHERE seq = 2", "event 2 can't be read"),
        ("UPDATE event SET type = 'Future' WHERE seq = 2", "'Future' is not a kind"),
    ],
)
def test_a_log_with_holes_is_not_believed(path, change, message):
    with closing(EventStore(path)) as store:
        store.append(every_event())
    edit(path, "DROP TRIGGER event_no_delete", "DROP TRIGGER event_no_update", change)
    with closing(EventStore(path)) as store, pytest.raises(StoreError, match=message):
        list(store.load())


def test_a_lock_held_by_another_is_told(path, monkeypatch):
    monkeypatch.setattr(events, "LOCK_WAIT_S", 0.0)
    with closing(EventStore(path)) as store, closing(sqlite3.connect(path)) as other:
        other.isolation_level = None
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match="another process uses it"):
            store.append([RetryDue(1.0, 0)])
        with pytest.raises(StoreError, match="another process uses it"):
            EventStore(path)
        other.execute("ROLLBACK")
        store.append([RetryDue(2.0, 0)])
        assert list(store.load()) == [RetryDue(2.0, 0)]


@pytest.mark.parametrize("put", ["folder", "missing"])
def test_a_place_that_cannot_hold_it_is_named(tmp_path, put):
    path = tmp_path if put == "folder" else tmp_path / "no" / "rota.db"
    with pytest.raises(StoreError, match=str(path)):
        EventStore(path)


def test_threads_may_share_it(path):
    with closing(EventStore(path)) as store:
        start = threading.Barrier(4)

        def write(number):
            start.wait()
            for n in range(25):
                store.append([RetryDue(float(n), number)] * 2, durable=n % 2 == 0)

        threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        loaded = list(store.load())
    assert len(loaded) == 200
    assert all(loaded[i] == loaded[i + 1] for i in range(0, 200, 2))
    for number in range(4):
        assert [e.at_s for e in loaded if e.row == number][::2] == [float(n) for n in range(25)]


def test_a_long_log_is_read_in_pages(path, monkeypatch):
    monkeypatch.setattr(events, "PAGE", 7)
    with closing(EventStore(path)) as store:
        store.append([RetryDue(float(n), n) for n in range(50)])
        assert [event.row for event in store.load()] == list(range(50))


def test_text_that_sqlite_cannot_hold_is_an_error_and_writes_nothing(path):
    with closing(EventStore(path)) as store:
        store.append([WorkerReported(1.0, 0, {"x": "\ud800"})])  # inside JSON it can
        job = [event for event in every_event() if type(event).__name__ == "JobSubmitted"][:1]
        with pytest.raises(StoreError):
            store.append(job, submissions=[Submission("me", "\ud800", "h", 0)])
        assert len(list(store.load())) == 1


def edit(path, *statements):
    with closing(sqlite3.connect(path)) as connection:
        for statement in statements:
            connection.execute(statement)
        connection.commit()


def test_a_copy_has_the_identity_of_its_file_and_another_file_its_own(path, tmp_path):
    with closing(EventStore(path)) as store:
        identity = store.identity
    (tmp_path / "copy.db").write_bytes(path.read_bytes())
    with closing(EventStore(path)) as store, closing(EventStore(tmp_path / "copy.db")) as copy:
        assert store.identity == copy.identity == identity
    with closing(EventStore(tmp_path / "other.db")) as other:
        assert other.identity != identity


def test_a_log_of_before_there_were_identities_gets_one(path):
    with closing(EventStore(path)) as store:
        store.append(every_event())
    later = [
        "DROP TABLE member",
        "DROP TABLE invitation",
        "DROP TABLE delivery",
        "DROP TABLE hook",
        "DROP TABLE identity",
    ]
    edit(path, *later, "UPDATE alembic_version SET version_num = '0001'")
    with closing(EventStore(path)) as store:
        assert len(store.identity) == 32
        assert list(store.load()) == every_event()


def write_ahead_log(path):
    return path.with_name(f"{path.name}-wal")


def delete(path):
    path.unlink()


def move(path):
    path.rename(path.with_name("elsewhere"))


def replace(path):
    copy = path.with_name("copy")
    copy.write_bytes(path.read_bytes())
    copy.replace(path)


def overwrite(path):
    content = path.read_bytes()
    with path.open("r+b") as file:
        file.write(content)


def delete_write_ahead_log(path):
    write_ahead_log(path).unlink()


@pytest.mark.parametrize("harm", [delete, move, replace, overwrite, delete_write_ahead_log])
def test_what_is_written_to_a_file_that_is_not_there_any_more_is_not_acknowledged(path, harm):
    with closing(EventStore(path)) as store:
        store.append([RetryDue(1.0, 0)])
        harm(path)
        for _ in range(2):
            with pytest.raises(StoreLostError, match=str(path)):
                store.append([RetryDue(2.0, 0)])
        with pytest.raises(StoreLostError, match="put it back"):
            store.find_submission("me", "key")


def test_a_file_that_goes_while_it_is_written_to_is_missed_before_anything_is_acknowledged(
    path, monkeypatch
):
    with closing(EventStore(path)) as store:

        def commit_elsewhere(*_):
            path.unlink()

        monkeypatch.setattr(store, "_set_synchronous", commit_elsewhere)
        with pytest.raises(StoreLostError, match="moved or deleted"):
            store.append([RetryDue(1.0, 0)], durable=True)


def test_a_file_that_was_away_is_not_written_to_again(path):
    with closing(EventStore(path)) as store:
        path.rename(path.with_name("elsewhere"))
        with pytest.raises(StoreLostError):
            store.append([RetryDue(1.0, 0)])
        path.with_name("elsewhere").rename(path)
        with pytest.raises(StoreLostError):
            store.append([RetryDue(2.0, 0)])
    with closing(EventStore(path)) as store:
        assert list(store.load()) == []


def test_checkpoints_of_its_own_and_readers_are_no_harm(path, monkeypatch):
    monkeypatch.setattr(events, "CHECKPOINT_BYTES", 1 << 16)
    sizes = set()
    with closing(EventStore(path)) as store:
        for number in range(100):
            with closing(sqlite3.connect(path)) as reader:
                reader.execute("SELECT count(*) FROM event").fetchone()
            with closing(EventStore(path)):
                pass
            store.append([RetryDue(float(number), number)] * 20)
            sizes.add(path.stat().st_size)
        assert len(sizes) > 2
        assert write_ahead_log(path).stat().st_size < 1 << 18
        assert len(list(store.load())) == 2000


def test_a_write_ahead_log_without_its_file_is_kept(path):
    with closing(EventStore(path)) as store:
        store.append([RetryDue(1.0, 0)])
        content = write_ahead_log(path).read_bytes()
        path.rename(path.with_name("elsewhere"))
        with closing(EventStore(path)) as anew:
            assert anew.set_aside == path.with_name("rota.db-wal.set-aside-1")
            assert anew.set_aside.read_bytes() == content
            assert list(anew.load()) == []
    with closing(EventStore(path)) as store:
        assert store.set_aside is None


def test_records_are_read_beside_the_writer_from_a_number_up_to_another(tmp_path):
    store = EventStore(tmp_path / "log.db")
    store.append([RetryDue(float(number), 0) for number in range(10)])
    with store.transaction(durable=False):
        seqs = [seq for seq, _, _ in store.records(2, 8, 4)]
    assert seqs == [3, 4, 5, 6]
    assert [store.event(*record).at_s for record in store.records(8, 100, 9)] == [8.0, 9.0]
    store.close()
    store.close()
