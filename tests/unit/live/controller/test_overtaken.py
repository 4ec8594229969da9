"""Ends, losses and requests that overtake answers: a job has the run time of its processes."""

import asyncio

import pytest

from rota.live.controller.clock import Clock
from rota.model.events import JobLaunched, JobResumed, JobSuspended
from rota.model.job import JobState

from .test_loop import Agent, controlled, done, submit, until_state

ABOUT = {"job_id": "1", "attempt": 1}
ALIVE = {"type": "alive", "state": "running", "suspension": "process", "movable": True} | ABOUT
ENDED = {"type": "ended", "exit_code": 0, "message": "", "stop_asked": False} | ABOUT
LOST = {"type": "lost", "error": "gone", "started": True} | ABOUT


class Time:
    """The cluster's time, which passes when a test says so."""

    def __init__(self):
        self.now_s = 1000.0


@pytest.fixture
def time(monkeypatch):
    made = Time()
    monkeypatch.setattr(Clock, "now_s", lambda _: made.now_s)
    return made


def answer(command, at_s, **fields):
    return {"done": {"command_id": command["command_id"], "at_s": at_s, **fields}}


async def launched(controller, time):
    """A job whose launch was sent at 1000, and an agent that has yet to answer, at 1060."""
    agent = Agent(controller)
    agent.hello()
    await submit(controller)
    launch = await agent.hears("launch")
    time.now_s = 1060.0
    return agent, launch


async def come_back(controller, agent, message):
    """The agent's connection was cut; this is what it tells with the next."""
    await agent.leave()
    agent = Agent(controller)
    agent.hello([message])
    await agent.hears("welcome")
    return agent


@pytest.mark.parametrize("end", [ENDED, LOST])
@pytest.mark.parametrize("is_cut", [False, True])
def test_the_start_of_a_job_that_ended_before_its_launch_was_confirmed_is_written(
    tmp_path, time, end, is_cut
):
    async def scenario():
        async with controlled(tmp_path) as controller:
            agent, launch = await launched(controller, time)
            told = end | answer(launch, 1002.0) | {"at_s": 1042.0}
            if is_cut:
                agent = await come_back(controller, agent, told)
            else:
                agent.says(**told)
            await agent.hears("forget")
            state = controller.state
            assert state.first_start_s[0] == 1002.0
            assert state.service_s[0] == 40.0
            assert state.overhead_s[0] == 2.0
            await agent.leave()
        async with controlled(tmp_path) as controller:  # from the log
            assert controller.state.service_s[0] == 40.0

    asyncio.run(scenario())


def test_what_goes_on_runs_since_it_began_and_not_since_its_agent_was_heard(tmp_path, time):
    async def scenario():
        async with controlled(tmp_path) as controller:
            agent, launch = await launched(controller, time)
            agent = await come_back(controller, agent, ALIVE | answer(launch, 1002.0))
            assert controller.state.state[0] == JobState.RUNNING
            assert controller.state.since_s[0] == 1002.0
            assert await agent.quiet()  # the launch is not sent again
            agent.says(**done(launch, at_s=1050.0))  # nor does its answer count again
            assert await agent.quiet()
            assert controller.state.since_s[0] == 1002.0
            await agent.leave()

    asyncio.run(scenario())


def test_a_suspension_and_a_continuation_that_an_end_overtook_are_written(tmp_path, time):
    async def scenario():
        async with controlled(tmp_path) as controller:
            agent, launch = await launched(controller, time)
            agent.says(**done(launch, at_s=1000.0))
            await until_state(controller, 0, JobState.RUNNING)
            await controller.jobs.suspend(0)  # at 1060
            suspend = await agent.hears("suspend")
            time.now_s = 1200.0
            suspended = answer(suspend, 1062.0, stopped_s=1061.0)
            agent = await come_back(controller, agent, ALIVE | {"state": "suspended"} | suspended)
            assert controller.state.state[0] == JobState.SUSPENDED
            assert controller.state.service_s[0] == 61.0
            await controller.jobs.resume(0)  # at 1200
            resume = await agent.hears("resume")
            time.now_s = 1300.0
            told = ENDED | answer(resume, 1201.0) | {"at_s": 1211.0}
            agent = await come_back(controller, agent, told)
            assert controller.state.state[0] == JobState.SUCCEEDED
            assert controller.state.service_s[0] == 71.0
            kinds = (JobLaunched, JobSuspended, JobResumed)
            events = [e for e in controller.record.store.load() if isinstance(e, kinds)]
            assert [e.at_s for e in events] == [1000.0, 1062.0, 1201.0]
            await agent.leave()

    asyncio.run(scenario())


def test_an_end_after_another_command_is_no_answer_to_the_one_that_is_out(tmp_path, time):
    async def scenario():
        async with controlled(tmp_path) as controller:
            agent, launch = await launched(controller, time)
            agent.says(**done(launch, at_s=1000.0))
            await until_state(controller, 0, JobState.RUNNING)
            await controller.jobs.suspend(0)
            await agent.hears("suspend")
            time.now_s = 1100.0
            told = ENDED | answer(launch, 1000.0) | {"at_s": 1090.0}
            agent = await come_back(controller, agent, told)
            assert controller.state.state[0] == JobState.SUCCEEDED
            assert controller.state.service_s[0] == 90.0  # it ran to its end
            await agent.leave()

    asyncio.run(scenario())


def test_a_job_that_was_cancelled_before_its_launch_was_confirmed_ran_until_it_was_told(
    tmp_path, time
):
    async def scenario():
        async with controlled(tmp_path) as controller:
            agent, launch = await launched(controller, time)
            await controller.jobs.cancel(0)
            time.now_s = 1100.0
            agent = await come_back(controller, agent, ALIVE | answer(launch, 1002.0))
            await agent.hears("stop")
            agent.says(**ENDED | {"at_s": 1101.0, "exit_code": -15, "stop_asked": True})
            await until_state(controller, 0, JobState.CANCELLED)
            assert controller.state.service_s[0] == 98.0
            await agent.leave()

    asyncio.run(scenario())
