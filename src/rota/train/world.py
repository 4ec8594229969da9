"""The ranks that train together: one process group after another, each a generation."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from rota.flow.connections import hang_up, open_sockets
from rota.live.wire import GANG_SECRET
from rota.train.cores import Cores

if TYPE_CHECKING:
    import torch

    from rota.train.meeting import MeetingPlace, MeetingStore

GROUP_TIMEOUT_S = 300.0  # validation on one rank keeps the others waiting; `ROTA_GROUP_TIMEOUT_S`
FORM_TIMEOUT_S = 15.0  # where ranks only meet or vote, none has a reason to be late; likewise
LOOPBACK = "127.0.0.1"
INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")  # where a group takes connections
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
        self._secret = os.environ.get(GANG_SECRET, "")
        self.address = LOOPBACK  # of this process, as ranks of the next generation find it
        self._store: MeetingStore | None = None
        self._places: list[MeetingPlace] = []  # those that this process has opened
        # Torch keeps no reference to a store that is written in Python.
        self._stores: list[MeetingStore] = []
        self._connections: dict[int, str] = {}
        self.hosts = frozenset(filter(None, os.environ.get("ROTA_HOSTS", "").split(",")))
        self._chosen = len(self.hosts) < 2 and any(name in os.environ for name in INTERFACES)

    def open(self, device: torch.device) -> None:
        """Join the first generation, that of the environment, unless the program has done so."""
        import torch.distributed as dist

        timeout = timedelta(seconds=self.timeout_s)
        if dist.is_initialized():
            return
        if self.size == 1:  # it has nobody to meet: no port is opened
            self._init(device, store=dist.HashStore(), rank=0, world_size=1, timeout=timeout)
            return
        if not self._is_of_agent():
            self._init(device, timeout=timeout)
            return
        address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        if self.rank == 0:
            self._open_place(*address)
        store = self._find(address, lambda: False, self.timeout_s)
        meeting = dist.PrefixStore("generation0", store)
        place = {"rank": self.rank, "world_size": self.size, "timeout": timeout}
        self._init(device, store=meeting, **place)

    def _is_of_agent(self) -> bool:
        """True if the agent has started the ranks, and no launcher that has a store of its own."""
        own = all(
            os.environ.get(f"MASTER_{key}") == os.environ.get(f"ROTA_MASTER_{key}")
            for key in ("ADDR", "PORT")
        )
        return bool(self._secret) and own and "TORCHELASTIC_RUN_ID" not in os.environ

    def host(self) -> int:
        """Open the meeting place of the next generation at this process's address; its port."""
        place = self._open_place(self.address, 0)
        self._store = self._find((self.address, place.port), lambda: False, self.form_timeout_s)
        return place.port

    def _open_place(self, address: str, port: int) -> MeetingPlace:
        from rota.train.meeting import MeetingPlace

        self._places.append(MeetingPlace(address, port, self._secret))
        return self._places[-1]

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
        for place in self._places[: -1 if rank == 0 else None]:
            place.close()
        del self._places[: -1 if rank == 0 else None]
        del self._stores[:-1]
        timeout = timedelta(seconds=self.form_timeout_s)
        store = self._store
        if rank != 0 or store is None:
            store = self._store = self._find(address, given_up, self.form_timeout_s)
        meeting = PrefixStore(f"generation{generation}", store)
        self._meet(meeting, rank, size, given_up)
        self._init(device, store=meeting, rank=rank, world_size=size, timeout=timeout)
        self.generation, self.rank, self.size = generation, rank, size
        self._allow(self.timeout_s)

    def _find(
        self, address: tuple[str, int], given_up: Callable[[], bool], patience_s: float
    ) -> MeetingStore:
        """The meeting place that rank 0 has opened, unless it is gone already."""
        from torch.distributed import DistNetworkError

        from rota.train.meeting import MeetingStore

        deadline, why = time.monotonic() + patience_s, ""
        while not given_up() and time.monotonic() < deadline:
            try:
                store = MeetingStore(address, self._secret, timedelta(seconds=patience_s))
            except (OSError, DistNetworkError) as error:
                why = f": {error}"
                time.sleep(LOOK_EVERY_S)
                continue
            self._stores.append(store)
            return store
        raise RuntimeError(f"there is no meeting place: rank 0 is gone{why}")

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

        self._listen_where_needed()
        if device.type == "cuda":
            # NCCL's watchdog would ask the store each second whether others have dumped what they
            # know: a thread without Python's lock must not ask one that is written in Python.
            os.environ.setdefault("TORCH_NCCL_DUMP_ON_TIMEOUT", "0")
        if device.type == "cuda" and "ROTA_MAX_WORLD" in os.environ:
            # A lost peer is to be an exception in the operation that waits for it. By default
            # NCCL's watchdog ends the whole process then.
            os.environ.setdefault("TORCH_NCCL_BLOCKING_WAIT", "1")
            os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
        before = open_sockets()
        dist.init_process_group(_backend(device), **options)
        self._connections.clear()
        self._note(before)

    def _listen_where_needed(self) -> None:
        """Have the ranks take each other's connections where they need to, and nowhere else.

        By default gloo listens where this host's name leads: often 127.0.1.1, or the whole network.
        """
        interface = "lo" if len(self.hosts) < 2 else os.environ.get("ROTA_INTERFACE")
        if interface is not None and not (self._chosen and interface == "lo"):
            os.environ.update(dict.fromkeys(INTERFACES, interface))

    def _note(self, before: dict[int, str]) -> None:
        """Note the connections that were not there before."""
        self._connections |= {
            descriptor: name
            for descriptor, name in open_sockets().items()
            if before.get(descriptor) != name
        }


def _backend(device: torch.device) -> str:
    return "nccl" if device.type == "cuda" else "gloo"
