"""How an agent ends with all that it has."""

import asyncio
import json
import os
import shutil
import subprocess
import threading
from types import SimpleNamespace

import pytest
from tests.support.attempts import attempt_in

from rota.errors import AgentError
from rota.folder import Folder
from rota.live.agent import agent as agent_module
from rota.live.agent.agent import Agent
from rota.live.agent.devices import Devices
from rota.live.agent.endpoint import FolderEndpoint
from rota.live.agent.record import record_from
from rota.live.agent.snapshots import Snapshots
from rota.live.wire import clock
from rota.live.wire.clock import boottime_s
from rota.live.wire.messages import check_from_agent
from rota.live.wire.places import STRIDE
from rota.live.wire.questions import Clean, ask_message


def agent_on(folder):
    """An agent of two slots whose controller is this process, not yet run."""
    endpoint = FolderEndpoint(folder, os.getpid())
    return Agent(folder, "node0", Devices("cpu", 2, (0, 0)), endpoint)


def guest(job_id):
    """The record of an attempt that has come from another node, and has not gone on yet."""
    record = {"job_id": job_id, "attempt": 1, "launch": None, "source": "elsewhere"}
    record |= {"slots": 1, "members": [0], "generation": 0, "max_world": 1, "gpus": [0]}
    record |= {"suspension": "boundary", "movable": True, "visible": None, "suspended_s": 1.0}
    vacated = {"arenas": {}, "bytes": None, "at_s": 1.0}
    return record | {"vacated": vacated, "program": {"suspend": "auto"}}


def test_an_agent_that_is_shut_down_with_jobs_that_had_just_come_to_it_ends(tmp_path):
    """It has no part in them any more as soon as they are told to end."""
    folder = Folder(tmp_path)
    folder.node("node0").mkdir(parents=True)

    async def story():
        agent = Agent(
            folder, "node0", Devices("cpu", 2, (0, 0)), FolderEndpoint(folder, os.getpid())
        )
        for job_id in ("1", "2"):
            path = folder.attempt("node0", job_id, 1)
            path.mkdir(parents=True)
            attempt = agent._attempt(record_from(guest(job_id)), path)
            attempt.state = "suspended"
            agent.attempts[job_id, 1] = attempt
        await agent._shut_down()
        assert agent.attempts == {}
        assert agent._ending.is_set()

    asyncio.run(story())


def test_an_agent_whose_clock_is_wrong_goes_by_the_controllers_and_so_does_the_next(
    tmp_path, monkeypatch
):
    folder = Folder(tmp_path)
    folder.node("node0").mkdir(parents=True)
    agent = agent_on(folder)
    monkeypatch.setattr(clock, "_ahead_s", 1e9)
    monkeypatch.setenv(clock.VARIABLE, "1e9")
    lease = {"type": "lease", "asked_s": boottime_s(), "lasts_s": None}
    agent._obey(lease)  # of a controller of before
    assert clock.ahead_s() == 1e9
    agent._obey(lease | {"now_s": boottime_s() + 2e9})
    assert clock.ahead_s() == pytest.approx(2e9, abs=60)
    assert clock.read_ahead_s(folder.node("node0") / "clock.json") == clock.ahead_s()


def test_a_controller_that_is_greeted_hears_of_the_plan_of_each_job(tmp_path):
    folder = Folder(tmp_path)
    folder.node("node0").mkdir(parents=True)
    plan = {"batch": 8, "step_s": [0.5], "idle": [0.25]}

    async def story():
        agent = Agent(
            folder, "node0", Devices("cpu", 2, (0, 0)), FolderEndpoint(folder, os.getpid())
        )
        for job_id, planned in (("1", plan), ("2", None)):
            path = folder.attempt("node0", job_id, 1)
            path.mkdir(parents=True)
            attempt = agent._attempt(record_from(guest(job_id) | {"planned": planned}), path)
            attempt.state = "suspended"
            agent.attempts[job_id, 1] = attempt
        told = [message for message in agent._greeting() if message["type"] == "planned"]
        assert told == [{"type": "planned", "job_id": "1", "attempt": 1, **plan}]
        for message in told:
            check_from_agent(message)
        await agent._shut_down()

    asyncio.run(story())


def test_an_attempt_of_another_log_that_is_disowned_before_it_has_begun_is_in_nobodys_way(
    tmp_path, monkeypatch
):
    folder, copied = Folder(tmp_path), threading.Event()
    folder.node("node0").mkdir(parents=True)
    monkeypatch.setattr(agent_module, "inherit", lambda *_, **__: copied.wait())
    program = {"run": "true", "workdir": "/", "env": {}, "processes": "gpu", "resume_from": "9"}
    about = {"job_id": "1", "attempt": 1, "launch": "another 1.0"}
    launch = about | {"type": "command", "kind": "launch", "command_id": 1, "epoch": 0}
    launch |= {"name": "job", "program": program, "gpus": [0], "max_gpus": 1, "adapt": None}
    launch |= {"at_s": 1.0, "origin": "another 1.0"}

    async def story():
        agent = Agent(
            folder, "node0", Devices("cpu", 2, (0, 0)), FolderEndpoint(folder, os.getpid())
        )
        agent._notify = (said := []).append
        launching = agent._spawn(agent._carry_out(launch))
        while not agent.attempts:
            await asyncio.sleep(0)
        agent._disown(about)
        copied.set()
        await asyncio.gather(*agent._tasks)
        assert launching.done()
        assert said == []
        assert not agent._is_busy()
        assert not (folder.attempt("node0", "1", 1) / "attempt.json").exists()

    asyncio.run(story())


def test_a_job_that_is_cancelled_while_its_snapshot_comes_is_not_started(tmp_path, monkeypatch):
    """And a command to launch it that is repeated meanwhile begins nothing anew."""
    folder, asked, coming = Folder(tmp_path), [], threading.Event()
    folder.node("node0").mkdir(parents=True)

    def unpack(self, digest, place):
        asked.append(digest)
        (place / "tree").mkdir()
        coming.wait()

    monkeypatch.setattr(Snapshots, "_unpack", unpack)
    program = {"run": "true", "workdir": "", "env": {}, "processes": "gpu", "snapshot": "5" * 64}
    about = {"job_id": "1", "attempt": 1, "launch": "log 1.0"}
    launch = about | {"type": "command", "kind": "launch", "command_id": 1, "epoch": 0}
    launch |= {"name": "job", "program": program, "gpus": [0], "max_gpus": 1, "adapt": None}
    launch |= {"at_s": 1.0, "origin": "log 1.0"}
    stop = about | {"type": "command", "kind": "stop", "command_id": 2, "epoch": 0}

    async def story():
        agent = agent_on(folder)
        agent._notify = (said := []).append
        for command in (launch, launch, stop):
            agent._spawn(agent._carry_out(command))
            while not asked:
                await asyncio.sleep(0)
        coming.set()
        await asyncio.gather(*agent._tasks)
        assert [(told["type"], told["command_id"]) for told in said] == [("failed", 1)]
        assert "it was told to end before it had started" in said[0]["error"]
        assert not agent._is_busy()

    asyncio.run(story())
    assert asked == ["5" * 64]


def test_a_launch_that_can_never_succeed_is_told_with_its_obstacle_also_when_it_is_repeated(
    tmp_path,
):
    folder = Folder(tmp_path)
    folder.node("node0").mkdir(parents=True)
    program = {"run": "true", "workdir": "", "env": {}, "processes": "gpu", "snapshot": ".."}
    launch = {"job_id": "1", "attempt": 1, "launch": "log 1.0", "origin": "log 1.0", "at_s": 1.0}
    launch |= {"type": "command", "kind": "launch", "command_id": 1, "epoch": 0, "name": "job"}
    launch |= {"program": program, "gpus": [0], "max_gpus": 1, "adapt": None}

    async def story():
        agent = agent_on(folder)
        agent._notify = (said := []).append
        for _ in range(2):
            await agent._carry_out(launch)
        assert [told["obstacle"] for told in said] == ["snapshot", "snapshot"]
        assert said[0] == said[1]
        (folder.attempt("node0", "1", 1) / "failed").write_text("words of an agent of before")
        await agent._carry_out(launch)
        assert said[2]["error"] == "words of an agent of before"
        assert "obstacle" not in said[2]

    asyncio.run(story())


def test_a_gang_that_is_lost_while_another_machine_gets_ready_is_not_started(tmp_path):
    """And its controller hears that nothing of it is left."""
    folder = Folder(tmp_path)
    folder.node("node0").mkdir(parents=True)
    program = {"run": "true", "workdir": "/", "env": {}, "processes": "gpu"}
    about = {"job_id": "1", "attempt": 1, "launch": "log 1.0"}
    launch = about | {"type": "command", "kind": "launch", "command_id": 1, "epoch": 0}
    launch |= {"name": "job", "program": program, "gpus": [0, STRIDE], "max_gpus": 2}
    launch |= {"at_s": 1.0, "origin": "log 1.0", "adapt": None}
    launch["nodes"] = [{"name": name, "address": "127.0.0.1"} for name in ("node0", "node1")]

    async def story():
        agent = agent_on(folder)
        agent._link.tell = (said := []).append
        agent._spawn(agent._carry_out(launch))
        while not said:
            await asyncio.sleep(0)
        assert said.pop()["body"]["do"] == "prepare"
        agent._obey(about | {"type": "kill", "answers": True})
        await asyncio.gather(*agent._tasks)
        assert said[-1] == about | {"type": "gone"}
        (failed,) = (told for told in said if told["type"] == "failed")
        assert "it was told to end" in failed["error"]
        assert not agent._is_busy()

    asyncio.run(story())


def test_files_of_a_job_are_removed_once_the_agent_has_let_go_of_it(tmp_path):
    folder = Folder(tmp_path)
    file = folder.attempt("node0", "1", 1) / "attempt.json"
    file.parent.mkdir(parents=True)
    file.write_text("{}")
    question = Clean(node="node0", job_id="1", origin="", checkpoints=True)

    async def story():
        agent = Agent(
            folder, "node0", Devices("cpu", 2, (0, 0)), FolderEndpoint(folder, os.getpid())
        )
        agent._notify = (said := []).append
        agent.attempts["1", 1] = SimpleNamespace(ended={"type": "ended"}, folder=file.parent)
        cleaning = asyncio.create_task(agent._answer(ask_message(7, question)))
        for _ in range(20):
            await asyncio.sleep(0)
        assert said == []
        agent._forget("1", 1)
        await cleaning
        (told,) = said
        assert told["number"] == 7
        assert told["found"]["num_bytes"] > 0

    asyncio.run(story())
    assert not [*folder.node("node0").glob("jobs/*"), *folder.node("node0").glob("cleaned/*")]


@pytest.mark.process
def test_a_gang_whose_folder_goes_as_it_is_started_leaves_nobody(tmp_path):
    path = tmp_path / "attempt"
    path.mkdir()
    record = guest("1") | {"slots": 2, "members": [0, 1], "gpus": [0, 1]}
    shims = []

    async def fork(_):
        if shims:
            shutil.rmtree(path)
            raise AgentError("no second one")
        shell = ["bash", "-c", "sleep 1000 & echo; wait"]
        shims.append(subprocess.Popen(shell, stdout=subprocess.PIPE))
        shims[0].stdout.readline()
        pid = shims[0].pid
        told = {"shim": pid, "worker": pid, "boottime_s": boottime_s()}
        (path / "rank0.pid").write_text(json.dumps(told))
        return pid

    async def story():
        attempt = attempt_in(path, record, [].append)
        launching = asyncio.create_task(attempt.launch(fork, [{}, {}]))
        while not shims or shims[0].poll() is None:  # reaped, as a zygote does
            await asyncio.sleep(0.01)
        with pytest.raises(AgentError, match="no second one"):
            await launching

    asyncio.run(story())


@pytest.mark.process
def test_a_rank_whose_folder_goes_before_its_shim_is_known_is_given_up(tmp_path):
    """Its attempt is on another node by now: the shim has written its pid where nobody looks."""
    path = tmp_path / "attempt"
    path.mkdir()
    shims = []

    async def fork(_):
        shell = ["bash", "-c", "sleep 1000 & echo; wait"]
        shims.append(subprocess.Popen(shell, stdout=subprocess.PIPE))
        shims[0].stdout.readline()
        shutil.rmtree(path)
        return shims[0].pid

    async def story():
        attempt = attempt_in(path, guest("1"), [].append)
        launching = asyncio.create_task(attempt.launch(fork, [{}]))
        while not shims or shims[0].poll() is None:  # reaped, as a zygote does
            await asyncio.sleep(0.01)
        with pytest.raises(AgentError, match="the folder of rank 0 went"):
            await launching

    asyncio.run(story())
