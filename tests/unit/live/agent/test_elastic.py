"""What an agent does with the processes of a job that becomes larger or smaller."""

import asyncio
import signal

import pytest

from rota.live.agent import elastic as elastic_module
from rota.live.agent.attempt import Attempt
from rota.live.agent.elastic import Elastic


class FakeRank:
    """A process that starts when its gate opens, and keeps what it is told."""

    gate: asyncio.Event

    def __init__(self, index, folder=None):
        self.index, self.shim, self.worker, self.pidfd = index, 0, 0, -1
        self.exit, self.gone, self.survived = None, False, False
        self.writer = self.suspended = None
        self.told, self.signals = [], []

    @property
    def alive(self):
        return self.shim > 0 and self.exit is None and not self.gone

    async def start(self, fork, request):
        await FakeRank.gate.wait()
        self.runs()

    def runs(self):
        self.shim, self.writer = 1000 + self.index, object()

    async def abandon(self):
        pass

    def read_exit(self):
        self.gone = self.exit is None

    def close(self):
        pass

    def send(self, message):
        self.told.append(message["type"])

    def signal(self, number):
        self.signals.append(number)


class Job:
    """A job of two ranks that trains, on an agent that is not there."""

    def __init__(self, folder, loop):
        self.heard = []
        record = {"job_id": "5", "attempt": 1, "suspension": "boundary", "max_world": 4}
        record |= {"slots": 2, "members": [0, 1], "gpus": [0, 1], "generation": 0}
        record |= {"movable": True, "visible": None}
        self.attempt = Attempt(record, folder, self.heard.append)
        self.attempt.ranks = [FakeRank(0), FakeRank(1)]
        for rank in self.attempt.ranks:
            rank.runs()
        self.attempt.watch = lambda rank: None
        self.attempt.state, self.attempt.shards = "running", 4
        self.elastic = self.attempt.elastic = Elastic(self.attempt, None, self.requests)
        self.gang = self.elastic.gang

    def requests(self, attempt, slots, gpus):
        return [{"cpus": None} for _ in slots]

    def rank(self, slot):
        return self.attempt.ranks[slot]

    def ends(self, slot, code=0):
        """The process of a slot is gone."""
        rank = self.rank(slot)
        rank.exit = {"code": code, "at_s": 1.0}
        self.attempt._shim_ended(rank)

    def answers(self):
        """The controller's commands that have been answered: number and outcome."""
        return [(m["command_id"], m["type"]) for m in self.heard if "command_id" in m]


@pytest.fixture
def scenario(tmp_path, monkeypatch):
    """Run a coroutine with a job in an event loop of its own."""
    monkeypatch.setattr(elastic_module, "Rank", FakeRank)
    monkeypatch.setattr(elastic_module, "bind", lambda *_: None)
    monkeypatch.setattr(elastic_module, "LEAVE_S", 0.0)

    def run(coroutine):
        async def main():
            FakeRank.gate = asyncio.Event()
            await asyncio.wait_for(coroutine(Job(tmp_path, asyncio.get_running_loop())), 10)

        asyncio.run(main())

    return run


async def turns(number=10):
    """Let everything happen that is due."""
    for _ in range(number):
        await asyncio.sleep(0)


def test_an_attempt_that_ends_while_newcomers_are_forked_waits_for_them_and_ends_them(scenario):
    async def story(job):
        job.elastic.resize(1, [0, 1, 2])
        await turns()
        job.ends(0)
        job.ends(1)
        assert job.attempt.ended is None
        FakeRank.gate.set()
        await turns()
        assert set(job.rank(2).signals) == {signal.SIGKILL}
        job.ends(2, -9)
        assert job.attempt.ended["exit_code"] == 0
        assert job.answers() == [(1, "failed")]

    scenario(story)


@pytest.mark.parametrize("why", ["stopping", "dismissed"])
def test_no_newcomer_is_forked_once_its_resize_is_over(scenario, why):
    async def story(job):
        job.elastic.resize(1, [0, 1, 2, 3])
        await turns()  # the first of two is being forked
        if why == "stopping":
            job.attempt.stopping = True
        else:
            job.elastic.call_off("the job is to be suspended")
        FakeRank.gate.set()
        await turns()
        assert job.rank(2).shim
        assert not job.rank(3).shim
        assert job.answers() == [(1, "failed")]

    scenario(story)


def test_a_launch_that_fails_after_it_was_called_off_leaves_the_next_resize_alone(scenario):
    async def story(job):
        job.elastic.resize(1, [0, 1, 2, 3])
        await turns()
        job.elastic.call_off("the job is to be suspended")
        job.elastic.resize(2, [0])
        FakeRank.gate.set()
        await turns()
        assert job.answers() == [(1, "failed")]
        assert job.gang.busy

    scenario(story)
