"""Ranks for tests of what processes do together: forked once, they run one case after another.

A case is a function of a module, called on each rank within a process group on gloo.
"""

import importlib
import os
import pickle
import sys
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from subprocess import Popen
from typing import Any

TIMEOUT_S = 120.0


class Ranks:
    """Processes that run cases together; see :func:`ranks`."""

    def __init__(self, connections: list[Connection], pids: list[int], folder: Path) -> None:
        self.pids = pids
        self._connections = connections
        self._folder = folder
        self._number = 0

    def run(self, world: int, module: str, function: str, *args: Any) -> list[Any]:
        """What ``function(*args)`` of a module gives on each of ``world`` ranks.

        Raises AssertionError with the tracebacks of ranks that raised something.
        """
        self.begin(world, module, function, *args)
        found = [self.answer(rank) for rank in range(world)]
        failures = [f"rank {rank}: {text}" for rank, (text, _) in enumerate(found) if text]
        assert not failures, "\n".join(failures)
        return [result for _, result in found]

    def begin(self, world: int, module: str, function: str, *args: Any) -> None:
        """Start a case on ``world`` ranks; see :meth:`answer`."""
        self._number += 1
        store = str(self._folder / f"store{self._number}")
        for rank in range(world):
            self._connections[rank].send((module, function, args, store, rank, world))

    def answer(self, rank: int) -> tuple[str | None, Any]:
        """The traceback of what the case raised on a rank, or None; and what it gave."""
        assert self._connections[rank].poll(TIMEOUT_S), f"rank {rank} does not answer"
        answer: tuple[str | None, Any] = pickle.loads(self._connections[rank].recv_bytes())
        return answer


@contextmanager
def ranks(number: int, *modules: str) -> Iterator[Ranks]:
    """So many processes, which end with the context; ``modules`` are loaded before they fork."""
    with tempfile.TemporaryDirectory() as folder:
        pairs = [Pipe() for _ in range(number + 1)]
        theirs = [their.fileno() for _, their in pairs]
        command = [sys.executable, __file__, ",".join(modules), *map(str, theirs)]
        # A rank whose case is over at once would close connections that others still make.
        environment = os.environ | {"OMP_NUM_THREADS": "1", "TORCH_DIST_INIT_BARRIER": "1"}
        process = Popen(command, pass_fds=theirs, env=environment)
        try:
            for _, their in pairs:
                their.close()
            mine = [own for own, _ in pairs]
            pids = mine[-1].recv()
            yield Ranks(mine[:-1], pids, Path(folder))
        finally:
            for own, _ in pairs:
                own.close()
            process.wait(60)


def _main() -> None:
    """Load torch, fork the ranks, and wait for their ends."""
    import torch

    torch.set_num_threads(1)
    import torch._dynamo  # as torch's optimisers do: it takes seconds
    import torch.distributed

    sys.path.insert(0, str(Path(__file__).parents[1]))
    for module in filter(None, sys.argv[1].split(",")):
        importlib.import_module(module)
    connections = [Connection(int(number)) for number in sys.argv[2:]]
    *each, parent = connections
    children = []
    for own in each:
        pid = os.fork()
        if not pid:
            for other in connections:
                if other is not own:
                    other.close()
            _serve(own)
            os._exit(0)
        children.append(pid)
    parent.send(children)
    for other in each:
        other.close()
    for pid in children:
        os.waitpid(pid, 0)


def _serve(connection: Connection) -> None:
    import torch.distributed as dist

    while True:
        try:
            module, function, args, store, rank, world = connection.recv()
        except EOFError:
            return
        try:
            dist.init_process_group(
                "gloo", init_method=f"file://{store}", rank=rank, world_size=world
            )
            try:
                answer = (None, getattr(importlib.import_module(module), function)(*args))
            finally:
                if dist.is_initialized():  # a session leaves it by itself
                    dist.destroy_process_group()
        except BaseException:
            answer = (traceback.format_exc(), None)
        # As ``send`` does not: tensors would be shared through a server of this process.
        connection.send_bytes(pickle.dumps(answer))


if __name__ == "__main__":
    _main()
