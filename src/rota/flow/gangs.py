"""The process group of a slice, as one of its workers has it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

from rota.errors import FlowError
from rota.flow.accelerator import Accelerator
from rota.flow.connections import hang_up, open_sockets
from rota.flow.functions import Shard, drop_group, group_from

TIMEOUT = timedelta(seconds=300)
LOOK_EVERY_S = 0.05  # while the others have not come


class Gang:
    """The workers in ``slots``, those of a slice, of which this one is ``rank``.

    They meet at their first operation, and again after :meth:`part`, in another file for each of
    their ``moves`` to other devices; the names begin with ``meeting``, and nobody has made the
    files. ``lost`` says whether one of them has ended; ``losses`` is as in
    :meth:`rota.flow.page.Page.has_lost`.
    """

    def __init__(
        self,
        rank: int,
        slots: Sequence[int],
        meeting: Path,
        lost: Callable[[], bool],
        on: Accelerator,
        moves: Callable[[], int],
        losses: int = 0,
    ) -> None:
        self.rank, self.slots, self.size, self.losses = rank, slots, len(slots), losses
        self._meetings, self._lost, self._on, self._moves = meeting, lost, on, moves
        self._backend: Any = None
        self._shard = Shard(rank, 1) if self.size == 1 else None
        self._sockets: dict[int, str] = {}
        self._broken = False

    def shard(self) -> Shard:
        """The shard that functions are told. Waits for the others. Raises FlowError once broken."""
        if self._broken:
            raise FlowError(
                "an operation on this slice failed on one of its devices before, and its shards "
                "can't work together any more; call client.recover(), or make a new slice"
            )
        if self._shard is None:
            before = open_sockets()
            self._shard = Shard(self.rank, self.size, self._met())
            self._sockets = {k: v for k, v in open_sockets().items() if before.get(k) != v}
        return self._shard

    def _met(self) -> dist.ProcessGroup:
        """The group, once all have come. Raises FlowError if one never will."""
        groups: list[dist.ProcessGroup] = []
        problems: list[Exception] = []

        def meet() -> None:
            try:
                groups.append(self._meet())
            except Exception as problem:
                problems.append(problem)

        # A thread of its own, as nothing ends its waiting for one that has died.
        thread = threading.Thread(target=meet, daemon=True)
        thread.start()
        while not self._lost() and not self._called_off.exists():
            thread.join(LOOK_EVERY_S)
            if groups:
                return groups[0]
            if problems:
                self._called_off.touch()
                raise FlowError(f"the workers of this slice can't meet: {problems[0]}")
        raise FlowError("a worker of this slice has ended or failed before it met the others")

    def _meet(self) -> dist.ProcessGroup:
        store = dist.PrefixStore("slice", dist.FileStore(str(self._meeting), self.size))
        self._backend = self._on.group(store, self.rank, self.size, TIMEOUT)
        return group_from(self._backend, self.rank, self.size)

    def leave(self) -> None:
        """Hang up on the others, who get an error where they would wait for this worker."""
        if self.size == 1 or self._broken:
            return
        with contextlib.suppress(Exception):
            self.shard()  # who never came would keep the others waiting
        self._broken = True
        if self._backend is not None:
            self._on.hang_up(self._backend)
        for descriptor, name in self._sockets.items():
            hang_up(descriptor, name)

    @property
    def _meeting(self) -> Path:
        return self._meetings.with_name(f"{self._meetings.name}.{self._moves()}")

    @property
    def _called_off(self) -> Path:
        """It is there if one of them can't come."""
        return Path(f"{self._meeting}.off")

    def part(self) -> None:
        """Let go of a group that is of devices which its workers leave; they meet on others."""
        if self._shard is not None and self.size > 1 and not self._broken:
            drop_group(self._shard.group)
            self._shard = self._backend = None

    def end(self) -> None:
        """Let go of the group: its workers meet anew, as another gang."""
        if self._shard is not None and self.size > 1:
            drop_group(self._shard.group)
            self._shard, self._backend, self._broken = None, None, True
