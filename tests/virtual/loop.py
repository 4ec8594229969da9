"""An event loop whose time is virtual, and whose callbacks belong to processes that can be killed.

Time jumps to the next timer as soon as nothing else is to be done. Every callback belongs to the
process in whose context it was asked for; once that is killed, none of its callbacks is run any
more, whatever they were in the middle of: no ``finally``, no ``except``, as after SIGKILL.
"""

import asyncio
import contextlib
import contextvars
import selectors
from collections.abc import Callable, Coroutine
from typing import Any

from rota.errors import RotaError

CLOSING_ROUNDS = 5
STUCK = "nothing is left to be done"


class Process:
    """Whose callbacks may be run: a controller, an agent, a worker, on the host of that name."""

    def __init__(self, name: str, host: str = "") -> None:
        self.name, self.host = name, host
        self.alive = True
        self.left: list[Any] | None = None  # to be done, since it was stopped
        self.slept_s = 0.0  # of its machine, until now: so long no clock of its timers went on

    def __repr__(self) -> str:
        return self.name


RUNNING: contextvars.ContextVar[Process | None] = contextvars.ContextVar("RUNNING", default=None)


class _NoFiles(selectors.BaseSelector):
    """A selector of nothing: to wait is to let virtual time pass."""

    def __init__(self) -> None:
        self.loop: VirtualLoop | None = None

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return selectors.SelectorKey(fileobj, 0, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return selectors.SelectorKey(fileobj, 0, 0, None)

    def select(self, timeout: float | None = None) -> list[Any]:
        assert self.loop is not None
        if timeout is None:
            raise RuntimeError(STUCK)
        self.loop.now_s += max(0.0, timeout)
        return []

    def get_map(self) -> dict[Any, Any]:
        return {}


class VirtualLoop(asyncio.SelectorEventLoop):
    """``before_each`` is called with each process before it does its next step; it may kill it."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.before_each: Callable[[Process], object] = bool
        self.errors: list[str] = []
        self._is_closing = False
        self._tasks: list[asyncio.Task[Any]] = []  # kept: what is collected runs to its `finally`
        selector = _NoFiles()
        super().__init__(selector)
        selector.loop = self
        self._clock_resolution = 1e-9
        self.set_exception_handler(self._note_error)

    def _note_error(self, _: Any, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self.errors.append(f"{context['message']}: {error!r}")

    def time(self) -> float:
        return self.now_s

    def call_soon(self, callback: Any, *arguments: Any, context: Any = None) -> asyncio.Handle:
        context = contextvars.copy_context() if context is None else context
        holder = list[asyncio.Handle]()
        step = (_owner(context), callback, arguments, context, holder)
        holder.append(super().call_soon(self._step, *step, context=context))
        return holder[0]

    def call_at(
        self, when: float, callback: Any, *arguments: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        context = contextvars.copy_context() if context is None else context
        holder = list[asyncio.TimerHandle]()
        owner = _owner(context)
        slept_s = 0.0 if owner is None else owner.slept_s
        step = (owner, callback, arguments, context, holder, when, slept_s)
        holder.append(super().call_at(when, self._step, *step, context=context))
        return holder[0]

    def _step(
        self,
        owner: Process | None,
        callback: Any,
        arguments: Any,
        context: contextvars.Context,
        holder: list[asyncio.Handle],
        when: float | None = None,
        slept_s: float = 0.0,
    ) -> None:
        if holder[0].cancelled():
            return
        if owner is not None and owner.left is not None and not self._is_closing:
            owner.left.append((owner, callback, arguments, context, holder, when, slept_s))
            return
        if owner is not None and when is not None and not self._is_closing:
            due_s = when + owner.slept_s - slept_s
            if due_s > self.now_s:  # its machine slept meanwhile
                again = (owner, callback, arguments, context, holder, due_s, owner.slept_s)
                super().call_at(due_s, self._step, *again, context=context)
                return
        if owner is not None and not self._is_closing:
            if owner.alive:
                self.before_each(owner)
            if not owner.alive:
                return
        callback(*arguments)

    def stop_process(self, process: Process, seconds: float, *, sleeps: bool = False) -> None:
        """SIGSTOP, and SIGCONT after so long: what was to be done meanwhile is done then.

        If its machine ``sleeps``, timers go on from where they were.
        """
        if process.left is None:
            process.left = []
            slept_s = seconds if sleeps else 0.0
            super().call_at(self.now_s + seconds, self._continue, process, slept_s)

    def _continue(self, process: Process, slept_s: float) -> None:
        steps, process.left = process.left or [], None
        process.slept_s += slept_s
        for step in steps:
            super().call_soon(self._step, *step, context=step[3])

    def create_task(self, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
        task = super().create_task(coroutine, **options)
        self._tasks.append(task)
        return task

    def failures(self) -> list[str]:
        """The errors of callbacks, and those of tasks that nobody has looked at.

        A caller's own mistake, such as a call for a job that has just ended, is none.
        """
        done = [task for task in self._tasks if task.done() and not task.cancelled()]
        unseen = [each for each in done if each._log_traceback]  # type: ignore[attr-defined]
        found = {task: task.exception() for task in unseen}
        return self.errors + [
            f"{task.get_coro()}: {error!r}"
            for task, error in found.items()
            if not isinstance(error, RotaError)
        ]

    def close_all(self) -> None:
        """End every coroutine, those of dead processes among them, and close."""
        self._is_closing = True
        for _ in range(CLOSING_ROUNDS):  # one may begin others as it ends
            if tasks := asyncio.all_tasks(self):
                for task in tasks:
                    task.cancel()
                self.run_until_complete(asyncio.wait(tasks, timeout=1.0))
        for task in asyncio.all_tasks(self):  # whose process was killed as it was to be woken
            with contextlib.suppress(Exception):
                task.get_coro().close()
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        self.close()

    def start(self, process: Process, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a coroutine as the main program of a process."""
        context = contextvars.copy_context()
        context.run(RUNNING.set, process)
        return self.create_task(coroutine, context=context)


def _owner(context: contextvars.Context) -> Process | None:
    return context.get(RUNNING)
