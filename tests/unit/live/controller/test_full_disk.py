"""A controller on a full disk: nothing is told that is not written down, and it goes on by itself.

The disk is a stand-in: its store refuses to write for want of room as long as a test wants that.
"""

import asyncio
from contextlib import asynccontextmanager

import pytest

from rota.errors import StoreFullError
from rota.folder import Disk, Folder
from rota.live.controller import journal, room
from rota.live.controller import loop as controller_module
from rota.live.controller.loop import Controller
from rota.live.controller.record import Record
from rota.live.controller.room import Room
from rota.model.job import JobState
from rota.policy.ordering.fifo import FifoBackfill
from rota.store.events import EventStore

from .test_loop import Agent, NoProvider, done, submit, until_state

MIB = 1 << 20


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(controller_module, "LOOK_EVERY_S", 0.001)
    monkeypatch.setattr(journal, "WRITE_AGAIN_S", 0.001)


class FillableStore(EventStore):
    full = False
    refused = 0

    def append(self, events, **how):
        if self.full:
            self.refused += 1
            raise StoreFullError("no room")
        super().append(events, **how)


@asynccontextmanager
async def controlled(home, keeps_reserve=False):
    folder = Folder(home).create()
    store = FillableStore(folder.database)
    where = Room(folder, keeps_reserve=keeps_reserve)
    controller = Controller(store, folder, FifoBackfill(), "fifo", NoProvider(), where)
    await controller.start()
    try:
        yield controller, store
        assert not controller.journal.failed
        controller.state.validate()
        assert same_on_disk(controller, folder)
    finally:
        await controller.stop()


def same_on_disk(controller, folder):
    """Whether a controller that starts now knows what this one knows."""
    reader = EventStore(folder.database)
    try:
        known = Record(reader, folder).state
    finally:
        reader.close()
    mine = controller.state
    return (known.state, known.attempt, known.events) == (mine.state, mine.attempt, mine.events)


async def until_refused(store, times=2):
    """Wait until it has found no room again so many times."""
    before = store.refused
    async with asyncio.timeout(10):
        while store.refused < before + times:
            await asyncio.sleep(0.001)


async def running(controller, agent):
    row = await submit(controller)
    launch = await agent.hears("launch")
    agent.says(**done(launch))
    await until_state(controller, row, JobState.RUNNING)
    return row


def ended(row):
    about = {"job_id": str(row + 1), "attempt": 1}
    return about | {"at_s": 0, "exit_code": 0, "message": "", "stop_asked": False}


def test_an_end_is_forgotten_by_its_agent_only_once_there_was_room_for_it(tmp_path):
    async def scenario():
        async with controlled(tmp_path) as (controller, store):
            agent = Agent(controller)
            agent.hello(num_gpus=1)
            await agent.hears("welcome")
            row = await running(controller, agent)
            waits = await submit(controller)
            store.full = True
            agent.says(type="ended", **ended(row))
            await until_refused(store)
            agent.says(type="ended", **ended(row))  # told once more, and known by now
            await until_refused(store)
            assert await agent.quiet()
            assert not same_on_disk(controller, Folder(tmp_path))
            store.full = False
            assert (await agent.hears("forget"))["job_id"] == "1"
            assert (await agent.hears("launch"))["job_id"] == "2"
            assert controller.state.state[waits] == JobState.STARTING
            await agent.leave()

    asyncio.run(scenario())


def test_a_decision_that_could_not_be_written_is_carried_out_once_it_is(tmp_path):
    async def scenario():
        async with controlled(tmp_path) as (controller, store):
            row = await submit(controller)
            store.full = True
            agent = Agent(controller)
            agent.hello()
            await until_refused(store)
            with pytest.raises(StoreFullError):
                await submit(controller)
            assert await agent.quiet()
            store.full = False
            launch = await agent.hears("launch")
            agent.says(**done(launch))
            await until_state(controller, row, JobState.RUNNING)
            assert await agent.quiet(), "it was sent once"
            assert len(controller.state.spec) == 1
            await agent.leave()

    asyncio.run(scenario())


def test_a_launch_that_waited_for_room_is_not_sent_to_a_job_that_was_stopped_meanwhile(tmp_path):
    async def scenario():
        async with controlled(tmp_path) as (controller, store):
            await submit(controller)
            store.full = True
            agent = Agent(controller)
            agent.hello()
            await until_refused(store)
            await agent.leave()  # its node will say that it has no trace of the job
            store.full = False
            await controller.jobs.cancel(0)
            agent = Agent(controller)
            agent.hello()
            await until_state(controller, 0, JobState.CANCELLED)
            heard = [agent.heard.get_nowait() for _ in range(agent.heard.qsize())]
            assert "launch" not in [message.get("kind") for message in heard]
            await agent.leave()

    asyncio.run(scenario())


def test_an_agent_that_comes_while_there_is_no_room_is_welcomed_later(tmp_path):
    async def scenario():
        async with controlled(tmp_path) as (controller, store):
            store.full = True
            agent = Agent(controller)
            agent.hello()
            await until_refused(store)
            assert await agent.quiet()
            store.full = False
            await agent.hears("welcome")
            await running(controller, agent)
            await agent.leave()

    asyncio.run(scenario())


class TestReserve:
    """What is free on a disk of 160 MiB is set by the test; the reserve takes 10 MiB of it."""

    @pytest.fixture(autouse=True)
    def disk(self, monkeypatch):
        self.others_bytes = 0

        def disk_of(path):
            file = path / "reserve"
            own = file.stat().st_size if file.exists() else 0
            return Disk(160 * MIB, 160 * MIB - own - self.others_bytes)

        monkeypatch.setattr(room, "disk_of", disk_of)

    def test_it_is_given_up_when_little_is_free_and_taken_when_there_is_room(self, tmp_path):
        folder = Folder(tmp_path)
        kept = Room(folder)
        assert kept.look() is False
        assert folder.reserve.stat().st_blocks * 512 >= 10 * MIB
        assert folder.reserve.stat().st_mode & 0o777 == 0o600
        self.others_bytes = 149 * MIB  # 1 MiB is free
        assert kept.look() is True
        assert kept.is_tight
        assert not folder.reserve.exists()
        self.others_bytes = 148 * MIB  # 12 MiB are
        assert kept.look() is False
        with pytest.raises(StoreFullError, match=r"12\.0 MiB are free; make room for 12\.5 MiB"):
            kept.check()
        self.others_bytes = 147 * MIB
        assert kept.look() is True
        kept.check()
        assert folder.reserve.stat().st_size == 10 * MIB
        kept.remove()
        assert not folder.reserve.exists()

    def test_the_reserve_of_a_controller_before_is_there_to_be_given_up(self, tmp_path):
        Room(Folder(tmp_path)).look()
        self.others_bytes = 150 * MIB
        kept = Room(Folder(tmp_path))
        assert kept.look() is True
        assert kept.is_tight
        assert not Folder(tmp_path).reserve.exists()

    def test_without_room_for_it_room_is_tight_from_the_start(self, tmp_path):
        self.others_bytes = 155 * MIB
        kept = Room(Folder(tmp_path))
        assert kept.look() is True
        assert kept.is_tight

    def test_what_must_be_written_is_with_the_room_of_the_reserve(self, tmp_path):
        async def scenario():
            async with controlled(tmp_path, keeps_reserve=True) as (controller, _):
                agent = Agent(controller)
                agent.hello()
                row = await running(controller, agent)
                ends = await running(controller, agent)
                self.others_bytes = 150 * MIB
                async with asyncio.timeout(10):
                    while not controller.room.is_tight:
                        await asyncio.sleep(0.001)
                agent.says(type="ended", **ended(ends))
                assert (await agent.hears("forget"))["job_id"] == "2"
                with pytest.raises(StoreFullError, match=r"make room for 12\.5 MiB"):
                    await submit(controller)
                await controller.jobs.cancel(row)
                assert (await agent.hears("stop"))["job_id"] == "1"
                await agent.leave()

        asyncio.run(scenario())

    def test_nothing_begins_until_there_is_room(self, tmp_path):
        async def scenario():
            async with controlled(tmp_path, keeps_reserve=True) as (controller, _):
                agent = Agent(controller)
                agent.hello(num_gpus=1)
                first = await running(controller, agent)
                waits = await submit(controller)
                self.others_bytes = 150 * MIB
                async with asyncio.timeout(10):
                    while not controller.room.is_tight:
                        await asyncio.sleep(0.001)
                agent.says(type="ended", **ended(first))
                await agent.hears("forget")
                assert await agent.quiet()
                assert controller.state.state[waits] == JobState.PENDING
                self.others_bytes = 0
                assert (await agent.hears("launch"))["job_id"] == "2"
                await agent.leave()

        asyncio.run(scenario())
