"""A hello may be of any length, and costs what the jobs of its node cost, not all others."""

import asyncio

import pytest

from rota.errors import AgentError
from rota.folder import Folder
from rota.live.controller.leases import Leases
from rota.live.controller.loop import Controller
from rota.live.wire import VERSION
from rota.live.wire.frames import frames_of
from rota.model.allocation import Allocation
from rota.model.commands import Launch
from rota.model.events import CommandSent, JobFinished, JobLaunched, JobSubmitted, NodeJoined
from rota.model.job import JobSpec, JobState
from rota.policy.ordering.fifo import FifoBackfill
from rota.store.events import EventStore

from .test_loop import Agent, NoProvider, controlled

READ = ("spec", "target", "held", "home", "outstanding", "progress")


class Counted(list):
    """A column that counts how often it is read."""

    reads = 0

    def __getitem__(self, at):
        Counted.reads += 1
        return super().__getitem__(at)

    def __iter__(self):
        Counted.reads += len(self)
        return super().__iter__()


def log_of(ended, waiting):
    """One job runs on the node; so many have ended there, and so many wait."""
    events = [NodeJoined(0.0, "n", 2, "cpu")]
    for row in range(ended + 1 + waiting):
        events.append(JobSubmitted(0.0, JobSpec(str(1 + row), 2, 0.0)))
        if row <= ended:
            launch = Launch(1 + row, row, 1, 1, Allocation(((0, 0b11),)))
            events += [CommandSent(0.0, launch), JobLaunched(0.0, row, 1)]
        if row < ended:
            events.append(JobFinished(0.0, row, JobState.SUCCEEDED, 0, ""))
    return events


@pytest.mark.parametrize(("ended", "waiting"), [(300, 0), (0, 300)])
def test_a_hello_reads_nothing_of_jobs_of_which_the_node_has_nothing(tmp_path, ended, waiting):
    async def reads_of_a_hello(home, ended, waiting):
        folder = Folder(home).create()
        store = EventStore(folder.database)
        store.append(log_of(ended, waiting))
        controller = Controller(
            store, folder, FifoBackfill(), "fifo", NoProvider(), leases=Leases(9)
        )
        await controller.start()
        try:
            agent = Agent(controller)
            about = {"job_id": str(1 + ended), "attempt": 1}
            alive = about | {"type": "alive", "suspension": "boundary", "movable": True}
            agent.hello([alive])
            await agent.hears("welcome")
            await agent.leave()
            agent = Agent(controller)
            await agent.quiet()  # the controller has taken its turns
            for name in READ:
                setattr(controller.state, name, Counted(getattr(controller.state, name)))
            Counted.reads = 0
            agent.hello([alive])
            await agent.hears("welcome")
            await agent.quiet()
            return Counted.reads
        finally:
            await controller.stop()

    few = asyncio.run(reads_of_a_hello(tmp_path / "few", min(ended, 3), min(waiting, 3)))
    many = asyncio.run(reads_of_a_hello(tmp_path / "many", ended, waiting))
    assert 0 < many <= few


def test_an_account_of_very_many_attempts_comes_in_parts(tmp_path):
    async def scenario():
        async with controlled(tmp_path) as controller:
            agent = Agent(controller)
            about = {"type": "ended", "attempt": 1, "at_s": 1.0, "exit_code": 0, "message": ""}
            attempts = [about | {"job_id": f"unknown-{number}"} for number in range(50_000)]
            hello = {"type": "hello", "wire": VERSION, "node": "n", "num_gpus": 2, "kind": "cpu"}
            sent = frames_of(hello | {"attempts": attempts})
            assert len(sent) > 1
            for frame in sent:
                agent._to_controller.put_nowait(frame)
            await agent.hears("welcome")
            assert controller.record.nodes()[0]["connected"]
            await agent.leave()

    asyncio.run(scenario())


def test_why_a_connection_has_ended_is_told_of_its_node(tmp_path):
    async def scenario():
        async with controlled(tmp_path) as controller:
            agent = Agent(controller)
            agent.hello()
            await agent.hears("welcome")
            assert controller.record.nodes()[0]["disconnected_why"] is None
            agent.says(type="done", command_id="seven")
            with pytest.raises(AgentError):
                await agent.ended()
            node = controller.record.nodes()[0]
            assert node["disconnected_why"].startswith("command_id: 'seven' can't be used")
            assert node["disconnected_s"] <= controller.now_s()
            assert not node["connected"]

    asyncio.run(scenario())
