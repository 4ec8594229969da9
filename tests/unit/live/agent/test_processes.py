"""Who a process is, whatever the wall clock says."""

import json
import os
import subprocess
import time

import pytest

from rota.live.agent.processes import started_at
from rota.live.agent.rank import Rank
from rota.live.wire.clock import boottime_s


def test_a_process_is_known_by_when_it_started_until_it_is_gone():
    before = boottime_s()
    with subprocess.Popen(["sleep", "60"]) as process:
        began = started_at(process.pid)
        assert before - 1 <= began <= boottime_s()
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert started_at(process.pid) is None, "a zombie runs no more"
    assert started_at(process.pid) is None


@pytest.mark.parametrize("step_s", [3600.0, -3600.0])
def test_the_shim_of_a_rank_is_found_after_the_wall_clock_was_set(tmp_path, monkeypatch, step_s):
    me = {"shim": os.getpid(), "worker": os.getpid(), "boottime_s": boottime_s()}
    (tmp_path / "rank0.pid").write_text(json.dumps(me))
    at_s = time.time() - step_s  # of the file, whose times the kernel writes by the wall clock
    os.utime(tmp_path / "rank0.pid", (at_s, at_s))
    rank = Rank(0, tmp_path)
    rank.find()
    assert rank.alive
    rank.close()


@pytest.mark.parametrize("told", [{"boottime_s": 0.0}, {}])
def test_a_process_that_has_the_pid_of_a_shim_that_is_gone_is_not_taken_for_it(tmp_path, told):
    me = {"shim": os.getpid(), "worker": os.getpid()}
    (tmp_path / "rank0.pid").write_text(json.dumps(me | told))
    os.utime(tmp_path / "rank0.pid", (0, 0))
    rank = Rank(0, tmp_path)
    rank.find()
    assert rank.gone
