"""A rank's messages to its agent: its identity, progress, and the size of its model."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from rota.live.wire import METRICS, Message
from rota.train.link import Link
from rota.train.progress import Progress
from rota.train.world import World

if TYPE_CHECKING:
    from rota.burst.runtime.outlook import Planned


class Reports:
    """Messages of one session to the agent; without a link, none is sent."""

    def __init__(
        self,
        link: Link | None,
        world: World,
        progress: Progress,
        most_ranks: Callable[[], int | None],
    ) -> None:
        self._link = link
        self._world = world
        self._progress = progress
        self._most_ranks = most_ranks  # ranks that can share the program's batches, once known
        # How the agent calls this process, whatever its rank is.
        self._slot = int(os.environ.get("ROTA_SLOT", world.rank))
        self._seat: str | None = None  # the key of that by which it takes turns
        self._model: Message | None = None  # its size, and that of its largest tensor
        self._cycle: Message | None = None  # its device memory over a step
        self._planned: Message | None = None  # its plan by layer

    def introduce(self, **state: object) -> None:
        """Set the next connection's hello: the known facts, and ``state``."""
        if self._link is not None:
            self._link.introduce(self._hello() | state)

    def progress(self, *, must_arrive: bool = False) -> None:
        """Report progress; the report may be dropped for lack of room unless it must arrive."""
        if self._link is None:
            return
        message = self._progress.message()
        if must_arrive:
            self._link.send(message)
        elif not self._link.offer(message):
            return
        self._progress.sent()

    def last_progress(self) -> None:
        """Report the final progress; without an agent, to where the next agent will look."""
        message = self._progress.message()
        if self._link is None or self._link.send(message) or self._world.rank:
            return
        if (pulse := os.environ.get("ROTA_PULSE")) is not None:
            with contextlib.suppress(OSError), open(Path(pulse).with_name(METRICS), "a") as file:
                file.write(json.dumps(message) + "\n")

    def model(self, model_bytes: int, largest_tensor_bytes: int) -> None:
        """Report the size of all models together; an absent agent learns it by the next hello."""
        if self._link is None or not model_bytes:
            return
        self._model = {"model_bytes": model_bytes, "largest_tensor_bytes": largest_tensor_bytes}
        self.introduce()
        self._link.send({"type": "model", **self._model})

    def planned(self, planned: Planned) -> None:
        """Report a plan by layer; an absent agent learns it by the next hello."""
        if self._link is not None:
            self._planned = planned._asdict()
            self.introduce()
            self._link.send({"type": "planned", **self._planned})

    def seated(self, key: str | None) -> None:
        """Report the seat by which this rank takes turns from now on, or that it has none."""
        if self._link is not None:
            self._seat = key
            self.introduce()
            self._link.send({"type": "seated", "key": key})

    def memory(self, cycle: Message) -> None:
        """Report the least and the most device memory over a step."""
        if self._link is not None:
            self._cycle = cycle
            self.introduce()
            self._link.send({"type": "memory", **cycle})

    def tuned(self, answers: list[Message]) -> None:
        """Report the batches from now on, or the reason for which the wanted ones are refused."""
        for answer in answers:
            self.progress(must_arrive=True)
            if self._link is not None:
                self._link.send(answer)

    def loader(self) -> None:
        """Report that the job can be resized."""
        if self._link is not None:
            self.introduce()
            self._link.send({"type": "elastic", "shards": self._most_ranks()})

    def _hello(self) -> Message:
        return {
            "type": "hello",
            "job_id": os.environ.get("ROTA_JOB_ID"),
            "attempt": int(os.environ.get("ROTA_ATTEMPT", "0")),
            "rank": self._slot,
            "suspended": False,
            "step": self._progress.step,
            "total": self._progress.total,
            "generation": self._world.generation,
            "seat": self._seat,
            "model": self._model,
            "memory": self._cycle,
            "planned": self._planned,
            "shards": self._most_ranks(),
        }
