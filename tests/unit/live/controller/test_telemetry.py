"""Which of the reports that agents pass on are written down, and when they count."""

import asyncio

from rota.live.controller import telemetry
from rota.model.allocation import shared_on_node
from rota.model.events import FillMeasured, JobResized, WorkerReported
from rota.model.job import JobState
from rota.policy.base import Policy
from rota.policy.registry import create

from .test_loop import Agent, controlled, done, submit, until_state


class Together(Policy):
    """Puts every job on the same GPU."""

    def decide(self, view):
        what_if = view.what_if()
        for row in view.active:
            if what_if.target(row) is None:
                what_if.give(row, shared_on_node(0, 1))
        return what_if.plan()


def told(job_id, at_s, step):
    progress = {"at_s": at_s, "step": step, "metrics": {}}
    return {"type": "progress", "job_id": job_id, "attempt": 1, "progress": progress}


def written(controller):
    """(row, step) of every report in the log."""
    log = [event for event in controller.record.store.load() if isinstance(event, WorkerReported)]
    return [(event.row, event.progress["step"]) for event in log]


async def start(controller, agent, **more):
    row = await submit(controller, **more)
    agent.says(**done(await agent.hears("launch")))
    await until_state(controller, row, JobState.RUNNING)
    return row


async def says(controller, agent, *reports):
    for report in reports:
        agent.says(**report)
        await agent.quiet()
    controller.turn()


def test_a_switch_of_phase_is_written_down_at_once_but_not_each_of_many(tmp_path, monkeypatch):
    async def scenario():
        async with controlled(tmp_path) as controller:
            agent = Agent(controller)
            agent.hello()
            row = await start(controller, agent)
            zero_s = controller.now_s()
            for n, phase in enumerate(["train", "train", "evaluate", "evaluate", "train"], 1):
                report = told("1", zero_s + 0.25 * n, n)
                report["progress"]["phase"] = phase
                await says(controller, agent, report)
            assert written(controller) == [(row, 1), (row, 3)]
            monkeypatch.setattr(telemetry, "LOG_PHASES_EVERY_S", 0.0)
            await says(controller, agent, report)
            assert written(controller) == [(row, 1), (row, 3), (row, 5)]

    asyncio.run(scenario())


def test_one_report_in_ten_seconds_is_written_down_and_the_last(tmp_path):
    async def scenario():
        async with controlled(tmp_path) as controller:
            agent = Agent(controller)
            agent.hello()
            row = await start(controller, agent)
            zero_s = controller.now_s()
            reports = [told("1", zero_s + 0.25 * n, n) for n in range(1, 101)]
            await says(controller, agent, *reports)
            assert written(controller) == [(row, 1), (row, 41), (row, 81)]
            end = {"at_s": 0, "exit_code": 0, "message": "", "stop_asked": False}
            agent.says(type="ended", job_id="1", attempt=1, **end)
            await until_state(controller, row, JobState.SUCCEEDED)
            assert written(controller)[-1] == (row, 100)
            await agent.leave()

    asyncio.run(scenario())


def test_where_another_comes_to_a_gpu_two_more_are_of_before_and_of_after(tmp_path):
    async def scenario():
        async with controlled(tmp_path, Together()) as controller:
            agent = Agent(controller)
            agent.hello()
            one = await start(controller, agent)
            zero_s = controller.now_s()
            reports = [told("1", zero_s + 0.001 * n, n) for n in range(1, 4)]
            await says(controller, agent, *reports)
            assert written(controller) == [(one, 1)]
            other = await start(controller, agent)
            assert written(controller) == [(one, 1), (one, 3)]
            zero_s = max(controller.now_s(), zero_s + 1.0)
            await says(controller, agent, told("1", zero_s + 0.1, 4), told("2", zero_s + 0.2, 1))
            reports = [told("1", zero_s + 0.3 + 0.1 * n, 5 + n) for n in range(5)]
            await says(controller, agent, *reports)
            # After it has come, and after it has done its first step.
            assert written(controller)[2:] == [(one, 4), (other, 1), (one, 5)]
            await agent.leave()

    asyncio.run(scenario())


def test_a_rank_that_was_lost_before_the_agent_could_say_that_the_job_goes_on_is_noticed(tmp_path):
    async def scenario():
        async with controlled(tmp_path) as controller:
            agent = Agent(controller)
            agent.hello()
            row = await submit(controller, resources={"gpus": "2..4"})
            launch = await agent.hears("launch")
            agent.says(**done(launch))
            await until_state(controller, row, JobState.RUNNING)
            await controller.jobs.suspend(row)
            agent.says(**done(await agent.hears("suspend"), stopped_s=controller.now_s()))
            await until_state(controller, row, JobState.SUSPENDED)
            await controller.jobs.resume(row)
            await agent.hears("resume")
            await agent.leave()  # it carries that out, and has nobody to tell
            agent = Agent(controller)
            attempt = {"type": "alive", "job_id": "1", "attempt": 1, "state": "running"}
            attempt |= {"suspension": "boundary", "movable": True, "resizable": True}
            agent.hello([attempt])
            lost = {"gpus": launch["gpus"][1:], "at_s": controller.now_s()}
            agent.says(type="resized", job_id="1", attempt=1, **lost)
            agent.says(**done(await agent.hears("resume")))
            await until_state(controller, row, JobState.RUNNING)
            controller.turn()
            resized = [e for e in controller.record.store.load() if isinstance(e, JobResized)]
            assert [e.allocation.num_gpus for e in resized] == [1]
            await agent.leave()

    asyncio.run(scenario())


def filled(beside, slowdown, harvest=0.25, off=0.01):
    about = {"type": "filling", "job_id": "2", "attempt": 1, "beside": beside, "harvest": harvest}
    if slowdown is None:
        return about
    interval = {"low": slowdown - off, "high": slowdown + off, "pairs": 9}
    return about | {"slowdown": slowdown} | interval


def test_how_a_background_job_fares_is_written_down_at_intervals_or_beyond_the_limit(
    tmp_path, monkeypatch
):
    async def scenario():
        async with controlled(tmp_path, create("fifo-backfill")) as controller:
            agent = Agent(controller)
            agent.hello()
            one = await start(controller, agent)
            two = await start(controller, agent, share={"role": "background"})
            at_s = controller.now_s()
            monkeypatch.setattr(controller.record, "now_s", lambda: at_s)

            async def hears(*reports):
                nonlocal at_s
                for report in reports:
                    at_s += 1.0
                    await says(controller, agent, report)
                log = controller.record.store.load()
                told = [e for e in log if isinstance(e, FillMeasured)]
                for e in told:
                    off = (e.slowdown - 0.01, e.slowdown + 0.01, 9)
                    assert e[5:] == (off if e.beside >= 0 else (None, None, 0))
                return [(e.row, e.beside, e.slowdown, e.harvest) for e in told]

            nonsense = [filled("1", None), filled("77", 1.5), filled("1", 1.5) | {"job_id": "1"}]
            assert await hears(*nonsense) == []
            known = [(two, one, 1.05, 0.25)]
            assert await hears(filled("1", 1.05), filled("1", 1.06)) == known
            assert await hears(filled("1", 1.2, off=0.2)) == known
            known += [(two, one, 1.2, 0.25)]
            assert await hears(filled("1", 1.2), filled("1", 1.04)) == known
            at_s += 10.0
            assert await hears(filled("1", 1.07)) == [*known, (two, one, 1.07, 0.25)]
            known = await hears(filled(None, None, 1.0))
            assert known[-1] == (two, -1, 1.0, 1.0)
            await agent.leave()

    asyncio.run(scenario())
