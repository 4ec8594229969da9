"""What the next agent makes of an attempt whose last member ended under the one before."""

import asyncio
import json
import subprocess
import time

import pytest
from tests.support.attempts import attempt_in

from rota.errors import AgentError
from rota.live.wire.clock import boottime_s


@pytest.fixture
def record(tmp_path):
    record = {"job_id": "5", "attempt": 1, "suspension": "boundary", "max_world": 4}
    record |= {"slots": 2, "members": [0], "generation": 0, "movable": True, "visible": None}
    return record | {"gpus": [0]}


def has_ended(rank, folder, code):
    (folder / f"rank{rank}.pid").write_text(json.dumps({"shim": 0, "worker": 0}))
    ended = {"code": code, "at_s": time.time()}
    (folder / f"rank{rank}.exit").write_text(json.dumps(ended))


@pytest.mark.parametrize("code", [0, 3, -9])
def test_a_job_that_ended_while_a_resize_was_pending_has_ended_for_the_next_agent(
    tmp_path, record, code
):
    async def first_agent():
        attempt = attempt_in(tmp_path, record, [].append)
        attempt.state = "running"
        attempt.elastic.gang.resize([1], [])
        has_ended(0, tmp_path, code)
        attempt.ranks[0].read_exit()
        assert not attempt.elastic.ended(attempt.ranks[0])

    async def next_agent():
        heard = []
        kept = json.loads((tmp_path / "attempt.json").read_text())
        attempt = attempt_in(tmp_path, kept, heard.append)
        attempt.adopt()
        assert attempt.ended is not None
        return heard[-1]

    asyncio.run(first_agent())
    has_ended(1, tmp_path, -9)
    ended = asyncio.run(next_agent())
    assert (ended["type"], ended["exit_code"]) == ("ended", code)


def test_a_suspension_that_is_refused_leaves_the_answer_of_the_one_under_way(tmp_path, record):
    async def agent():
        heard = []
        attempt = attempt_in(tmp_path, record, heard.append)
        attempt.state = "suspended"
        attempt.record.suspended_s = 1.0
        attempt.ranks[0].suspended = {"stopped_s": 1.0}
        attempt.pausing.resume(7, [0], [])
        with pytest.raises(AgentError, match="is resuming, and can't be suspended now"):
            attempt.pausing.suspend(8)
        attempt.ranks[0].suspended = None
        attempt.pausing.check_resumed()
        return heard

    heard = asyncio.run(agent())
    assert [m["command_id"] for m in heard if m["type"] == "done"] == [7]


def test_an_elastic_gang_of_which_a_rank_was_never_forked_never_started(tmp_path, record):
    """The other one waits for it to meet; the agent died between the two."""
    record |= {"members": [0, 1], "gpus": [0, 1]}
    folder = tmp_path / "nodes/n/jobs/1/1"
    folder.mkdir(parents=True)

    async def next_agent(shim):
        pids = {"shim": shim.pid, "worker": shim.pid, "boottime_s": boottime_s()}
        (folder / "rank0.pid").write_text(json.dumps(pids))
        heard = []
        attempt = attempt_in(folder, record, heard.append)
        attempt.adopt()
        while attempt.ended is None:  # it has its ranks killed, below their shims
            shim.kill()
            shim.poll()
            await asyncio.sleep(0.01)
        return heard[-1]

    with subprocess.Popen(["sleep", "60"], start_new_session=True) as shim:
        lost = asyncio.run(next_agent(shim))
    assert (lost["type"], lost["error"], lost["started"]) == ("lost", "it never started", False)
