"""Flow jobs: what an agent is told of one, and their suspensions for want of operations."""

import asyncio

import pytest

from rota.errors import AgentError
from rota.model.events import ResumeRequested, SuspendRequested
from rota.model.job import JobState
from rota.model.reason import Reason

from .test_loop import Agent, controlled, done, submit, until_state

ABOUT = {"job_id": "1", "attempt": 1}
FLOW = {"run": "python drive.py", "processes": "flow", "idle": "10m"}


async def start(controller, agent):
    agent.hello()
    row = await submit(controller, **FLOW)
    launch = await agent.hears("launch")
    agent.says(**done(launch))
    await until_state(controller, row, JobState.RUNNING)
    return row, launch


async def falls_idle(controller, agent, row):
    agent.says(type="idle", **ABOUT)
    agent.says(**done(await agent.hears("suspend")))
    await until_state(controller, row, JobState.SUSPENDED)


async def comes_back(controller, agent, row):
    agent.says(**done(await agent.hears("resume")))
    await until_state(controller, row, JobState.RUNNING)
    assert not controller.state.held_back
    assert not controller.state.idle_jobs


def reason(controller, row):
    return Reason(controller.state.reason[row])


def test_an_agent_is_told_the_weight_and_the_limits_of_a_flow_job_alone(tmp_path):
    async def scenario():
        async with controlled(tmp_path) as controller:
            agent = Agent(controller)
            row, launch = await start(controller, agent)
            assert launch["program"]["processes"] == "flow"
            assert launch["flow"] == {"weight": 1.0, "memory_bytes": None, "idle_s": 600.0}
            agent.says(type="ended", exit_code=0, message="", stop_asked=False, at_s=1.0, **ABOUT)
            await until_state(controller, row, JobState.SUCCEEDED)
            more = {"share": {"weight": 4}, "resources": {"gpu_memory": "2GB"}, "idle": None}
            await submit(controller, **FLOW | more)
            launch = await agent.hears("launch")
            assert launch["flow"] == {"weight": 4.0, "memory_bytes": 2 * 10**9, "idle_s": None}
            await submit(controller)
            assert "flow" not in await agent.hears("launch")

    asyncio.run(scenario())


def test_an_idle_job_is_suspended_until_it_calls(tmp_path):
    async def scenario():
        async with controlled(tmp_path) as controller:
            agent = Agent(controller)
            row, _ = await start(controller, agent)
            await falls_idle(controller, agent, row)
            assert reason(controller, row) == Reason.IDLE
            assert row not in controller.state.active
            agent.says(type="called", **ABOUT)
            await comes_back(controller, agent, row)
            log = [each for each in controller.record.store.load() if hasattr(each, "by_itself")]
            assert [(type(each), each.by_itself) for each in log] == [
                (SuspendRequested, True),
                (ResumeRequested, True),
            ]
            assert [code for _, code in controller.record.history(row)].count(Reason.IDLE) == 1

    asyncio.run(scenario())


def test_a_call_before_the_suspension_brings_the_job_back_after_it(tmp_path):
    async def scenario():
        async with controlled(tmp_path) as controller:
            agent = Agent(controller)
            row, _ = await start(controller, agent)
            agent.says(type="idle", **ABOUT)
            suspend = await agent.hears("suspend")
            agent.says(type="called", **ABOUT)
            agent.says(**done(suspend))
            await comes_back(controller, agent, row)

    asyncio.run(scenario())


def test_users_overrule_idleness(tmp_path):
    async def scenario():
        async with controlled(tmp_path) as controller:
            agent = Agent(controller)
            row, _ = await start(controller, agent)
            await falls_idle(controller, agent, row)
            assert await controller.jobs.suspend(row, "ann")
            assert not await controller.jobs.suspend(row, "ann"), "that was asked for before"
            assert reason(controller, row) == Reason.HELD_BY_USER
            agent.says(type="called", **ABOUT)
            await agent.quiet()
            assert controller.state.held_back == {row: "ann"}
            assert await controller.jobs.resume(row, "ann")
            await comes_back(controller, agent, row)
            await falls_idle(controller, agent, row)
            assert await controller.jobs.resume(row, "ann")
            await comes_back(controller, agent, row)

    asyncio.run(scenario())


def test_a_job_that_does_not_run_is_not_suspended_as_idle(tmp_path):
    async def scenario():
        async with controlled(tmp_path) as controller:
            agent = Agent(controller)
            row, _ = await start(controller, agent)
            assert await controller.jobs.suspend(row, "ann")
            suspend = await agent.hears("suspend")
            agent.says(type="idle", **ABOUT)
            agent.says(**done(suspend))
            await until_state(controller, row, JobState.SUSPENDED)
            assert controller.state.held_back == {row: "ann"}
            assert not controller.state.idle_jobs

    asyncio.run(scenario())


def test_an_idle_job_whose_processes_are_lost_starts_anew(tmp_path):
    async def scenario():
        async with controlled(tmp_path) as controller:
            agent = Agent(controller)
            row, _ = await start(controller, agent)
            await falls_idle(controller, agent, row)
            agent.says(type="lost", error="the agent was killed", started=True, **ABOUT)
            launch = await agent.hears("launch")
            assert launch["attempt"] == 2
            assert not controller.state.held_back

    asyncio.run(scenario())


def test_an_idle_job_is_one_after_a_restart_of_the_controller(tmp_path):
    async def scenario():
        async with controlled(tmp_path) as controller:
            agent = Agent(controller)
            row, _ = await start(controller, agent)
            await falls_idle(controller, agent, row)
        async with controlled(tmp_path) as controller:
            assert reason(controller, row) == Reason.IDLE
            agent = Agent(controller)
            alive = {"suspension": "boundary", "movable": True, "state": "suspended"}
            agent.hello([{"type": "alive", **ABOUT, **alive}])
            await agent.hears("welcome")
            agent.says(type="called", **ABOUT)
            await comes_back(controller, agent, row)

    asyncio.run(scenario())


@pytest.mark.parametrize("kind", ["idle", "called"])
def test_a_message_without_its_attempt_is_refused(tmp_path, kind):
    async def scenario():
        async with controlled(tmp_path) as controller:
            agent = Agent(controller)
            await start(controller, agent)
            agent.says(type=kind, job_id="1")
            with pytest.raises(AgentError, match="attempt"):
                await agent.ended()

    asyncio.run(scenario())


USE = {
    "devices": [0, -1],
    "share": [0.5, 0.0],
    "held_bytes": [1024, 0],
    "memory_bytes": 2048,
    "tickets_per_s": 8.0,
    "weight": 1.0,
    "outstanding": 1,
    "slices": [[0, 1], [0]],
    "waits": {"what": "turn", "device": 0, "behind": "7"},
}


@pytest.mark.parametrize(
    "wrong",
    [
        {"devices": [0]},
        {"devices": [0, -2]},
        {"share": [0.5, 1.5]},
        {"share": [0.5]},
        {"held_bytes": [1024, -1]},
        {"tickets_per_s": -1.0},
        {"weight": 0.0},
        {"slices": [[0, 2]]},
        {"waits": {"what": "luck"}},
        {"waits": {"what": "turn", "behind": "\x1b[1m"}},
    ],
)
def test_a_use_of_devices_that_can_not_be_is_left_out(tmp_path, caplog, wrong):
    async def scenario():
        async with controlled(tmp_path) as controller:
            agent = Agent(controller)
            row, _ = await start(controller, agent)
            for step, use in enumerate((USE, USE | wrong)):
                progress = {"at_s": controller.now_s(), "step": step, "metrics": {}, "flow": use}
                agent.says(type="progress", progress=progress, **ABOUT)
                await agent.quiet()
                told = controller.record.progress(row)
                assert (told["step"], told.get("flow")) == (step, USE if step == 0 else None)
            assert "flow: " in caplog.text and "is no use of devices" in caplog.text

    asyncio.run(scenario())
