"""What agents have of attempts on several nodes: their own ones, and those of other agents."""

import asyncio
import signal
from functools import partial
from types import SimpleNamespace

from tests.support.attempts import attempt_in
from tests.unit.live.agent.test_agent import guest

from rota.live.agent.guest import Guest
from rota.live.agent.launching import OF_A_GANG
from rota.live.agent.pausing import STOP_POLL_S, STOP_TIMEOUT_S
from rota.live.agent.record import record_from
from rota.live.agent.states import State
from rota.live.agent.world import World


class Slow:
    """A rank whose process is there once it may be."""

    def __init__(self, may_be, slot, folder):
        self._may_be, self.index = may_be, slot
        self.alive = self.gone = False

    async def start(self, fork, request):
        await asyncio.shield(asyncio.create_task(self._come()))

    async def _come(self):
        """Once the zygote was asked, the process comes, whoever waits for it."""
        await self._may_be.wait()
        self.alive = True

    def signal(self, number):
        if self.alive and number == signal.SIGKILL:
            self.alive = False

    def watch(self, ended):
        pass


def test_a_guest_that_ends_while_a_process_starts_leaves_none(tmp_path):
    async def story():
        may_be = asyncio.Event()
        new_rank = partial(Slow, may_be)
        world = SimpleNamespace(spawn=asyncio.create_task, new_rank=new_rank, boot_id=str)
        record = record_from(guest("1") | {"slots": 0, "members": [], "gpus": []})
        it = Guest(record, tmp_path, print, None, lambda *_, **__: [{}], None, world)
        it._address = "127.0.0.1"
        start = {
            "do": "start",
            "slot": 0,
            "gpu": 0,
            "env": dict.fromkeys(OF_A_GANG, "7"),
            "generation": 0,
            "step": 0,
        }
        it.do(start)
        while not it.ranks:
            await asyncio.sleep(0)
        ending = asyncio.create_task(it.end())
        for _ in range(10):
            await asyncio.sleep(0)
        may_be.set()
        await ending
        for _ in range(10):
            await asyncio.sleep(0)
        assert not it.is_alive
        assert (tmp_path / "ended.json").exists()

    asyncio.run(story())


class Ahead(World):
    """Time is later than it was, by so much."""

    by_s = 0.0

    def boottime_s(self):
        return super().boottime_s() + self.by_s


def test_a_gang_is_not_suspended_before_another_node_has_stopped_its_process(tmp_path):
    record = {"job_id": "1", "attempt": 1, "suspension": "process", "movable": True}
    record |= {"slots": 1, "members": [0], "generation": 0, "max_world": 1, "visible": None}
    record |= {"gpus": [0], "far": {"0": 1}, "program": {"suspend": "auto"}}
    record["nodes"] = [{"name": name, "address": ""} for name in ("node0", "node1")]

    async def story():
        said, asked, world = [], [], Ahead()
        attempt = attempt_in(tmp_path, record, said.append, world=world)
        attempt.abroad.tell = lambda node, body, **_: asked.append((node, body["do"]))
        attempt.adopt()
        attempt.pausing.suspend(5, vacate=False)
        assert asked[-1] == ("node1", "stop")
        world.by_s = 2 * STOP_TIMEOUT_S
        for _ in range(10):
            await asyncio.sleep(2 * STOP_POLL_S)
        assert attempt.state == State.SUSPENDING
        attempt.abroad.hear("node1", {"said": "stopped", "slot": 0, "unstopped": 0})
        async with asyncio.timeout(60):
            while attempt.state != State.SUSPENDED:
                await asyncio.sleep(STOP_POLL_S)
        assert [told["command_id"] for told in said if told["type"] == "done"] == [5]

    asyncio.run(story())
