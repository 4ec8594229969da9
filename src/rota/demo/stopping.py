"""Stops the demo reliably on Ctrl-C or SIGTERM."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def stoppable() -> Iterator[Callable[[], None]]:
    """In this block SIGINT raises KeyboardInterrupt, and SIGTERM SystemExit, unless ignored.

    Yields a function that raises the exception again, if there was one. Call it now and then: an
    exception raised in a destructor or a callback of the garbage collection is printed and lost.
    """
    told: list[int] = []

    def check() -> None:
        if told:
            raise KeyboardInterrupt if told[0] == signal.SIGINT else SystemExit(128 + told[0])

    def stop(number: int, _: object) -> None:
        told.append(number)
        check()

    numbers = [
        number
        for number in (signal.SIGINT, signal.SIGTERM)
        if signal.getsignal(number) != signal.SIG_IGN
    ]
    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield check
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
