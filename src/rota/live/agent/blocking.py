"""Calls that take long, in threads apart from the agent's loop."""

import asyncio
from collections.abc import Callable
from typing import Any


async def to_its_end(call: Callable[..., object], *arguments: Any) -> None:
    """Call a function in a thread, and wait for its return even if cancelled meanwhile."""
    task = asyncio.ensure_future(asyncio.to_thread(call, *arguments))
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise
