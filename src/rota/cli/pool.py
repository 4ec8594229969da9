"""Many simulations at once, one process for each core, with a progress bar on a terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rota.cli.simcases import Case, Outcome, run_case
from rota.errors import RotaError, SimulationError

# Jobs to simulate: starting a process costs about as much as simulating a few thousand.
WORTH_A_PROCESS = 10_000


def run_cases(
    cases: Sequence[Case], names: Sequence[str], *, workers: int | None, num_jobs: int
) -> list[Outcome]:
    """The outcomes of ``cases``, in their order. ``names`` tell them apart in messages.

    ``workers`` None means one for each core; but work that is done before other processes have
    started stays in this one: ``num_jobs`` is about how many jobs a case simulates. Raises the
    first case's error, with its name, and leaves no process behind, whatever happens.
    """
    cores = len(os.sched_getaffinity(0))
    if workers is None:
        workers = cores if len(cases) * num_jobs >= WORTH_A_PROCESS else 1
    workers = min(workers, len(cases))
    # Runs of the same jobs follow each other: a process keeps the jobs that it drew last.
    order = sorted(range(len(cases)), key=lambda index: _jobs_of(cases[index]))
    with progress(len(cases)) as advance:
        if workers <= 1:
            return _one_by_one(cases, names, order, advance)
        return _side_by_side(cases, names, order, workers, advance)


def _one_by_one(
    cases: Sequence[Case], names: Sequence[str], order: Sequence[int], advance: Callable[[], None]
) -> list[Outcome]:
    outcomes = {}
    for index in order:
        try:
            outcomes[index] = run_case(cases[index])
        except RotaError as error:
            raise _named(error, names[index]) from None
        advance()
    return [outcomes[index] for index in range(len(cases))]


def _side_by_side(
    cases: Sequence[Case],
    names: Sequence[str],
    order: Sequence[int],
    workers: int,
    advance: Callable[[], None],
) -> list[Outcome]:
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor, as_completed
    from concurrent.futures.process import BrokenProcessPool

    before = set(multiprocessing.active_children())
    # "spawn": a child shares nothing with this process but what it is sent.
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), _begin)
    try:
        with _deaf_to_interrupts():
            indices = {pool.submit(run_case, cases[index]): index for index in order}
        outcomes: list[Any] = [None] * len(cases)
        for future in as_completed(indices):
            index = indices[future]
            try:
                outcomes[index] = future.result()
            except BrokenProcessPool:
                raise SimulationError(
                    "a process that simulated was killed, perhaps for want of memory; "
                    "try fewer --workers"
                ) from None
            except RotaError as error:
                raise _named(error, names[index]) from None
            advance()
    except BaseException:
        # The rest is of no use any more, and must not go on by itself.
        for child in set(multiprocessing.active_children()) - before:
            child.terminate()
        pool.shutdown(wait=True, cancel_futures=True)
        raise
    pool.shutdown()
    return outcomes


@contextmanager
def _deaf_to_interrupts() -> Iterator[None]:
    """Processes that are started in here never see Ctrl-C; this one sees it afterwards."""
    import signal

    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin() -> None:
    """Begin a worker: it ends when its parent does, however that ends."""
    import multiprocessing
    import threading

    parent = multiprocessing.parent_process()

    def follow() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


def _jobs_of(case: Case) -> tuple[float, int, str]:
    """What a case's jobs depend on, as far as cases that run together differ in it."""
    return case.load, case.seed, case.cluster


def _named(error: RotaError, name: str) -> RotaError:
    return type(error)(f"{name}: {error}" if name else str(error))


@contextmanager
def progress(total: int) -> Iterator[Callable[[], None]]:
    """Gives what to call after each of ``total`` steps; draws a bar if stderr is a terminal."""
    if total < 2 or not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda: bar.advance(task)
