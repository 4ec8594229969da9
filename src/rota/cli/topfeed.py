"""Keeps the board of ``rota top`` current: reads what there is, then what the stream tells."""

import asyncio
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from rota.cli.topboard import MOST_TURNS, Board, Snapshot
from rota.client.client import Client
from rota.client.events import Logged
from rota.client.joblist import JobList
from rota.client.joblist import read as read_jobs
from rota.errors import RotaError

LEAST_PAUSE_S = 0.25  # between two readings of everything
PAUSES = 4.0  # times as long as the last one took
EARLIER = 200  # events from before the start that are told as well

T = TypeVar("T")


class Feed:
    """Follows one cluster. ``changed`` is called in the event loop when the board is another."""

    def __init__(self, client: Client, board: Board, changed: Callable[[], None]) -> None:
        self._client, self._board, self._changed = client, board, changed
        self._is_stale = asyncio.Event()
        self._list = JobList()
        self._seq = 0  # of the last event that was told

    async def run(self, first: Snapshot) -> None:
        """Follow until cancelled, from what ``first`` has on. Raises RotaError for good."""
        self._board.take(first)
        self._changed()
        reading = asyncio.create_task(self._read_again())
        try:
            after = max(0, first.seq - EARLIER)
            async for told in self._client.events(after=after, patience_s=None, busy=True):
                self._list.note(told)
                if isinstance(told, Logged):
                    self._seq = told.seq
                if self._board.note(told, self._client.now_s()):
                    self._is_stale.set()
                self._changed()
        finally:
            reading.cancel()

    async def _read_again(self) -> None:
        """Read after each change what it may have changed, and at most a fifth of the time."""
        while True:
            await self._is_stale.wait()
            self._is_stale.clear()
            began_s = time.monotonic()
            self._list.age(self._client.now_s())
            due, seq = self._list.take(), self._seq
            try:
                found = await apart(partial(read_jobs, self._client, due))
                self._list.put(due, found, self._client.now_s())
                self._list.place(await apart(self._client.queue))
                jobs = list(self._list.jobs.values())
                self._board.take(await apart(partial(_snapshot, self._client, jobs, seq)))
                self._changed()
            except RotaError:  # the stream tells of an outage, and of its end
                self._list.put(due, None, self._client.now_s())
                self._is_stale.set()
            await asyncio.sleep(max(LEAST_PAUSE_S, PAUSES * (time.monotonic() - began_s)))


def read(client: Client) -> Snapshot:
    """Everything that is shown, as it is now. Raises RotaError."""
    jobs = client.jobs()
    return _snapshot(client, jobs, int((client.cursor or "0").rpartition("-")[2]))


def _snapshot(client: Client, jobs: list[dict[str, Any]], seq: int) -> Snapshot:
    """Nodes, policies, gauges and turns, beside jobs that were read after event ``seq``."""
    return Snapshot(
        jobs,
        client.nodes(),
        client.policies(),
        client.gauges(),
        _turns(client, jobs),
        seq,
        client.may(),
    )


def _turns(client: Client, jobs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The jobs that take turns with each other, on a few nodes."""
    if not any(job["reason"] == "SLICE_WAITING_TURN" for job in jobs):
        return []
    told: dict[str, dict[str, Any]] = {}
    for job in jobs:
        node = job["gpus"][0]["node"] if job["gpus"] else ""
        if node and node not in told and len(told) < MOST_TURNS:
            with suppress(RotaError):
                for name in (turns := client.explain(job["id"])["turns"] or {}).get("nodes", ()):
                    told[name] = turns
                told.setdefault(node, turns)
    return list({id(turns): turns for turns in told.values() if turns}.values())


async def apart(call: Callable[[], T]) -> T:
    """Return or raise as ``call`` does, in a thread that nobody waits for if this is cancelled."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result, error = None, None
        try:
            result = call()
        except BaseException as raised:
            error = raised
        with suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=run, daemon=True, name="rota-top").start()
    return await future
