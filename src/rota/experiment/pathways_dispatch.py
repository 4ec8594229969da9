"""The cost of gang operations called, chained and fused, against multi-controllers (live).

Figure 5 of Pathways (Barham et al., MLSys 2022) on the cores of one machine: a computation is an
all-reduce of a scalar and an addition, whose output the next one takes. *Operation by operation*
each is a call of the program's; *chained* 128 of them are one call; *fused* 128 of them are one
operation. Beside these stands a loop of multi-controllers: a plain process for each device, which
runs the same computations in a process group on gloo. All take turns in each repeat.

Published: fused and chained equal multi-controllers up to hundreds of cores; operation by operation
multi-controllers are far ahead of each single controller; programs are on a par with
multi-controllers from a computation of 2.3 ms on.
"""

import os
import tempfile
from pathlib import Path

from rota.experiment.base import Figure, Outcome, over_seeds, ratios
from rota.experiment.runs.programs import Script, asked, started

NAME = "pathways-dispatch"
SEEDS = [1, 2, 3, 4, 5]  # repeats
WORKERS = (1, 2, 4)
CHAIN = 128
BUSY_S = 0.001
MOST_OVER_FUSED = 1.1  # of a chained computation's time, fixed beforehand
LEAST_OF_LOOP = 0.95  # of the loop's computations a second, at 1 ms each
SEQUENTIAL, SINGLE = "one call after another's result", "operation by operation"
CHAINED, FUSED, BUSY = "chained", "fused", "chained, of 1 ms"

WORK = """
import os, sys, time
import torch, torch.distributed as dist
from rota import flow

def step(x, group, size):
    y = x.clone()
    dist.all_reduce(y, group=group)
    return y / size + 1

def busy(x, group, size):
    until = time.perf_counter() + float(os.environ["BUSY_S"])
    while time.perf_counter() < until:
        pass
    return step(x, group, size)

def single(x):
    return step(x, flow.shard().group, flow.shard().size)

def single_busy(x):
    return busy(x, flow.shard().group, flow.shard().size)

def fused(x):
    for _ in range(int(os.environ["CHAIN"])):
        x = single(x)
    return x

def timed(body, count):
    began = time.perf_counter()
    body(count)
    return (time.perf_counter() - began) / count
"""

CLIENT = """
import json, os, sys
import torch, work
from rota import flow

workers, chain = int(sys.argv[1]), int(os.environ["CHAIN"])
with flow.local(workers) as c:
    s = c.slice(workers)
    same = flow.Replicated()
    single = s.function(work.single, out=same)
    fused, busy = s.function(work.fused, out=same), s.function(work.single_busy, out=same)
    start = s.put(torch.zeros(()))
    chained = c.program(lambda x: flow.repeat(chain, single, x))
    chained_busy = c.program(lambda x: flow.repeat(chain, busy, x))

    def sequential(count):
        x = start
        for _ in range(count):
            x = single(x)
            x.result()

    def repeated(function, each):
        def body(count):
            x = start
            for _ in range(count // each):
                x = function(x)
            x.result()
        return body

    bodies = {
        "one call after another's result": (sequential, 256),
        "operation by operation": (repeated(single, 1), 8 * chain),
        "chained": (repeated(chained, chain), 8 * chain),
        "fused": (repeated(fused, chain), 8 * chain),
        "chained, of 1 ms": (repeated(chained_busy, chain), 3 * chain),
    }
    for body, _ in bodies.values():
        body(chain)
    for line in sys.stdin:
        told = {name: work.timed(body, count) for name, (body, count) in bodies.items()}
        print(json.dumps(told), flush=True)
"""

LOOP = """
import json, os, sys
import torch, torch.distributed as dist
import work

rank, size, chain = int(sys.argv[1]), int(sys.argv[2]), int(os.environ["CHAIN"])
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{sys.argv[3]}", rank=rank, world_size=size)

def body(step):
    def run(count):
        x = torch.zeros(())
        for _ in range(count):
            x = step(x, None, size)
    return run

for step in (work.step, work.busy):
    body(step)(chain)
for line in sys.stdin:
    told = {}
    for name, step, count in (("step", work.step, 8 * chain), ("busy", work.busy, 3 * chain)):
        dist.barrier()
        told[name] = work.timed(body(step), count)
    print(json.dumps(told), flush=True)
"""


def run() -> Outcome:
    """Run the repeats. Raises SimulationError if a program fails."""
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix="rota-pathways-") as name:
        folder = Path(name)
        (folder / "work.py").write_text(WORK)
        for workers in WORKERS:
            figures += _figures(workers, measured(folder, workers))
    settings = {
        "workers": list(WORKERS),
        "baseline": "multi-controllers",
        "computations of a chain": CHAIN,
        "busy_s": BUSY_S,
        "cores": os.cpu_count(),
    }
    return Outcome(NAME, SEEDS, settings, figures)


def measured(folder: Path, workers: int) -> list[dict[str, float]]:
    """Seconds of a computation by way, repeat by repeat."""
    found = []
    meet = folder / f"meet{workers}"
    scripts = [Script(CLIENT, (workers,))]
    scripts += [Script(LOOP, (rank, workers, meet)) for rank in range(workers)]
    environment = {"CHAIN": str(CHAIN), "BUSY_S": str(BUSY_S)}
    with started(folder, scripts, environment) as (client, *ranks):
        for _ in SEEDS:
            told = asked(NAME, [client])
            plain = asked(NAME, ranks)
            found.append(told | {f"loop: {name}": value for name, value in plain.items()})
    return found


def _figures(workers: int, repeats: list[dict[str, float]]) -> list[Figure]:
    def each(name: str) -> list[float]:
        return [1e6 * repeat[name] for repeat in repeats]

    many = f"{workers} workers" if workers > 1 else "1 worker"
    loop = each("loop: step")
    figures = [over_seeds(f"{many}, multi-controllers", "us", loop)]
    for way in (SEQUENTIAL, SINGLE, CHAINED, FUSED):
        figures.append(over_seeds(f"{many}, {way}", "us", each(way), baseline=loop))
    over = ratios(each(CHAINED), each(FUSED))
    of_loop = ratios(each("loop: busy"), each(BUSY))
    return [
        *figures,
        over_seeds(
            f"{many}, chained over fused", "times", over, published=1.0, bounds=(0, MOST_OVER_FUSED)
        ),
        over_seeds(
            f"{many}, chained of 1 ms: computations a second over multi-controllers'",
            "times",
            of_loop,
            published=1.0,
            bounds=(LEAST_OF_LOOP, 2.0),
        ),
    ]
