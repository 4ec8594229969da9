"""A disk that a job has filled, or somebody else: the others run on, and all goes on by itself."""

import os

import pytest

from rota.errors import StoreFullError
from support.small_disk import fill, small_disk

from .conftest import SCRIPTS, Cluster, until

MIB = 1 << 20
LIMIT = 8 * MIB


@pytest.fixture
def small(tmp_path):
    """A cluster whose state folder is on a disk of 96 MiB; its reserve takes 6 MiB of it."""
    base = tmp_path / "cluster"
    base.mkdir()
    with small_disk(base / "home", 96 * MIB) as disk:
        cluster = Cluster(base, gpus=3, options=("--log-limit", "8MiB")).up()
        try:
            yield cluster
        finally:
            (disk / "filler").unlink(missing_ok=True)
            cluster.close()


def steps(cluster):
    file = cluster.base / "steps"
    return file.stat().st_size if file.exists() else 0


def until_it_trains(cluster, attempt_of):
    """Wait until the training has come further, in its first attempt."""
    now = steps(cluster)
    until(lambda: steps(cluster) >= now + 5, "the training goes on")
    assert cluster.show(attempt_of)["attempt"] == 1


def log_of(cluster, job_id):
    return next(cluster.folder.path.glob(f"nodes/*/jobs/{job_id}/1/rank0.log"))


def until_file(name):
    """A command that ends well when there is a file in its folder."""
    return f"until [ -e {name} ]; do sleep 0.05; done"


def test_a_job_that_prints_without_end_keeps_the_beginning_and_the_end(small):
    trains = small.submit(f"python {SCRIPTS / 'saving.py'} {small.base}")
    flood = small.submit("echo first; while :; do head -c 1000000 /dev/zero | tr '\\0' x; done")
    small.until_state(flood, "RUNNING")
    log = until(lambda: log_of(small, flood), "it has a log")
    until(lambda: log.stat().st_size > 4 * LIMIT, "it has printed far more than its limit")
    until(lambda: log.stat().st_blocks * 512 < LIMIT + 2 * MIB, "it is cut")
    assert small.show(flood)["state"] == "RUNNING"
    until_it_trains(small, trains)
    small.client.cancel(flood)
    small.ends(flood, "CANCELLED")
    until(lambda: log.stat().st_blocks * 512 < LIMIT + 2 * MIB, "it is cut")
    words = list(small.client.logs(flood))
    assert words[0].startswith("first\n")
    told = [piece for piece in words if "bytes are left out here" in piece]
    assert len(told) == 1
    assert sum(map(len, words)) < LIMIT + 2 * MIB
    assert "\0" not in words[0] + words[-1]
    (small.base / "enough").touch()
    small.ends(trains)


def test_jobs_run_on_whoever_has_filled_the_disk_and_all_goes_on_when_there_is_room(small):
    disk = small.folder.path
    trains = small.submit(f"python {SCRIPTS / 'saving.py'} {small.base}")
    early, late = small.submit(until_file("early")), small.submit(until_file("late"))
    waits = small.submit("true")
    for job in (early, late):
        small.until_state(job, "RUNNING")
    until_it_trains(small, trains)

    fill(disk)
    until(lambda: not small.folder.reserve.exists(), "the reserve is given up")
    with pytest.raises(StoreFullError, match="make room for"):
        small.submit("true")
    (small.base / "early").touch()
    small.ends(early)
    verdict = small.client.explain(waits)
    assert (verdict["state"], verdict["reason"]) == ("PENDING", "WAIT_DISK")

    def unsaved():
        fill(disk)  # what was the reserve, too; and what the last checkpoint has left
        return small.show(trains)["progress"].get("unsaved")

    assert "No space left on device" in until(unsaved, "it tells that it has no room")
    (small.base / "late").touch()
    agent = small.agent()
    small.kill(agent)
    until(lambda: small.agent().pid != agent.pid, "there is another agent")
    until_it_trains(small, trains)
    assert small.show(late)["attempt"] == 1
    assert os.listdir(disk / "checkpoints" / trains) == ["rota.pt"]

    (disk / "filler").unlink()
    small.ends(late)
    small.ends(waits)
    small.ends(small.submit("true"))
    until(lambda: "unsaved" not in small.show(trains)["progress"], "its checkpoint is written")
    until(small.folder.reserve.exists, "the reserve is taken back")
    until_it_trains(small, trains)
    (small.base / "enough").touch()
    assert small.ends(trains)["attempt"] == 1
