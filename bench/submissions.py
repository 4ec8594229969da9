"""Submissions in a second, each durable before it is answered, beside 10,000 jobs that wait.

    python bench/submissions.py [--waiting 10000] [--callers 32] [--each 2000] [--rounds 5]

Callers submit jobs over HTTP, one after another each, to `rota up` on one slot that is taken, with
so many jobs waiting already; and, in turn with it, to a plain program of FastAPI and SQLite that
commits each submission by itself. Both write with synchronous=FULL, in WAL mode, on the same file
system, and each call has an Idempotency-Key. Printed as median of the rounds with minimum and
maximum: submissions a second, the median and the 99th percentile of the time to an answer, and the
server's CPU time for one; then the bytes of a job in Rota's log. At the end each submission that
was answered must be in the database: if not, the exit code is 1.
"""

import argparse
import asyncio
import json
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import median, quantiles
from typing import NamedTuple

import psutil

from rota.experiment.runs.live import cluster

PLAIN = """
import sqlite3, sys, uvicorn
from fastapi import FastAPI, Header
from pydantic import BaseModel

database = sqlite3.connect(sys.argv[1], isolation_level=None)
database.execute("PRAGMA journal_mode=WAL")
database.execute("PRAGMA synchronous=FULL")
database.execute("CREATE TABLE job (id INTEGER PRIMARY KEY, key TEXT UNIQUE, body TEXT)")
app = FastAPI()

class Job(BaseModel):
    run: str
    workdir: str
    name: str = ""
    priority: int = 50
    resources: dict[str, int] = {}

@app.post("/api/v1/jobs", status_code=201)
async def submit(job: Job, idempotency_key: str = Header()) -> dict[str, str]:
    sql = "INSERT INTO job (key, body) VALUES (?, ?)"
    cursor = database.execute(sql, (idempotency_key, job.model_dump_json()))
    return {"id": str(cursor.lastrowid), "state": "PENDING"}

uvicorn.run(app, port=int(sys.argv[2]), log_level="warning", access_log=False)
"""
JOB = {"run": "sleep 100000", "workdir": "/tmp", "resources": {"gpus": 1}}


class Server(NamedTuple):
    """Where submissions go."""

    port: int
    headers: str
    process: psutil.Process


class Round(NamedTuple):
    """What a number of submissions took."""

    a_second: float
    p50_ms: float
    p99_ms: float
    cpu_ms: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--waiting", type=int, default=10_000)
    parser.add_argument("--callers", type=int, default=32)
    parser.add_argument("--each", type=int, default=2000, help="submissions in a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--policy", default="gandiva")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rota-") as base:
        home, file = Path(base, "home"), Path(base, "plain.db")
        with rota_server(home, options.policy) as rota, plain_server(file) as plain:
            send(rota, options.waiting, options.callers, "first")
            sides = {"rota": rota, "one by one": plain}
            rounds: dict[str, list[Round]] = {name: [] for name in sides}
            for number in range(options.rounds):
                for name, server in sides.items():
                    rounds[name].append(send(server, options.each, options.callers, str(number)))
            expected = options.rounds * options.each
            lost = expected + options.waiting + 1 - count(home / "rota.db", OF_ROTA)
            lost += expected - count(file, "SELECT count(*) FROM job")
            size = count(home / "rota.db", "SELECT avg(length(body)) FROM event WHERE " + SUBMITTED)
    print(f"{options.callers} callers, {options.waiting} jobs waiting at first")
    print(f"{'':>12}{'a second':>24}{'p50, ms':>24}{'p99, ms':>24}{'CPU, ms':>24}")
    for name, told in rounds.items():
        print(f"{name:>12}{''.join(spread(column) for column in zip(*told, strict=True))}")
    print(f"a job takes {size} bytes of the log; answered and not there: {lost}")
    sys.exit(1 if lost else 0)


SUBMITTED = "type = 'JobSubmitted'"
OF_ROTA = f"SELECT count(*) FROM event WHERE {SUBMITTED}"


def count(database: Path, sql: str) -> int:
    with closing(sqlite3.connect(database)) as connection:
        return round(connection.execute(sql).fetchone()[0])


def spread(values: tuple[float, ...]) -> str:
    figures = [f"{value:.2f}" if value < 10 else f"{value:.0f}" for value in sorted(values)]
    middle = f"{median(values):.2f}" if median(values) < 10 else f"{median(values):.0f}"
    return f"{f'{middle} ({figures[0]}, {figures[-1]})':>24}"


@contextmanager
def rota_server(home: Path, policy: str) -> Iterator[Server]:
    """A cluster whose only slot is taken."""
    with cluster(home, gpus=1, policy=policy) as client:
        client.submit({"run": "sleep 100000", "workdir": str(home)})
        told = json.loads((home / "server.json").read_text())
        token = (home / "token").read_text().strip()
        port = int(told["url"].rpartition(":")[2])
        yield Server(port, f"Authorization: Bearer {token}\r\n", psutil.Process(told["pid"]))


@contextmanager
def plain_server(file: Path) -> Iterator[Server]:
    port = 18000 + psutil.Process().pid % 10000
    command = [sys.executable, "-c", PLAIN, str(file), str(port)]
    with subprocess.Popen(command) as process:
        try:
            server = Server(port, "", psutil.Process(process.pid))
            for _ in range(600):
                try:
                    send(server, 0, 1, "")
                    break
                except OSError:
                    time.sleep(0.1)
            yield server
        finally:
            process.kill()


def send(server: Server, number: int, callers: int, name: str) -> Round:
    """Have so many jobs submitted."""
    before = server.process.cpu_times()
    began = time.perf_counter()
    took = asyncio.run(_send(server, number, callers, name))
    seconds = time.perf_counter() - began
    after = server.process.cpu_times()
    if not number:
        return Round(0, 0, 0, 0)
    cpu = after.user + after.system - before.user - before.system
    cut = quantiles(took, n=100)
    return Round(number / seconds, 1e3 * cut[49], 1e3 * cut[98], 1e3 * cpu / number)


async def _send(server: Server, number: int, callers: int, name: str) -> list[float]:
    body, numbers, took = json.dumps(JOB).encode(), iter(range(number)), []

    async def caller() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        for each in numbers:
            head = (
                f"POST /api/v1/jobs HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n{server.headers}"
                f"Idempotency-Key: {name}-{each}\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(body)}\r\n\r\n"
            )
            began = time.perf_counter()
            writer.write(head.encode() + body)
            answer = await reader.readuntil(b"\r\n\r\n")
            length = int(answer.lower().split(b"content-length:")[1].split(b"\r\n")[0])
            content = await reader.readexactly(length)
            took.append(time.perf_counter() - began)
            if not answer.startswith(b"HTTP/1.1 201"):
                raise SystemExit(f"{answer.decode()}{content.decode()}")
        writer.close()

    await asyncio.gather(*(caller() for _ in range(callers)))
    return took


if __name__ == "__main__":
    main()
