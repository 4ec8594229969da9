"""Links between the ranks of a group, measured with the collectives that a burst training uses.

Latency and bandwidth are the line of least squares through the times of messages of several sizes,
in which each counts by its share. The times are those of real processes: what a message costs their
CPUs is in them.
"""

import os
import sys
import tempfile
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from statistics import median
from subprocess import DEVNULL, PIPE, Popen, TimeoutExpired
from time import monotonic, perf_counter
from typing import Any

import numpy as np

from rota.errors import InputError
from rota.model.layer_graph import Network

SIZES_BYTES = (1 << 10, 1 << 14, 1 << 17, 1 << 19, 1 << 21, 1 << 23)
TIMES, ROUNDS = 5, 3
WAIT_S = 120.0


def measured_network(
    ranks: int,
    *,
    backend: str = "gloo",
    threads: int = 1,
    sizes_bytes: Sequence[int] = SIZES_BYTES,
    wait_s: float = WAIT_S,
) -> Network:
    """The links among ``ranks`` processes of this machine, each with ``threads`` threads.

    Messages are sent by ``all_to_all_single``, as the runtime re-shards, sums are ``all_reduce``.
    With ``backend="nccl"`` each rank has a GPU of its own. Raises InputError for fewer than two
    ranks, for more than there are GPUs, or if the ranks fail or take longer than ``wait_s``.
    """
    _check(ranks, backend)
    with tempfile.TemporaryDirectory(prefix="rota-links-") as folder:
        arguments = [backend, str(threads), str(ranks), str(Path(folder) / "meeting")]
        sizes = ",".join(map(str, sizes_bytes))
        processes = [
            Popen(
                [sys.executable, "-m", "rota.burst.layers.network", *arguments, str(rank), sizes],
                stdin=DEVNULL,
                stdout=PIPE if rank == 0 else DEVNULL,
                stderr=PIPE,
                text=True,
                env=os.environ | {"OMP_NUM_THREADS": str(threads)},
            )
            for rank in range(ranks)
        ]
        told = _awaited(processes, wait_s)
    rows = [tuple(map(float, line.split())) for line in told.splitlines()]
    sizes_held, sent, reduced = (np.array(column) for column in zip(*rows, strict=True))
    latency_s, bandwidth = line_through(sizes_held, sent)
    ring = 2.0 * (ranks - 1) / ranks
    reduce_latency_s, reduce_bandwidth = line_through(ring * sizes_held, reduced)
    return Network(bandwidth, latency_s, reduce_bandwidth, reduce_latency_s)


def line_through(sizes_bytes: Any, seconds: Any) -> tuple[float, float]:
    """Latency in s and bandwidth in bytes/s of messages: least squares of the relative errors.

    No latency is below 0; no bandwidth is measured where larger messages take no longer, and the
    largest one stands for it then.
    """
    sizes, seconds = np.asarray(sizes_bytes, float), np.asarray(seconds, float)
    weights = 1.0 / seconds
    columns = np.stack([np.ones_like(sizes), sizes], axis=1) * weights[:, None]
    (latency, each), *_ = np.linalg.lstsq(columns, seconds * weights, rcond=None)
    if latency < 0.0:
        latency, each = 0.0, _through_origin(sizes, seconds)
    if each <= 0.0:
        latency, each = float(seconds.min()), seconds[-1] / sizes[-1]
    return float(latency), float(1.0 / each)


def _through_origin(sizes: Any, seconds: Any) -> float:
    relative = sizes / seconds
    return float(relative.sum() / (relative * relative).sum())


def _check(ranks: int, backend: str) -> None:
    if ranks < 2:
        raise InputError(f"ranks is {ranks}; links are measured between 2 or more")
    if backend == "nccl":
        import torch

        if torch.cuda.device_count() < ranks:
            raise InputError(
                f"ranks is {ranks} and there are {torch.cuda.device_count()} GPUs; NCCL needs one "
                "for each rank"
            )
    elif backend != "gloo":
        raise InputError(f"backend is {backend!r}; it is gloo or nccl")


def _awaited(processes: list[Popen[str]], wait_s: float) -> str:
    """What rank 0 printed. Ends all ranks; raises InputError with the words of one that failed."""
    ends_s = monotonic() + wait_s
    told = ""
    try:
        for rank, process in enumerate(processes):
            out, words = process.communicate(timeout=max(0.1, ends_s - monotonic()))
            if process.returncode:
                last = (words.strip().splitlines() or ["it said nothing"])[-1]
                raise InputError(f"measuring links: rank {rank} failed: {last}")
            told = told or out or ""
    except TimeoutExpired:
        raise InputError(
            f"measuring links: the ranks were not done after {wait_s:g} s; measure on a machine "
            "that is idle, or leave --ranks out"
        ) from None
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    return told


def _rank(backend: str, threads: int, ranks: int, meeting: str, rank: int, sizes: str) -> None:
    """One rank: all run the same exchanges; rank 0 prints sizes and seconds."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(threads)
    device = torch.device("cpu")
    if backend == "nccl":
        device = torch.device("cuda", rank)
        torch.cuda.set_device(device)
    dist.init_process_group(
        backend,
        init_method=f"file://{meeting}",
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=WAIT_S),
    )
    none = [0] * ranks
    for size in map(int, sizes.split(",")):
        part = max(1, size // 4 // (ranks - 1))
        to_others = [0] + [part] * (ranks - 1)
        to_first = [part] + [0] * (ranks - 1)
        held = torch.ones(part * (ranks - 1 if rank == 0 else 1), device=device)
        lengths = to_others if rank == 0 else to_first

        def there_and_back(held: Any = held, lengths: list[int] = lengths) -> None:
            """Rank 0 cuts its samples among the others, and has them back."""
            one_way, other_way = (held[:0], held), (held, held[:0])
            first, second = (none, lengths), (lengths, none)
            if rank:
                one_way, other_way, first, second = other_way, one_way, second, first
            dist.all_to_all_single(*one_way, *first)
            dist.all_to_all_single(*other_way, *second)

        moved = _least(there_and_back, device) / 2.0
        gradients = torch.ones(size // 4, device=device)
        reduced = _least(lambda held=gradients: dist.all_reduce(held), device)
        if rank == 0:
            print(size, moved, reduced, flush=True)
    dist.destroy_process_group()


def _least(act: Any, device: Any) -> float:
    """Seconds of what all ranks do: the least of the medians of rounds."""
    import torch
    import torch.distributed as dist

    medians = []
    for _ in range(ROUNDS):
        dist.barrier()
        act()
        found = []
        for _ in range(TIMES):
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            began = perf_counter()
            act()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            found.append(perf_counter() - began)
        medians.append(median(found))
    return min(medians)


if __name__ == "__main__":
    name, threads, ranks, meeting, rank, sizes = sys.argv[1:]
    _rank(name, int(threads), int(ranks), meeting, int(rank), sizes)
