"""What CUDA offers to keep a background apart: events, and a bound of its memory.

Events and the bound of memory were tried on a GPU; the rest follows the documentation of torch and
of the CUDA Multi-Process Service.
The priority of a stream counts within one process. Between processes kernels take turns by time
slices, unless a daemon of MPS runs: then a client has a priority and a part of the processors, both
fixed when it starts. Without MPS a piece that was launched can't be held back, so that the gate
lets a background have one piece on the device, told by an event, and the next one after that.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


class EventPieces:
    """The pieces of one stream, each told by the event behind it."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._events: deque[torch.cuda.Event] = deque()

    def launched(self) -> None:
        """All that was launched until now is one more piece."""
        import torch

        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self._device))
        self._events.append(event)

    def over(self) -> int:
        """How many pieces have ended since the last call; it does not wait for the device."""
        count = 0
        while self._events and self._events[0].query():
            self._events.popleft()
            count += 1
        return count


def bound_memory(device: torch.device, *, bytes_at_most: int) -> float:
    """Let torch's allocator have so much, so that the background runs out of memory first.

    Returns the fraction of the device that this is, at most 1. The context itself, some hundreds of
    MiB, comes on top.
    """
    import torch

    total = torch.cuda.get_device_properties(device).total_memory
    fraction = min(1.0, max(0, bytes_at_most) / total)
    torch.cuda.set_per_process_memory_fraction(fraction, device)
    return fraction
