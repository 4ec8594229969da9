"""What an agent has of an attempt of another node's agent."""

import asyncio
import signal
from functools import partial
from types import SimpleNamespace

from tests.unit.live.agent.test_agent import guest

from rota.live.agent.guest import Guest
from rota.live.agent.launching import OF_A_GANG
from rota.live.agent.record import record_from


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
        world = SimpleNamespace(spawn=asyncio.create_task, new_rank=partial(Slow, may_be))
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
