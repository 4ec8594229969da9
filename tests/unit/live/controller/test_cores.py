"""What the controller makes of an agent's cores, and how it tells jobs' cores to one."""

import asyncio

from rota.live.wire import VERSION
from rota.model.allocation import on_node
from rota.model.events import CpusSet, NodeCpusChanged
from rota.model.plan import Plan
from rota.policy.base import Policy

from .test_loop import Agent, controlled, done, submit
from .test_telemetry import told


class Gives(Policy):
    """A policy that gives the first job a GPU, and so many cores."""

    def __init__(self):
        self.place, self.millicores = on_node(0, 0b1), 1500

    def decide(self, view):
        if not view.active:
            return view.unchanged()
        changes = {} if view.target[0] is self.place else {0: self.place}
        return Plan(changes, {}, {}, cpus={0: self.millicores} if self.place else None)


class ByPhase(Gives):
    """Gives the first job another number of cores for its validations."""

    def decide(self, view):
        self.millicores = 3000 if view.active and view.phase(0) == "evaluate" else 1500
        return super().decide(view)


def hello(agent, **fields):
    agent.says(type="hello", wire=VERSION, node="n", num_gpus=2, kind="cpu", attempts=[], **fields)


def test_a_node_has_the_cores_and_the_memory_that_its_agent_tells(tmp_path):
    async def scenario():
        async with controlled(tmp_path) as controller:
            for told, millicores in ((4000, 4000), (2500, 2500), (2500, 2500), (None, 2500)):
                agent = Agent(controller)
                fields = {} if told is None else {"millicores": told}
                hello(agent, host_memory_gb=64.0, **fields)
                await agent.hears("welcome")
                [node] = controller.state.nodes
                assert (node.millicores, node.host_memory_gb) == (millicores, 64.0)
                await agent.leave()
            log = controller.record.store.load()
            changes = [event for event in log if isinstance(event, NodeCpusChanged)]
            assert [event.millicores for event in changes] == [2500]

    asyncio.run(scenario())


def test_a_node_that_holds_jobs_by_affinity_has_whole_cores(tmp_path):
    async def scenario():
        async with controlled(tmp_path) as controller:
            for means in ("affinity", "cgroup v2", "not held", "affinity"):
                agent = Agent(controller)
                hello(agent, millicores=4000, held_by=means)
                await agent.hears("welcome")
                [node] = controller.state.nodes
                assert (node.millicores, node.whole_cores) == (4000, means == "affinity")
                await agent.leave()
            agent = Agent(controller)
            hello(agent, millicores=4000, held_by="cgroup v2")
            await agent.hears("welcome")
            agent.says(type="cores", millicores=4000, held_by="affinity", why="a fault")
            async with asyncio.timeout(10):
                while not controller.state.nodes[0].whole_cores:
                    await asyncio.sleep(0)

    asyncio.run(scenario())


def test_cores_come_with_a_launch_and_change_by_a_command_of_their_own(tmp_path):
    async def scenario():
        policy = Gives()
        async with controlled(tmp_path, policy) as controller:
            state, agent = controller.state, Agent(controller)
            hello(agent, millicores=4000)
            await agent.hears("welcome")
            await submit(controller)
            launch = await agent.hears("launch")
            assert launch["millicores"] == 1500
            agent.says(**done(launch))
            await agent.quiet()

            policy.millicores = 3000
            state.decision_needed = controller.journal.calls_at_once = True
            controller.turn()
            command = await agent.hears("setcpus")
            assert command["millicores"] == 3000
            assert state.held_cpus == {0: 1500}, "it is not confirmed yet"
            agent.says(**done(command))
            await agent.quiet()
            assert state.held_cpus == {0: 3000}
            assert not state.unsettled

            policy.millicores = 4000
            state.decision_needed = controller.journal.calls_at_once = True
            controller.turn()
            command = await agent.hears("setcpus")
            agent.says(type="failed", command_id=command["command_id"], error="no cgroup")
            await agent.quiet()
            assert state.held_cpus == {0: 3000}
            assert 0 in state.backoff
            log = [type(event) for event in controller.record.store.load()]
            assert log.count(CpusSet) == 1

    asyncio.run(scenario())


def test_a_switch_of_phase_leads_to_other_cores_at_once(tmp_path):
    async def scenario():
        async with controlled(tmp_path, ByPhase()) as controller:
            agent = Agent(controller)
            hello(agent, millicores=4000)
            await agent.hears("welcome")
            await submit(controller)
            launch = await agent.hears("launch")
            assert launch["millicores"] == 1500
            agent.says(**done(launch))
            await agent.quiet()
            report = told("1", controller.now_s(), 1)
            report["progress"]["phase"] = "evaluate"
            agent.says(**report)
            await agent.quiet()
            controller.turn()
            command = await agent.hears("setcpus")
            assert command["millicores"] == 3000

    asyncio.run(scenario())
