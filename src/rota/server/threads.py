"""Runs calls that take long beside the server's event loop."""

from collections.abc import Callable
from typing import Any, TypeVar

from starlette.concurrency import run_in_threadpool

from rota.errors import NO_THREAD

Answer = TypeVar("Answer")


async def in_thread(call: Callable[..., Answer], *arguments: Any) -> Answer:
    """The result of a call made in a thread; where no thread can be started, made at once."""
    try:
        return await run_in_threadpool(call, *arguments)
    except RuntimeError as error:
        if NO_THREAD not in str(error):
            raise
    return call(*arguments)
