"""The event log is moved away, deleted, or replaced: no job is taken for another one."""

import contextlib
import os
import sqlite3
from pathlib import Path

import psutil
import pytest
from tests.process.conftest import Cluster, is_gone, until

from rota.errors import NotFoundError, RotaError, StoreError

# Writes down that it has run, and what it found; then it waits until it may go on, or is to end.
JOB = """
trap 'echo asked >> {out}; exit 9' TERM
echo $ROTA_JOB_ID.$ROTA_ATTEMPT $(ls $ROTA_CHECKPOINT_DIR) >> {out}
touch $ROTA_CHECKPOINT_DIR/state-of-{out} {out}.begun
while [ ! -e {out}.go ]; do sleep 0.05; done
"""


def start(cluster: Cluster, out: str) -> str:
    """Start a job that waits; its id."""
    job_id = cluster.submit(JOB.format(out=out))
    cluster.until_state(job_id, "RUNNING")
    until((cluster.base / f"{out}.begun").exists, f"{out} has begun")
    return job_id


def told(cluster: Cluster, out: str) -> list[str]:
    return (cluster.base / out).read_text().splitlines()


def go(cluster: Cluster, out: str) -> None:
    (cluster.base / f"{out}.go").touch()


def log_files(cluster: Cluster) -> list[Path]:
    database = cluster.folder.database
    return [database.with_name(database.name + end) for end in ("", "-wal", "-shm")]


def copy(cluster: Cluster, target: Path) -> None:
    """Back the log up as it is now."""
    with (
        contextlib.closing(sqlite3.connect(cluster.folder.database)) as database,
        contextlib.closing(sqlite3.connect(target)) as backup,
    ):
        database.backup(backup)


def put_back(cluster: Cluster, saved: Path) -> None:
    for file in log_files(cluster):
        file.unlink(missing_ok=True)
    saved.rename(cluster.folder.database)


def terminal(cluster: Cluster) -> str:
    return (cluster.base / "up.log").read_text()


def test_a_log_that_was_moved_away_or_deleted_starts_anew_and_no_job_is_taken_for_another(
    cluster: Cluster,
) -> None:
    failed = cluster.submit("exit 3")
    ended = start(cluster, "ended")
    go(cluster, "ended")
    cluster.ends(failed, "FAILED")
    cluster.ends(ended)
    assert (failed, ended) == ("1", "2")
    cluster.down()
    away = cluster.base / "away"
    away.mkdir()
    for file in log_files(cluster):
        if file.exists():
            file.rename(away / file.name)

    cluster.up()
    assert "no jobs with ids from 1 to 2" in terminal(cluster)
    alive = start(cluster, "alive")
    assert told(cluster, "alive") == ["3.1"]  # it has run, and found no stranger's checkpoint
    assert "state-of-alive" in os.listdir(cluster.folder.checkpoints(alive))

    # Deleted while the controller runs: nothing is acknowledged, and the job goes on.
    for file in log_files(cluster):
        file.unlink()
    with pytest.raises(StoreError, match="moved or deleted"):
        cluster.submit("true")
    assert cluster.process is not None
    assert cluster.process.wait(60) == 1
    assert "the controller had to stop: " in terminal(cluster)
    assert told(cluster, "alive") == ["3.1"]
    (worker,) = cluster.of_job(alive)[:1]
    assert not is_gone(worker)

    # The next one knows nothing of it: it is asked to end, and its id is not used again.
    cluster.up()
    until(lambda: told(cluster, "alive") == ["3.1", "asked"], "the stranger is asked to end")
    until(lambda: not cluster.of_job(alive), "it has ended")
    after = start(cluster, "after")
    assert told(cluster, "after") == ["4.1"]
    go(cluster, "after")
    cluster.ends(after)
    assert "attempt 1 of a job 3" in terminal(cluster)
    with pytest.raises(NotFoundError):
        cluster.show(alive)

    # What was moved away can be put back.
    cluster.down()
    put_back(cluster, away / "rota.db")
    cluster.up()
    assert cluster.show(ended)["state"] == "SUCCEEDED"
    assert cluster.submit("true") == "5"


def test_an_older_copy_of_the_log_takes_over_what_it_knows_and_nothing_else(
    make_cluster: type[Cluster],
) -> None:
    cluster = make_cluster(gpus=3)
    kept, restarted = start(cluster, "kept"), start(cluster, "restarted")
    worker = cluster.pids(kept)["worker"]
    copy(cluster, cluster.base / "copy.db")
    # After the copy a job starts anew, and another one comes.
    cluster.kill(cluster.pids(restarted)["shim"])
    until(lambda: len(told(cluster, "restarted")) == 2, "it has started anew")
    cluster.until_state(restarted, "RUNNING")
    unknown = start(cluster, "unknown")
    cluster.kill_controller()
    put_back(cluster, cluster.base / "copy.db")

    cluster.up()
    until(lambda: told(cluster, "unknown")[-1] == "asked", "the unknown job is asked to end")
    until(lambda: not cluster.of_job(unknown), "it has ended")
    cluster.until_state(kept, "RUNNING")
    assert cluster.pids(kept)["worker"] == worker
    # The attempt of after the copy was ended; the one that has its number now is another.
    found = "2.2 state-of-restarted"  # the checkpoints are the job's
    until(lambda: told(cluster, "restarted")[-1] == found, "it has started once more")
    assert told(cluster, "restarted") == ["2.1", found, "asked", found]
    cluster.until_state(restarted, "RUNNING")
    assert len(list(cluster.folder.path.glob("nodes/*/set-aside/2-2.1/rank0.log"))) == 1
    with pytest.raises(NotFoundError):
        cluster.show(unknown)
    fresh = start(cluster, "fresh")
    assert told(cluster, "fresh") == ["4.1"]
    for out, job_id in (("kept", kept), ("restarted", restarted), ("fresh", fresh)):
        go(cluster, out)
        cluster.ends(job_id)
    assert psutil.pid_exists(worker) is False


@pytest.mark.parametrize("how", ["replaced", "overwritten"])
def test_a_log_that_is_replaced_under_a_running_controller_stops_it(
    cluster: Cluster, how: str
) -> None:
    waits = start(cluster, "waits")
    saved = cluster.base / "copy.db"
    copy(cluster, saved)
    cluster.submit("true")
    if how == "replaced":
        saved.rename(cluster.folder.database)
    else:
        cluster.folder.database.write_bytes(saved.read_bytes())
    with pytest.raises(RotaError, match="replaced or overwritten"):
        cluster.submit("true")
    assert cluster.process is not None
    assert cluster.process.wait(60) == 1
    assert psutil.pid_exists(cluster.pids(waits)["worker"])  # jobs go on
