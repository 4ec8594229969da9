"""Predicted steps of plans by layer against run ones, on two ranks over gloo.

    python bench/burst_prediction.py

Two models, of convolutions with a wide head and with residual joins, are profiled as by ``python -m
rota.burst.profile --ranks 2``. Then two processes run plans with the burst runtime: all layers on
one rank, on both, and the head on one. Predicted is the planner's timeline without overlap: two
ranks have no core left that could sum beside them. Plans take turns; a step is that of the slower
rank, and as in a profile the least of the medians of rounds counts. It needs two cores that nobody
else uses.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from statistics import median
from subprocess import Popen
from time import perf_counter

import torch
import torch.distributed as dist
from torch import nn

from rota.burst.layers.measure import measured
from rota.burst.layers.network import measured_network
from rota.burst.layers.trace import layered
from rota.burst.planner.costs import Costs
from rota.burst.planner.plan import Group, Plan, chained
from rota.burst.planner.timeline import timeline
from rota.burst.runtime.runtime import Runtime

BATCH, RANKS = 16, 2
STEPS, ROUNDS = 8, 5
TARGET = 0.15


class Joined(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.one = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)
        self.two = nn.Conv2d(width, width, 3, padding=1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.bn1(self.one(x)))
        return torch.relu(self.bn2(self.two(y)) + x)


def wide_head() -> nn.Module:
    """Convolutions, then linear layers with most of the parameters."""
    layers: list[nn.Module] = []
    for taken, given in ((3, 32), (32, 64), (64, 128)):
        layers += [nn.Conv2d(taken, given, 3, padding=1), nn.ReLU(True), nn.MaxPool2d(2)]
    head = [nn.Linear(128 * 64, 1024), nn.ReLU(True), nn.Linear(1024, 10)]
    return nn.Sequential(*layers, nn.Flatten(), *head)


def joined() -> nn.Module:
    """Residual blocks with normalisation."""
    stem = [nn.Conv2d(3, 48, 3, stride=2, padding=1), nn.ReLU(True)]
    blocks = [Joined(48) for _ in range(3)]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(48, 10))


MODELS = {"wide head": wide_head, "joined": joined}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--budget", type=float, default=20.0, help="s of each profile")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.rank is not None:
        run_plans(options.rank, options.folder)
        return 0
    network = measured_network(RANKS)
    print(
        f"transfers {network.bandwidth_bytes_s / 1e9:.2f} GB/s after {network.latency_s * 1e6:.0f} "
        f"µs, sums {network.reduce_bandwidth_bytes_s / 1e9:.2f} GB/s after "
        f"{network.reduce_latency_s * 1e6:.0f} µs"
    )
    worst, sizes, predicted = 0.0, {}, {}
    for name, make in MODELS.items():
        torch.manual_seed(0)
        model, inputs = make(), torch.randn(BATCH, 3, 64, 64)
        split = layered(model, inputs)
        graph = measured(model, split, inputs, BATCH, name=name, budget_s=options.budget)
        graph.network = network
        costs = Costs(graph, BATCH, RANKS)
        for plan_name, plan in plans_of(costs).items():
            sizes[f"{name}: {plan_name}"] = [group.size for group in plan.groups]
            predicted[f"{name}: {plan_name}"] = [
                timeline(costs, plan, overlap=overlap).step_s for overlap in (False, True)
            ]
    found = run(sizes)
    print(f"{'plan':28} {'predicted ms':>13} {'overlapped':>11} {'run ms':>24} {'off by':>7}")
    for name, (plain_s, overlapped_s) in predicted.items():
        steps = sorted(found[name])
        run_s = steps[0]
        off = plain_s / run_s - 1.0
        worst = max(worst, abs(off))
        spread = f"{run_s * 1e3:.1f} ({steps[0] * 1e3:.1f} to {steps[-1] * 1e3:.1f})"
        print(
            f"{name:28} {plain_s * 1e3:13.1f} {overlapped_s * 1e3:11.1f} {spread:>24} {off:+7.0%}"
        )
    ok = worst <= TARGET
    print(f"largest error {worst:.0%}, required {TARGET:.0%}  {'yes' if ok else 'NO'}")
    return 0 if ok else 1


def plans_of(costs: Costs) -> dict[str, Plan]:
    """Plans with all layers on one rank, on both, and the last layers on one."""
    number = len(costs.graph.layers)
    head = 2
    return {
        "one rank": chained(costs, [1] * number),
        "two ranks": chained(costs, [RANKS] * number),
        "head on one": chained(costs, [RANKS] * (number - head) + [1] * head),
    }


def run(sizes: dict[str, list[int]]) -> dict[str, list[float]]:
    """The medians of rounds of steps, for each plan."""
    with tempfile.TemporaryDirectory(prefix="rota-bench-") as name:
        folder = Path(name)
        (folder / "sizes.json").write_text(json.dumps(sizes))
        command = [sys.executable, __file__, "--folder", name, "--rank"]
        ranks = [Popen([*command, str(rank)]) for rank in range(RANKS)]
        codes = [rank.wait(timeout=900) for rank in ranks]
        if any(codes):
            sys.exit("a rank failed")
        found: dict[str, list[float]] = json.loads((folder / "found.json").read_text())
    return found


def run_plans(rank: int, folder: Path) -> None:
    """One rank: all plans in turns. Rank 0 writes what they took."""
    dist.init_process_group("gloo", f"file://{folder}/meeting", rank=rank, world_size=RANKS)
    sizes: dict[str, list[int]] = json.loads((folder / "sizes.json").read_text())
    found: dict[str, list[float]] = {name: [] for name in sizes}
    ready = {name: prepared(name, each) for name, each in sizes.items()}
    for _ in range(ROUNDS):
        for name, (model, runtime, inputs) in ready.items():
            found[name].append(median(timed(model, runtime, inputs) for _ in range(STEPS)))
    if rank == 0:
        (folder / "found.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def prepared(name: str, sizes: list[int]) -> tuple[nn.Module, Runtime, torch.Tensor]:
    torch.manual_seed(0)
    model, inputs = MODELS[name.partition(":")[0]](), torch.randn(BATCH, 3, 64, 64)
    split = layered(model, inputs)
    runtime = Runtime(split.pieces, split.output, [Group(0, size) for size in sizes])
    held = {1: (BATCH, 0), 2: (BATCH // 2, BATCH // 2)}[sizes[0]][dist.get_rank()]
    model.train()
    timed(model, runtime, inputs[: max(held, 1)])  # learns shapes
    return model, runtime, inputs[: max(held, 1)]


def timed(model: nn.Module, runtime: Runtime, inputs: torch.Tensor) -> float:
    """Seconds of a step, on the slower rank."""
    dist.barrier()
    began = perf_counter()
    runtime.step(inputs).square().mean().backward()
    runtime.complete()
    took = torch.tensor([perf_counter() - began], dtype=torch.float64)
    for parameter in model.parameters():
        parameter.grad = None
    dist.all_reduce(took, dist.ReduceOp.MAX)
    return took.item()


if __name__ == "__main__":
    sys.exit(main())
