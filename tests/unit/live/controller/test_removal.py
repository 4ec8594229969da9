"""Machines that are removed with their jobs: none starts elsewhere before the lease is over."""

import asyncio
import contextlib

import pytest

from rota.errors import AgentError, InputError, TransitionError
from rota.explain.why import explain
from rota.folder import Folder
from rota.live.controller import loop as controller_module
from rota.live.controller.leases import MARGIN_S, Leases
from rota.live.controller.loop import Controller
from rota.live.controller.recovery import NODE_GONE
from rota.live.provider.joined import JoinedProvider
from rota.live.wire import VERSION, clock
from rota.model.job import JobState
from rota.policy.ordering.fifo import FifoBackfill
from rota.request.jobfile import parse_job
from rota.store.events import EventStore
from rota.store.members import Members

from . import test_loop

LEASE_S = 60.0


class Time:
    """CLOCK_BOOTTIME of the controller."""

    def __init__(self):
        self.now_s = 1000.0

    def __call__(self):
        return self.now_s

    def passes(self, controller, seconds):
        """So many seconds, for all of which the controller is there."""
        for _ in range(int(seconds)):
            self.now_s += 1.0
            controller.leases.presence.at(self.now_s)


class Agent(test_loop.Agent):
    """The other end of a connection of a machine that has joined."""

    def __init__(self, controller, node):
        super().__init__(controller, place=(node, "10.0.0.1"))
        self._node = node

    def hello(self, attempts=(), num_gpus=1, **more):
        about = {"node": self._node, "num_gpus": num_gpus, "kind": "cpu"}
        about |= {"attempts": list(attempts)} | more
        self.says(type="hello", asked_s=clock.boottime_s(), wire=VERSION, **about)

    async def beat(self):
        self.says(type="beat", asked_s=clock.boottime_s())
        await self.hears("lease")

    def is_quiet(self):
        return self.heard.empty()


@pytest.fixture
def time(monkeypatch):
    made = Time()
    monkeypatch.setattr(clock, "boottime_s", made)
    monkeypatch.setattr(controller_module, "LOOK_EVERY_S", 0.01)
    return made


@contextlib.asynccontextmanager
async def controlled(home, lease_s=LEASE_S):
    folder = Folder(home).create()
    store = EventStore(folder.database)
    members = Members(store)
    provider = JoinedProvider(lambda: members.names)
    controller = Controller(
        *(store, folder, FifoBackfill(), "fifo", provider),
        members=members,
        leases=Leases(lease_s),
    )
    await controller.start()
    try:
        yield controller
    finally:
        await controller.stop()


async def until(condition):
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)


async def running(controller, **more):
    """A job on machine a, and the agents of it and of machine b, which is idle.

    The agent of a says ``more`` with its hello.
    """
    names = ("a", "b")
    for name in names:
        controller.node_api.join(controller.node_api.invite()[0], name)
    agents = [Agent(controller, name) for name in names]
    agents[0].hello(**more)
    await agents[0].hears("lease")
    request = parse_job({"run": "true"}, workdir="/")
    await controller.jobs.submit(request, user="me", key=None, body_hash="x")
    launch = await agents[0].hears("launch")
    agents[0].says(type="done", command_id=launch["command_id"], at_s=controller.now_s())
    await until(lambda: controller.state.state[0] == JobState.RUNNING)
    agents[1].hello()
    await agents[1].hears("lease")
    return agents


def test_the_jobs_of_a_machine_that_is_removed_start_elsewhere_once_its_lease_is_over(
    tmp_path, time
):
    async def scenario():
        async with controlled(tmp_path) as controller:
            a, b = await running(controller)
            await a.leave()  # it is cut off
            time.passes(controller, 20.0)
            b.says(type="beat", asked_s=time.now_s)
            await b.hears("lease")
            with pytest.raises(TransitionError, match="node a has job"):
                controller.node_api.remove("a")
            assert controller.node_api.remove("a", force=True) == LEASE_S + MARGIN_S - 20.0
            told = explain(controller.state, 0, controller.now_s())["warnings"]
            assert told == ["node a is not heard, and the job stays there for 45 s; then it starts "
                            "anew elsewhere"]  # fmt: skip
            with pytest.raises(InputError, match="node: a is being removed"):
                controller.node_api.join(controller.node_api.invite()[0], "a")
            time.passes(controller, 44.0)
            b.says(type="beat", asked_s=time.now_s)
            await b.hears("lease")
            assert controller.node_api.remove("a", force=True) == 1.0
            assert controller.state.attempt[0] == 1
            time.passes(controller, 1.0)
            launch = await b.hears("launch")
            assert launch["attempt"] == 2
            await until(lambda: controller.members.names == {"b"})
            await b.leave()

    asyncio.run(scenario())


def test_a_machine_that_is_heard_is_removed_as_soon_as_it_has_ended_its_jobs(tmp_path, time):
    async def scenario():
        async with controlled(tmp_path) as controller:
            a, b = await running(controller)
            assert controller.node_api.remove("a", force=True) == LEASE_S + MARGIN_S
            kill = await a.hears("kill")
            assert (kill["job_id"], kill["attempt"], kill["why"]) == ("1", 1, NODE_GONE)
            assert controller.members.names == {"a", "b"}
            lost = {"type": "lost", "job_id": "1", "attempt": 1, "error": NODE_GONE}
            a.says(**lost, started=True)
            assert (await b.hears("launch"))["attempt"] == 2
            await a.hears("removed")
            assert controller.members.names == {"b"}
            await b.leave()

    asyncio.run(scenario())


def test_an_agent_that_is_heard_and_ends_no_job_renews_its_lease_no_more(tmp_path, time):
    async def scenario():
        async with controlled(tmp_path) as controller:
            a, b = await running(controller)
            assert controller.node_api.remove("a", force=True) == LEASE_S + MARGIN_S
            for _ in range(3):
                a.says(type="beat", asked_s=time.now_s)
                await a.hears("kill")  # again and again
                await a.hears("kill")
            time.passes(controller, LEASE_S)
            await b.beat()
            assert "a" in controller.members.names
            time.passes(controller, MARGIN_S)
            await a.hears("removed")
            await until(lambda: controller.state.attempt[0] == 2)
            await b.leave()

    asyncio.run(scenario())


def test_a_machine_that_is_being_removed_is_not_heard_again(tmp_path, time):
    async def scenario():
        async with controlled(tmp_path) as controller:
            a, b = await running(controller)
            controller.node_api.remove("a", force=True)
            await a.leave()
            again = Agent(controller, "a")  # one that had shown its token a moment ago
            again.hello()
            with pytest.raises(AgentError, match="a was removed from this cluster"):
                await again.ended()
            time.passes(controller, 5.0)
            assert controller.node_api.remove("a", force=True) == LEASE_S + MARGIN_S - 5.0
            await b.leave()

    asyncio.run(scenario())


def test_a_machine_that_was_lost_has_no_lease_before_it_says_hello_anew(tmp_path, time):
    async def scenario():
        async with controlled(tmp_path) as controller:
            a, b = await running(controller)
            time.passes(controller, LEASE_S + MARGIN_S - 1.0)
            await b.beat()
            time.passes(controller, 1.0)
            await b.hears("launch")  # the job starts there
            a.says(type="beat", asked_s=time.now_s)  # it was on its way
            with pytest.raises(AgentError, match="a is lost by now, and is to say hello anew"):
                await a.ended()
            while not a.is_quiet():
                assert a.heard.get_nowait()["type"] != "lease"
            again = Agent(controller, "a")
            alive = {"type": "alive", "job_id": "1", "attempt": 1, "state": "running"}
            again.hello([alive | {"suspension": "boundary", "movable": True}])
            await again.hears("kill")
            await again.hears("lease")
            await again.leave()
            await b.leave()

    asyncio.run(scenario())


def test_the_next_controller_waits_for_a_whole_lease(tmp_path, time):
    async def scenario():
        async with controlled(tmp_path) as controller:
            a, b = await running(controller)
            controller.node_api.remove("a", force=True)
            await a.leave()
            await b.leave()
            time.passes(controller, 50.0)
        async with controlled(tmp_path) as controller:
            time.passes(controller, 60.0)
            await until(lambda: controller.state.unreachable.get(1) is not None)
            left_s = controller.state.unreachable[0] - controller.now_s()
            assert left_s == pytest.approx(5.0, abs=0.5)
            assert controller.state.attempt[0] == 1
            time.passes(controller, 5.0)
            await until(lambda: "a" not in controller.members.names)
            assert not controller.state.nodes[0].alive

    asyncio.run(scenario())


@pytest.mark.parametrize("lease_s", [LEASE_S, float("inf")])
def test_a_machine_is_removed_at_once_where_it_has_no_jobs_or_leases_have_no_end(
    tmp_path, time, lease_s
):
    async def scenario():
        async with controlled(tmp_path, lease_s) as controller:
            _, b = await running(controller)
            if lease_s == LEASE_S:
                assert controller.node_api.remove("b") == 0.0
                assert controller.members.names == {"a"}
                return
            assert controller.node_api.remove("a", force=True) == 0.0
            assert controller.members.names == {"b"}
            assert (await b.hears("launch"))["attempt"] == 2

    asyncio.run(scenario())


async def gang_on_a_and_b(controller):
    """A gang that runs on machines a and b, and the agents of these, and of c and d."""
    agents = {}
    for name in "abcd":
        controller.node_api.join(controller.node_api.invite()[0], name)
        agents[name] = Agent(controller, name)
    a, b, c, d = agents.values()
    for agent in (a, b):
        agent.hello()
        await agent.hears("lease")
    request = parse_job({"run": "true", "resources": {"gpus": 2}}, workdir="/")
    await controller.jobs.submit(request, user="me", key=None, body_hash="x")
    launch = await a.hears("launch")
    a.says(type="done", command_id=launch["command_id"], at_s=controller.now_s())
    await until(lambda: controller.state.state[0] == JobState.RUNNING)
    return a, b, c, d


@pytest.mark.parametrize("restarts", [False, True])
def test_a_gang_that_loses_two_machines_one_after_the_other_starts_anew_when_both_have_stopped(
    tmp_path, time, restarts
):
    async def scenario():
        async with controlled(tmp_path) as controller:
            a, b, c, d = await gang_on_a_and_b(controller)
            await b.leave()
            time.passes(controller, 20.0)
            await a.beat()
            await a.leave()
            for agent in (c, d):
                agent.hello()
                await agent.hears("lease")
            time.passes(controller, LEASE_S + MARGIN_S - 20.0)
            for agent in (c, d):
                await agent.beat()
            await until(lambda: controller.state.state[0] == JobState.STARTING)
            assert not controller.state.nodes[1].alive
            await c.beat()
            assert c.is_quiet()  # for 20 s processes may run on machine a
            if not restarts:
                time.passes(controller, 20.0)
                assert (await c.hears("launch"))["attempt"] == 2
                return
            for agent in (c, d):
                await agent.leave()
        async with controlled(tmp_path) as controller:
            c, d = Agent(controller, "c"), Agent(controller, "d")
            for agent in (c, d):
                agent.hello()
                await agent.hears("lease")
            time.passes(controller, LEASE_S)
            for agent in (c, d):
                await agent.beat()
            await c.beat()
            assert c.is_quiet()  # the next controller does not know when a was heard
            time.passes(controller, MARGIN_S)
            assert (await c.hears("launch"))["attempt"] == 2

    asyncio.run(scenario())


def test_a_gang_that_loses_two_machines_at_once_starts_anew(tmp_path, time):
    async def scenario():
        async with controlled(tmp_path) as controller:
            a, b, c, d = await gang_on_a_and_b(controller)
            for agent in (a, b):
                await agent.leave()
            for agent in (c, d):
                agent.hello()
                await agent.hears("lease")
            time.passes(controller, LEASE_S + MARGIN_S)
            for agent in (c, d):
                await agent.beat()
            assert (await c.hears("launch"))["attempt"] == 2
            assert [node.alive for node in controller.state.nodes] == [False, False, True, True]
            for agent in (c, d):
                await agent.leave()

    asyncio.run(scenario())


def test_a_controller_that_can_watch_no_longer_stops(tmp_path, time, monkeypatch):
    async def scenario():
        async with controlled(tmp_path) as controller:
            monkeypatch.setattr(controller.leases, "take_over", lambda now_s: 1 / 0)
            await asyncio.wait_for(controller.journal.stopped.wait(), 10)
            assert controller.journal.failed

    asyncio.run(scenario())


def test_a_node_that_was_drained_and_removed_takes_jobs_once_it_has_joined_anew(tmp_path, time):
    async def scenario():
        async with controlled(tmp_path) as controller:
            a, b = await running(controller)
            controller.node_api.drain("b", user="ann")
            assert controller.node_api.remove("b") == 0.0
            await b.hears("removed")
            controller.node_api.join(controller.node_api.invite()[0], "b")
            again = Agent(controller, "b")
            again.hello(num_gpus=3)
            await again.hears("welcome")
            node = {node["name"]: node for node in controller.record.nodes()}["b"]
            assert (node["num_gpus"], node["closed"], node["alive"]) == (3, None, True)
            request = parse_job({"run": "true", "resources": {"gpus": 3}}, workdir="/")
            await controller.jobs.submit(request, user="me", key=None, body_hash="y")
            await again.hears("launch")
            for agent in (a, again):
                await agent.leave()

    asyncio.run(scenario())


def test_a_member_whose_agent_is_away_has_its_token_replaced_and_stays_as_it_is(tmp_path, time):
    async def scenario():
        async with controlled(tmp_path) as controller:
            own = controller.node_api.join(controller.node_api.invite()[0], "a")
            agent = Agent(controller, "a")
            agent.hello()
            await agent.hears("welcome")
            controller.node_api.cordon("a")
            assert not controller.node_api.is_known("a", own)  # a copy of its folder may call
            await agent.leave()
            assert controller.node_api.is_known("a", own)
            for name, token in (("b", own), ("a", None), ("a", 7), (None, None), ("a", "x")):
                assert not controller.node_api.is_known(name, token)
            token = controller.node_api.invite()[0]
            other = controller.node_api.join(token, "a", is_known=True)
            assert controller.members.node_of(own) is None
            assert controller.members.node_of(other) == "a"
            assert controller.state.closed

    asyncio.run(scenario())
