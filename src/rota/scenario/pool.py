"""Calls one function many times over the cores, in processes that end with this one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol, TypeVar

from rota.errors import SimulationError

# Jobs to simulate: starting a process costs about as much as simulating a few thousand.
WORTH_A_PROCESS = 10_000
Result = TypeVar("Result")


class Watcher(Protocol):
    """Listener to the progress of calls."""

    def expect(self, count: int) -> None:
        """Announce that ``count`` more calls begin."""

    def advance(self) -> None:
        """One of them is over."""


class _Nobody:
    def expect(self, count: int) -> None:
        pass

    def advance(self) -> None:
        pass


_watcher: ContextVar[Watcher | None] = ContextVar("watcher", default=None)


@contextmanager
def watched(watcher: Watcher) -> Iterator[None]:
    """Within the block, ``watcher`` is told of all calls that go over the cores, at any depth."""
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)


def over_cores(
    work: Callable[..., Result],
    calls: Sequence[tuple[Any, ...]],
    *,
    num_jobs: int,
    workers: int | None = None,
) -> list[Result]:
    """``work(*call)`` for each of the ``calls``, in their order.

    ``work`` is a function of a module, its arguments and results can be sent about. ``workers``
    None means one for each core; but work that is done before other processes have started stays in
    this one: ``num_jobs`` is about how many jobs a call simulates. Raises the error of the first
    call that is found to fail, and leaves no process behind, whatever happens.
    """
    if workers is None:
        cores = len(os.sched_getaffinity(0))
        workers = cores if len(calls) * num_jobs >= WORTH_A_PROCESS else 1
    workers = min(workers, len(calls))
    watcher = _watcher.get() or _Nobody()
    watcher.expect(len(calls))
    if workers > 1:
        return _side_by_side(work, calls, workers, watcher.advance)
    results = []
    for call in calls:
        results.append(work(*call))
        watcher.advance()
    return results


def _side_by_side(
    work: Callable[..., Result],
    calls: Sequence[tuple[Any, ...]],
    workers: int,
    advance: Callable[[], None],
) -> list[Result]:
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor, as_completed
    from concurrent.futures.process import BrokenProcessPool

    before = set(multiprocessing.active_children())
    # "spawn": a child shares nothing with this process but what it is sent.
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), _begin)
    try:
        with _deaf_to_interrupts():
            indices = {pool.submit(work, *call): index for index, call in enumerate(calls)}
        results: list[Any] = [None] * len(calls)
        for future in as_completed(indices):
            results[indices[future]] = future.result()
            advance()
    except BaseException as error:
        # The rest is of no use any more, and must not go on by itself.
        for child in set(multiprocessing.active_children()) - before:
            child.terminate()
        pool.shutdown(wait=True, cancel_futures=True)
        if isinstance(error, BrokenProcessPool):
            raise SimulationError(
                "a process that simulated was killed, perhaps for want of memory; "
                "try fewer workers at once"
            ) from None
        raise
    pool.shutdown()
    return results


@contextmanager
def _deaf_to_interrupts() -> Iterator[None]:
    """Processes started in this block never see Ctrl-C; this process sees it afterwards."""
    import signal

    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin() -> None:
    """Begin a worker: it ends when its parent does, however the parent ends."""
    import multiprocessing
    import threading

    parent = multiprocessing.parent_process()

    def follow() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
