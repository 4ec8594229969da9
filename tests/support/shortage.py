"""A process without descriptors or threads left, for a while."""

import contextlib
import os
import resource
import threading
from collections.abc import Iterator

import pytest

from rota.errors import NO_THREAD
from rota.live.wire.procfs import SPARE


@contextlib.contextmanager
def no_descriptors(left: int = 0) -> Iterator[None]:
    """Let this process open at most ``left`` more descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = [os.open(os.devnull, os.O_RDONLY) for _ in range(left + 1)]
    for descriptor in free:
        os.close(descriptor)
    most = free[-1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def keep_spare() -> None:
    """Have the spare descriptor be the lowest, so that a limit on those behind it leaves it."""
    if SPARE._descriptor >= 0:
        os.close(SPARE._descriptor)
        SPARE._descriptor = -1
    SPARE.keep()


def start_no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have each start of a thread fail as it does where no process may be started."""

    def fail(_: threading.Thread) -> None:
        raise RuntimeError(NO_THREAD)

    monkeypatch.setattr(threading.Thread, "start", fail)
