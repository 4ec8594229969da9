"""Processes on a node of an attempt that another node's agent has."""

import asyncio

from rota.live.agent.guest import Guest
from rota.live.agent.record import record_from
from rota.live.agent.world import World


class Writer:
    """A connection of a process."""

    closed = False

    def close(self):
        self.closed = True


def test_sessions_are_opened_anew_when_the_attempts_agent_has_started_anew(tmp_path):
    """They may hold because an agent of before asked for it, which nobody knows any more."""
    record = {"job_id": "5", "attempt": 2, "launch": None, "program": {}, "host": "there"}
    record |= {"slots": 2, "members": [1], "gpus": [0], "generation": 0, "max_world": 1}
    record |= {"suspension": "process", "movable": False, "visible": None}
    said, writer = [], Writer()

    async def story():
        guest = Guest(record_from(record), tmp_path, said.append, None, None, None, World())
        guest.adopt()
        assert guest.joined(1, writer, b"{}", 0)
        guest.begin_anew()
        assert writer.closed
        guest.left(1, writer)
        guest.joined(1, Writer(), b"{}", 0)
        await guest.end()

    asyncio.run(story())
    assert [told["said"] for told in said] == ["joined", "left", "joined"]
