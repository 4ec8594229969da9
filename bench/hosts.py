"""What a thousand machines cost the controller: its CPU and memory, and the time of a decision.

    python bench/hosts.py [--machines 1000] [--few 10] [--seconds 15] [--repeats 5]

Two clusters of `rota up --listen` run side by side: one that so many machines have joined, one that
few have. Agents are stand-ins in one process: each has a WebSocket over TLS with its node's token,
says hello for two GPUs, asks each second for its lease, tells its vitals every five, and answers
launches and stops; nothing runs. Printed, in turns, as median of the repeats with minimum and
maximum: the controller's CPU while nothing happens and its memory, and, while jobs come, run and
are cancelled one after another, a decision from its view to its commit, many against few.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import psutil
from _cycles import decision_cycles
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from rota.client.client import Client
from rota.client.trust import trusting
from rota.folder import Folder
from rota.store.events import EventStore
from rota.store.members import Members

BEAT_S, VITALS_S = 1.0, 5.0
AT_ONCE = 16  # handshakes
EVERY_S = 0.1  # a job comes and goes
START_S = 300.0
GPUS = 2  # of a machine: the controller's own has one, and is none for these jobs
JOB = {"run": "true", "workdir": "/", "resources": {"gpus": GPUS}}
USE = {"cores_busy": 0.1, "memory_bytes": 1 << 34, "memory_used_bytes": 1 << 32, "gpus": []}


class Side:
    """A cluster that machines have joined."""

    def __init__(self, home: Path, machines: int) -> None:
        self.home, self.machines = home, machines
        self.client = Client(folder=Folder(home))
        told = json.loads((home / "server.json").read_text())
        self.port, self.process = int(told["url"].rpartition(":")[2]), psutil.Process(told["pid"])
        self.headers = {"Authorization": f"Bearer {(home / 'token').read_text().strip()}"}

    def connected(self) -> int:
        """The number of machines whose agents are."""
        return sum(
            node["connected"] and node["address"] is not None for node in self.client.nodes()
        )

    def idle_cpu(self, seconds: float) -> float:
        """The controller's CPU in percent while nothing happens."""
        before, began_s = self._cpu_s(), time.monotonic()
        time.sleep(seconds)
        return 100 * (self._cpu_s() - before) / (time.monotonic() - began_s)

    def decision_ms(self, seconds: float) -> float:
        """A decision's mean while jobs come, run and are cancelled one after another."""
        before, began_s = decision_cycles(self.port, self.headers), time.monotonic()
        while (at_s := time.monotonic()) < began_s + seconds:
            job = self.client.submit(JOB)["id"]
            while self.client.job(job)["state"] != "RUNNING":
                time.sleep(0.01)
            self.client.cancel(job)
            time.sleep(max(0.0, at_s + EVERY_S - time.monotonic()))
        spent = decision_cycles(self.port, self.headers)
        return 1e3 * (spent[0] - before[0]) / max(1.0, spent[1] - before[1])

    def _cpu_s(self) -> float:
        now = self.process.cpu_times()
        return now.user + now.system


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--machines", type=int, default=1000)
    parser.add_argument("--few", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rota-") as base, ExitStack() as stack:
        sides = [
            stack.enter_context(side(Path(base, name), machines))
            for name, machines in (("many", options.machines), ("few", options.few))
        ]
        idle: list[list[float]] = [[], []]
        took: list[list[float]] = [[], []]
        for _ in range(options.repeats):
            for index, each in enumerate(sides):
                idle[index].append(each.idle_cpu(options.seconds))
                took[index].append(each.decision_ms(options.seconds))
                told = f"CPU {idle[index][-1]:.1f} %, {took[index][-1]:.2f} ms"
                print(f"{each.machines} machines: {told}", file=sys.stderr, flush=True)
        assert [each.connected() for each in sides] == [options.machines, options.few]
        memory = [each.process.memory_info().rss / 2**20 for each in sides]
    columns = "".join(f"{each.machines:>16,} machines" for each in sides)
    print(f"{'':<34}{columns}{'times':>8}")
    print(f"{'CPU while nothing happens, %':<34}{spread(idle[0])}{spread(idle[1])}")
    print(f"{'memory, MiB':<34}{memory[0]:>25.0f}{memory[1]:>25.0f}")
    times = median(took[0]) / median(took[1])
    print(f"{'a decision, ms':<34}{spread(took[0])}{spread(took[1])}{times:>8.2f}")


def spread(values: list[float]) -> str:
    return f"{f'{median(values):.2f} ({min(values):.2f}, {max(values):.2f})':>25}"


@contextmanager
def side(home: Path, machines: int) -> Iterator[Side]:
    """A cluster that so many machines have joined, all of which are connected."""
    folder = Folder(home).create()
    tokens = {}
    with closing(EventStore(folder.database)) as store:
        members = Members(store)
        for number in range(machines):
            name = f"m{number:04}"
            tokens[name] = members.join(members.invite(time.time())[0], name, time.time())
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = f"127.0.0.1:{taken.getsockname()[1]}"
    command = [sys.executable, "-m", "rota.cli.main", "up", "--home", str(home), "--gpus", "1"]
    command += ["--nodes", "1", "--policy", "fifo-backfill", "--listen", place]
    with open(home / "up.log", "w") as log, subprocess.Popen(command, stdout=log, stderr=log) as up:
        try:
            wait_until(lambda: (home / "server.json").exists(), up, home / "up.log")
            told = {"url": f"wss://{place}/agent/v1", "ca": (folder.tls / "ca.pem").read_text()}
            with agents(told | {"tokens": tokens}):
                found = Side(home, machines)
                wait_until(lambda: found.connected() == machines, up, home / "up.log")
                yield found
                found.client.close()
        finally:
            up.send_signal(signal.SIGTERM)


def wait_until(condition: Any, process: "subprocess.Popen[bytes]", log: Path) -> None:
    until_s = time.monotonic() + START_S
    while not condition():
        if process.poll() is not None or time.monotonic() > until_s:
            raise SystemExit(f"the cluster did not start: {log.read_text().strip()[-2000:]}")
        time.sleep(0.2)


# -- agents that are none --------------------------------------------------------------------------


@contextmanager
def agents(told: dict[str, Any]) -> Iterator[None]:
    command = [sys.executable, "-c", "import hosts; hosts.be_agents()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, cwd=Path(__file__).parent) as process:
        try:
            assert process.stdin is not None
            process.stdin.write(json.dumps(told).encode())
            process.stdin.close()
            yield
        finally:
            process.kill()


def be_agents() -> None:
    """Be the agents of all nodes that standard input tells of, until killed."""
    told = json.loads(sys.stdin.read())
    context = trusting(told["ca"])

    async def be(name: str, token: str, opening: asyncio.Semaphore) -> None:
        headers = {"Authorization": f"Bearer {token}"}
        more: dict[str, Any] = {"proxy": None, "compression": None, "open_timeout": None}
        while True:  # a controller that was too busy to hear it has hung up
            async with opening:
                connection = await connect(
                    told["url"], additional_headers=headers, ssl=context, **more
                )
                await connection.send(json.dumps(hello(name)))
            telling = asyncio.create_task(tell(connection))
            with contextlib.suppress(ConnectionClosed):
                async for frame in connection:
                    for answer in answers(json.loads(frame)):
                        await connection.send(json.dumps(answer))
            telling.cancel()

    async def run() -> None:
        opening = asyncio.Semaphore(AT_ONCE)
        await asyncio.gather(*(be(*each, opening) for each in told["tokens"].items()))

    asyncio.run(run())


def hello(name: str) -> dict[str, Any]:
    about = {"agent": name, "start": 1, "boot_id": "b", "build": "stand-in", "attempts": []}
    devices = {"num_gpus": GPUS, "kind": "cpu", "asked_s": booted_s()}
    return {"type": "hello", "node": name} | devices | about


async def tell(connection: ClientConnection) -> None:
    """Ask for the lease each second, and tell vitals, from a moment of its own on."""
    await asyncio.sleep(random.uniform(0.0, BEAT_S))
    with contextlib.suppress(ConnectionClosed):
        for number in itertools.count():
            await connection.send(json.dumps({"type": "beat", "asked_s": booted_s()}))
            if number % round(VITALS_S / BEAT_S) == 0:
                await connection.send(json.dumps({"type": "vitals"} | USE))
            await asyncio.sleep(BEAT_S)


def answers(message: dict[str, Any]) -> list[dict[str, Any]]:
    """What an agent on which nothing runs tells of a message."""
    if message["type"] != "command":
        return []
    about = {key: message[key] for key in ("job_id", "attempt", "launch") if key in message}
    if message["kind"] == "stop":
        return [{"type": "ended", "at_s": 0.0, "exit_code": -15, "message": ""} | about]
    return [{"type": "done", "command_id": message["command_id"], "at_s": 0.0} | about]


def booted_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


if __name__ == "__main__":
    main()
