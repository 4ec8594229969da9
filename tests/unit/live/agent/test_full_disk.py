"""What an agent does where nothing can be written any more."""

import asyncio
import errno
import json
import os

import pytest
from tests.support.attempts import attempt_in

from rota.errors import AgentError
from rota.live.agent.rank import Rank
from support.small_disk import fill, small_disk

RECORD = {
    "job_id": "5",
    "attempt": 1,
    "suspension": "process",
    "slots": 2,
    "members": [0, 1],
    "gpus": [0, 1],
    "generation": 0,
    "max_world": 1,
    "movable": True,
    "visible": None,
}


@pytest.fixture
def disk(tmp_path):
    """A full disk with the folder of an attempt."""
    with small_disk(tmp_path / "disk", 1 << 20) as disk:
        (disk / "job").mkdir()
        fill(disk)
        with pytest.raises(OSError, match="No space left"):
            (disk / "job" / "file").write_text("x")
        yield disk


def test_a_rank_that_never_started_is_kept_from_starting(disk):
    rank = Rank(0, disk / "job")
    rank.find()
    assert (rank.shim, rank.gone) == (0, True)
    assert sorted(os.listdir(disk / "job")) == ["file", "rank0.pid"]
    with pytest.raises(FileExistsError):  # as its shim will
        os.link(disk / "job" / "file", disk / "job" / "rank0.pid")
    again = Rank(0, disk / "job")
    again.find()
    assert again.gone
    asyncio.run(again.abandon())


def test_a_gang_of_which_one_can_not_be_started_leaves_nobody_who_may_start_later(disk):
    def fork(request):
        raise OSError(errno.ENOSPC, "no room for a shim")

    attempt = attempt_in(disk / "job", RECORD, [].append)
    with pytest.raises(AgentError, match="no room for a shim"):
        asyncio.run(attempt.launch(fork, [{}, {}]))
    assert {"rank0.pid", "rank1.pid"} <= set(os.listdir(disk / "job"))


def test_a_record_that_had_no_room_is_known_to_be_unwritten(disk):
    attempt = attempt_in(disk / "job", RECORD, [].append)
    with pytest.raises(OSError, match="No space"):
        attempt.save()
    assert attempt.unsaved
    (disk / "filler").unlink()
    attempt.save()
    assert not attempt.unsaved
    assert json.loads((disk / "job" / "attempt.json").read_text())["job_id"] == "5"
