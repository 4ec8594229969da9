"""What agents tell of trials' metrics is written down once, before anything else about them."""

import asyncio

from rota.model.events import MetricReported
from rota.model.job import JobState

from .test_loop import Agent, controlled, done, submit, until_state
from .test_sweep_api import submit_sweep


def curve(since, *values, job_id="1", attempt=1):
    reports = [
        [since + n, 10.0 + since + n, value, not n + since] for n, value in enumerate(values)
    ]
    return {
        "type": "curve",
        "job_id": job_id,
        "attempt": attempt,
        "since": since,
        "reports": reports,
    }


def values(controller, number=0):
    trials = controller.record.searches.tell("digits")["trials"]
    return [value for _, _, value in trials[number]["curve"]]


def written(controller):
    log = [event for event in controller.record.store.load() if isinstance(event, MetricReported)]
    return [report.value for event in log for report in event.reports]


async def start(controller, agent, number=0):
    if not controller.record.searches.tell_page()[0]:
        await submit_sweep(controller)
    row = await controller.sweeps.submit_trial("digits", number, {"lr": 0.01})
    agent.says(**done(await agent.hears("launch")))
    await until_state(controller, row, JobState.RUNNING)
    return row


async def until_values(controller, *expected):
    async with asyncio.timeout(10):
        while values(controller) != list(expected):
            await asyncio.sleep(0.001)


def test_reports_are_written_down_as_they_come_and_call_for_no_decision(tmp_path):
    async def scenario():
        async with controlled(tmp_path) as controller:
            agent = Agent(controller)
            agent.hello()
            await start(controller, agent)
            decisions = controller.state.decision_seq
            agent.says(**curve(0, 0.1))
            agent.says(**curve(1, 0.2, None))
            await until_values(controller, 0.1, 0.2, None)
            async with asyncio.timeout(10):
                while written(controller) != [0.1, 0.2, None]:
                    await asyncio.sleep(0.001)
            assert controller.state.decision_seq == decisions
            await agent.leave()

    asyncio.run(scenario())


def test_an_agent_that_comes_back_says_all_again_and_only_what_is_new_counts(tmp_path):
    async def scenario():
        async with controlled(tmp_path) as controller:
            agent = Agent(controller)
            agent.hello()
            await start(controller, agent)
            agent.says(**curve(0, 0.1, 0.2))
            await until_values(controller, 0.1, 0.2)
            await agent.leave()
        async with controlled(tmp_path) as controller:
            agent = Agent(controller)
            agent.says(**curve(0, 0.1, 0.2, 0.3))
            agent.hello([alive()])
            await until_values(controller, 0.1, 0.2, 0.3)
            agent.says(**curve(2, 0.3, 0.4))
            await until_values(controller, 0.1, 0.2, 0.3, 0.4)
            controller.turn()
            assert written(controller) == [0.1, 0.2, 0.3, 0.4]
            await agent.leave()

    asyncio.run(scenario())


def alive():
    return {
        "type": "alive",
        "job_id": "1",
        "attempt": 1,
        "state": "running",
        "suspension": "boundary",
        "movable": True,
    }


def test_a_trial_that_ended_meanwhile_has_told_all_before_anybody_sees_its_end(tmp_path):
    async def scenario():
        async with controlled(tmp_path) as controller:
            agent = Agent(controller)
            agent.hello()
            row = await start(controller, agent)
            await agent.leave()
            agent = Agent(controller)
            agent.says(**curve(0, 0.1, 0.2))
            end = {"at_s": 0.0, "exit_code": 0, "message": "", "stop_asked": False}
            agent.hello([{"type": "ended", "job_id": "1", "attempt": 1, **end}])
            await until_state(controller, row, JobState.SUCCEEDED)
            assert values(controller) == [0.1, 0.2]
            await agent.hears("forget")
            assert written(controller) == [0.1, 0.2], "on disk before the agent may forget it"
            await agent.leave()

    asyncio.run(scenario())


def test_what_is_told_of_others_than_trials_and_of_former_attempts_is_passed_over(tmp_path):
    async def scenario():
        async with controlled(tmp_path) as controller:
            agent = Agent(controller)
            agent.hello()
            await start(controller, agent)
            plain = await submit(controller)
            agent.says(**done(await agent.hears("launch")))
            await until_state(controller, plain, JobState.RUNNING)
            agent.says(**curve(0, 0.5, job_id="2"))
            agent.says(**curve(0, 0.5, attempt=2))
            agent.says(**curve(0, 0.5, job_id="77"))
            agent.says(**curve(0, 0.1))
            await until_values(controller, 0.1)
            controller.turn()
            assert written(controller) == [0.1]
            await agent.leave()

    asyncio.run(scenario())
