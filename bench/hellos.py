"""What the hello of a machine costs the controller when very many jobs are in its log.

    python bench/hellos.py [--jobs 100000] [--few 1000] [--machines 1000] [--repeats 5]

Two controllers run in this process, each with so many machines that have joined, on each of which a
job runs, and with an event log in which so many jobs have ended there, or few. Agents are
stand-ins without sockets: in turns all machines of one controller connect anew and say hello, each
with the account of its job, and are answered. Printed, as median of the repeats with minimum and
maximum: CPU time for one hello, from its message to the welcome, with what is written down for it
and the decisions that follow; then, in the same way, for one lease that is renewed.
"""

import argparse
import asyncio
import json
import math
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from statistics import median
from typing import Any

from rota.folder import Folder
from rota.live.controller.leases import Leases
from rota.live.controller.loop import Controller
from rota.live.provider.base import ProvidedNode, Provider
from rota.live.wire import VERSION, clock
from rota.model.allocation import Allocation
from rota.model.commands import Launch
from rota.model.events import CommandSent, Event, JobFinished, JobLaunched, JobSubmitted, NodeJoined
from rota.model.job import JobSpec, JobState
from rota.policy.registry import create
from rota.store.events import EventStore
from rota.store.members import Members

GPUS, ADDRESS = 2, "10.0.0.1"
RUNS_S, AGO_S = 60.0, 30 * 86400.0
AT_ONCE = 10_000  # events in a transaction


class Machines(Provider):
    """Machines that have joined."""

    def __init__(self, names: list[str]) -> None:
        self._nodes = [ProvidedNode(name, is_alive=True, stays=True) for name in names]

    def nodes(self) -> list[ProvidedNode]:
        return self._nodes


class Agent:
    """An agent without a socket, that has one running job."""

    def __init__(self, controller: Controller, node: str, job_id: str) -> None:
        self._told: asyncio.Queue[str] = asyncio.Queue()
        self._heard: asyncio.Queue[str | bytes] = asyncio.Queue()
        self._node, self._job_id = node, job_id
        serving = controller.agents.serve_agent(self, node, ADDRESS)
        self._serving = asyncio.create_task(serving)

    async def receive(self) -> str | bytes:
        return await self._told.get()

    async def send(self, data: str | bytes) -> None:
        self._heard.put_nowait(data)

    async def greets(self) -> None:
        """Say hello, and hear the welcome."""
        about = {"job_id": self._job_id, "attempt": 1}
        alive = {"type": "alive", "suspension": "boundary", "movable": True}
        about |= {"resizable": False, "portable": True, "most_ranks": 0, "why": ""}
        account = {"num_gpus": GPUS, "kind": "cuda", "wire": VERSION, "attempts": [alive | about]}
        hello = {"type": "hello", "node": self._node, **account, "asked_s": clock.boottime_s()}
        self._told.put_nowait(json.dumps(hello))
        await self._hears("lease")

    async def lives(self) -> None:
        """Ask for the lease."""
        self._told.put_nowait(json.dumps({"type": "beat", "asked_s": clock.boottime_s()}))
        await self._hears("lease")

    async def _hears(self, kind: str) -> None:
        while json.loads(await self._heard.get())["type"] != kind:
            pass

    async def leaves(self) -> None:
        """End the connection."""
        self._serving.cancel()
        await asyncio.gather(self._serving, return_exceptions=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--few", type=int, default=1000)
    parser.add_argument("--machines", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rota-") as base:
        asyncio.run(measure(Path(base), options))


async def measure(base: Path, options: argparse.Namespace) -> None:
    hellos: list[list[float]] = [[], []]
    beats: list[list[float]] = [[], []]
    counts = options.jobs, options.few
    async with (
        controller(base / "many", options.machines, options.jobs) as many,
        controller(base / "few", options.machines, options.few) as few,
    ):
        for _ in range(options.repeats):
            for index, each in enumerate((many, few)):
                agents = [Agent(each, *place) for place in places(options.machines, counts[index])]
                hellos[index].append(await each_ms(agents, Agent.greets))
                beats[index].append(await each_ms(agents, Agent.lives))
                for agent in agents:
                    await agent.leaves()
                told = f"{hellos[index][-1]:.3f} ms a hello, {beats[index][-1]:.3f} ms a lease"
                print(f"{counts[index]:,} jobs: {told}", file=sys.stderr, flush=True)
    columns = "".join(f"{f'{count:,} jobs':>25}" for count in counts)
    print(f"{'':<14}{columns}{'times':>8}")
    for what, taken in (("a hello, ms", hellos), ("a lease, ms", beats)):
        times = median(taken[0]) / median(taken[1])
        print(f"{what:<14}{spread(taken[0])}{spread(taken[1])}{times:>8.2f}")


async def each_ms(agents: list[Agent], does: Callable[[Agent], Any]) -> float:
    """The CPU time of this process for each agent, of which one after another does something."""
    began_s = time.process_time()
    for agent in agents:
        await does(agent)
    return 1e3 * (time.process_time() - began_s) / len(agents)


def spread(values: list[float]) -> str:
    return f"{f'{median(values):.3f} ({min(values):.3f}, {max(values):.3f})':>25}"


def places(machines: int, jobs: int) -> Iterator[tuple[str, str]]:
    """The machines, each with the id of the job that runs there."""
    return ((f"m{index:04}", str(1 + jobs + index)) for index in range(machines))


@asynccontextmanager
async def controller(home: Path, machines: int, jobs: int) -> AsyncIterator[Controller]:
    """A controller that has taken up a log of so many jobs; its own turns go on as they do."""
    folder = Folder(home).create()
    names = [name for name, _ in places(machines, jobs)]
    with closing(EventStore(folder.database)) as store:
        members = Members(store)
        for name in names:
            members.join(members.invite(time.time())[0], name, time.time())
        events = past(machines, jobs)
        for start in range(0, len(events), AT_ONCE):
            store.append(events[start : start + AT_ONCE])
    store = EventStore(folder.database)
    policy = create("fifo-backfill", {})
    forever = Leases(math.inf)
    found = Controller(store, folder, policy, "fifo-backfill", Machines(names), leases=forever)
    await found.start()
    try:
        yield found
    finally:
        await found.stop()


def past(machines: int, jobs: int) -> list[Event]:
    """The log: machines have joined, jobs have ended on them, and on each one runs."""
    at_s = time.time() - AGO_S
    events: list[Event] = [
        NodeJoined(at_s, name, GPUS, "cuda", address=ADDRESS) for name, _ in places(machines, jobs)
    ]
    for row in range(jobs + machines):
        ends = row < jobs
        node = (row if ends else row - jobs) % machines
        began_s = at_s + row // machines * RUNS_S
        own = JobSpec(str(1 + row), GPUS, began_s)
        launch = Launch(1 + row, row, 1, 1, Allocation(((node, (1 << GPUS) - 1),)))
        events += [JobSubmitted(began_s, own), CommandSent(began_s, launch)]
        events.append(JobLaunched(began_s, row, 1))
        if ends:
            events.append(JobFinished(began_s + RUNS_S / 2, row, JobState.SUCCEEDED, 0, ""))
    return events


if __name__ == "__main__":
    main()
