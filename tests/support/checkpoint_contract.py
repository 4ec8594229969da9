"""The tests that every driver of CUDA checkpoints must pass, and a driver without CUDA.

Subclass :class:`CheckpointContract` with two fixtures: ``driver``, and ``pids``, two processes that
use a GPU (the second is for tests of several at once).
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil
import pytest

from rota.errors import AgentError
from rota.live.agent.cuda_checkpoint import (
    CHECKPOINTED,
    FAILED,
    LOCKED,
    RUNNING,
    Checkpoints,
    Driver,
)


class CheckpointContract:
    """The tests."""

    def test_a_node_can_or_says_why_not(self, driver: Driver) -> None:
        assert driver.refusal() is None
        assert all(len(uuid.replace("-", "")) == 32 for uuid in driver.uuids())

    def test_a_process_goes_through_four_states_and_back(
        self, driver: Driver, pids: list[int]
    ) -> None:
        pid = pids[0]
        assert driver.uses_gpu(pid)
        states = [driver.state(pid)]
        for step in (
            lambda: driver.lock(pid, 10.0),
            lambda: driver.checkpoint(pid),
            lambda: driver.restore(pid, {}),
            lambda: driver.unlock(pid),
        ):
            step()
            states.append(driver.state(pid))
        assert states == [RUNNING, LOCKED, CHECKPOINTED, LOCKED, RUNNING]

    def test_a_locked_process_can_go_on_as_it_is(self, driver: Driver, pids: list[int]) -> None:
        driver.lock(pids[0], 10.0)
        driver.unlock(pids[0])
        assert driver.state(pids[0]) == RUNNING

    def test_steps_are_refused_out_of_turn(self, driver: Driver, pids: list[int]) -> None:
        with pytest.raises(AgentError):
            driver.checkpoint(pids[0])
        with pytest.raises(AgentError):
            driver.restore(pids[0], {})
        assert driver.state(pids[0]) == RUNNING

    def test_a_process_without_cuda_has_no_state(self, driver: Driver) -> None:
        assert driver.state(os.getppid()) is None
        assert not driver.uses_gpu(os.getppid())

    def test_several_processes_go_and_come_together(self, driver: Driver, pids: list[int]) -> None:
        node = Checkpoints(driver, [str(i) for i in range(len(driver.uuids()))])
        assert node.take(lambda: pids)
        assert [driver.state(pid) for pid in pids] == [CHECKPOINTED] * 2
        node.put_back(pids, [0], [0])
        assert [driver.state(pid) for pid in pids] == [RUNNING] * 2

    def test_a_process_without_cuda_state_is_left_out_and_reported(
        self, driver: Driver, pids: list[int]
    ) -> None:
        node = Checkpoints(driver, ["0"])
        both = [pids[0], os.getppid()]
        assert not node.take(lambda: both)
        node.put_back(both, [0], [0])
        assert driver.state(pids[0]) == RUNNING


class FakeDriver:
    """A driver for processes that have ``USES_CUDA`` in their environment, as if that were CUDA.

    ``calls`` tells what was asked of it: verb, pid, and whether the process stood still then.
    ``errors`` maps verbs to errors; ``breaks`` makes the error of a restoration a lasting one.
    """

    def __init__(self, num_gpus: int = 2, refusal: str | None = None) -> None:
        self.calls: list[tuple[str, int, bool]] = []
        self.errors: dict[str, str] = {}
        self.breaks = False
        self.restored_on: list[Mapping[str, str]] = []
        self._refusal = refusal
        self._uuids = [f"{i:08d}-0000-0000-0000-000000000000" for i in range(num_gpus)]
        self._states: dict[int, str] = {}

    def refusal(self) -> str | None:
        return self._refusal

    def uuids(self) -> Sequence[str]:
        return self._uuids

    def state(self, pid: int) -> str | None:
        return self._states.get(pid, RUNNING) if self.uses_gpu(pid) else None

    def uses_gpu(self, pid: int) -> bool:
        try:
            return b"USES_CUDA=" in Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            return False

    def lock(self, pid: int, timeout_s: float) -> None:
        self._go("lock", pid, RUNNING, LOCKED)

    def checkpoint(self, pid: int) -> None:
        self._go("checkpoint", pid, LOCKED, CHECKPOINTED)

    def restore(self, pid: int, gpus: Mapping[str, str]) -> None:
        self.restored_on.append(gpus)
        self._go("restore", pid, CHECKPOINTED, LOCKED)

    def unlock(self, pid: int) -> None:
        self._go("unlock", pid, LOCKED, RUNNING)

    def _go(self, verb: str, pid: int, before: str, after: str) -> None:
        try:
            status = psutil.Process(pid).status()
        except psutil.NoSuchProcess:
            status = psutil.STATUS_ZOMBIE
        if (
            status == psutil.STATUS_ZOMBIE
        ):  # as with the real driver, a process that has ended needs nothing
            return
        stopped = status == psutil.STATUS_STOPPED
        self.calls.append((verb, pid, stopped))
        if verb in self.errors:
            if self.breaks:
                self._states[pid] = FAILED
            raise AgentError(self.errors[verb])
        if self.state(pid) != before:
            raise AgentError(f"process {pid} is {self.state(pid)}, and not {before}")
        self._states[pid] = after
