"""A real node agent without a controller: what it is told and what it answers, for tests."""

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rota.errors import AgentError
from rota.folder import Folder
from rota.live.agent.agent import Agent
from rota.live.agent.attempt import Attempt
from rota.live.agent.cuda_checkpoint import Driver
from rota.live.agent.devices import Devices
from rota.live.agent.endpoint import FolderEndpoint
from rota.live.wire import Message
from rota.model.job import WARM


class LoneAgent:
    """An agent in a thread of its own: ``with LoneAgent(folder) as agent``.

    Commands go straight to it; what it would tell a controller is kept in ``said``. It has slots
    on cores, or the ``devices`` that it is given, with a ``driver`` of CUDA in place of the real.
    """

    def __init__(
        self,
        folder: Path,
        num_gpus: int = 4,
        host_memory_bytes: int | None = None,
        devices: Devices | None = None,
        driver: Driver | None = None,
    ) -> None:
        os.makedirs(Folder(folder).node("node0"), exist_ok=True)
        cores = sorted(os.sched_getaffinity(0))
        slots = Devices("cpu", num_gpus, tuple(cores[i % len(cores)] for i in range(num_gpus)))
        self.said: list[Message] = []
        self._loop = asyncio.new_event_loop()
        endpoint = FolderEndpoint(Folder(folder), os.getpid())
        limits = (endpoint, host_memory_bytes, driver)
        self._agent = Agent(Folder(folder), "node0", devices or slots, *limits)
        self._agent._notify = self.said.append  # type: ignore[assignment, method-assign]
        self._serves = threading.Event()
        run = self._agent._link.run

        async def serve() -> None:
            self._serves.set()
            await run()

        self._agent._link.run = serve  # type: ignore[method-assign]
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._command_id = 0

    def __enter__(self) -> "LoneAgent":
        """Start it. As a controller, nobody commands it before it has adopted what is there."""
        self._thread.start()
        if not self._serves.wait(90):
            raise TimeoutError("the agent does not serve")
        return self

    def __exit__(self, *_: object) -> None:
        def end() -> None:
            for attempt in self._agent.attempts.values():
                attempt.kill()
            self._agent._spawn(self._agent._shut_down())

        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(end)
            self._thread.join(30)
        self._loop.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._agent.run())

    @property
    def attempt(self) -> Attempt:
        """The latest attempt."""
        return list(self._agent.attempts.values())[-1]

    @property
    def attempts(self) -> dict[str, Attempt]:
        """The attempts here, by job."""
        return {attempt.job_id: attempt for attempt in self._agent.attempts.values()}

    def end_host(self) -> None:
        """Kill the host of the node's island, which this agent has started."""
        host = self._agent._island._process
        assert host is not None
        host.kill()
        host.wait()

    def vanish(self) -> None:
        """End as if killed: the jobs go on, and another agent on the same folder adopts them.

        May be called in the agent's own thread; :meth:`join` waits for the end.
        """

        def end() -> None:
            for attempt in self._agent.attempts.values():
                for rank in attempt.ranks:
                    if rank.writer is not None:
                        rank.writer.transport.abort()
            self._agent._ending.set()

        self._loop.call_soon_threadsafe(end)

    def join(self) -> None:
        """Wait for the end of an agent that vanishes."""
        self._thread.join(30)

    def launch(
        self,
        run: str,
        gpus: list[int],
        max_gpus: int,
        *,
        env: dict[str, str] | None = None,
        job_id: str | None = None,
        attempt: int = 1,
        adapt: dict[str, int | None] | None = None,
        flow: dict[str, Any] | None = None,
        background: bool = False,
        **more: Any,
    ) -> Message:
        """Start an attempt on these GPUs, of a job of its own unless one is named; the answer.

        ``adapt`` has the limits of batches that the scheduler chooses, ``flow`` what is told of a
        flow job. ``more`` are other fields of :class:`~rota.model.job.Program`; its program is
        forked with torch loaded unless they say otherwise.
        """
        number = len(self._agent.attempts) + 1
        processes = "gpu" if flow is None else "flow"
        program = {"run": run, "workdir": os.getcwd(), "env": env or {}, "processes": processes}
        program["start"] = WARM
        warm = asyncio.run_coroutine_threadsafe(self._agent._zygote.start(), self._loop)
        with contextlib.suppress(AgentError):  # then the answer tells it
            warm.result()  # however long a busy machine takes for that
        return self.command(
            "launch",
            job_id=job_id or str(number),
            attempt=attempt,
            name=f"job{number}",
            program=program | more,
            gpus=gpus,
            max_gpus=max_gpus,
            adapt=adapt,
            background=background,
            flow=flow,
            at_s=time.time(),
        )

    def command(self, kind: str, *, timeout_s: float = 90, **fields: Any) -> Message:
        """Send a command about the latest attempt, and wait for its ``done`` or ``failed``."""
        return self.answer(self.begin(kind, **fields), timeout_s)

    def begin(self, kind: str, **fields: Any) -> int:
        """Send a command about the latest attempt; the number to ask for its answer with."""
        self._command_id += 1
        message = {"type": "command", "kind": kind, "command_id": self._command_id, "epoch": 0}
        if kind != "launch":
            message |= {"job_id": self.attempt.job_id, "attempt": self.attempt.number}
        self._loop.call_soon_threadsafe(self._agent._obey, message | fields)
        return self._command_id

    def heeded(self, timeout_s: float = 90) -> None:
        """Return when the agent has begun all that it was told so far. Raises TimeoutError.

        Ranks that are to hold have been sent word of it by then, and find that at their boundary.
        """

        async def behind() -> None:
            """The last in the agent's queue."""

        asyncio.run_coroutine_threadsafe(behind(), self._loop).result(timeout_s)

    def answer(self, command_id: int, timeout_s: float = 90) -> Message:
        """What the agent says to a command. Raises TimeoutError."""
        return self.await_(lambda m: m.get("command_id") == command_id, timeout_s)

    def await_(self, wanted: Callable[[Message], bool], timeout_s: float = 90) -> Message:
        """The first thing said that is ``wanted``; waits for it. Raises TimeoutError."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            for message in list(self.said):
                if wanted(message):
                    return message
            time.sleep(0.005)
        raise TimeoutError(f"the agent did not say it within {timeout_s} s; it said {self.said}")

    def await_step(self, step: int, timeout_s: float = 90) -> None:
        """Wait until the job has reported this step. Raises TimeoutError."""
        deadline = time.monotonic() + timeout_s
        while self.attempt.progress.get("step", -1) < step:
            if time.monotonic() > deadline or self.attempt.ended is not None:
                raise TimeoutError(f"step {step} was not reached: {self.attempt.progress}")
            time.sleep(0.005)

    def log(self, slot: int) -> str:
        """What one process has printed."""
        return (self.attempt.folder / f"rank{slot}.log").read_text()
