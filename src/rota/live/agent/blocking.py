"""Calls that take their time, out of the way of the agent's own."""

import asyncio
from collections.abc import Callable
from typing import Any


async def to_its_end(call: Callable[..., object], *arguments: Any) -> None:
    """Call something in a thread; it has returned before a cancellation goes on."""
    task = asyncio.ensure_future(asyncio.to_thread(call, *arguments))
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise
