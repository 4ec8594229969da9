import asyncio
import contextlib
import json
import re
from pathlib import Path

import pytest

from rota.errors import (
    AgentError,
    JobFileError,
    NeverFitsError,
    StoreError,
    StoreLostError,
)
from rota.folder import Folder
from rota.live import wire
from rota.live.agent.answers import answer
from rota.live.agent.entering import FolderLooks
from rota.live.controller import agent_sessions
from rota.live.controller import loop as controller_module
from rota.live.controller import supply as supply_module
from rota.live.controller.clock import Clock
from rota.live.controller.last_id import write_last_id
from rota.live.controller.loop import Controller
from rota.live.provider.base import AwaitedNode, ProvidedNode, Provider
from rota.live.wire.questions import ask_of
from rota.model.allocation import on_node
from rota.model.decide import fallback
from rota.model.events import BurstPlanned, JobSubmitted, ModelReported, NodeLost
from rota.model.job import JobState
from rota.model.notes import MOST_WARNINGS, DesiredNodes, Notes
from rota.model.probe import Probe
from rota.model.reason import Reason
from rota.model.turns import Turns
from rota.policy.base import Policy
from rota.policy.ordering.fifo import FifoBackfill
from rota.request.jobfile import parse_job
from rota.store.events import EventStore


class NoProvider(Provider):
    def __init__(self):
        self.there = [ProvidedNode("n", is_alive=True)]

    def nodes(self):
        return self.there


class Agent:
    """The other end of an in-memory channel: what a test has the agent say.

    It calls from ``place``: the node that it has joined as, and an address.
    """

    def __init__(self, controller, folder=None, place=()):
        self._to_controller, self.heard, self._folder = asyncio.Queue(), asyncio.Queue(), folder
        self._task = asyncio.create_task(controller.agents.serve_agent(self, *place))

    async def receive(self):
        return await self._to_controller.get()

    async def send(self, data):
        message = json.loads(data)
        if message["type"] == "ask" and self._folder is not None:
            self.says(**await answer(self._folder, "n", ask_of(message), FolderLooks()))
        else:
            self.heard.put_nowait(message)

    def says(self, **message):
        self._to_controller.put_nowait(json.dumps(message))

    def hello(self, attempts=(), num_gpus=2):
        self.says(**HELLO | {"num_gpus": num_gpus, "attempts": list(attempts)})

    async def hears(self, kind):
        """The next message of this kind, or command of it; others are passed over."""
        while True:
            message = await asyncio.wait_for(self.heard.get(), 10)
            if kind in (message["type"], message.get("kind")):
                return message

    async def quiet(self):
        for _ in range(20):
            await asyncio.sleep(0)
        return self.heard.empty()

    async def ended(self):
        """Wait until the controller hangs up. Raises what it says of that in its log."""
        await asyncio.wait_for(self._task, 10)

    async def leave(self):
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


@contextlib.asynccontextmanager
async def controlled(home: Path, policy=None):
    folder = Folder(home).create()
    controller = Controller(
        EventStore(folder.database), folder, policy or FifoBackfill(), "fifo", NoProvider()
    )
    await controller.start()
    try:
        yield controller
    finally:
        assert not controller.journal.failed
        controller.state.validate()
        await controller.stop()


async def submit(controller, key=None, body="a", **fields):
    request = parse_job({"run": "true", **fields}, workdir="/")
    return await controller.jobs.submit(request, user="me", key=key, body_hash=body)


def done(command, **fields):
    return {
        "type": "done",
        "command_id": command["command_id"],
        "at_s": command.get("at_s", 0.0),
    } | fields


async def until_state(controller, row, state):
    async with asyncio.timeout(10):
        while controller.state.state[row] != state:
            await asyncio.sleep(0.001)


def test_a_repeated_submission_is_the_same_job_also_after_a_restart(tmp_path):
    async def scenario():
        async with controlled(tmp_path) as controller:
            assert await submit(controller, "k") == await submit(controller, "k") == 0
            assert await submit(controller, "other") == 1
            with pytest.raises(JobFileError, match="was used for another job"):
                await submit(controller, "k", body="b")
        async with controlled(tmp_path) as controller:
            assert await submit(controller, "k") == 0
            assert len(controller.state.spec) == 2

    asyncio.run(scenario())


def test_a_job_that_never_fits_is_refused_once_the_node_is_known(tmp_path):
    async def scenario():
        async with controlled(tmp_path) as controller:
            agent = Agent(controller)
            agent.hello()
            await agent.hears("welcome")
            with pytest.raises(NeverFitsError, match="this cluster has 2"):
                await submit(controller, resources={"gpus": 3})
            await agent.leave()

    asyncio.run(scenario())


def test_a_policy_that_raises_is_asked_again_and_the_queue_survives(tmp_path, monkeypatch):
    monkeypatch.setattr(fallback, "RETRY_S", 0.01)

    class Moody(FifoBackfill):
        calls = 0

        def decide(self, view):
            self.calls += 1
            if self.calls % 3:
                raise ZeroDivisionError("on purpose")
            return super().decide(view)

    async def scenario():
        async with controlled(tmp_path, Moody()) as controller:
            agent = Agent(controller)
            agent.hello()
            rows = [await submit(controller) for _ in range(2)]
            for _ in rows:
                launch = await agent.hears("launch")
                agent.says(**done(launch))
            for row in rows:
                await until_state(controller, row, JobState.RUNNING)
            while controller.policy_error is not None:  # jobs have started all the same
                controller.state.decision_needed = True
                controller.turn()
            while controller.policy_error is None:
                controller.state.decision_needed = True
                controller.turn()
            (file,) = controller.record.folder.failed_decisions.iterdir()
            kept = json.loads(file.read_text())
            assert "ZeroDivisionError: on purpose" in kept["traceback"]
            assert (kept["policy"], kept["settings"]) == ("fifo", {})
            assert "ZeroDivisionError: on purpose" in controller.policy_error
            assert f"({__file__}, line " in controller.policy_error
            await agent.leave()

    asyncio.run(scenario())


def test_a_failed_launch_backs_off_and_is_tried_as_another_attempt(tmp_path, monkeypatch):
    monkeypatch.setattr(agent_sessions, "RETRY_S", 0.02)

    async def scenario():
        async with controlled(tmp_path) as controller:
            agent = Agent(controller)
            agent.hello(num_gpus=1)
            first, second = await submit(controller), await submit(controller)
            launch = await agent.hears("launch")
            assert (launch["job_id"], launch["attempt"]) == ("1", 1)
            agent.says(type="failed", command_id=launch["command_id"], error="no zygote")
            other = await agent.hears("launch")
            assert other["job_id"] == "2", "others go on meanwhile"
            agent.says(
                type="ended",
                job_id="2",
                attempt=1,
                at_s=0,
                exit_code=0,
                message="",
                stop_asked=False,
            )
            again = await agent.hears("launch")
            assert (again["job_id"], again["attempt"]) == ("1", 2)
            agent.says(**done(again))
            await until_state(controller, first, JobState.RUNNING)
            assert controller.state.state[second] == JobState.SUCCEEDED
            await agent.leave()

    asyncio.run(scenario())


def test_a_launch_that_fails_for_good_ends_its_job_with_the_reason(tmp_path):
    async def scenario():
        async with controlled(tmp_path) as controller:
            agent = Agent(controller)
            agent.hello(num_gpus=1)
            first, second = await submit(controller), await submit(controller)
            launch = await agent.hears("launch")
            failed = {"type": "failed", "command_id": launch["command_id"]}
            agent.says(**failed, error="snapshot 12: it is gone", obstacle="snapshot")
            other = await agent.hears("launch")
            assert other["job_id"] == "2", "its GPU is free for others"
            agent.says(**done(other))
            await until_state(controller, second, JobState.RUNNING)
            ended = controller.state.job(first, controller.now_s())
            assert (ended.state, ended.exit_code) == (JobState.FAILED, None)
            assert ended.message == "it can't be started: snapshot 12: it is gone"
            assert ended.service_s == 0.0
            assert not controller.state.completed_gpu_s, "no size of a job is learnt from it"
            await agent.leave()

    asyncio.run(scenario())


def test_a_job_that_was_cancelled_before_its_launch_failed_for_good_is_cancelled(tmp_path):
    async def scenario():
        async with controlled(tmp_path) as controller:
            agent = Agent(controller)
            agent.hello(num_gpus=1)
            row = await submit(controller)
            launch = await agent.hears("launch")
            await controller.jobs.cancel(row)
            failed = {"type": "failed", "command_id": launch["command_id"]}
            agent.says(**failed, error="it is gone", obstacle="of a later version")
            await until_state(controller, row, JobState.CANCELLED)
            await agent.leave()

    asyncio.run(scenario())


def test_what_is_out_of_date_is_passed_over(tmp_path):
    async def scenario():
        async with controlled(tmp_path) as controller:
            agent = Agent(controller)
            agent.hello()
            row = await submit(controller)
            launch = await agent.hears("launch")
            agent.says(**done(launch))
            await until_state(controller, row, JobState.RUNNING)
            events = controller.state.events
            agent.says(**done(launch))
            agent.says(type="failed", command_id=999, error="what?")
            old = {"job_id": "1", "attempt": 7}
            agent.says(type="progress", progress={"at_s": 0.0}, **old)
            agent.says(type="registered", suspension="boundary", movable=True, **old)
            agent.says(type="ended", at_s=0, exit_code=1, message="", stop_asked=False, **old)
            assert (await agent.hears("forget"))["attempt"] == 7
            agent.says(type="progress", progress={"at_s": 0.0}, job_id="77", attempt=1)
            await agent.quiet()
            assert controller.state.events == events
            assert controller.state.state[row] == JobState.RUNNING
            await agent.leave()

    asyncio.run(scenario())


def test_commands_that_an_agent_may_have_missed_are_repeated_and_the_job_starts_once(tmp_path):
    async def scenario():
        async with controlled(tmp_path) as controller:
            agent = Agent(controller)
            agent.hello()
            row = await submit(controller)
            launch = await agent.hears("launch")
            await agent.leave()
        async with controlled(tmp_path) as controller:  # killed and restarted, for all it knows
            agent = Agent(controller)
            agent.hello()
            again = await agent.hears("launch")
            assert (again["command_id"], again["attempt"]) == (launch["command_id"], 1)
            assert again["epoch"] > launch["epoch"]
            agent.says(**done(again))
            await until_state(controller, row, JobState.RUNNING)
            await controller.jobs.suspend(row)
            suspend = await agent.hears("suspend")
            await agent.leave()
            agent = Agent(controller)
            alive = {"type": "alive", "job_id": "1", "attempt": 1, "state": "running"}
            agent.hello([alive | {"suspension": "boundary", "movable": True}])
            repeated = await agent.hears("suspend")
            assert repeated["command_id"] == suspend["command_id"]
            agent.says(**done(repeated, stopped_s=0.0))
            await until_state(controller, row, JobState.SUSPENDED)
            await agent.leave()

    asyncio.run(scenario())


def test_a_limit_that_passed_without_a_controller_ends_no_job_that_had_ended(tmp_path, monkeypatch):
    now_s = Clock.now_s

    async def scenario():
        async with controlled(tmp_path) as controller:
            agent = Agent(controller)
            agent.hello()
            await submit(controller, time_limit=1)
            launch = await agent.hears("launch")
            agent.says(**done(launch))
            await until_state(controller, 0, JobState.RUNNING)
            began_s = controller.state.since_s[0]
            await agent.leave()
        monkeypatch.setattr(Clock, "now_s", lambda clock: now_s(clock) + 60.0)
        async with controlled(tmp_path) as controller:
            await asyncio.sleep(0.01)
            agent = Agent(controller)
            ended = {"type": "ended", "exit_code": 0, "message": "", "stop_asked": False}
            agent.hello([ended | {"job_id": "1", "attempt": 1, "at_s": began_s + 0.5}])
            await until_state(controller, 0, JobState.SUCCEEDED)
            assert controller.state.finish_s[0] == pytest.approx(began_s + 0.5)
            await agent.leave()

    asyncio.run(scenario())


def test_a_limit_waits_for_the_agent_that_knows_whether_the_job_has_run_on(tmp_path, monkeypatch):
    now_s = Clock.now_s
    monkeypatch.setattr(controller_module, "AWAIT_S", 0.0)

    async def scenario():
        async with controlled(tmp_path) as controller:
            agent = Agent(controller)
            agent.hello()
            await submit(controller, time_limit=60)
            agent.says(**done(await agent.hears("launch")))
            await until_state(controller, 0, JobState.RUNNING)
            await agent.leave()
        monkeypatch.setattr(Clock, "now_s", lambda clock: now_s(clock) + 3600.0)  # a power cut
        async with controlled(tmp_path) as controller:
            controller.turn()
            agent = Agent(controller)
            lost = {"type": "lost", "error": "?", "started": True, "rebooted": True}
            agent.hello([lost | {"job_id": "1", "attempt": 1}])
            assert (await agent.hears("launch"))["attempt"] == 2
            assert controller.state.service_s[0] < 60
            await agent.leave()

    asyncio.run(scenario())


@pytest.mark.parametrize("kind", ["ended", "lost"])
def test_the_last_report_of_an_attempt_that_ended_without_a_controller_is_known(tmp_path, kind):
    told = {"step": 100, "total": 100, "at_s": 1.0, "metrics": {}}

    async def scenario():
        async with controlled(tmp_path) as controller:
            agent = Agent(controller)
            agent.hello()
            await submit(controller)
            agent.says(**done(await agent.hears("launch")))
            early = told | {"step": 3}
            agent.says(type="progress", job_id="1", attempt=1, progress=early)
            await until_state(controller, 0, JobState.RUNNING)
            await agent.quiet()
            assert controller.record.progress(0) == early
            await agent.leave()
        async with controlled(tmp_path) as controller:
            agent = Agent(controller)
            end = {"type": kind, "job_id": "1", "attempt": 1, "progress": told}
            end |= {"ended": {"at_s": 2.0, "exit_code": 0, "message": ""}, "lost": {}}[kind]
            agent.hello([end | {"error": "gone", "started": True, "stop_asked": False}])
            await agent.hears("welcome")
            assert controller.record.progress(0) == told
            await agent.leave()
        async with controlled(tmp_path) as controller:
            assert controller.record.progress(0) == told

    asyncio.run(scenario())


async def run_to_its_end(controller, agent, **fields):
    """A job that has been started and has ended; its row."""
    row = await submit(controller, **fields)
    launched = await agent.hears("launch")
    agent.says(**done(launched))
    about = {key: launched[key] for key in ("job_id", "attempt", "launch")}
    agent.says(**ENDED | about)
    await until_state(controller, row, JobState.SUCCEEDED)
    return row


def test_a_job_begins_with_the_checkpoints_of_one_that_has_ended_and_left_some(tmp_path):
    async def refused(controller, value, *words):
        request = parse_job({"run": "true", "resume_from": value}, workdir="/")
        for taken in (False, True):
            with pytest.raises(JobFileError) as caught:
                if taken:
                    await submit(controller, resume_from=value)
                else:
                    await controller.jobs.resumed_from(request)
            text = str(caught.value)
            assert text.startswith(f"resume_from: {str(value)!r} can't be used; ")
            assert all(word in text for word in words), text

    async def scenario():
        async with controlled(tmp_path) as controller:
            row = await submit(controller, name="same")
            await refused(controller, 7, "there is no job '7'", "rota ps --all")
            await refused(controller, "same", "job 1 (same) is PENDING", "rota wait 1")
            await controller.jobs.cancel(row)
            await refused(controller, 1, "job 1 (same) has never started", "leave it out")
            agent = Agent(controller, Folder(tmp_path))
            agent.hello()
            await run_to_its_end(controller, agent, name="same")
            left = Folder(tmp_path).checkpoints("2")
            await refused(controller, 2, "job 2 (same) has left no checkpoint", str(left))
            left.mkdir(parents=True)
            await refused(controller, 2, "has left no checkpoint")
            (left / "rota.pt").touch()
            for name in ("same", "2"):  # the newest of that name
                row = await run_to_its_end(controller, agent, resume_from=name)
                assert controller.state.spec[row].program.resume_from == "2"
            # The same job, handed in twice while the agent is asked.
            twice = [submit(controller, "k", name="t", resume_from=2) for _ in range(2)]
            assert len(set(await asyncio.gather(*twice))) == 1
            await agent.leave()
        async with controlled(tmp_path) as controller:
            assert controller.state.spec[row].program.resume_from == "2"

    asyncio.run(scenario())


HELLO = {
    "type": "hello",
    "wire": wire.VERSION,
    "node": "n",
    "num_gpus": 2,
    "kind": "cpu",
    "attempts": [],
}
ALIVE = {"type": "alive", "job_id": "1", "attempt": 1, "suspension": "process", "movable": True}
ENDED = {"type": "ended", "job_id": "1", "attempt": 1, "at_s": 1.0, "exit_code": 0, "message": ""}


def without(message, field):
    return {key: value for key, value in message.items() if key != field}


@pytest.mark.parametrize(
    ("hello", "error"),
    [
        (HELLO | {"type": "ended"}, "type: 'ended' can't be used; it must be hello"),
        (HELLO | {"node": 3}, "node: 3 can't be used; it must be the name of a node"),
        (HELLO | {"node": "m"}, "node: 'm' can't be used; it must be a node of this cluster: n"),
        (without(HELLO, "num_gpus"), "num_gpus: None can't be used; it must be a whole number"),
        (HELLO | {"num_gpus": 0}, "num_gpus: 0 can't be used; it must be a whole number from 1"),
        (HELLO | {"num_gpus": 10**9}, "num_gpus: 1000000000 can't be used"),
        (HELLO | {"num_gpus": True}, "num_gpus: True can't be used"),
        (HELLO | {"kind": []}, "kind: [] can't be used; it must be one of cpu, cuda"),
        (HELLO | {"gpu_type": 3}, "gpu_type: 3 can't be used; it must be text"),
        (HELLO | {"memory_gb": float("nan")}, "memory_gb: nan can't be used"),
        (HELLO | {"agent": 3}, "agent: 3 can't be used"),
        (without(HELLO, "attempts"), "attempts: None can't be used; it must be a list"),
        (HELLO | {"attempts": [3]}, "attempts[0]: 3 can't be used; it must be an object"),
        (HELLO | {"attempts": [{}]}, "attempts[0].type: None can't be used; it must be one of"),
        (HELLO | {"attempts": [{"type": "x"}]}, "attempts[0].type: 'x' can't be used"),
        (HELLO | {"attempts": [ALIVE | {"job_id": 1}]}, "attempts[0].job_id: 1 can't be used"),
        (HELLO | {"attempts": [ALIVE | {"attempt": "1"}]}, "attempts[0].attempt: '1' can't"),
        (HELLO | {"attempts": [ALIVE, ALIVE | {"suspension": "by prayer"}]}, "attempts[1].susp"),
        (HELLO | {"attempts": [without(ALIVE, "movable")]}, "attempts[0].movable: None can't"),
        (HELLO | {"attempts": [without(ENDED, "at_s")]}, "attempts[0].at_s: None can't be used"),
        (HELLO | {"attempts": [ENDED | {"exit_code": "0"}]}, "attempts[0].exit_code: '0' can't"),
        (HELLO | {"attempts": [ENDED | {"progress": {"step": -1}}]}, "attempts[0].progress: {'"),
        (
            HELLO | {"attempts": [{"type": "lost", "job_id": "1", "attempt": 1, "error": "gone"}]},
            "attempts[0].started: None can't be used; it must be true or false",
        ),
        ({"type": "curve", "job_id": "1", "attempt": 1, "since": 0}, "reports: None can't be used"),
    ],
)
def test_nothing_counts_of_a_hello_that_is_not_sound(tmp_path, hello, error):
    async def scenario():
        async with controlled(tmp_path) as controller:
            await submit(controller)
            agent = Agent(controller)
            agent.says(**hello)
            assert error in (await agent.hears("rejected"))["error"]
            with pytest.raises(AgentError, match=re.escape(error)):
                await agent.ended()
            assert controller.state.nodes == []
            assert controller.record.outboxes.tell("n", {}) is False, "nobody is connected"
            agent = Agent(controller)
            agent.hello()
            assert (await agent.hears("launch"))["attempt"] == 1
            await agent.leave()

    asyncio.run(scenario())


def test_a_hello_that_is_late_does_not_take_the_place_of_a_later_connection(tmp_path):
    """Its agent has left that connection: what was sent there would reach nobody."""

    async def scenario():
        async with controlled(tmp_path) as controller:
            left, in_use = Agent(controller), Agent(controller)
            await asyncio.sleep(0)  # both have begun to be served
            in_use.hello()
            await in_use.hears("welcome")
            left.hello()
            told = await left.hears("rejected")
            assert told["error"] == "node: a later connection of n has said hello already"
            with pytest.raises(AgentError, match="a later connection"):
                await left.ended()
            await submit(controller)
            assert (await in_use.hears("launch"))["attempt"] == 1
            await in_use.leave()

    asyncio.run(scenario())


def test_a_node_has_one_agent(tmp_path):
    async def scenario():
        async with controlled(tmp_path) as controller:
            first = Agent(controller)
            first.says(**HELLO, agent="first")
            await first.hears("welcome")
            second = Agent(controller)
            second.says(**HELLO, agent="second")
            told = await second.hears("rejected")
            assert told["error"] == "node: another agent of n is connected; a node has one"
            with pytest.raises(AgentError):
                await second.ended()
            await submit(controller)
            await first.hears("launch")
            again = Agent(controller)  # it may not be known yet that its first connection is lost
            again.says(**HELLO, agent="first")
            await again.hears("welcome")
            await first.leave()
            await again.leave()
            second = Agent(controller)
            second.says(**HELLO, agent="second")
            await second.hears("welcome")
            await second.leave()

    asyncio.run(scenario())


def test_a_node_that_comes_back_with_other_devices_loses_its_attempts(tmp_path):
    async def scenario():
        async with controlled(tmp_path) as controller:
            agent = Agent(controller)
            agent.hello(num_gpus=2)
            row = await submit(controller)
            agent.says(**done(await agent.hears("launch")))
            await until_state(controller, row, JobState.RUNNING)
            await agent.leave()
            agent = Agent(controller)
            alive = {"type": "alive", "job_id": "1", "attempt": 1, "state": "running"}
            agent.hello([alive | {"suspension": "process", "movable": True}], num_gpus=1)
            heard = [await asyncio.wait_for(agent.heard.get(), 10) for _ in range(3)]
            assert {"type": "kill", "job_id": "1", "attempt": 1} in heard
            launch = next(m for m in heard if m.get("kind") == "launch")
            assert launch["attempt"] == 2
            assert controller.state.total_gpus == 1
            await agent.leave()

    asyncio.run(scenario())


def test_jobs_of_a_cluster_that_is_shut_down_start_anew_with_the_next_controller(tmp_path):
    async def scenario():
        async with controlled(tmp_path) as controller:
            agent = Agent(controller)
            agent.hello()
            row = await submit(controller)
            agent.says(**done(await agent.hears("launch")))
            await until_state(controller, row, JobState.RUNNING)
            controller.end_jobs()
            assert (await agent.hears("shutdown"))["type"] == "shutdown"
            left = {"jobs": [{"id": "1", "name": "true", "node": "n"}], "agents": ["n"]}
            assert controller.waits_for() == left
            agent.says(
                type="ended",
                job_id="1",
                attempt=1,
                at_s=0,
                exit_code=-15,
                message="",
                stop_asked=True,
            )
            await agent.hears("forget")
            assert controller.waits_for()["jobs"] == []
            await asyncio.wait_for(controller.journal.stopped.wait(), 10)
            await agent.leave()
        async with controlled(tmp_path) as controller:
            assert controller.state.state[row] == JobState.PENDING
            agent = Agent(controller)
            agent.hello()
            assert (await agent.hears("launch"))["attempt"] == 2
            await agent.leave()

    asyncio.run(scenario())


def test_the_size_of_a_model_is_written_down_once_and_known_after_a_restart(tmp_path):
    model = {"type": "model", "job_id": "1", "attempt": 1}
    sizes = {"model_bytes": 400, "largest_tensor_bytes": 100}
    hostile = [(0, 0), (10, 11), (True, True), ("4", "1"), (10**400, 1), (4.0, 1.0), (None, None)]

    async def scenario():
        async with controlled(tmp_path) as controller:
            agent = Agent(controller)
            agent.hello()
            row = await submit(controller)
            agent.says(**done(await agent.hears("launch")))
            await until_state(controller, row, JobState.RUNNING)
            assert (controller.record.models.get(row), controller.state.skew[row]) == (None, -1.0)
            for model_bytes, largest in hostile:
                agent.says(**model, model_bytes=model_bytes, largest_tensor_bytes=largest)
            agent.says(**{**model, **sizes, "attempt": 7})
            agent.says(**{**model, **sizes, "job_id": "77"})
            agent.says(**model, **sizes)
            agent.says(**model, **sizes)
            await agent.quiet()
            assert (controller.record.models.get(row), controller.state.skew[row]) == (
                (400, 100),
                0.25,
            )
            agent.says(**model, model_bytes=800, largest_tensor_bytes=400)
            await agent.quiet()
            assert controller.record.models.get(row) == (800, 400)
            await agent.leave()
        async with controlled(tmp_path) as controller:
            assert (controller.record.models.get(row), controller.state.skew[row]) == (
                (800, 400),
                0.5,
            )
            reports = [e for e in controller.record.store.load() if isinstance(e, ModelReported)]
            assert [e.model_bytes for e in reports] == [400, 800]

    asyncio.run(scenario())


def test_a_plan_of_layers_is_written_down_once_and_known_after_a_restart(tmp_path):
    about = {"type": "planned", "job_id": "1", "attempt": 1}
    plan = {"batch": 32, "step_s": [0.5, None, 0.125], "idle": [0.25]}
    hostile = [{"idle": [2.0]}, {"step_s": [None]}, {"batch": "32"}, {"idle": [0.5] * 4}]

    async def scenario():
        async with controlled(tmp_path) as controller:
            agent = Agent(controller)
            agent.hello()
            row = await submit(controller)
            agent.says(**done(await agent.hears("launch")))
            await until_state(controller, row, JobState.RUNNING)
            for wrong in hostile:
                agent.says(**about, **(plan | wrong))
            for told in (plan, plan, plan | {"idle": [0.5]}):
                agent.says(**about, **told)
            await agent.quiet()
            await agent.leave()
        async with controlled(tmp_path) as controller:
            found = controller.state.burst_planned[row]
            assert found[2:] == (32, (0.5, None, 0.125), (0.5,))
            told = [e for e in controller.record.store.load() if isinstance(e, BurstPlanned)]
            assert [e.idle for e in told] == [(0.25,), (0.5,)]

    asyncio.run(scenario())


def test_sizes_of_ended_jobs_are_the_same_after_a_restart(tmp_path):
    async def scenario():
        async with controlled(tmp_path) as controller:
            agent = Agent(controller)
            agent.hello()
            for code in (0, 3, None):
                row = await submit(controller)
                launch = await agent.hears("launch")
                agent.says(**done(launch))
                await until_state(controller, row, JobState.RUNNING)
                if code is None:
                    await controller.jobs.cancel(row)
                    await agent.hears("stop")
                ended = {"type": "ended", "job_id": launch["job_id"], "attempt": 1, "message": ""}
                at_s = controller.now_s()
                agent.says(**ended, at_s=at_s, exit_code=code or 0, stop_asked=code is None)
                await agent.hears("forget")
            sizes = list(controller.state.completed_gpu_s)
            assert len(sizes) == 2, "a cancelled job says nothing of how long it would have run"
            assert sizes == list(controller.state.service_s[:2])
            await agent.leave()
        async with controlled(tmp_path) as controller:
            assert list(controller.state.completed_gpu_s) == sizes

    asyncio.run(scenario())


class Tries(Policy):
    """Notes a probe with each job at each decision."""

    name = "tries"

    def decide(self, view):
        what_if, notes = view.what_if(), Notes({}, {}, {}, {})
        for row in view.active:
            if what_if.target(row) is None:
                what_if.give(row, on_node(0, 1 << row))
            notes.probes[row] = (
                Probe(view.now_s, "pack", 1.0, 1.2, True, (1 - row,), ((0, 1),), ()),
            )
        return what_if.plan(notes=notes)

    def turns(self, view, row):
        if self.name == "broken":
            raise ZeroDivisionError
        return Turns((0,), ((row,),), (), view.now_s)

    def quota(self, view, row):
        if self.name == "broken":
            raise ZeroDivisionError
        return 1


def test_what_was_tried_with_a_job_is_known_after_its_end_and_a_restart(tmp_path):
    async def scenario():
        async with controlled(tmp_path, Tries()) as controller:
            agent = Agent(controller)
            agent.hello()
            for _ in range(2):
                await submit(controller)
                agent.says(**done(await agent.hears("launch")))
            await until_state(controller, 1, JobState.RUNNING)
            end = {"at_s": 0, "exit_code": 0, "message": "", "stop_asked": False}
            agent.says(type="ended", job_id="1", attempt=1, **end)
            await until_state(controller, 0, JobState.SUCCEEDED)
            told = controller.state.notes.probes.get(0, [])
            assert len(told) >= 2
            assert {each.mates for each in told} == {(1,)}
            await agent.leave()
        async with controlled(tmp_path, Tries()) as controller:
            assert controller.state.notes.probes.get(0, []) == told

    asyncio.run(scenario())


def test_a_policy_that_can_not_tell_whose_turn_it_is_or_a_quota_fails_nothing(tmp_path):
    policy = Tries()

    async def scenario():
        async with controlled(tmp_path, policy) as controller:
            await submit(controller)
            assert controller.turns(0).running == ((0,),)
            assert controller.quota(0) == 1
            policy.name = "broken"
            assert controller.turns(0) is None
            assert controller.quota(0) is None
        async with controlled(tmp_path) as controller:
            assert controller.turns(0) is None

    asyncio.run(scenario())


def test_when_a_node_was_lost_is_known_after_a_restart(tmp_path):
    async def scenario():
        async with controlled(tmp_path) as controller:
            agent = Agent(controller)
            agent.hello()
            await agent.hears("welcome")
            assert controller.record.nodes()[0]["lost_s"] is None
            await agent.leave()
        store = EventStore(Folder(tmp_path).database)
        store.append([NodeLost(1e9, "n")])
        store.close()
        async with controlled(tmp_path) as controller:
            assert controller.record.nodes()[0]["lost_s"] == 1e9

    asyncio.run(scenario())


class Warns(FifoBackfill):
    """Warns of every job, in the same words at each decision."""

    def decide(self, view):
        plan = super().decide(view)
        warnings = dict.fromkeys(view.active, ("its steps take nan s",))
        return plan._replace(notes=Notes(warnings=warnings))


def test_what_a_policy_warns_of_is_logged_once_with_the_jobs(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(controller_module, "PACE", 0.0)

    async def main():
        async with controlled(tmp_path, Warns()) as controller:
            await asyncio.gather(submit(controller), submit(controller))
            for _ in range(3):
                controller.state.decision_needed = True
                controller.turn()

    asyncio.run(main())
    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert told == ["jobs 1, 2: its steps take nan s"]


class WarnsAnew(FifoBackfill):
    """Warns of every job, with another figure and in other words at each decision."""

    number = 0

    def decide(self, view):
        self.number += bool(view.active)
        words = (f"left out: {self.number} s", f"step {self.number} of {'x' * self.number}")
        warnings = dict.fromkeys(view.active, words)
        return super().decide(view)._replace(notes=Notes(warnings=warnings))


def test_warnings_are_one_of_each_kind_and_go_with_their_job(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(controller_module, "PACE", 0.0)

    async def main():
        async with controlled(tmp_path, WarnsAnew()) as controller:
            row = await submit(controller)
            for _ in range(40):
                controller.state.decision_needed = True
                controller.turn()
            assert len(controller.state.notes.warned[row]) == MOST_WARNINGS
            await controller.jobs.cancel(row)
            assert not controller.state.notes.warned

    asyncio.run(main())
    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(told) == MOST_WARNINGS
    assert [each for each in told if "left out" in each] == ["job 1: left out: 1 s"]


def alive(attempt=1, **fields):
    about = {"type": "alive", "job_id": "1", "attempt": attempt, "state": "running"}
    return about | {"suspension": "process", "movable": True} | fields


def test_what_another_log_has_left_behind_is_disowned_and_its_numbers_are_not_used(
    tmp_path, caplog
):
    """Attempts of a log that is gone, or of what came after the copy that it was replaced by."""

    async def scenario():
        write_last_id(Folder(tmp_path).last_id, 8)
        async with controlled(tmp_path) as controller:
            assert controller.record.foreign_ids == range(1, 9)
            row = await submit(controller)
            assert controller.state.spec[row].job_id == "9"
            agent = Agent(controller)
            foreign = [alive(launch="other 1.0"), alive(7, launch="other 2.0")]
            end = {"at_s": 0.0, "exit_code": 1, "message": "", "stop_asked": False}
            ended = {"type": "ended", "job_id": "2", "attempt": 1, "launch": "other 3.0"}
            agent.hello([*foreign, ended | end, alive(8)])
            disowned = [await agent.hears("disown") for _ in range(3)]
            assert [(each["job_id"], each["attempt"]) for each in disowned] == [
                *(("1", 1), ("1", 7), ("2", 1))
            ]
            assert (await agent.hears("kill"))["attempt"] == 8  # of an agent that knows no marks
            launched = await agent.hears("launch")
            assert (launched["job_id"], launched["attempt"]) == ("9", 1)
            # Whatever is told of another attempt with its number, or with its command's, is not it.
            other = {"job_id": "9", "attempt": 1, "launch": "other 4.0"}
            agent.says(**{"type": "ended"} | other | end)
            agent.says(**done(launched, **other))
            agent.says(**done(launched, job_id="1", attempt=1, launch="other 1.0"))
            agent.says(**done(launched, job_id="9", attempt=1, launch=launched["launch"]))
            await until_state(controller, row, JobState.RUNNING)
            assert controller.state.first_start_s[row] > 0
            await agent.leave()
        async with controlled(tmp_path) as controller:
            agent = Agent(controller)
            agent.hello([alive(job_id="9", launch=launched["launch"])])
            await agent.hears("welcome")
            assert await agent.quiet()
            assert controller.state.state[row] == JobState.RUNNING
            await agent.leave()

    asyncio.run(scenario())
    told = [record.getMessage() for record in caplog.records if record.name == "rota.notice"]
    assert len(told) == 2
    assert "attempt 7 of a job 1 runs on node n" in told[1]


def test_a_controller_whose_log_has_gone_takes_nothing_more_and_stops(tmp_path):
    async def scenario():
        folder = Folder(tmp_path).create()
        store = EventStore(folder.database)
        controller = Controller(store, folder, FifoBackfill(), "fifo", NoProvider())
        await controller.start()
        await submit(controller, "k")
        folder.database.rename(tmp_path / "elsewhere")
        for key in ("k", None, "other"):
            with pytest.raises(StoreLostError, match="moved or deleted"):
                await submit(controller, key)
        await asyncio.wait_for(controller.journal.stopped.wait(), 10)
        assert controller.journal.failed
        assert str(folder.database) in controller.journal.failure
        assert len(controller.state.spec) == 1
        await controller.stop()

    asyncio.run(scenario())


def test_a_controller_without_work_that_loses_its_log_stops_at_the_next_event(tmp_path):
    async def scenario():
        folder = Folder(tmp_path).create()
        store = EventStore(folder.database)
        controller = Controller(store, folder, FifoBackfill(), "fifo", NoProvider())
        await controller.start()
        folder.database.unlink()
        agent = Agent(controller)
        agent.hello()
        await asyncio.wait_for(controller.journal.stopped.wait(), 10)
        assert "moved or deleted" in controller.journal.failure
        await agent.leave()
        await controller.stop()

    asyncio.run(scenario())


@pytest.mark.parametrize("steps", range(8))
def test_a_controller_that_is_stopped_while_it_begins_to_decide_stops(tmp_path, steps, monkeypatch):
    monkeypatch.setattr(Controller, "_sleep_s", lambda _: 1000.0)

    async def scenario():
        async with controlled(tmp_path) as controller:
            for _ in range(20):
                await asyncio.sleep(0)
            controller.journal.kick.set()
            for _ in range(steps):
                await asyncio.sleep(0)

    asyncio.run(asyncio.wait_for(scenario(), 60))


class Counts(FifoBackfill):
    """Counts its decisions, and the jobs at the last one."""

    decisions = jobs = 0

    def decide(self, view):
        self.decisions += 1
        self.jobs = len(view.active)
        return super().decide(view)


def test_a_burst_of_submissions_does_not_cost_a_decision_for_each(tmp_path, monkeypatch):
    monkeypatch.setattr(controller_module, "PACE", 1e9)
    monkeypatch.setattr(controller_module, "MOST_PACE_S", 1e9)
    policy = Counts()

    async def scenario():
        async with controlled(tmp_path, policy) as controller:
            agent = Agent(controller)
            agent.hello()
            await agent.hears("welcome")
            first = policy.decisions
            for _ in range(10):
                await asyncio.gather(*(submit(controller) for _ in range(10)))
                controller.turn()
            assert policy.decisions == first
            # Whatever else calls for a decision has it taken at once, with all jobs.
            assert await controller.jobs.cancel(0)
            controller.turn()
            assert (policy.decisions, policy.jobs) == (first + 1, 99)
            # Nothing else happens: new jobs have theirs when it is time.
            await submit(controller)
            controller.turn()
            assert policy.decisions == first + 1
            controller._paced_until_s = controller.now_s()
            controller.journal.kick.set()
            async with asyncio.timeout(10):
                while policy.jobs != 100:
                    await asyncio.sleep(0.001)
            await agent.leave()

    asyncio.run(scenario())


def test_new_jobs_wait_no_longer_than_until_it_is_time_for_a_decision(tmp_path, monkeypatch):
    monkeypatch.setattr(controller_module, "PACE", 1e9)
    monkeypatch.setattr(controller_module, "MOST_PACE_S", 0.05)
    policy = Counts()

    async def scenario():
        async with controlled(tmp_path, policy) as controller:
            for number in range(1, 4):
                await submit(controller)
                async with asyncio.timeout(10):
                    while policy.jobs != number:
                        await asyncio.sleep(0.001)

    asyncio.run(scenario())


def test_a_pace_that_ends_between_a_turn_and_the_sleep_after_it_is_not_slept_through(tmp_path):
    async def scenario():
        async with controlled(tmp_path, Counts()) as controller:
            row = await submit(controller)
            controller.turn()
            controller._paced_until_s = controller.now_s() + 1e9
            await submit(controller)
            controller.turn()
            assert controller._sleep_s() > 1e8
            controller._paced_until_s = controller.now_s()
            assert controller._sleep_s() == 0.0
            assert row == 0

    asyncio.run(scenario())


def test_jobs_that_are_submitted_together_are_written_down_together(tmp_path, monkeypatch):
    async def scenario():
        async with controlled(tmp_path) as controller:
            commits = []
            append = controller.record.store.append

            def count(events, **how):
                commits.append(len(events))
                append(events, **how)

            monkeypatch.setattr(controller.record.store, "append", count)
            keys = [None, "a", None, "b", "c", "a"]
            rows = await asyncio.gather(*(submit(controller, key) for key in keys))
            assert rows == [0, 1, 2, 3, 4, 1]
            assert sorted(commits)[-1] == 5  # beside decisions
            assert [spec.job_id for spec in controller.state.spec] == ["1", "2", "3", "4", "5"]
            with pytest.raises(JobFileError, match="was used for another job"):
                await asyncio.gather(submit(controller, "d"), submit(controller, "d", body="b"))
            assert await submit(controller, "d") == 5
            gone = asyncio.create_task(submit(controller, "e"))
            stays = asyncio.create_task(submit(controller, "f"))
            await asyncio.sleep(0)
            gone.cancel()  # its caller hangs up; the job may be there or not, but never half
            assert await stays in (6, 7)
            monkeypatch.setattr(controller.record.store, "append", append)
        async with controlled(tmp_path) as controller:
            assert await submit(controller, "f") == stays.result()
            assert await submit(controller, "c") == 4

    asyncio.run(scenario())


def test_submissions_that_cannot_be_written_down_are_all_told_so(tmp_path, monkeypatch):
    async def scenario():
        async with controlled(tmp_path) as controller:
            append = controller.record.store.append

            def fail(events, **how):
                if any(isinstance(event, JobSubmitted) for event in events):
                    raise StoreError("no")
                append(events, **how)

            with monkeypatch.context() as patch:
                patch.setattr(controller.record.store, "append", fail)
                together = (submit(controller, key) for key in (None, "a", "b"))
                told = await asyncio.gather(*together, return_exceptions=True)
            assert [(type(each), str(each)) for each in told] == [(StoreError, "no")] * 3
            assert len(controller.state.spec) == 0
            assert await submit(controller, "a") == 0
            assert controller.state.spec[0].job_id == "1"

    asyncio.run(scenario())


@pytest.fixture
def comes_and_goes(tmp_path, monkeypatch):
    """A controller that looks at its nodes all the time, whose provider a test changes."""
    monkeypatch.setattr(controller_module, "LOOK_EVERY_S", 0.001)

    @contextlib.asynccontextmanager
    async def run():
        folder, provider = Folder(tmp_path).create(), NoProvider()
        store = EventStore(folder.database)
        controller = Controller(store, folder, FifoBackfill(), "fifo", provider)
        await controller.start()
        try:
            yield controller, provider
        finally:
            await controller.stop()

    return run


async def until(true):
    async with asyncio.timeout(10):
        while not true():
            await asyncio.sleep(0.001)


def test_a_node_that_its_provider_gives_up_is_gone_with_its_jobs(comes_and_goes):
    async def scenario():
        async with comes_and_goes() as (controller, provider):
            agent = Agent(controller)
            agent.hello()
            row = await submit(controller)
            launch = await agent.hears("launch")
            agent.says(**done(launch))
            await until_state(controller, row, JobState.RUNNING)
            provider.there = [ProvidedNode("m", is_alive=True)]
            await until(lambda: not controller.state.nodes[0].alive)
            await until_state(controller, row, JobState.PENDING)
            assert "its node is no longer part" in controller.state.story(row)[-1][1]
            other = Agent(controller)
            other.says(**HELLO | {"node": "m"})
            assert (await other.hears("launch"))["attempt"] == 2
            await agent.leave()
            await other.leave()

    asyncio.run(scenario())


def test_a_node_that_must_go_is_drained_by_then(comes_and_goes):
    async def scenario():
        async with comes_and_goes() as (controller, provider):
            agent = Agent(controller)
            agent.hello()
            await agent.hears("welcome")
            far_s, by_s = controller.now_s() + 3600, controller.now_s() + 60
            provider.there = [ProvidedNode(name, True, far_s) for name in ("n", "nobody")]
            await until(lambda: controller.state.leaves_s)
            assert controller.record.nodes()[0]["leaves_s"] == far_s
            assert controller.state.closed == {}
            provider.there = [ProvidedNode("n", True, by_s, about="batch job 17")]
            await until(lambda: controller.state.closed)
            assert controller.state.closed == {0: (True, by_s)}
            controller.node_api.enable("n")
            await until(lambda: controller.state.closed)
            (told,) = controller.record.nodes()
            assert (told["drain_by_s"], told["about"]) == (by_s, "batch job 17")
            provider.there = [ProvidedNode("n", True)]
            await until(lambda: not controller.state.closed)
            await agent.leave()

    asyncio.run(scenario())


class AsksForNodes(FifoBackfill):
    """First come, first served, on as many nodes as a test wants."""

    wanted = 2

    def decide(self, view):
        wish = DesiredNodes(self.wanted, 0.5)
        return super().decide(view)._replace(notes=Notes(nodes=wish))


class Grows(NoProvider):
    """Notes what it is asked for; n is there, and m follows when a test says so."""

    bounds = (1, 2)

    def __init__(self):
        super().__init__()
        self.asked, self.released, self.wrong = 0, [], ["no room for m"]

    def scale(self, desired):
        self.asked = desired

    def release(self, name):
        self.released.append(name)

    def awaited(self):
        return [AwaitedNode("m", "it boots")] if self.asked > len(self.there) else []

    def errors(self):
        told, self.wrong = self.wrong, []
        return told


def test_nodes_are_asked_for_as_the_policy_wants_and_given_up_without_jobs(
    tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr(controller_module, "LOOK_EVERY_S", 0.001)
    policy, provider, folder = AsksForNodes(), Grows(), Folder(tmp_path).create()

    async def scenario():
        store = EventStore(folder.database)
        controller = Controller(store, folder, policy, "fifo", provider)
        await controller.start()
        agent, other = Agent(controller), Agent(controller)
        agent.hello()
        row = await submit(controller, resources={"gpus": 2})
        agent.says(**done(await agent.hears("launch")))
        await until_state(controller, row, JobState.RUNNING)
        await until(lambda: provider.asked == 2)
        assert controller.supply.awaited() == [{"name": "m", "why": "it boots"}]
        waits = await submit(controller)
        assert controller.state.total_gpus == 2  # what is awaited is no capacity
        assert controller.state.state[waits] == JobState.PENDING
        provider.there = [ProvidedNode(name, is_alive=True) for name in "nm"]
        other.says(**HELLO | {"node": "m", "agent": "first"})
        launch = await other.hears("launch")
        other.says(**done(launch))
        await until_state(controller, waits, JobState.RUNNING)

        # Nobody is sent away from a node with a job; without one, the last node goes.
        policy.wanted = 1
        controller.state.decision_needed = controller.state.policy_needed = True
        controller.turn()
        await until(lambda: provider.asked == 1)
        assert provider.released == []
        about = {key: launch[key] for key in ("job_id", "attempt", "launch")}
        other.says(**ENDED | about)
        await other.hears("shutdown")
        await until(lambda: provider.released == ["m"])
        assert [node.alive for node in controller.state.nodes] == [True, False]
        await other.leave()

        # The agent that was told to end may come back before it does; another one is welcome.
        late, fresh = Agent(controller), Agent(controller)
        late.says(**HELLO | {"node": "m", "agent": "first"})
        assert await late.hears("shutdown")
        with pytest.raises(AgentError, match="was given up"):
            await late.ended()
        policy.wanted = 2
        controller.state.decision_needed = controller.state.policy_needed = True
        controller.turn()
        fresh.says(**HELLO | {"node": "m", "agent": "second"})
        await fresh.hears("welcome")
        await until(lambda: controller.state.nodes[1].alive)
        for each in (agent, fresh):
            await each.leave()
        await controller.stop()

    asyncio.run(scenario())
    told = [record.getMessage() for record in caplog.records if record.name == "rota.notice"]
    assert told == ["no room for m"]


def test_under_a_policy_that_asks_for_no_nodes_the_queue_does(tmp_path, monkeypatch):
    """Nodes are given up once there have been too many for a while, those that are closed first."""
    monkeypatch.setattr(controller_module, "LOOK_EVERY_S", 0.001)
    provider, folder = Grows(), Folder(tmp_path).create()

    async def scenario():
        controller = Controller(
            EventStore(folder.database), folder, FifoBackfill(), "fifo", provider
        )
        await controller.start()
        agent, other = Agent(controller), Agent(controller)
        agent.hello()
        jobs = [await submit(controller, resources={"gpus": 2}) for _ in range(2)]
        first = await agent.hears("launch")
        agent.says(**done(first))
        await until(lambda: provider.asked == 2)
        provider.there = [ProvidedNode(name, is_alive=True) for name in "nm"]
        other.says(**HELLO | {"node": "m", "agent": "first"})
        other.says(**done(await other.hears("launch")))
        await until_state(controller, jobs[1], JobState.RUNNING)
        agent.says(**ENDED | {key: first[key] for key in ("job_id", "attempt", "launch")})
        await until_state(controller, jobs[0], JobState.SUCCEEDED)
        assert (provider.asked, provider.released) == (2, [])
        monkeypatch.setattr(supply_module, "SHRINK_AFTER_S", 0.0)
        await until(lambda: provider.asked == 1)
        await until(lambda: provider.released == ["n"])
        for each in (agent, other):
            await each.leave()
        await controller.stop()

    asyncio.run(scenario())


def test_a_gang_is_taken_that_needs_a_node_that_can_be_asked_for(tmp_path, monkeypatch):
    monkeypatch.setattr(controller_module, "LOOK_EVERY_S", 0.001)
    provider, folder = Grows(), Folder(tmp_path).create()

    async def scenario():
        controller = Controller(
            EventStore(folder.database), folder, FifoBackfill(), "fifo", provider
        )
        controller.agents.own_reach = "127.0.0.1"
        await controller.start()
        agent, other = Agent(controller), Agent(controller)
        agent.says(**HELLO)
        await agent.hears("welcome")
        with pytest.raises(NeverFitsError, match="this cluster has 2, and 4 on 2 nodes"):
            await submit(controller, resources={"gpus": 5})
        row = await submit(controller, resources={"gpus": 4})
        await until(lambda: provider.asked == 2)
        await until(lambda: controller.state.reason[row] == Reason.WAIT_RESOURCES)
        provider.there = [ProvidedNode(name, is_alive=True) for name in "nm"]
        other.says(**HELLO | {"node": "m", "agent": "first"})
        await until(lambda: controller.state.held[row] is not None)
        assert controller.state.held[row].nodes() == (0, 1)
        for each in (agent, other):
            await each.leave()
        await controller.stop()

    asyncio.run(scenario())


def test_a_full_disk_keeps_nodes_from_being_asked_for_and_nothing_else(tmp_path, monkeypatch):
    def no_room(desired):
        raise OSError("no space left")

    async def scenario():
        async with controlled(tmp_path, AsksForNodes()) as controller:
            monkeypatch.setattr(controller.supply._provider, "bounds", (1, 2), raising=False)
            monkeypatch.setattr(controller.supply._provider, "scale", no_room)
            assert controller.supply.look() is False

    asyncio.run(scenario())


def test_a_policy_that_wants_nodes_of_a_provider_that_has_what_it_has_gets_none(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(NoProvider, "scale", None)

    async def scenario():
        async with controlled(tmp_path, AsksForNodes()) as controller:
            agent = Agent(controller)
            agent.hello()
            await agent.hears("welcome")
            assert controller.state.notes.nodes.desired == 2
            assert controller.supply.look() is False
            await agent.leave()

    asyncio.run(scenario())
