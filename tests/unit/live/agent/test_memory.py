"""A node's budget of host memory: who gives way, in which order, and that it always ends."""

import asyncio
import random
from types import SimpleNamespace
from typing import Any

import pytest

from rota.live.agent import memory
from rota.live.agent.memory import HostMemory
from rota.live.agent.record import Vacated

PROCESSES, ARENA = 10, 4  # bytes that a paused job holds, and a vacated one


class Suspended:
    """A suspended job, as far as the budget knows it."""

    def __init__(self, number: int, since_s: float) -> None:
        self.job_id, self.number, self.state = str(number), 1, "suspended"
        self.record = SimpleNamespace(suspended_s=since_s)
        self.ranks: list[Any] = []
        self.where = "processes"
        self.refusal: str | None = None
        self.error: str | None = None
        self.vacating = SimpleNamespace(refusal=lambda: self.refusal, writing=False)

    @property
    def is_vacated(self) -> bool:
        return self.where != "processes"

    @property
    def is_in_memory(self) -> bool:
        return self.where == "memory"

    def note_memory(self, error: str | None) -> None:
        self.error = error


class Node:
    """A node full of suspended jobs, and what becomes of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, num_jobs: int, budget: int) -> None:
        ages = list(range(num_jobs))
        random.Random(0).shuffle(ages)
        self.jobs = [Suspended(number, age) for number, age in enumerate(ages)]
        self.memory = HostMemory(lambda: self.jobs, budget)  # type: ignore[arg-type, return-value]
        self.moves: list[tuple[str, float]] = []
        self.full: set[float] = set()  # jobs whose state can't be written, by when they stopped
        monkeypatch.setattr(memory, "held_by", self.held)
        monkeypatch.setattr(memory, "vacate", self.vacate)
        monkeypatch.setattr(memory, "spill", self.spill)

    def held(self, job: Suspended) -> int:
        return {"processes": PROCESSES, "memory": ARENA, "disk": 0}[job.where]

    async def vacate(self, job: Suspended) -> str | None:
        return await self._move(job, "vacate", "memory")

    async def spill(self, job: Suspended) -> str | None:
        return await self._move(job, "spill", "disk")

    async def _move(self, job: Suspended, what: str, where: str) -> str | None:
        await asyncio.sleep(0)
        self.moves.append((what, job.record.suspended_s))
        if job.record.suspended_s in self.full:
            return "No space left on device"
        job.where = where
        return None

    def settles(self) -> None:
        async def settle() -> None:
            self.memory.look()
            assert self.memory._task is not None
            await asyncio.wait_for(self.memory._task, 30)

        asyncio.run(settle())


def moved(node: Node, what: str) -> list[float]:
    return [since_s for kind, since_s in node.moves if kind == what]


def test_a_hundred_jobs_give_way_oldest_first_until_the_rest_fits(monkeypatch):
    node = Node(monkeypatch, 100, budget=50)
    node.settles()
    assert node.memory.held_bytes() <= 50
    for what in ("vacate", "spill"):
        assert moved(node, what) == sorted(moved(node, what))
    assert moved(node, "vacate") == list(range(len(moved(node, "vacate"))))
    # As many are left where they were as the budget has room for: none gave way needlessly.
    assert node.memory.held_bytes() > 50 - PROCESSES
    assert len(node.moves) <= 2 * len(node.jobs)


def test_a_budget_smaller_than_any_job_puts_all_of_them_on_the_disk(monkeypatch):
    node = Node(monkeypatch, 100, budget=ARENA - 1)
    node.settles()
    assert {job.where for job in node.jobs} == {"disk"}
    assert node.memory.held_bytes() == 0


def test_jobs_that_can_not_give_way_have_an_error_each_and_stop_no_other(monkeypatch):
    node = Node(monkeypatch, 100, budget=0)
    node.full = set(range(0, 100, 3))
    for job in node.jobs[:7]:
        job.refusal = "it keeps its processes"
    node.settles()
    for job in node.jobs:
        may = job.refusal is None and job.record.suspended_s not in node.full
        assert job.where == ("disk" if may else "processes")
        assert (job.error is None) == may
    tried = [since_s for _, since_s in node.moves if since_s in node.full]
    assert len(tried) == len(set(tried))  # once in each suspension: a full disk stays full


def test_what_is_tried_with_one_suspension_says_nothing_of_the_next(monkeypatch):
    node = Node(monkeypatch, 1, budget=0)
    (job,) = node.jobs

    async def goes_on_and_suspends_again(job: Suspended) -> str:
        job.record.suspended_s += 10
        node.memory.look()
        monkeypatch.setattr(memory, "vacate", node.vacate)
        return "the job goes on"

    monkeypatch.setattr(memory, "vacate", goes_on_and_suspends_again)
    node.settles()
    assert (job.where, job.error) == ("disk", None)


def test_the_state_of_a_job_whose_folder_is_in_host_memory_stays_where_it_is(tmp_path):
    arena = tmp_path / "1-1-0.arena"
    arena.write_bytes(b"state")
    record = SimpleNamespace(vacated=Vacated({"0": str(arena)}, 5, 0.0))
    error = asyncio.run(memory.spill(SimpleNamespace(record=record, folder=tmp_path)))
    assert error == f"{tmp_path} is in host memory as well"
    assert arena.read_bytes() == b"state"
