"""What an agent does with the processes of a job that becomes larger or smaller."""

import asyncio
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.support.attempts import attempt_in

from rota.errors import AgentError
from rota.live.agent import elastic as elastic_module
from rota.live.agent import world
from rota.live.agent.attempt import Attempt
from rota.live.agent.gang import HOLDING


class FakeRank:
    """A process that starts when its gate opens, and keeps what it is told."""

    gate: asyncio.Event

    def __init__(self, index, folder=None):
        self.index, self.shim, self.worker, self.pidfd = index, 0, 0, -1
        self.exit, self.gone, self.survived, self.never_started = None, False, False, False
        self.writer = self.suspended = None
        self.session, self.beside, self.unstopped = 0, [], 0
        self.told, self.signals, self.pause = [], [], {}
        self.log = Path(f"rank{index}.log")

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

    def stop(self, spared):
        return True

    def watch(self, ended):
        pass

    def send(self, message):
        self.told.append(message["type"])
        if message["type"] == "pause":
            self.pause = message

    def signal(self, number):
        self.signals.append(number)

    def go_on(self):
        self.signals.append(signal.SIGCONT)


class World(world.World):
    """A machine of fake processes."""

    def new_rank(self, slot, folder, life=0):
        return FakeRank(slot)

    def bind(self, pid, cores, *, widens=True):
        pass


class Job:
    """A job of two ranks that trains, on an agent that is not there."""

    def __init__(self, folder, loop):
        self.heard = []
        record = {"job_id": "5", "attempt": 1, "suspension": "boundary", "max_world": 4}
        record |= {"slots": 2, "members": [0, 1], "gpus": [0, 1], "generation": 0}
        record |= {"movable": True, "visible": None, "launched_s": 0.0}
        self.attempt = attempt_in(folder, record, self.heard.append, self.requests, World())
        for rank in self.attempt.ranks:
            rank.runs()
        self.attempt.state, self.attempt.shards = "running", 4
        self.elastic = self.attempt.elastic
        self.gang = self.elastic.gang

    def requests(self, record, folder, slots, gpus, step):
        return [{"cpus": None} for _ in slots]

    def rank(self, slot):
        return self.attempt.ranks[slot]

    def ends(self, slot, code=0):
        """The process of a slot is gone, and its connection with it."""
        rank = self.rank(slot)
        rank.writer = None
        rank.exit = {"code": code, "at_s": 1.0}
        self.attempt._shim_ended(rank)

    def answers(self):
        """The controller's commands that have been answered: number and outcome."""
        return [(m["command_id"], m["type"]) for m in self.heard if "command_id" in m]


@pytest.fixture
def scenario(tmp_path, monkeypatch):
    """Run a coroutine with a job in an event loop of its own."""
    monkeypatch.setattr(elastic_module, "LEAVE_S", 0.0)

    def run(coroutine):
        async def main():
            FakeRank.gate = asyncio.Event()
            await asyncio.wait_for(coroutine(Job(tmp_path, asyncio.get_running_loop())), 10)

        asyncio.run(main())

    return run


def shrinks_to_one(job):
    """Slot 1 leaves, and stands by."""
    job.elastic.resize(1, [0])
    job.elastic.heard(0, {"type": "at", "step": 3, "round": 1})
    job.elastic.heard(1, {"type": "at", "step": 3, "round": 1})
    for slot in (0, 1):
        job.elastic.heard(slot, {"type": "voted"})
    job.elastic.heard(0, {"type": "hosting", "generation": 1, "port": 4000})
    job.elastic.heard(0, {"type": "formed", "generation": 1})
    job.elastic.heard(1, {"type": "ready"})
    assert job.answers() == [(1, "done")]
    assert job.elastic._standby == {1: True}


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


def test_a_rank_that_is_lost_while_the_others_have_gone_on_already_holds_up_no_resumption(scenario):
    async def story(job):
        job.attempt.state = "suspended"
        for rank in job.attempt.ranks:
            rank.suspended = {"step": 3}
        job.attempt.pausing.resume(7, [0, 1], [])
        job.attempt.heard(0, {"type": "resumed"})
        assert job.answers() == []
        job.ends(1, -signal.SIGKILL)
        assert job.answers() == [(7, "done")]
        assert job.attempt.state == "running"

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


def test_newcomers_that_are_warm_are_not_given_up_for_a_member_that_is_late(scenario, monkeypatch):
    """It may be in a long validation."""
    monkeypatch.setattr(elastic_module, "WARM_UP_TIMEOUT_S", 0.0)

    async def story(job):
        FakeRank.gate.set()
        job.elastic.resize(1, [0, 1, 2])
        job.elastic.heard(2, {"type": "ready"})
        await turns()
        assert job.gang.phase == HOLDING
        job.elastic.call_off("enough")
        job.elastic.resize(2, [0, 1, 3])
        await turns()
        assert job.answers() == [(1, "failed"), (2, "failed")]  # slot 3 was not warm

    scenario(story)


def test_a_straggler_whose_replacement_failed_may_be_replaced_again(scenario):
    async def story(job):
        FakeRank.gate.set()
        job.elastic.replace(1)
        assert job.gang.busy
        job.elastic.call_off("the newcomer failed")
        job.elastic.look = lambda: None
        job.elastic._pulses.look = lambda *_: (None, 1)
        elastic_module.Elastic.look(job.elastic)
        assert job.gang.busy

    scenario(story)


def test_nobody_is_replaced_while_a_rank_has_lost_its_agent(scenario):
    async def story(job):
        job.rank(0).writer = None
        job.elastic.replace(1)
        assert not job.gang.busy

    scenario(story)


def test_the_time_to_stand_by_begins_anew_each_time(scenario, monkeypatch):
    monkeypatch.setattr(elastic_module, "STANDBY_S", 0.05)

    async def story(job):
        shrinks_to_one(job)
        job.elastic.resize(2, [0, 1])  # it comes back
        job.elastic.call_off("the job is to be suspended")
        monkeypatch.setattr(elastic_module, "STANDBY_S", 600.0)
        job.elastic.resize(3, [0, 1])
        job.elastic.call_off("the job is to be suspended")
        await asyncio.sleep(0.1)
        assert not job.rank(1).signals.count(signal.SIGKILL)
        assert job.elastic._standby == {1: True}

    scenario(story)


def test_who_was_to_come_back_stands_by_again_if_the_resize_is_called_off(scenario):
    async def story(job):
        shrinks_to_one(job)
        job.elastic.resize(2, [0, 3])
        assert job.elastic._standby == {}
        job.elastic.call_off("the job is to be suspended")
        assert job.elastic._standby == {1: True}
        job.elastic.resize(3, [0, 1])
        assert len(job.attempt.ranks) == 2  # it comes back, and none is forked
        assert "leave" not in job.rank(1).told

    scenario(story)


def test_who_dies_on_the_way_back_stands_by_no_more(scenario):
    async def story(job):
        shrinks_to_one(job)
        job.elastic.resize(2, [0, 1])
        job.ends(1, -9)
        assert job.answers()[1:] == [(2, "failed")]
        assert job.elastic._standby == {}
        assert job.attempt.ended is None

    scenario(story)


@pytest.fixture
def full_disk(monkeypatch):
    def save(self, *, durable=True):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Attempt, "save", save)


def test_a_resize_that_can_not_be_written_down_is_refused_and_changes_nothing(scenario, full_disk):
    async def story(job):
        FakeRank.gate.set()
        with pytest.raises(AgentError, match="No space left"):
            job.elastic.resize(1, [0, 1, 2])
        assert not job.gang.busy
        assert (len(job.attempt.ranks), job.attempt.record.slots) == (2, 2)
        job.elastic.gang.call_off("nothing is under way")
        assert job.answers() == []  # the agent answers with the error

    scenario(story)


def test_a_full_disk_keeps_no_answer_from_the_controller(scenario, monkeypatch):
    async def story(job):
        job.elastic.resize(1, [0])
        monkeypatch.setattr(Attempt, "save", refuse)
        job.elastic.call_off("the job is to be suspended")
        assert job.answers() == [(1, "failed")]
        job.attempt.pausing.suspend(2)
        for slot in (0, 1):
            job.attempt.heard(slot, {"type": "suspended", "step": 3, "stopped_s": 1.0})
        assert job.answers() == [(1, "failed"), (2, "done")]

    def refuse(self, *, durable=True):
        raise OSError(28, "No space left on device")

    scenario(story)


def test_a_full_disk_does_not_end_the_looks_at_the_ranks(scenario, full_disk):
    async def story(job):
        looks = []
        job.elastic._pulses.look = lambda *_: looks.append(1) or (None, 1)
        job.elastic.look()
        job.elastic.look()
        assert len(looks) == 2
        assert not job.gang.busy

    scenario(story)


@pytest.mark.parametrize("why", ["the agent stood still", "the lease was over"])
def test_ranks_are_watched_anew_after_a_standstill(scenario, monkeypatch, why):
    async def story(job):
        now_s, world = [1000.0], job.attempt.world
        monkeypatch.setattr(world, "monotonic_s", lambda: now_s[0], raising=False)
        monkeypatch.setattr(world, "lease", SimpleNamespace(left_s=1.0), raising=False)
        job.elastic.look()
        began = job.elastic._pulses._began_s
        now_s[0] += 4.0
        job.elastic.look()
        assert job.elastic._pulses._began_s == began == 1000.0
        if why == "the agent stood still":
            now_s[0] += 100.0
        else:
            world.lease.left_s = -1.0
            now_s[0] += 1.0
        job.elastic.look()
        assert job.elastic._pulses._began_s == now_s[0]

    scenario(story)


def test_an_answer_to_a_resize_that_a_suspension_called_off_is_none_to_the_suspension(scenario):
    async def story(job):
        job.elastic.resize(1, [0])
        job.attempt.pausing.suspend(2)
        for slot in (0, 1):
            job.attempt.heard(slot, {"type": "at", "step": 3, "round": 1})
        assert "offload" not in job.rank(0).told
        round_ = job.rank(0).pause["round"]
        for slot in (0, 1):
            job.attempt.heard(slot, {"type": "at", "step": 4, "round": round_})
        assert "offload" in job.rank(0).told

    scenario(story)
