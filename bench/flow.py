"""What an operation of a program costs, by how it is dispatched.

    python bench/flow.py [--rounds 7]

One operation is a scalar addition, or a scalar all-reduce and an addition, on one worker and on
two. A client calls operations one by one and waits for each; calls them one by one and waits for
the last; runs them in programs of 128; runs 128 of them in one function. Beside: a plain loop of
as many processes (gloo), without any client; Ray's actors and compiled graphs, and Monarch's actor
meshes, where these are installed. All ways take turns in one process, round by round. Printed are
microseconds an operation (median of the rounds, quartiles), and how many times as long as the
plain loop's that is.

At last, for additions on 1 to 8 workers: the CPU time that an operation costs the client and each
worker, in calls and in programs, and the island where two programs take turns. The experiment
pathways-scale simulates more devices with these.
"""

import argparse
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import psutil
import torch
import torch.distributed as dist

from rota import flow

LENGTH = 128  # operations of a program, and of a fused function
CPU_WORKERS, CPU_CALLS = (1, 2, 4, 8), 800
PLAIN = "plain loop"
Way = Callable[[int], None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    for package in ("ray", "monarch"):
        if find_spec(package) is None:
            print(f"{package} is skipped: it is not installed")
    for workers in (1, 2):
        for name in OPERATIONS:
            with ExitStack() as stack:
                ways: dict[str, tuple[Way, int]] = {}
                for each in (flow_ways, plain_ways, ray_ways, monarch_ways):
                    ways |= stack.enter_context(each(workers, name))
                show(f"{name}, {workers} worker{'s'[: workers > 1]}", measured(ways, rounds))
    show_cpu_times()


def measured(ways: dict[str, tuple[Way, int]], rounds: int) -> dict[str, list[float]]:
    """Seconds an operation in each round; the first one, in which all warms up, does not count."""
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name in list(ways) if number % 2 else list(reversed(ways)):
            way, count = ways[name]
            began_s = time.perf_counter()
            way(count)
            if number:
                taken[name].append((time.perf_counter() - began_s) / count)
    return taken


def show(title: str, taken: dict[str, list[float]]) -> None:
    print(f"\n{title:40} {'us':>8}  {'quartiles':>16}  {'x plain loop':>12}")
    for name, seconds in taken.items():
        low, middle, high = (1e6 * each for each in quantiles(seconds, n=4, method="inclusive"))
        pairs = zip(seconds, taken[PLAIN], strict=True)
        times = median(one / plain for one, plain in pairs)
        print(f"{name:40} {middle:8.1f}  {low:7.1f} {high:8.1f}  {times:12.2f}")


def show_cpu_times() -> None:
    """Print CPU times by number of workers; of two cores, these don't depend on who has them."""
    print(f"\n{'CPU microseconds':32}", *(f"{workers:>8}" for workers in CPU_WORKERS))
    columns = [cpu_times(workers) for workers in CPU_WORKERS]
    for name in columns[0]:
        print(f"{name:32}", *(f"{column[name]:8.1f}" for column in columns))


def cpu_times(workers: int) -> dict[str, float]:
    """CPU microseconds of additions on so many workers, by who spends them on what."""
    found = {}
    with flow.LocalIsland(workers) as island:
        members = psutil.Process().children(recursive=True)  # the island's own
        with island.connect(devices=list(range(workers))) as client:
            call, program, x = added(client)
            hands = [p for p in psutil.Process().children(recursive=True) if p not in members]
            own, theirs = spent(lambda: call(x), client.wait, CPU_CALLS, hands)
            found["client, a call"], found["a worker, a call"] = own, theirs / workers
            own, theirs = spent(lambda: program(x), client.wait, CPU_CALLS // 16, hands)
            found[f"client, a program of {LENGTH}"] = own
            found["a worker, one of its operations"] = theirs / workers / LENGTH
            with island.connect(devices=list(range(workers))) as other:
                _, others, y = added(other)

                def both() -> None:
                    program(x), others(y)

                def wait() -> None:
                    client.wait(), other.wait()

                _, theirs = spent(both, wait, CPU_CALLS // 16, members)
                found["island, an operation of two"] = theirs / LENGTH / 2
    return found


def added(client: flow.Client) -> tuple[Any, Any, Any]:
    """Additions on all devices of a client: one, a program of them, and what they begin with."""
    where = client.slice(len(client.devices))
    call = where.function(add, out=flow.Replicated())
    program = client.program(lambda x: flow.repeat(LENGTH, call, x))
    start = where.put(torch.zeros(1))
    call(start), program(start)
    client.wait()
    return call, program, start


def spent(
    body: Callable[[], Any], wait: Callable[[], Any], count: int, others: list[psutil.Process]
) -> tuple[float, float]:
    """CPU microseconds that a call costs this process, and all these others."""

    def theirs_s() -> float:
        return sum(sum(process.cpu_times()[:2]) for process in others)

    before_s, own_s = theirs_s(), 0.0
    for _ in range(5):
        began_s = time.process_time()
        for _ in range(count):
            body()
        own_s += time.process_time() - began_s
        wait()
    return 1e6 * own_s / (5 * count), 1e6 * (theirs_s() - before_s) / (5 * count)


# -- operations ------------------------------------------------------------------------------------


def add(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def add_often(x: torch.Tensor) -> torch.Tensor:
    for _ in range(LENGTH):
        x = add(x)
    return x


def reduce_and_add(x: torch.Tensor) -> torch.Tensor:
    return reduced(x, flow.shard().group)


def reduce_and_add_often(x: torch.Tensor) -> torch.Tensor:
    for _ in range(LENGTH):
        x = reduce_and_add(x)
    return x


def reduced(x: torch.Tensor, group: dist.ProcessGroup | None) -> torch.Tensor:
    x = x.clone()
    dist.all_reduce(x, dist.ReduceOp.MAX, group=group)
    return x + 1


OPERATIONS = {
    "addition": (add, add_often),
    "all-reduce and addition": (reduce_and_add, reduce_and_add_often),
}


# -- ways ------------------------------------------------------------------------------------------


@contextmanager
def flow_ways(workers: int, name: str) -> Iterator[dict[str, tuple[Way, int]]]:
    one, often = OPERATIONS[name]
    with flow.local(workers) as client:
        where = client.slice(workers)
        call, fused = (where.function(each, out=flow.Replicated()) for each in (one, often))
        chain = client.program(lambda x: flow.repeat(LENGTH, call, x))
        start = where.put(torch.zeros(1))

        def sequential(count: int) -> None:
            x = start
            for _ in range(count):
                x = call(x)
                x.result()

        def repeated(function: Callable[[Any], Any], operations: int) -> Way:
            def run(count: int) -> None:
                x = start
                for _ in range(count // operations):
                    x = function(x)
                x.result()

            return run

        yield {
            "one by one, waiting for each": (sequential, LENGTH),
            "one by one, waiting for the last": (repeated(call, 1), 4 * LENGTH),
            f"programs of {LENGTH}": (repeated(chain, LENGTH), 8 * LENGTH),
            f"{LENGTH} in one function": (repeated(fused, LENGTH), 8 * LENGTH),
        }


@contextmanager
def plain_ways(workers: int, name: str) -> Iterator[dict[str, tuple[Way, int]]]:
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="rota-") as folder:
        pipes, processes = [], []
        for rank in range(workers):
            ours, theirs = context.Pipe()
            given = (theirs, rank, workers, str(Path(folder) / "meeting"), name)
            processes.append(context.Process(target=plain_loop, args=given, daemon=True))
            processes[-1].start()
            pipes.append(ours)

        def run(count: int) -> None:
            for each in pipes:
                each.send(count)
            for each in pipes:
                each.recv()

        yield {PLAIN: (run, 8 * LENGTH)}
        for each in pipes:
            each.send(0)
        for process in processes:
            process.join()


def plain_loop(told: Connection, rank: int, size: int, meeting: str, name: str) -> None:
    """In a process of its own: so many operations whenever a number comes, until it is 0."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=size)
    while count := told.recv():
        x = torch.zeros(1)
        for _ in range(count):
            x = add(x) if name == "addition" else reduced(x, None)
        told.send(x.item())
    dist.destroy_process_group()


@contextmanager
def ray_ways(workers: int, name: str) -> Iterator[dict[str, tuple[Way, int]]]:
    if find_spec("ray") is None:
        yield {}
        return
    import ray

    ray.init(num_cpus=workers, include_dashboard=False, log_to_driver=False)
    with tempfile.TemporaryDirectory(prefix="rota-") as folder:
        meeting = f"file://{folder}/meeting"
        actors = [ray.remote(RayActor).remote(name) for _ in range(workers)]
        ray.get([a.meet.remote(meeting, rank, workers) for rank, a in enumerate(actors)])

        def sequential(count: int) -> None:
            for _ in range(count):
                ray.get([each.run.remote() for each in actors])

        def outstanding(count: int) -> None:
            ray.get([each.run.remote() for _ in range(count) for each in actors])

        from ray.dag import InputNode, MultiOutputNode

        with InputNode() as given:
            graph = MultiOutputNode([each.run.bind(given) for each in actors])
        compiled = graph.experimental_compile()

        def by_graph(count: int) -> None:
            for _ in range(count):
                ray.get(compiled.execute(0))

        yield {
            "Ray's actors, waiting for each": (sequential, LENGTH),
            "Ray's actors, waiting for the last": (outstanding, 4 * LENGTH),
            "Ray's compiled graph, waiting for each": (by_graph, LENGTH),
        }
        compiled.teardown()
    ray.shutdown()


class RayActor:
    """Keeps the value itself, so that no tensor is sent."""

    def __init__(self, name: str) -> None:
        torch.set_num_threads(1)
        self.name, self.x = name, torch.zeros(1)

    def meet(self, meeting: str, rank: int, size: int) -> None:
        dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=size)

    def run(self, _: object = None) -> None:
        self.x = add(self.x) if self.name == "addition" else reduced(self.x, None)


@contextmanager
def monarch_ways(workers: int, name: str) -> Iterator[dict[str, tuple[Way, int]]]:
    if find_spec("monarch") is None:
        yield {}
        return
    from monarch.actor import Actor, current_rank, endpoint, this_host

    class MonarchActor(Actor):
        """Keeps the value itself."""

        def __init__(self, name: str) -> None:
            torch.set_num_threads(1)
            self.name, self.x = name, torch.zeros(1)

        @endpoint
        def meet(self, meeting: str, size: int) -> None:
            rank = current_rank().rank
            dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=size)

        @endpoint
        def run(self) -> None:
            self.x = add(self.x) if self.name == "addition" else reduced(self.x, None)

    with tempfile.TemporaryDirectory(prefix="rota-") as folder:
        processes = this_host().spawn_procs({"workers": workers})
        actors = processes.spawn("actors", MonarchActor, name)
        actors.meet.call(f"file://{folder}/meeting", workers).get()

        def sequential(count: int) -> None:
            for _ in range(count):
                actors.run.call().get()

        def outstanding(count: int) -> None:
            for each in [actors.run.call() for _ in range(count)]:
                each.get()

        yield {
            "Monarch's actors, waiting for each": (sequential, LENGTH),
            "Monarch's actors, waiting for the last": (outstanding, 4 * LENGTH),
        }
        processes.stop().get()


if __name__ == "__main__":
    main()
