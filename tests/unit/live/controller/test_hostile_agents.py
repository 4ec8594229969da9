"""What an agent says that is malformed, or about another node's jobs, changes nothing."""

import asyncio

import pytest
from tests.unit.live.controller.test_loop import Agent, submit

from rota.errors import AgentError
from rota.folder import Folder
from rota.live.controller.loop import Controller
from rota.live.provider.base import ProvidedNode, Provider
from rota.live.wire import VERSION, pack
from rota.live.wire.messages import FROM_AGENT
from rota.model.job import JobState
from rota.policy.ordering.fifo import FifoBackfill
from rota.store.events import EventStore


class TwoNodes(Provider):
    def nodes(self):
        return [ProvidedNode("n", is_alive=True), ProvidedNode("m", is_alive=True)]


def told(tmp_path, scenario):
    """Run a scenario with a controller of the nodes n and m; its exceptions come through."""

    async def whole():
        folder = Folder(tmp_path).create()
        controller = Controller(
            EventStore(folder.database), folder, FifoBackfill(), "fifo", TwoNodes()
        )
        await controller.start()
        try:
            await scenario(controller)
        finally:
            assert not controller.journal.failed
            controller.state.validate()
            await controller.stop()

    asyncio.run(whole())


class Other(Agent):
    """The agent of node m."""

    def hello(self, attempts=(), num_gpus=1):
        self.says(
            type="hello",
            wire=VERSION,
            node="m",
            num_gpus=num_gpus,
            kind="cpu",
            attempts=list(attempts),
        )


@pytest.mark.parametrize("kind", sorted(FROM_AGENT.keys() - {"beat"}))
def test_a_message_without_its_fields_ends_the_connection_with_the_field(tmp_path, kind):
    async def scenario(controller):
        agent = Agent(controller)
        agent.hello()
        await agent.hears("welcome")
        agent.says(type=kind)
        with pytest.raises(AgentError, match="can't be used; it must be"):
            await agent.ended()

    told(tmp_path, scenario)


@pytest.mark.parametrize(
    "frame",
    [b"no line", pack({"type": "fetched"}, b"x"), pack({"type": "done", "node": "m"}, b"")],
    ids=["no line", "no fields", "another kind"],
)
def test_a_piece_that_is_none_ends_the_connection(tmp_path, frame):
    async def scenario(controller):
        agent = Agent(controller)
        agent.hello()
        await agent.hears("welcome")
        agent._to_controller.put_nowait(frame)
        with pytest.raises(AgentError):
            await agent.ended()

    told(tmp_path, scenario)


@pytest.mark.parametrize(
    ("theirs", "older"), [(VERSION - 2, "the agent"), (VERSION + 2, "this controller")]
)
def test_an_agent_two_versions_away_is_refused_with_both_versions(tmp_path, theirs, older):
    async def scenario(controller):
        agent = Agent(controller)
        agent.says(type="hello", node="n", wire=theirs, build="rota 9", shape="unknown")
        told = await agent.hears("rejected")
        assert "the agent of node 'n' (rota 9) speaks" in told["error"]
        assert f"version {theirs}, and this controller" in told["error"]
        assert f"upgrade {older}" in told["error"]
        assert not controller.state.nodes
        with pytest.raises(AgentError):
            await agent.ended()

    told(tmp_path, scenario)


@pytest.mark.parametrize("theirs", [VERSION - 1, VERSION, VERSION + 1])
def test_the_versions_next_to_this_one_are_understood(tmp_path, theirs):
    async def scenario(controller):
        agent = Agent(controller)
        agent.says(type="hello", node="n", wire=theirs, num_gpus=2, kind="cpu", attempts=[], new=1)
        await agent.hears("welcome")

    told(tmp_path, scenario)


def test_a_kind_that_this_version_does_not_know_is_passed_over(tmp_path):
    async def scenario(controller):
        agent = Agent(controller)
        agent.hello()
        await agent.hears("welcome")
        agent.says(type="of a later version")
        await submit(controller)
        assert (await agent.hears("launch"))["job_id"] == "1"

    told(tmp_path, scenario)


@pytest.mark.parametrize("kind", ["done", "failed"])
def test_a_node_answers_no_command_of_another_node(tmp_path, kind):
    async def scenario(controller):
        agent, other = Agent(controller), Other(controller)
        agent.hello()
        await agent.hears("welcome")
        other.hello()
        await other.hears("welcome")
        row = await submit(controller, resources={"gpus": 2})
        command = await agent.hears("launch")
        answer = {"type": kind, "command_id": command["command_id"], "error": "none"}
        other.says(**answer, at_s=command["at_s"])
        other.says(type="ended", job_id="1", attempt=1, at_s=1.0, exit_code=0, message="")
        await other.hears("forget")
        assert controller.state.state[row] == JobState.STARTING
        agent.says(type="done", command_id=command["command_id"], at_s=command["at_s"])
        async with asyncio.timeout(10):
            while controller.state.state[row] != JobState.RUNNING:
                await asyncio.sleep(0)

    told(tmp_path, scenario)
