"""What the fixed tree, and layers on all ranks, cost a step against torch's own reduction.

    python bench/reduction.py [--millions 1 25] [--shards 2 8] [--times 3] [--steps 20]

For models of so many million parameters with AdamW, on two ranks: the time of a step with
``reduction="ddp"``, with ``"burst"`` and all layers on both ranks, and with ``"tree"`` for each
number of shards; one run of each in turn, in processes of their own. Printed: the median step of
each run, as median (minimum, maximum) over the runs, how many times that of ``ddp`` it is, and the
most memory that rank 0 had at any time.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from rota.live.agent.launching import free_port

SCRIPT = """
import json, math, resource, sys, time
from statistics import median
import torch, rota.train
torch.set_num_threads(1)
millions, reduction, shards, steps = sys.argv[1:]
width = int(math.sqrt(float(millions) * 1e6 / 4))
data = [torch.randn(width) for _ in range(64)]
with rota.train.session() as s:
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width, bias=False) for _ in range(4)))
    optimizer = torch.optim.AdamW(model.parameters())
    plan = {"plan": {}} if reduction == "burst" else {}
    model, optimizer = s.prepare(model, optimizer, reduction=reduction, **plan)
    s.loader(data, batch_size=8, shards=int(shards))
    times = []
    for step in s.steps(int(steps) + 5):
        began = time.monotonic()
        for x in s.next_batch():
            model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        times.append(time.monotonic() - began)
    if s.rank == 0:
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        print(json.dumps([median(times[5:]), most]))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--millions", type=float, nargs="+", default=[1, 25])
    parser.add_argument("--shards", type=int, nargs="+", default=[2, 8])
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    ways = [("ddp", 2), ("burst", 2), *(("tree", shards) for shards in options.shards)]
    with tempfile.TemporaryDirectory(prefix="rota-bench-") as folder:
        script = Path(folder, "train.py")
        script.write_text(SCRIPT)
        for millions in options.millions:
            found: dict[tuple[str, int], list[tuple[float, float]]] = {way: [] for way in ways}
            for _ in range(options.times):
                for way in ways:
                    found[way].append(run(script, millions, *way, options.steps))
            show(millions, found)


def run(
    script: Path, millions: float, reduction: str, shards: int, steps: int
) -> tuple[float, float]:
    """The median step in seconds, and the peak memory of rank 0 in bytes."""
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    command = [sys.executable, str(script), str(millions), reduction, str(shards), str(steps)]
    ranks = [
        subprocess.Popen(command, env=os.environ | address | {"RANK": rank}, stdout=subprocess.PIPE)
        for rank in "01"
    ]
    outputs = [rank.communicate(timeout=600)[0] for rank in ranks]
    if any(rank.returncode for rank in ranks):
        raise SystemExit(f"{reduction} with {millions:g} million parameters failed")
    step_s, most = json.loads(outputs[0])
    return float(step_s), float(most)


def show(millions: float, found: dict[tuple[str, int], list[tuple[float, float]]]) -> None:
    """One line for each way."""
    print(f"\n{millions:g} million parameters, gradients {4 * millions:g} MB")
    base = median(step_s for step_s, _ in found["ddp", 2])
    for (reduction, shards), runs in found.items():
        times = [step_s * 1e3 for step_s, _ in runs]
        name = f"{reduction}, {shards} shards" if reduction == "tree" else reduction
        print(
            f"  {name:16}{median(times):8.1f} ms ({min(times):.1f}, {max(times):.1f})"
            f"{median(times) / base / 1e3:7.2f}x{median(m for _, m in runs) / 1e6:9.0f} MB"
        )


if __name__ == "__main__":
    main()
