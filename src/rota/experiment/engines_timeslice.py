"""Two jobs that each want all GPUs of a Slurm node: both advance under Rota, one under Slurm.

Slurm alone gives GPUs to one job until it ends, also while that is suspended, so that the second
one stays pending. With ``rota up --on slurm`` the same node belongs to a pilot, and both take
turns. The same two trainings run on the same idle node in both ways, in turn. A step takes its time
by waiting, in place of a GPU, so that what is measured is turns. Nothing was published for this.

The Slurm is the one whose commands are on this machine. Files lie in the folder in which the
experiment is started, which the node has to see.
"""

import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import NamedTuple

from rota.experiment.base import Figure, Outcome, information, over_seeds, ratios
from rota.experiment.runs.live import cluster, wait_for_all
from rota.experiment.runs.slurm import LIVES, POLL_S, Job, Node, idle_node, version
from rota.model.job import WARM

NAME = "engines-timeslice"
SEEDS = [1, 2, 3]  # repeats
POLICY = "gandiva"
QUANTUM_S = 2.0
STEPS, STEP_S = 600, 0.05
EARLY_STEPS = 100
DEADLINE_S = 600.0
# Fixed beforehand.
LEAST_SHARE, MOST_SHARE = 0.8, 1.1  # steps of the second job by the first one's end, of its own
LEAST_SOONER, MOST_SOONER = 2.0, 1000.0
LEAST_FULL, MOST_FULL = 0.9, 1.05
SCRIPT = """
import sys, time
import torch
import rota.train
out, steps, step_s = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
torch.set_num_threads(1)
with rota.train.session() as s:
    model = torch.nn.Linear(16, 1)
    model, optimizer = s.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01))
    for step in s.steps(steps):
        model(torch.ones(1, 16)).sum().backward()
        time.sleep(step_s)
        optimizer.step()
        optimizer.zero_grad()
        if s.rank == 0:
            with open(out, "a") as file:
                print(time.time(), file=file)
"""


class Pair(NamedTuple):
    """The times at which each of two jobs had done each of its steps, in seconds."""

    first: list[float]
    second: list[float]

    @property
    def wait_s(self) -> float:
        """Seconds from the first job's first step to the second's."""
        return self.second[0] - self.first[0]

    @property
    def early_s(self) -> float:
        """Seconds from the first job's first step until both have done EARLY_STEPS."""
        return max(times[EARLY_STEPS - 1] for times in self) - self.first[0]

    @property
    def share(self) -> float:
        """Steps of the second job by the end of the first, over those of the first."""
        return sum(at_s <= self.first[-1] for at_s in self.second) / len(self.first)

    @property
    def step_s(self) -> float:
        """Median of the time from one step to the next."""
        return median(after - before for times in self for before, after in pairwise(times))

    def full(self, step_s: float) -> float:
        """The part of the time at which the GPUs work while both jobs have steps to do."""
        begin_s, end_s = max(times[0] for times in self), min(times[-1] for times in self)
        steps = sum(begin_s < at_s <= end_s for times in self for at_s in times)
        return steps * step_s / (end_s - begin_s)


def run(*, partition: str | None = None) -> Outcome:
    """Run the repeats on an idle node, of a ``partition`` of Slurm if one is given.

    Raises InputError if there is no such node, and SimulationError if a job fails.
    """
    node = idle_node(partition)
    alone: list[Pair] = []
    ours: list[Pair] = []
    said: list[str] = []
    for _ in SEEDS:
        with tempfile.TemporaryDirectory(prefix="rota-engines-", dir=Path.cwd()) as name:
            folder = Path(name)
            (folder / "train.py").write_text(SCRIPT)
            pair, words = _under_slurm(folder, node)
            alone.append(pair)
            said.append(words)
            ours.append(_under_rota(folder, node))
    settings = {
        "slurm": version(),
        "node": node._asdict(),
        "policy": POLICY,
        "quantum_s": QUANTUM_S,
        "baseline": "Slurm alone",
        "information": information(POLICY),
        "jobs": 2,
        "ranks": node.gpus,
        "steps": STEPS,
        "step_s": STEP_S,
        "second job while the first runs, Slurm alone": said,
    }
    return Outcome(NAME, SEEDS, settings, figures_of(alone, ours))


def figures_of(alone: Sequence[Pair], ours: Sequence[Pair]) -> list[Figure]:
    """The figures of all repeats, under Slurm alone and with Rota."""
    waits = [[pair.wait_s for pair in pairs] for pairs in (ours, alone)]
    early = [[pair.early_s for pair in pairs] for pairs in (ours, alone)]
    full = [pair.full(other.step_s) for pair, other in zip(ours, alone, strict=True)]
    sooner = LEAST_SOONER, MOST_SOONER
    return [
        over_seeds(
            "steps of the second by the first one's end",
            "of the first's",
            [pair.share for pair in ours],
            baseline=[pair.share for pair in alone],
            bounds=(LEAST_SHARE, MOST_SHARE),
        ),
        over_seeds("first step of the second after the first's", "s", waits[0], baseline=waits[1]),
        over_seeds("the same, Slurm over Rota", "times", ratios(*waits[::-1]), bounds=sooner),
        over_seeds(f"both have done {EARLY_STEPS} steps", "s", early[0], baseline=early[1]),
        over_seeds("the same, Slurm over Rota", "times", ratios(*early[::-1]), bounds=sooner),
        over_seeds(
            "GPUs at work while both jobs run", "of all", full, bounds=(LEAST_FULL, MOST_FULL)
        ),
    ]


def _under_slurm(folder: Path, node: Node) -> tuple[Pair, str]:
    """The steps of two jobs of Slurm, and what it says of the second while the first runs."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    launch += [f"--nproc-per-node={node.gpus}", str(folder / "train.py")]
    outs = [folder / "slurm-first", folder / "slurm-second"]
    jobs: list[Job] = []
    try:
        for out in outs:
            command = [*launch, str(out), str(STEPS), str(STEP_S)]
            jobs.append(Job(node, command, out.with_suffix(".log")))
        while not outs[0].exists() and jobs[0].state()[0] in LIVES:
            time.sleep(POLL_S)
        state, reason = jobs[1].state()
        for job in jobs:
            job.wait(DEADLINE_S)
    except BaseException:
        for job in jobs:
            job.cancel()
        raise
    return _pair(outs), f"{state} ({reason})"


def _under_rota(folder: Path, node: Node) -> Pair:
    """The steps of two jobs of Rota, whose only node is a pilot on that node."""
    outs = [folder / "rota-first", folder / "rota-second"]
    options = ["--on", "slurm", "--partition", node.partition, f"--sbatch=--nodelist={node.name}"]
    settings = {"quantum_s": str(QUANTUM_S), "pack": "off"}
    up = cluster(folder / "home", gpus=node.gpus, policy=POLICY, settings=settings, options=options)
    with up as client:
        jobs = [
            client.submit(
                {
                    "name": out.name,
                    "run": f"python train.py {out} {STEPS} {STEP_S}",
                    "workdir": str(folder),
                    "start": WARM,
                    "resources": {"gpus": node.gpus},
                }
            )["id"]
            for out in outs
        ]
        wait_for_all(client, jobs, DEADLINE_S)
    return _pair(outs)


def _pair(outs: Sequence[Path]) -> Pair:
    return Pair(*([float(line) for line in out.read_text().split()] for out in outs))
