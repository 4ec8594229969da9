"""Gangs over two nodes, as their agents hear of them."""

import contextlib

import pytest
from tests.unit.live.controller.test_hostile_agents import Other, told
from tests.unit.live.controller.test_loop import Agent, done, submit, until_state

from rota.live import wire
from rota.model.job import JobState
from rota.model.state.cpus import aim_at_cpus

VERSION = {"wire": wire.VERSION}


class First(Agent):
    def hello(self, attempts=(), guests=()):
        self.says(**hello("n", 2, attempts, guests))


class Second(Other):
    def hello(self, attempts=(), guests=(), num_gpus=1):
        self.says(**hello("m", num_gpus, attempts, guests))


def hello(node, num_gpus, attempts, guests):
    of_node = {"type": "hello", "node": node, "num_gpus": num_gpus, "kind": "cpu"} | VERSION
    return of_node | {"attempts": list(attempts), "guests": list(guests)}


@contextlib.asynccontextmanager
async def gang(controller):
    """The agents of n and m, and the command that launches a gang of three GPUs on both."""
    controller.agents.own_reach = "10.0.0.1"
    first, second = First(controller), Second(controller)
    for agent in (first, second):
        agent.hello()
        assert (await agent.hears("welcome"))["reach"] == "10.0.0.1"
    await submit(controller, resources={"gpus": 3})
    guest = await second.hears("guest")
    assert (guest["job_id"], guest["attempt"]) == ("1", 1)
    yield first, second, await first.hears("launch")


def word(node, number, **more):
    return {"type": "relay", "node": node, "job_id": "1", "attempt": 1, "number": number} | more


def test_the_first_nodes_agent_is_told_all_places(tmp_path):
    async def scenario(controller):
        async with gang(controller) as (_, second, command):
            assert command["gpus"] == [0, 1, 4096]
            addresses = [{"name": name, "address": "10.0.0.1"} for name in ("n", "m")]
            assert command["nodes"] == addresses
            assert await second.quiet()

    told(tmp_path, scenario)


def test_the_others_agents_are_told_by_the_controller_what_they_may_start(tmp_path):
    async def scenario(controller):
        async with gang(controller) as (first, second, command):
            first.says(**done(command))
            await until_state(controller, 0, JobState.RUNNING)
            await second.leave()
            again = Second(controller)
            again.hello()
            guest = await again.hears("guest")
            assert (guest["host"], guest["gpus"], guest["millicores"]) == ("n", [0], None)
            same = ("program", "name", "origin", "launch", "attempt")
            assert [guest[key] for key in same] == [command[key] for key in same]

    told(tmp_path, scenario)


def test_each_node_is_told_its_part_of_the_cores(tmp_path):
    async def scenario(controller):
        async with gang(controller) as (first, second, command):
            first.says(**done(command))
            await until_state(controller, 0, JobState.RUNNING)
            aim_at_cpus(controller.state, {0: 3000})
            controller.journal.kick.set()
            command = await first.hears("setcpus")
            assert command["millicores"] == 2000
            first.says(**done(command))
            assert (await second.hears("guest"))["millicores"] == 1000

    told(tmp_path, scenario)


def test_words_pass_between_the_nodes_of_the_gang_alone(tmp_path):
    async def scenario(controller):
        async with gang(controller) as (first, second, _):
            first.says(**word("m", 1, attempt=2))
            first.says(**word("m", 2, job_id="7"))
            first.says(**word("x", 3))
            first.says(**word("m", 4))
            heard = await second.hears("relay")
            assert (heard["node"], heard["number"]) == ("n", 4)
            second.says(**word("n", 5))
            heard = await first.hears("relay")
            assert (heard["node"], heard["number"]) == ("m", 5)

    told(tmp_path, scenario)


def test_an_agent_that_cannot_have_gangs_over_nodes_gets_none(tmp_path):
    async def scenario(controller):
        controller.agents.own_reach = "10.0.0.1"
        first, second = First(controller), Second(controller)
        first.hello()
        await first.hears("welcome")
        second.says(**hello("m", 1, (), ()) | {"wire": wire.VERSION - 1})
        await second.hears("welcome")
        row = await submit(controller, resources={"gpus": 2})
        assert (await first.hears("launch"))["gpus"] == [0, 1]
        assert controller.state.held[row].num_gpus == 2
        assert controller.state.num_reached == 1

    told(tmp_path, scenario)


@pytest.mark.parametrize("attempt", [1, 2])
def test_guests_that_are_none_of_the_nodes_are_dropped_at_its_hello(tmp_path, attempt):
    async def scenario(controller):
        async with gang(controller) as (first, second, command):
            first.says(**done(command))
            await until_state(controller, 0, JobState.RUNNING)
            await second.leave()
            again = Second(controller)
            again.hello(guests=[{"job_id": "1", "attempt": attempt}])
            await again.hears("welcome")
            if attempt == 2:
                assert (await again.hears("drop"))["attempt"] == 2
            assert (await again.hears("guest"))["attempt"] == 1
            assert await again.quiet()

    told(tmp_path, scenario)


def test_the_others_are_dropped_when_the_gang_has_ended(tmp_path):
    async def scenario(controller):
        async with gang(controller) as (first, second, command):
            first.says(**done(command))
            ended = {"type": "ended", "job_id": "1", "attempt": 1, "exit_code": 0, "message": ""}
            first.says(**ended, at_s=command["at_s"])
            assert (await second.hears("drop"))["job_id"] == "1"
            await until_state(controller, 0, JobState.SUCCEEDED)

    told(tmp_path, scenario)


def test_the_others_are_dropped_when_the_launch_has_failed(tmp_path):
    async def scenario(controller):
        async with gang(controller) as (first, second, command):
            first.says(type="failed", command_id=command["command_id"], error="no way to m")
            assert (await second.hears("drop"))["attempt"] == 1

    told(tmp_path, scenario)


def test_the_first_nodes_agent_kills_its_part_when_another_node_is_lost(tmp_path):
    async def scenario(controller):
        async with gang(controller) as (first, second, command):
            first.says(**done(command))
            await until_state(controller, 0, JobState.RUNNING)
            await second.leave()
            Second(controller).hello(num_gpus=2)  # other devices: what was there is gone
            assert (await first.hears("kill"))["attempt"] == 1

    told(tmp_path, scenario)


async def lost(controller, first, second, command):
    """The gang runs, and is lost: m has come back with other devices. Returns m's agent."""
    first.says(**done(command))
    await until_state(controller, 0, JobState.RUNNING)
    await second.leave()
    second = Second(controller)
    second.hello(num_gpus=2)
    await second.hears("welcome")
    return second


def about(attempt):
    return {"job_id": "1", "attempt": attempt}


ALIVE = {"type": "alive", "suspension": "restart", "movable": False} | about(1)


def test_a_gang_is_launched_anew_once_its_other_nodes_have_ended_their_part(tmp_path):
    async def scenario(controller):
        async with gang(controller) as (first, second, command):
            second = await lost(controller, first, second, command)
            assert (await first.hears("kill"))["answers"]
            await until_state(controller, 0, JobState.STARTING)
            second.says(type="gone", **about(1))  # that was known
            first.says(type="gone", **about(7))
            assert await first.quiet()
            first.says(type="gone", **about(1))
            assert (await first.hears("launch"))["attempt"] == 2

    told(tmp_path, scenario)


def test_an_agent_that_was_away_is_told_again_to_end_its_part(tmp_path):
    async def scenario(controller):
        async with gang(controller) as (first, second, command):
            await lost(controller, first, second, command)
            await first.leave()
            first = First(controller)
            first.hello([ALIVE])
            await first.hears("welcome")
            while not (await first.hears("kill")).get("answers"):
                pass
            assert await first.quiet()
            await first.leave()
            first = First(controller)
            first.hello()
            assert (await first.hears("launch"))["attempt"] == 2

    told(tmp_path, scenario)


def test_gangs_span_a_node_whose_controller_listens_since_a_later_start(tmp_path):
    """A cluster of one machine grows: `rota up`, and later `rota up --listen`."""

    async def alone(controller):
        first = First(controller)
        first.hello()
        assert (await first.hears("welcome"))["reach"] == ""
        await first.leave()

    async def listens(controller):
        assert controller.record.reach("n") == ""
        async with gang(controller) as (_, _, command):
            addresses = [{"name": name, "address": "10.0.0.1"} for name in ("n", "m")]
            assert command["nodes"] == addresses

    async def knows_it_still(controller):
        assert controller.record.reach("n") == "10.0.0.1"
        assert controller.state.num_reached == 2

    told(tmp_path, alone)
    told(tmp_path, listens)
    told(tmp_path, knows_it_still)


def test_a_member_that_calls_from_another_address_is_known_there(tmp_path):
    async def scenario(controller):
        controller.members.join(controller.node_api.invite()[0], "m", 0.0)
        for address in ("10.0.0.7", "10.0.0.8"):
            second = Second(controller, place=("m", address))
            second.hello()
            assert (await second.hears("welcome"))["reach"] == address
            assert controller.record.reach("m") == address
            await second.leave()

    async def again(controller):
        assert controller.record.reach("m") == "10.0.0.8"

    told(tmp_path, scenario)
    told(tmp_path, again)
