"""What operations of programs cost on a GPU, for a program alone and for several that share it.

    python bench/flow_on_gpu.py [--rounds 5]

An operation is an addition of one number, or a product of matrices. A program alone waits for each
result, for the last of 200, or runs programs of 128 operations; beside them a plain loop of torch.
Then as many programs as said run programs of 128 products at once, each in workers of its own:
printed are the operations a second of all together, over those of one alone. Where a daemon of MPS
serves (CUDA_MPS_PIPE_DIRECTORY), it serves the workers. Figures are medians with minimum and
maximum.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path
from statistics import median

import torch

from rota import flow

LENGTH, CALLS = 128, 200
ROUND_S = 0.5
SIDES = (256, 1024, 4096)  # of the matrices: microseconds, tens of them, and milliseconds


def plus_one(x: torch.Tensor) -> torch.Tensor:
    """An operation that takes no time of its own."""
    return x + 1


def product(x: torch.Tensor) -> torch.Tensor:
    """An operation that takes as long as its matrix is large."""
    return (x @ x) / x.shape[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    here = str(Path(__file__).parent)
    os.environ["PYTHONPATH"] = os.pathsep.join([here, os.environ.get("PYTHONPATH", "")])
    show_alone(rounds)
    show_together(rounds)


def show_alone(rounds: int) -> None:
    """Microseconds an operation of one program."""
    with flow.local(1, kind="cuda") as client:
        one = client.slice(1)
        for name, side in (("plus_one", 1), *(("product", side) for side in SIDES)):
            function = one.function(f"flow_on_gpu:{name}")
            x = one.put(torch.ones(side, side))
            chain = client.program(_chain(function))
            chain(x)
            client.wait()

            def each(f: flow.Function = function, y: flow.ShardedBuffer = x) -> None:
                for _ in range(CALLS):
                    y = f(y)
                    client.wait()

            def last(f: flow.Function = function, y: flow.ShardedBuffer = x) -> None:
                for _ in range(CALLS):
                    y = f(y)
                client.wait()

            def programs(c: flow.Program = chain, y: flow.ShardedBuffer = x) -> None:
                for _ in range(4):
                    y = c(y)
                client.wait()

            def plain(name: str = name, side: int = side) -> None:
                y = torch.ones(side, side, device="cuda")
                for _ in range(CALLS):
                    y = globals()[name](y)
                torch.cuda.synchronize()

            print(f"\n{name}, {side} x {side}: microseconds an operation")
            for label, way, count in (
                ("one by one, waiting for each", each, CALLS),
                ("one by one, waiting for the last", last, CALLS),
                (f"programs of {LENGTH}", programs, 4 * LENGTH),
                ("plain loop", plain, CALLS),
            ):
                print(f"{label:<36}{spread([1e6 * s / count for s in seconds(way, rounds)])}")


def show_together(rounds: int) -> None:
    """Operations a second of several programs at once, over those of one."""
    served = "CUDA_MPS_PIPE_DIRECTORY" in os.environ
    print(f"\nprograms that share the GPU, {'by' if served else 'without'} MPS")
    print(f"{'':12}{'one alone, us an operation':>32}{'2 together':>24}{'4 together':>24}")
    with flow.LocalIsland(1, kind="cuda") as island:
        for side in SIDES:
            alone = together(island.folder, 1, side, rounds)
            line = f"{side:>5} x {side:<5}" + f"{spread([1e6 / each for each in alone]):>32}"
            for programs in (2, 4):
                all_of = together(island.folder, programs, side, rounds)
                line += f"{spread([each / median(alone) for each in all_of], 2):>24}"
            print(line, flush=True)


def together(island: Path, programs: int, side: int, rounds: int) -> list[float]:
    """Operations a second of so many programs, while all of them run; by round."""
    context = multiprocessing.get_context("spawn")
    start, found = context.Barrier(programs), context.Queue()
    running = [
        context.Process(target=run, args=(island, side, rounds, start, found))
        for _ in range(programs)
    ]
    for each in running:
        each.start()
    rates = [found.get(timeout=120) for _ in running]
    for each in running:
        each.join()
    return [sum(of_round) for of_round in zip(*rates, strict=True)]


def run(island: Path, side: int, rounds: int, start: Barrier, found: Queue[list[float]]) -> None:
    """Be one of the programs, and tell how many operations it had a second, by round."""
    with flow.connect(island) as client:
        one, rates = client.slice(1), []
        chain = client.program(_chain(one.function("flow_on_gpu:product")))
        x = one.put(torch.ones(side, side))
        chain(x)
        client.wait()
        for _ in range(rounds):
            start.wait()
            began_s, done = time.perf_counter(), 0
            while time.perf_counter() < began_s + ROUND_S:
                chain(x)
                client.wait()
                done += LENGTH
            rates.append(done / (time.perf_counter() - began_s))
        found.put(rates)
        start.wait()


def _chain(function: flow.Function) -> Callable[[flow.ShardedBuffer], flow.ShardedBuffer]:
    def chain(x: flow.ShardedBuffer) -> flow.ShardedBuffer:
        for _ in range(LENGTH):
            x = function(x)
        return x

    return chain


def seconds(way: Callable[[], None], rounds: int) -> list[float]:
    """What each round takes, after one that does not count."""
    found = []
    for _ in range(rounds + 1):
        began_s = time.perf_counter()
        way()
        found.append(time.perf_counter() - began_s)
    return found[1:]


def spread(values: list[float], digits: int = 1) -> str:
    """Median, minimum and maximum."""
    low, high = min(values), max(values)
    return f"{median(values):.{digits}f} ({low:.{digits}f} .. {high:.{digits}f})"


if __name__ == "__main__":
    if not torch.cuda.is_available():
        sys.exit("there is no GPU here")
    main()
