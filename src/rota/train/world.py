"""The ranks that train together: one process group after another, each a generation."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from rota.flow.connections import hang_up, open_sockets
from rota.train.cores import Cores

if TYPE_CHECKING:
    import torch

GROUP_TIMEOUT_S = 300.0  # validation on one rank keeps the others waiting; `ROTA_GROUP_TIMEOUT_S`
FORM_TIMEOUT_S = 15.0  # where ranks only meet or vote, none has a reason to be late; likewise
FIND_TIMEOUT = timedelta(seconds=1)
LOOK_EVERY_S = 0.002  # checks for the agent's messages while waiting for others


class World:
    """The process group that this process is in now. ``rank`` and ``size`` change by generation."""

    def __init__(self) -> None:
        self.rank = int(os.environ.get("RANK", "0"))
        self.size = int(os.environ.get("WORLD_SIZE", "1"))
        self.generation = int(os.environ.get("ROTA_GENERATION", "0"))
        self.cores = Cores()
        self.timeout_s = float(os.environ.get("ROTA_GROUP_TIMEOUT_S", GROUP_TIMEOUT_S))
        self.form_timeout_s = float(os.environ.get("ROTA_FORM_TIMEOUT_S", FORM_TIMEOUT_S))
        self._store: torch.distributed.TCPStore | None = None
        self._connections: dict[int, str] = {}
        self.hosts = frozenset(filter(None, os.environ.get("ROTA_HOSTS", "").split(",")))

    def open(self, device: torch.device) -> None:
        """Join the first generation, that of the environment, unless the program has done so."""
        import torch.distributed as dist

        if not dist.is_initialized():
            self._init(device, timeout=timedelta(seconds=self.timeout_s))

    def host(self) -> int:
        """Open the meeting place of the next generation; its port."""
        from torch.distributed import TCPStore

        self._store = TCPStore(
            "127.0.0.1", 0, None, is_master=True, wait_for_workers=False, use_libuv=True
        )
        return int(self._store.port)

    def form(
        self,
        generation: int,
        rank: int,
        size: int,
        address: tuple[str, int],
        device: torch.device,
        given_up: Callable[[], bool],
    ) -> None:
        """Leave the group of before, and meet the others of the next generation.

        Rank 0 has called :meth:`host`; ``address`` is where the others find it. Raises RuntimeError
        if they do not all come in time, or if it is ``given_up`` meanwhile.
        """
        from torch.distributed import PrefixStore

        self.leave()
        if len(self.hosts) > 1 and (interface := os.environ.get("ROTA_INTERFACE")):
            # By default gloo listens where this host's name leads, often to 127.0.1.1.
            os.environ["GLOO_SOCKET_IFNAME"] = os.environ["NCCL_SOCKET_IFNAME"] = interface
        timeout = timedelta(seconds=self.form_timeout_s)
        store = self._store
        if rank != 0 or store is None:
            store = self._store = self._find(address, given_up)
        meeting = PrefixStore(f"generation{generation}", store)
        self._meet(meeting, rank, size, given_up)
        self._init(device, store=meeting, rank=rank, world_size=size, timeout=timeout)
        self.generation, self.rank, self.size = generation, rank, size
        self._allow(self.timeout_s)

    def _find(
        self, address: tuple[str, int], given_up: Callable[[], bool]
    ) -> torch.distributed.TCPStore:
        """The meeting place that rank 0 has opened, unless it is gone already."""
        from torch.distributed import DistNetworkError, TCPStore

        deadline = time.monotonic() + self.form_timeout_s
        while not given_up() and time.monotonic() < deadline:
            try:  # torch would go on looking for a store that is gone, and complain at length
                socket.create_connection(address, timeout=self.form_timeout_s).close()
                store = TCPStore(
                    *address, None, is_master=False, wait_for_workers=False, timeout=FIND_TIMEOUT
                )
            except (OSError, DistNetworkError):
                time.sleep(LOOK_EVERY_S)
                continue
            store.set_timeout(timedelta(seconds=self.form_timeout_s))
            return store
        raise RuntimeError("there is no meeting place: rank 0 is gone")

    def _meet(
        self, store: torch.distributed.Store, rank: int, size: int, given_up: Callable[[], bool]
    ) -> None:
        """Wait until all are there: after that, forming a group takes milliseconds."""
        store.set(f"here{rank}", "")
        others = [f"here{each}" for each in range(size)]
        deadline = time.monotonic() + self.form_timeout_s
        while not given_up() and time.monotonic() < deadline:
            if store.check(others):
                return
            time.sleep(LOOK_EVERY_S)
        raise RuntimeError("not all of the ranks came to the meeting place")

    def _allow(self, seconds: float) -> None:
        """Let operations of the group take so long from now on."""
        from torch.distributed.distributed_c10d import _set_pg_timeout

        _set_pg_timeout(timedelta(seconds=seconds))

    def open_alone(self, device: torch.device) -> None:
        """A group of this process alone, for a newcomer that has not met the others."""
        import torch.distributed as dist

        dist.init_process_group(_backend(device), store=dist.HashStore(), rank=0, world_size=1)

    def stand_alone(self, device: torch.device) -> None:
        """A group of this process alone, which has left the others and is not their first."""
        self.leave()
        self.open_alone(device)
        self.rank, self.size = 1, 2

    def group(self, ranks: Sequence[int]) -> torch.distributed.ProcessGroup:
        """A group of some ranks of this one, all of which call it; it ends with this one.

        With NCCL, its kernels run before those of other streams. Raises RuntimeError.
        """
        import torch.distributed as dist
        from torch.distributed.distributed_c10d import _set_pg_timeout

        options: Any = None
        if dist.get_backend() == "nccl":
            options = dist.ProcessGroupNCCL.Options(is_high_priority_stream=True)
        before = open_sockets()
        forming = timedelta(seconds=self.form_timeout_s)
        made = dist.new_group(list(ranks), timeout=forming, pg_options=options)
        self._note(before)
        if dist.get_rank() in ranks:
            _set_pg_timeout(timedelta(seconds=self.timeout_s), made)
        return made

    def agree(self, yes: bool, *, at_once: bool) -> bool:
        """True if all ranks of the group say yes. Raises RuntimeError if the group fails.

        ``at_once``: all are about to vote, and need not wait long for each other.
        """
        if self.size == 1:
            return yes
        import torch
        import torch.distributed as dist

        device = "cuda" if dist.get_backend() == "nccl" else "cpu"
        votes = torch.tensor([1 if yes else 0], device=device)
        if at_once:
            self._allow(self.form_timeout_s)
        dist.all_reduce(votes, dist.ReduceOp.MIN)
        self._allow(self.timeout_s)
        return bool(votes.item())

    def leave(self) -> None:
        """Close the process group if one is open."""
        import torch.distributed as dist
        from torch.distributed.distributed_c10d import _world

        if dist.is_initialized():
            dist.destroy_process_group()
        else:
            # Torch counts a group that failed while it was made, and puts the number into the keys
            # by which ranks find each other: one that has failed more often would find nobody.
            _world.group_count = 0
        self._connections.clear()

    def abandon(self) -> None:
        """Leave a group that is broken, so that all others in it notice at once."""
        import torch.distributed as dist
        from torch.distributed.distributed_c10d import _abort_process_group

        if dist.is_initialized() and dist.get_backend() == "nccl":
            _abort_process_group()  # its kernels wait for peers that may never answer
        for descriptor, name in self._connections.items():
            hang_up(descriptor, name, self.hosts)
        self.leave()

    def _init(self, device: torch.device, **options: Any) -> None:
        """Open a process group, and note its connections: gloo can't be told to close them.

        They stay open for as long as anything refers to the group, as DDP's reducer does.
        """
        import torch.distributed as dist

        if device.type == "cuda" and "ROTA_MAX_WORLD" in os.environ:
            # A lost peer is to be an exception in the operation that waits for it. By default
            # NCCL's watchdog ends the whole process then.
            os.environ.setdefault("TORCH_NCCL_BLOCKING_WAIT", "1")
            os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
        before = open_sockets()
        dist.init_process_group(_backend(device), **options)
        self._connections.clear()
        self._note(before)

    def _note(self, before: dict[int, str]) -> None:
        """Note the connections that were not there before."""
        self._connections |= {
            descriptor: name
            for descriptor, name in open_sockets().items()
            if before.get(descriptor) != name
        }


def _backend(device: torch.device) -> str:
    return "nccl" if device.type == "cuda" else "gloo"
