import json

import pytest

from rota.live.agent.abroad import Abroad, FarRank
from rota.live.agent.guest import exit_of
from rota.live.agent.rank import LAST_BYTES, Rank


@pytest.fixture
def rank(tmp_path):
    """A process that has printed much, and then that its memory ran out."""
    (tmp_path / "rank1.log").write_bytes(b"x" * LAST_BYTES + b"MemoryError\xff\n")
    return Rank(1, tmp_path)


def far(tmp_path):
    rank = FarRank(1, tmp_path, Abroad(None, tmp_path), "there")
    rank.find()
    return rank


def test_a_failed_process_tells_the_agent_of_its_attempt_what_it_printed_last(rank, tmp_path):
    rank.exit = {"code": 1, "at_s": 5.0}
    there = far(tmp_path / "elsewhere")
    there.has_ended(json.loads(json.dumps(exit_of(rank))))
    assert there.exit["code"] == 1
    assert there.last_printed.endswith("MemoryError\ufffd\n".encode())
    assert len(rank.last_printed) == LAST_BYTES


@pytest.mark.parametrize("exit_", [None, {"code": 0, "at_s": 5.0}])
def test_one_that_has_not_failed_tells_none_of_it(rank, tmp_path, exit_):
    rank.exit = exit_
    there = far(tmp_path)
    there.has_ended(exit_of(rank))
    assert there.last_printed == b""
