"""Machines that say they are a node that another one has: they wait until that is lost."""

import asyncio
import math

import pytest

from rota.errors import AgentError
from rota.live.controller.leases import MARGIN_S
from rota.live.controller.recovery import NODE_CHANGED

from .test_removal import LEASE_S, Agent, controlled, running, time, until

__all__ = ["time"]  # a fixture

FIRST = {"agent": "a", "start": 1, "boot_id": "boot", "machine": "first"}
COPY = {"agent": "a", "start": 2, "boot_id": "boot", "machine": "copy"}
REBOOTED = {"agent": "a", "start": 2, "boot_id": "another", "machine": "first"}
ALIVE = {"type": "alive", "job_id": "1", "attempt": 1, "state": "running", "suspension": "process"}
ALIVE |= {"movable": False}


async def is_refused(controller, who, words, attempts=()):
    agent = Agent(controller, "a")
    agent.hello(attempts, **who)
    with pytest.raises(AgentError, match=words):
        await agent.ended()


def claimed_by(controller):
    return {node["name"]: node["claimed_by"] for node in controller.record.nodes()}["a"]


@pytest.mark.parametrize("who", [COPY, REBOOTED])
def test_another_machine_waits_until_the_one_that_is_cut_off_is_lost(tmp_path, time, who):
    async def scenario():
        async with controlled(tmp_path) as controller:
            a, b = await running(controller, **FIRST)
            await a.leave()
            await is_refused(controller, who, r"node: a is another machine, .* for 65 s; this")
            assert claimed_by(controller) == "10.0.0.1"
            time.passes(controller, LEASE_S + MARGIN_S - 1.0)
            await b.beat()
            await is_refused(controller, who, "node: a is another machine")
            assert controller.state.attempt[0] == 1
            assert b.is_quiet()
            time.passes(controller, 1.0)
            assert (await b.hears("launch"))["attempt"] == 2
            late = Agent(controller, "a")
            late.hello(**who)
            await late.hears("lease")
            assert claimed_by(controller) is None
            await is_refused(controller, FIRST, "another agent of a is connected", [ALIVE])
            await late.leave()
            await b.leave()

    asyncio.run(scenario())


def test_a_copy_is_refused_while_the_first_is_connected_and_that_is_told(tmp_path, time):
    async def scenario():
        async with controlled(tmp_path) as controller:
            a, b = await running(controller, **FIRST)
            await is_refused(controller, COPY, r"another agent of a is connected.* remove joined")
            assert claimed_by(controller) == "10.0.0.1"
            same_process = COPY | {"start": 1}  # it began as often as the first
            await is_refused(controller, same_process, "another agent of a is connected")
            await a.beat()
            await a.leave()
            await b.leave()

    asyncio.run(scenario())


@pytest.mark.parametrize("who", [FIRST | {"start": 2}, FIRST])
def test_the_same_life_of_the_same_machine_is_let_in_at_once(tmp_path, time, who):
    async def scenario():
        async with controlled(tmp_path) as controller:
            a, b = await running(controller, **FIRST)
            await a.leave()
            again = Agent(controller, "a")
            again.hello([ALIVE], **who)
            await again.hears("lease")
            assert controller.state.attempt[0] == 1
            await again.leave()
            await b.leave()

    asyncio.run(scenario())


def test_a_copy_waits_also_after_a_restart_of_the_controller(tmp_path, time):
    async def scenario():
        async with controlled(tmp_path) as controller:
            a, b = await running(controller, **FIRST)
            await a.leave()
            await b.leave()
        async with controlled(tmp_path) as controller:
            await is_refused(controller, COPY, "node: a is another machine")
            assert controller.state.attempt[0] == 1

    asyncio.run(scenario())


def test_where_leases_last_for_ever_a_reboot_is_taken_for_one_and_a_copy_is_not(tmp_path, time):
    async def scenario():
        async with controlled(tmp_path, math.inf) as controller:
            a, b = await running(controller, **FIRST)
            await a.leave()
            await is_refused(controller, COPY, "may run there until it is removed")
            again = Agent(controller, "a")
            again.hello(**REBOOTED)
            await again.hears("lease")
            await again.leave()
            await b.leave()

    asyncio.run(scenario())


def test_an_agent_that_tells_no_machine_is_known_by_its_process_alone(tmp_path, time):
    async def scenario():
        async with controlled(tmp_path) as controller:
            a, b = await running(controller)
            await a.leave()
            again = Agent(controller, "a")
            again.hello([ALIVE], **FIRST)
            await again.hears("lease")
            assert controller.state.attempt[0] == 1
            await again.leave()
            await is_refused(controller, COPY, "node: a is another machine")
            await b.leave()

    asyncio.run(scenario())


def test_jobs_of_a_machine_that_offers_other_devices_start_elsewhere_once_they_have_ended(
    tmp_path, time
):
    async def scenario():
        async with controlled(tmp_path) as controller:
            a, b = await running(controller, **FIRST)
            await a.leave()
            changed = Agent(controller, "a")
            changed.hello([ALIVE], num_gpus=2, **FIRST)
            kill = await changed.hears("kill")
            assert (kill["job_id"], kill["attempt"], kill["why"]) == ("1", 1, NODE_CHANGED)
            with pytest.raises(AgentError, match=r"num_gpus: .* 1 job .* end"):
                await changed.ended()
            assert controller.state.attempt[0] == 1
            lost = {"type": "lost", "job_id": "1", "attempt": 1, "error": NODE_CHANGED}
            lost |= {"started": True}
            changed = Agent(controller, "a")
            changed.hello([lost], num_gpus=2, **FIRST)
            await changed.hears("lease")
            await until(lambda: controller.state.attempt[0] == 2)
            await changed.leave()
            await b.leave()

    asyncio.run(scenario())
