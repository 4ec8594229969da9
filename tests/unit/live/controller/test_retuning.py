"""Batches that a plan gives live jobs: as commands, as answers, and after restarts."""

import asyncio
import logging

import pytest

from rota.live.controller.agent_sessions import RETRY_S
from rota.model.allocation import on_node
from rota.model.events import BatchRefused, CommandSent, JobRetuned, RetryDue, WorkerReported
from rota.model.job import JobState
from rota.model.plan import Plan
from rota.policy.base import Policy

from .test_loop import Agent, controlled, done, submit, until_state
from .test_telemetry import told

ADAPTS = {"resources": {"gpus": "1..2"}, "batch": {"mode": "adapt", "max_global": 48}}


class Wants(Policy):
    """Gives job 0 what a test says."""

    def __init__(self, place):
        self.place = place

    def decide(self, view):
        changes = view.total_gpus and 0 in view.active and view.target[0] != self.place
        return Plan({0: self.place} if changes else {}, {}, {})


def one(batch=None):
    return on_node(0, 0b1).with_batch(batch)


async def running(controller, agent, policy, **fields):
    """A job that runs as the policy says; its launch."""
    agent.hello()
    row = await submit(controller, **(ADAPTS | fields))
    launch = await agent.hears("launch")
    agent.says(**done(launch))
    await until_state(controller, row, JobState.RUNNING)
    registered = {"suspension": "boundary", "movable": True, "resizable": True, "portable": True}
    agent.says(type="registered", job_id="1", attempt=1, most_ranks=2, why="", **registered)
    await agent.quiet()
    return launch


def decides(controller, policy, place):
    policy.place = place
    controller.state.decision_needed = controller.journal.calls_at_once = True
    controller.turn()


def test_a_batch_comes_with_a_launch_a_retune_and_a_resize(tmp_path):
    async def scenario():
        policy = Wants(one((8, 1)))
        async with controlled(tmp_path, policy) as controller:
            state, agent = controller.state, Agent(controller)
            assert (await running(controller, agent, policy))["batch"] == [8, 1]

            decides(controller, policy, one((16, 0)))
            retune = await agent.hears("retune")
            assert retune["batch"] == [16, 0]
            assert state.held[0].batch == (8, 1), "it is not confirmed yet"
            agent.says(**done(retune, batch=[16, 0]))
            await agent.quiet()
            assert state.held[0] == one((16, 0))
            assert not state.unsettled

            decides(controller, policy, on_node(0, 0b11).with_batch((12, 0)))
            resize = await agent.hears("resize")
            assert (resize["gpus"], resize["batch"]) == ([0, 1], [12, 0])
            agent.says(**done(resize))
            await agent.quiet()
            assert state.held[0].batch == (12, 0)

            decides(controller, policy, on_node(0, 0b11))
            assert (await agent.hears("retune"))["batch"] == [0, 0]
            log = [type(event) for event in controller.record.store.load()]
            assert log.count(JobRetuned) == 1

    asyncio.run(scenario())


def test_a_suspended_job_resumes_with_the_batch_of_its_plan_or_with_its_own(tmp_path):
    async def scenario():
        policy = Wants(one((8, 1)))
        async with controlled(tmp_path, policy) as controller:
            agent = Agent(controller)
            await running(controller, agent, policy)
            for place, batch in ((one((16, 0)), [16, 0]), (one(), [0, 0])):
                decides(controller, policy, None)
                agent.says(**done(await agent.hears("suspend"), stopped_s=0.0))
                await until_state(controller, 0, JobState.SUSPENDED)
                decides(controller, policy, place)
                resume = await agent.hears("resume")
                assert resume["batch"] == batch
                agent.says(**done(resume))
                await until_state(controller, 0, JobState.RUNNING)

    asyncio.run(scenario())


def test_a_retune_that_is_refused_leaves_the_batch_and_is_not_sent_at_once_again(tmp_path):
    async def scenario():
        policy = Wants(one((8, 1)))
        async with controlled(tmp_path, policy) as controller:
            agent = Agent(controller)
            await running(controller, agent, policy)
            decides(controller, policy, one((16, 0)))
            retune = await agent.hears("retune")
            failed = {"type": "failed", "command_id": retune["command_id"], "error": "no room"}
            policy.place = one((8, 1))
            agent.says(**failed)
            await agent.quiet()
            assert controller.state.held[0] == controller.state.target[0] == one((8, 1))
            assert 0 in controller.state.backoff
            assert "retune failed: no room" in [line for _, line in controller.state.story(0)]

    asyncio.run(scenario())


def refused(retune, gpus=1, **more):
    about = {"job_id": "1", "attempt": 1, "batch": retune["batch"], "gpus": gpus}
    return {"type": "refused", **about, "error": "no room"} | more


def test_a_batch_that_is_refused_is_remembered_and_holds_nothing_up(tmp_path):
    async def scenario():
        policy = Wants(one((8, 1)))
        async with controlled(tmp_path, policy) as controller:
            state, agent = controller.state, Agent(controller)
            await running(controller, agent, policy)
            decides(controller, policy, one((16, 0)))
            retune = await agent.hears("retune")
            policy.place = one((8, 1))
            agent.says(**refused(retune))
            agent.says(type="failed", command_id=retune["command_id"], error="no room")
            await agent.quiet()
            assert state.held[0] == state.target[0] == one((8, 1))
            assert state.refused[0][""].samples == 16
            assert not state.backoff
            agent.says(**refused(retune))  # an agent says it again whenever it comes back
            await agent.quiet()
            decides(controller, policy, one((12, 0)))
            assert (await agent.hears("retune"))["batch"] == [12, 0], "others are not held up"
        async with controlled(tmp_path, policy) as controller:
            assert controller.state.refused[0][""].samples == 16
            log = [type(event) for event in controller.record.store.load()]
            assert log.count(BatchRefused) == 1

    asyncio.run(scenario())


def test_a_batch_that_came_with_a_launch_and_is_refused_is_chosen_anew(tmp_path):
    async def scenario():
        policy = Wants(one((16, 0)))
        async with controlled(tmp_path, policy) as controller:
            state, agent = controller.state, Agent(controller)
            launch = await running(controller, agent, policy)
            policy.place = one((8, 1))
            seq = state.decision_seq
            agent.says(**refused(launch))
            assert (await agent.hears("retune"))["batch"] == [8, 1]
            assert state.decision_seq == seq + 1
            assert state.held[0] == one(), "what it has instead nobody knows"

    asyncio.run(scenario())


def test_a_batch_that_is_for_other_ranks_than_there_are_is_tried_again_after_a_pause(tmp_path):
    async def scenario():
        policy = Wants(one((8, 1)))
        async with controlled(tmp_path, policy) as controller:
            state, agent = controller.state, Agent(controller)
            await running(controller, agent, policy)
            batches = {"initial": 12, "most": 48, "most_per_gpu": 32}
            message = told("1", controller.now_s() + 20.0, 1)
            message["progress"]["adaptation"] = batches
            agent.says(**message)
            decides(controller, policy, one((4, 0)))
            retune = await agent.hears("retune")  # 4 samples of one rank are less than 12
            policy.place = one((8, 1))
            agent.says(**refused(retune))
            agent.says(type="failed", command_id=retune["command_id"], error="too few")
            await agent.quiet()
            assert not state.refused
            assert 0 in state.backoff

    asyncio.run(scenario())


def test_retunes_that_fail_make_no_launch_wait_longer(tmp_path):
    async def scenario():
        policy = Wants(one((8, 1)))
        async with controlled(tmp_path, policy) as controller:
            state, agent = controller.state, Agent(controller)
            await running(controller, agent, policy)
            pauses = []
            for samples in (16, 12, 10):
                decides(controller, policy, one((samples, 0)))
                retune = await agent.hears("retune")
                policy.place = one((8, 1))
                agent.says(type="failed", command_id=retune["command_id"], error="ask again")
                await agent.quiet()
                pauses.append(round(state.backoff[0] - controller.now_s()))
                controller.journal.note(RetryDue(controller.now_s(), 0))
            assert pauses == [RETRY_S] * 3
            agent.says(type="lost", job_id="1", attempt=1, error="gone", started=True)
            launch = await agent.hears("launch")
            agent.says(type="failed", command_id=launch["command_id"], error="no zygote")
            await agent.quiet()
            assert round(state.backoff[0] - controller.now_s()) == RETRY_S

    asyncio.run(scenario())


def test_the_end_of_the_job_and_the_loss_of_its_attempt_drop_a_retune(tmp_path):
    async def scenario():
        policy = Wants(one((8, 1)))
        async with controlled(tmp_path, policy) as controller:
            agent = Agent(controller)
            await running(controller, agent, policy)
            decides(controller, policy, one((16, 0)))
            first = await agent.hears("retune")
            agent.says(type="lost", job_id="1", attempt=1, error="gone", started=True)
            launch = await agent.hears("launch")
            assert (launch["attempt"], launch["batch"]) == (2, [16, 0])
            agent.says(**done(launch))
            await until_state(controller, 0, JobState.RUNNING)
            agent.says(**done(first, batch=[16, 0]))
            decides(controller, policy, one((4, 2)))
            second = await agent.hears("retune")
            end = {"at_s": 0, "exit_code": 0, "message": "", "stop_asked": False}
            agent.says(type="ended", job_id="1", attempt=2, **end)
            await until_state(controller, 0, JobState.SUCCEEDED)
            agent.says(**done(second, batch=[4, 2]))
            await agent.quiet()
            assert JobRetuned not in [type(event) for event in controller.record.store.load()]

    asyncio.run(scenario())


def test_a_controller_that_comes_back_repeats_the_retune_that_nobody_has_answered(tmp_path):
    async def scenario():
        policy = Wants(one((8, 1)))
        async with controlled(tmp_path, policy) as controller:
            agent = Agent(controller)
            await running(controller, agent, policy)
            decides(controller, policy, one((16, 0)))
            retune = await agent.hears("retune")
            await agent.leave()
        async with controlled(tmp_path, policy) as controller:
            agent = Agent(controller)
            alive = {"type": "alive", "job_id": "1", "attempt": 1, "state": "running"}
            alive |= {"suspension": "boundary", "movable": True, "resizable": True}
            agent.hello([alive | {"portable": True, "most_ranks": 2, "why": ""}])
            again = await agent.hears("retune")
            assert again["command_id"] == retune["command_id"]
            agent.says(**done(again, batch=[16, 0]))
            await agent.quiet()
            controller.turn()
            sent = [e for e in controller.record.store.load() if isinstance(e, CommandSent)]
            assert len(sent) == 2
            assert controller.state.held[0] == one((16, 0))

    asyncio.run(scenario())


def test_the_batch_stays_when_a_rank_has_been_replaced(tmp_path):
    async def scenario():
        policy = Wants(one((8, 1)))
        async with controlled(tmp_path, policy) as controller:
            agent = Agent(controller)
            await running(controller, agent, policy)
            cause = "rank 0 lagged behind, and another process has taken its place"
            agent.says(type="resized", job_id="1", attempt=1, gpus=[0], cause=cause)
            await agent.quiet()
            assert controller.state.held[0] == one((8, 1))
            assert not controller.state.unsettled

    asyncio.run(scenario())


def test_what_adaptive_jobs_tell_is_written_down_before_a_decision_that_was_to_come(tmp_path):
    async def scenario():
        policy = Wants(one())
        async with controlled(tmp_path, policy) as controller:
            agent = Agent(controller)
            await running(controller, agent, policy, resources={"gpus": 1})
            now_s = controller.now_s()
            for step in (1, 2):
                agent.says(**told("1", now_s + 0.1 * step, step))
            await agent.quiet()
            controller.state.wake_at_s = controller.now_s()
            controller.turn()
            log = [e for e in controller.record.store.load() if isinstance(e, WorkerReported)]
            assert [event.progress["step"] for event in log] == [1, 2]

    asyncio.run(scenario())


STEPS = {"steps": 20, "step_s": 0.5, "wait_s": 0.1, "workers": 2}


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"step_s": 0}, "phases.train.step_s: 0 s is no time for a step"),
        ({"step_s": float("nan")}, "phases.train.step_s: nan s is no time for a step"),
        ({"wait_s": -1.0}, "phases.train.wait_s: -1.0 s is no time to wait"),
        (None, "phase: 'asleep' is none; there are train and evaluate"),
    ],
    ids=str,
)
def test_times_and_phases_that_can_not_be_are_left_out_with_one_warning(
    tmp_path, caplog, wrong, words
):
    async def scenario():
        policy = Wants(one())
        async with controlled(tmp_path, policy) as controller:
            agent = Agent(controller)
            await running(controller, agent, policy, name="wild")
            now_s = controller.now_s()
            for step in (1, 2, 3):
                message = told("1", now_s + 20.0 * step, step)
                if wrong is None:
                    message["progress"]["phase"] = "asleep"
                else:
                    train = STEPS | {"since_s": now_s + 20.0 * step - 10.0} | wrong
                    message["progress"]["phases"] = {"train": train}
                agent.says(**message)
            await agent.quiet()
            profiles = controller.state.profiles
            assert not any(point.step_s.count for point in profiles.of_job(0).cpu_points.values())
            assert profiles.phase(0) == "train"
            assert controller.record.progress(0)["step"] == 3

    with caplog.at_level(logging.WARNING, "rota.controller"):
        asyncio.run(scenario())
    (record,) = caplog.records
    assert record.message == f"job 1 (wild): reports are left out that make no sense: {words}"


def test_reports_that_make_no_sense_are_named_once_and_change_no_decision(tmp_path, caplog):
    async def scenario():
        policy = Wants(one())
        async with controlled(tmp_path, policy) as controller:
            agent = Agent(controller)
            await running(controller, agent, policy, name="wild")
            now_s = controller.now_s()
            for step in (1, 2, 3):
                message = told("1", now_s + 20.0 * step, step)
                message["progress"]["adaptation"] = {"initial": 12, "most": 3, "most_per_gpu": 8}
                agent.says(**message)
            await agent.quiet()
            assert controller.state.reports.batch_range(0) is None
            assert controller.record.progress(0)["step"] == 3

    with caplog.at_level(logging.WARNING, "rota.controller"):
        asyncio.run(scenario())
    (record,) = caplog.records
    assert record.message == (
        "job 1 (wild): reports are left out that make no sense: "
        "adaptation.most: 3 is below the initial batch of 12"
    )
