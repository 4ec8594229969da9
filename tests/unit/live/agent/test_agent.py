"""How an agent ends with all that it has."""

import asyncio
import os

from rota.folder import Folder
from rota.live.agent.agent import Agent
from rota.live.agent.devices import Devices


def guest(job_id):
    """The record of an attempt that has come from another node, and has not gone on yet."""
    record = {"job_id": job_id, "attempt": 1, "launch": None, "source": "elsewhere"}
    record |= {"slots": 1, "members": [0], "generation": 0, "max_world": 1, "gpus": [0]}
    record |= {"suspension": "boundary", "movable": True, "visible": None, "suspended_s": 1.0}
    vacated = {"arenas": {}, "bytes": None, "at_s": 1.0}
    return record | {"vacated": vacated, "program": {"suspend": "auto"}}


def test_an_agent_that_is_shut_down_with_jobs_that_had_just_come_to_it_ends(tmp_path):
    """It has no part in them any more as soon as they are told to end."""
    folder = Folder(tmp_path)
    folder.node("node0").mkdir(parents=True)

    async def story():
        agent = Agent(folder, "node0", Devices("cpu", 2, (0, 0)), os.getpid())
        for job_id in ("1", "2"):
            path = folder.attempt("node0", job_id, 1)
            path.mkdir(parents=True)
            attempt = agent._attempt(guest(job_id), path)
            attempt.state = "suspended"
            agent.attempts[job_id, 1] = attempt
        await agent._shut_down()
        assert agent.attempts == {}
        assert agent._ending.is_set()

    asyncio.run(story())
