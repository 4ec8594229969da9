"""A slow rank is replaced, and the throughput comes back (Or et al., MLSys 2020; live).

In *Resource Elasticity in Distributed Deep Learning* stragglers were planted by multiplying the
work of some ranks by 1.33, 2 and 4, and replaced by fresh ones. Here four ranks train on a real
cluster of four slots. From step 150 on the process of one of them needs that much longer for its
piece of each batch. What is judged is the throughput after its replacement against the throughput
before it became slow, of which 1 is the limit. A piece takes its time by waiting, so that the
ranks do not compete for cores: what is measured is detection and replacement, not this machine.
"""

import tempfile
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from rota.client.client import Client
from rota.experiment.base import Figure, Outcome
from rota.experiment.runs.live import cluster, wait_for_all
from rota.model.job import WARM

NAME = "elasticity-stragglers"
FACTORS = (1.33, 2.0, 4.0)  # as published
RANKS = 4
STEPS, SLOW_FROM = 900, 150
PIECE_S = 0.02
WARM_UP = 50  # steps that are not counted: the job has only just started
RECOVERED = (0.9, 1.1)  # fixed beforehand; 1 is the limit, above which only noise leads
DEADLINE_S = 180.0

SCRIPT = """
import os, sys, time
import torch
import rota.train
out, factor, slow_from, steps, piece_s = sys.argv[1], *map(float, sys.argv[2:])
torch.set_num_threads(1)
torch.manual_seed(0)
slow = os.environ["ROTA_SLOT"] == "1"
with rota.train.session() as s:
    model = torch.nn.Linear(16, 1)
    model, optimizer = s.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01))
    s.loader([torch.randn(16) for _ in range(64)], batch_size=8, shards=4)
    for step in s.steps(int(steps)):
        for x in s.next_batch():
            model(x).square().mean().backward()
            time.sleep(piece_s * (factor if slow and step >= slow_from else 1))
        optimizer.step()
        optimizer.zero_grad()
        if s.rank == 0:
            with open(out, "a") as file:
                print(time.time(), file=file)
"""


def run() -> Outcome:
    """Plant each straggler in turn, on one cluster. Raises SimulationError if a job fails."""
    figures = []
    with tempfile.TemporaryDirectory(prefix="rota-stragglers-") as folder:
        (Path(folder) / "train.py").write_text(SCRIPT)
        with cluster(Path(folder) / "home", gpus=RANKS, policy="elastic") as client:
            for factor in FACTORS:
                figures += figures_of(factor, _steps_s(client, Path(folder), factor))
    settings: dict[str, Any] = {"ranks": RANKS, "steps": STEPS, "slow_from": SLOW_FROM}
    return Outcome(NAME, [], settings | {"piece_s": PIECE_S}, figures)


def figures_of(factor: float, steps_s: list[float]) -> list[Figure]:
    """The figures of one training from the seconds that its steps took."""
    clean_s = median(steps_s[WARM_UP : SLOW_FROM - 1])
    after_s = median(steps_s[-(SLOW_FROM - WARM_UP) :])
    slow = [s for s in steps_s[SLOW_FROM:] if s > clean_s + (factor - 1) * PIECE_S / 2]
    return [
        Figure(
            f"x{factor:g}: throughput after over before",
            "",
            None,
            clean_s / median(slow) if slow else None,
            clean_s / after_s,
            *RECOVERED,
        ),
        Figure(f"x{factor:g}: time with the straggler", "s", None, None, sum(slow)),
    ]


def _steps_s(client: Client, folder: Path, factor: float) -> list[float]:
    """Duration of each step of one training, measured by rank 0."""
    out = folder / f"steps{factor}"
    words = ["python", "train.py", out, factor, SLOW_FROM, STEPS, PIECE_S]
    job = {
        "name": f"x{factor:g}",
        "run": " ".join(map(str, words)),
        "start": WARM,
        "workdir": str(folder),
        # One more than there are: a job that could become larger, and so can be given new ranks.
        "resources": {"gpus": f"{RANKS}..{RANKS + 1}"},
    }
    job_id = client.submit(job)["id"]
    wait_for_all(client, [job_id], DEADLINE_S)
    times = [float(line) for line in out.read_text().split()]
    return [after - before for before, after in pairwise(times)]
