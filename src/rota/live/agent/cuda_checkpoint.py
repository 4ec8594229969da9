"""CUDA checkpoints: what processes have on a GPU goes to the host and back, without their help.

The driver does it (CUDA driver API, "CUDA Checkpointing"; NVIDIA driver 570 or newer), asked by
``cuda.core.checkpoint``. A process is *locked*, so that its CUDA calls wait and what it has
submitted is done; *checkpointed*, which copies its device memory to host memory of its own and lets
go of the GPU; *restored*, on the same GPU or another one; and *unlocked*. Its threads go on all the
while: who wants them to stand still stops them after the checkpoint, and lets them run for the
restoration, in which a thread of the process itself takes part.

Processes that share GPU memory with others (NCCL, CUDA IPC) can't be checkpointed. What is in here
was run on one GPU; moves to another one follow the documentation.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Protocol

from rota.errors import AgentError, ArenaError, pip_install

RUNNING, LOCKED, CHECKPOINTED, FAILED = "running", "locked", "checkpointed", "failed"
LEAST_DRIVER = 570
LOCK_TIMEOUT_S = 10.0  # for the work that a process has submitted
MAX_ROUNDS = 10  # of looking for further processes that use the GPU


class Driver(Protocol):
    """The CUDA driver's actions on the processes of a node, by pid.

    Everything may take long, and raises AgentError.
    """

    def refusal(self) -> str | None:
        """The reason, as a clause, why checkpoints are impossible; None if they are possible."""

    def uuids(self) -> Sequence[str]:
        """The UUIDs of all GPUs of this machine, in NVML's order, without the prefix ``GPU-``."""

    def state(self, pid: int) -> str | None:
        """One of the four states; None of a process that has no CUDA state, or is gone."""

    def uses_gpu(self, pid: int) -> bool:
        """True if the process has a GPU open, whatever :meth:`state` makes of it."""

    def lock(self, pid: int, timeout_s: float) -> None:
        """From running to locked; still running if that takes longer than ``timeout_s``."""

    def checkpoint(self, pid: int) -> None:
        """From locked to checkpointed."""

    def restore(self, pid: int, gpus: Mapping[str, str]) -> None:
        """From checkpointed to locked.

        ``gpus`` maps the UUID of every GPU of this machine to that of the one to use in its place;
        empty if nothing changes.
        """

    def unlock(self, pid: int) -> None:
        """From locked to running."""


class Checkpoints:
    """The checkpoints of one node. ``ids`` is what its GPUs are called in CUDA_VISIBLE_DEVICES."""

    def __init__(self, driver: Driver, ids: Sequence[str]) -> None:
        self._driver = driver
        self._ids = ids

    @cached_property
    def refusal(self) -> str | None:
        """The reason, as a clause, why no process can be checkpointed; None if all can."""
        if any(each.startswith("MIG-") for each in self._ids):
            return "its GPUs are parts of GPUs (MIG)"
        return self._driver.refusal()

    def take(self, pids: Callable[[], list[int]]) -> bool:
        """Checkpoint those of these processes that use CUDA. True if all of them do.

        ``pids`` is asked again until no process has begun to use CUDA meanwhile. Raises AgentError,
        and then all of them are as before; or ArenaError, if the contents of their GPU memory are
        lost.
        """
        driver, known = self._driver, list[int]()
        try:
            for _ in range(MAX_ROUNDS):
                living = pids()
                new = [pid for pid in living if driver.state(pid) == RUNNING]
                known += new
                for pid in new:
                    driver.lock(pid, LOCK_TIMEOUT_S)
                for pid in new:
                    driver.checkpoint(pid)
                if not new:
                    break
            else:
                raise AgentError("its processes keep starting others that use the GPU")
            if not known and any(map(driver.uses_gpu, living)):
                raise AgentError("its processes use the GPU, but the driver can't tell their state")
        except AgentError as error:
            try:
                self._back_to_work(known, {})
            except AgentError as worse:
                raise ArenaError(f"{error}; and it could not be undone: {worse}") from None
            raise
        return set(living) <= set(known)

    def put_back(self, pids: list[int], before: Sequence[int], now: Sequence[int]) -> None:
        """Let those of these processes continue that are checkpointed or locked.

        They were on the GPUs ``before`` of this node, and continue on ``now``. Raises AgentError if
        none of them has been changed, and ArenaError if what they had on the GPU is lost.
        """
        if self.refusal is not None:
            raise AgentError(self.refusal)
        gpus = {}
        if list(before) != list(now):
            gpus = exchange(self._driver.uuids(), self._uuids(before), self._uuids(now))
        self._back_to_work(pids, gpus)

    def _back_to_work(self, pids: list[int], gpus: Mapping[str, str]) -> None:
        driver = self._driver
        states = {pid: driver.state(pid) for pid in pids}
        if FAILED in states.values():
            raise ArenaError("the CUDA driver could not restore its device memory")
        restored = 0
        try:
            for pid, state in states.items():
                if state == CHECKPOINTED:
                    driver.restore(pid, gpus)
                    restored += 1
            for pid, state in states.items():
                if state in (CHECKPOINTED, LOCKED):
                    driver.unlock(pid)
        except AgentError as error:
            torn = restored or any(driver.state(pid) == FAILED for pid in pids)
            if torn:
                raise ArenaError(f"it was restored only in part: {error}") from None
            raise

    def _uuids(self, gpus: Sequence[int]) -> list[str]:
        known = self._driver.uuids()
        ids = [self._ids[gpu] for gpu in gpus]
        return [known[int(each)] if each.isdigit() else each.removeprefix("GPU-") for each in ids]


def exchange(every: Sequence[str], before: Sequence[str], now: Sequence[str]) -> dict[str, str]:
    """Maps each GPU of the machine to the one that replaces it: ``now`` for ``before``, in order.

    The driver requires every GPU once. GPUs that are freed replace those that are taken; all others
    stay.
    """
    places = dict(zip(before, now, strict=True))
    freed = [gpu for gpu in before if gpu not in now]
    taken = [gpu for gpu in now if gpu not in before]
    places |= dict(zip(taken, freed, strict=True))
    return {gpu: places.get(gpu, gpu) for gpu in every}


class NvidiaDriver:
    """The driver of this machine, by way of ``cuda-core``; see :class:`Driver`."""

    def __init__(self) -> None:
        self._process: Any = None

    def refusal(self) -> str | None:
        """The reason for which there are no checkpoints here."""
        version = driver_version()
        if version < LEAST_DRIVER:
            its = f"its driver is of version {version}" if version else "its driver is not known"
            return f"{its}, and CUDA checkpoints take {LEAST_DRIVER}"
        try:
            from cuda.bindings import driver
            from cuda.core.checkpoint import Process
        except (ImportError, RuntimeError):
            return f"the agent has no cuda-core ({pip_install('cuda')})"
        try:
            (status,) = driver.cuInit(0)
            if status:
                return f"CUDA can't be used here ({status.name})"
            Process(os.getpid()).state  # noqa: B018 - looks for what it needs first
        except RuntimeError as error:
            return f"CUDA checkpoints can't be used here ({error})"
        except Exception:  # noqa: S110 - of this very process, which has no CUDA state
            pass
        self._process = Process
        return None

    def uuids(self) -> Sequence[str]:
        """UUIDs, by NVML."""
        import pynvml

        pynvml.nvmlInit()
        try:
            handles = map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount()))
            return [str(pynvml.nvmlDeviceGetUUID(each)).removeprefix("GPU-") for each in handles]
        except pynvml.NVMLError as error:
            raise AgentError(f"NVML does not tell the GPUs' UUIDs: {error}") from None
        finally:
            pynvml.nvmlShutdown()

    def state(self, pid: int) -> str | None:
        """The driver knows no state of processes without CUDA, and says so by an error."""
        try:
            return str(self._process(pid).state)
        except Exception:
            return None

    def uses_gpu(self, pid: int) -> bool:
        """CUDA opens this device in every process that uses it."""
        folder = f"/proc/{pid}/fd"
        try:
            return any(_target(f"{folder}/{fd}") == "/dev/nvidia-uvm" for fd in os.listdir(folder))
        except OSError:
            return False

    def lock(self, pid: int, timeout_s: float) -> None:
        """``cuCheckpointProcessLock``."""
        self._call(pid, "lock", timeout_ms=round(1000 * timeout_s))

    def checkpoint(self, pid: int) -> None:
        """``cuCheckpointProcessCheckpoint``."""
        self._call(pid, "checkpoint")

    def restore(self, pid: int, gpus: Mapping[str, str]) -> None:
        """``cuCheckpointProcessRestore``."""
        self._call(pid, "restore", gpu_mapping=dict(gpus) or None)

    def unlock(self, pid: int) -> None:
        """``cuCheckpointProcessUnlock``."""
        self._call(pid, "unlock")

    def _call(self, pid: int, verb: str, **arguments: Any) -> None:
        try:
            getattr(self._process(pid), verb)(**arguments)
        except Exception as error:  # CUDAError is not public
            if os.path.exists(f"/proc/{pid}"):
                raise AgentError(f"CUDA can't {verb} process {pid}: {error}") from None


def driver_version() -> int:
    """The major version of the NVIDIA driver, such as 570; 0 if NVML does not tell."""
    import pynvml

    try:
        pynvml.nvmlInit()
        try:
            return int(str(pynvml.nvmlSystemGetDriverVersion()).partition(".")[0])
        finally:
            pynvml.nvmlShutdown()
    except (pynvml.NVMLError, ValueError):
        return 0


def _target(link: str) -> str:
    try:
        return os.readlink(link)
    except OSError:
        return ""
