"""Where an agent has the workers of a flow job, as the host of its island lets it."""

import asyncio

import pytest
from tests.support.attempts import attempt_in

from rota.errors import AgentError
from rota.live.agent import seat as seat_module
from rota.live.agent.devices import Devices
from rota.live.agent.seat import FlowSeat


class Island:
    """The host: workers are away or on devices, and come only to devices that have room."""

    def __init__(self):
        self.on, self.full = [0, 1], set()

    def has(self, key):
        return True

    async def pause(self, key):
        self.on = None

    async def place(self, key, devices, cores):
        await asyncio.sleep(0)
        if self.on not in (None, devices):
            raise AgentError("the workers of the seat are on other devices: pause it first")
        if full := self.full.intersection(devices):
            raise AgentError(f"device {min(full)} has no room")
        self.on = devices


class Job:
    """A flow job of two workers on GPUs 0 and 1, on an agent that is not there."""

    def __init__(self, folder):
        self.heard, self.island = [], Island()
        flow = {"weight": 1.0, "memory_bytes": None, "idle_s": None, "devices": [0, 1]}
        record = {"job_id": "5", "attempt": 1, "suspension": "boundary", "max_world": 1}
        record |= {"slots": 1, "members": [0], "gpus": [0, 1], "generation": 0, "flow": flow}
        record |= {"movable": True, "visible": None, "launched_s": 0.0}
        self.attempt = attempt_in(folder, record, self.heard.append)
        self.attempt.state = "running"
        self.seat = FlowSeat(self.attempt, self.island, Devices("cpu", 4, (0, 1, 2, 3)))

    def answers(self):
        """The controller's commands that have been answered: number and outcome."""
        return [(m["command_id"], m["type"]) for m in self.heard if "command_id" in m]


async def until(holds):
    while not holds():
        await asyncio.sleep(0)


@pytest.fixture
def scenario(tmp_path, monkeypatch):
    """Run a coroutine with a job in an event loop of its own."""
    monkeypatch.setattr(seat_module, "AGAIN_S", 0.0)

    def run(coroutine):
        asyncio.run(asyncio.wait_for(coroutine(Job(tmp_path)), 10))

    return run


def test_a_resize_without_room_is_answered_although_there_is_none_on_the_gpus_of_before(scenario):
    async def story(job):
        job.island.full = {1, 2, 3}
        job.seat.resize(7, [2, 3])
        assert job.seat.is_moving
        await until(job.answers)
        assert job.answers() == [(7, "failed")]
        assert not job.seat.is_moving  # it can be suspended meanwhile
        assert job.island.on is None
        job.island.full = set()
        await until(lambda: job.island.on is not None)
        assert (job.island.on, job.attempt.record.gpus) == ([0, 1], [0, 1])

    scenario(story)


def test_workers_that_an_unrecorded_resize_has_moved_come_back_to_the_gpus_of_the_record(scenario):
    async def story(job):
        job.island.on = [2, 3]
        job.seat.adopt()
        await until(lambda: job.island.on == [0, 1])

    scenario(story)
