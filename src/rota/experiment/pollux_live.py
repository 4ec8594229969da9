"""Three elastic jobs on two slots: sizes and batches for goodput against one slot each (live).

What Pollux (Qiao et al., OSDI 2021) is for, on a real cluster: trainings that end when they have
learned enough. The static split gives each job one slot and the batch that it was written for,
first in first out, so that the third waits. Under ``pollux`` the same jobs start with nothing known
of them, and get the slots and batches of the best goodput. Losses, gradients, their noise and
learning rates are those of real trainings; but a piece takes its time by waiting, so much for
itself and so much for each sample, so that ranks do not compete for this machine's cores. Nothing
was published for this set-up.
"""

import tempfile
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from rota.client.client import Client
from rota.experiment.base import Figure, Outcome, over_seeds, ratios
from rota.experiment.runs.live import cluster, wait_for_all
from rota.model.job import WARM
from rota.policy.information import information_of
from rota.policy.registry import create

NAME = "pollux-live"
SEEDS = [1, 2]  # of the data, the model's weights and the order of samples
SLOTS = 2
INITIAL, MOST, MOST_PER_GPU = 16, 1024, 256  # samples in a batch
SETTINGS = {
    "fits": "job",  # a job knows nothing from others, or from the seed before
    "interval_s": "2",
    "restart_s": "1",  # these jobs stop for tenths of a second, and take seconds to pay that back
    "horizon_s": "10",
}
LEAST_GAIN = 1.2  # in mean time to target; fixed beforehand
MOST_GAIN = 10.0
DEADLINE_S = 240.0


class Training(NamedTuple):
    """A classifier of a part of wrong labels, done at an accuracy on samples that it has not seen.

    A piece of n samples takes ``piece_s + n * sample_s`` on a slot.
    """

    name: str
    wrong: float
    target: float
    piece_s: float
    sample_s: float


# Alone on a slot with their own batch each would take some 20 s.
TRAININGS = (
    Training("latency-bound", 0.1, 0.78, 0.06, 0.0002),
    Training("noisy-labels", 0.3, 0.70, 0.04, 0.0012),
    Training("compute-bound", 0.0, 0.82, 0.02, 0.0025),
)
WARM_UP = Training("warm-up", 0.0, 0.0, 0.0, 0.0)  # after it, no start has to load torch

SCRIPT = """
import os, sys, time
import torch
from torch import nn
import rota.train
seed = int(sys.argv[2])
wrong, target, piece_s, sample_s = map(float, sys.argv[3:7])
torch.set_num_threads(1)
draw = torch.Generator().manual_seed(seed)
teacher = torch.randn(32, 10, generator=draw)
x = torch.randn(8704, 32, generator=draw)
y = (x @ teacher).argmax(1)
unseen_x, unseen_y = x[8192:], y[8192:]
mistaken = torch.rand(8192, generator=draw) < wrong
y[:8192][mistaken] = torch.randint(10, (8192,), generator=draw)[mistaken]
data = torch.utils.data.TensorDataset(x[:8192], y[:8192])
torch.manual_seed(seed)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))
with rota.train.session() as s:
    model, optimizer = s.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    s.loader(data, batch_size=16, shards=int(os.environ.get("ROTA_MAX_WORLD", "1")), seed=seed)
    for step in s.steps(100_000):
        for inputs, labels in s.next_batch():
            time.sleep(piece_s + sample_s * len(inputs))
            loss = nn.functional.cross_entropy(model(inputs), labels)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 5 == 4:  # all ranks have the same weights, and so the same verdict
            with torch.no_grad():
                right = (model(unseen_x).argmax(1) == unseen_y).float().mean().item()
            s.report(loss=loss.item(), accuracy=right)
            if right >= target:
                break
"""


class Run(NamedTuple):
    """One seed's trainings: seconds from submission to target, and the changes meanwhile."""

    times_s: dict[str, float]
    resizes: int
    retunes: int
    preemptions: int


def run() -> Outcome:
    """Run the trainings of each seed on both clusters. Raises SimulationError if a job fails."""
    with tempfile.TemporaryDirectory(prefix="rota-pollux-") as name:
        folder = Path(name)
        (folder / "train.py").write_text(SCRIPT)
        with cluster(folder / "static", gpus=SLOTS, policy="fifo") as client:
            static = _runs(client, folder, {"resources": {"gpus": 1}})
        elastic = {
            "resources": {"gpus": f"1..{SLOTS}"},
            "batch": {"mode": "adapt", "max_global": MOST, "max_per_gpu": MOST_PER_GPU},
        }
        home = folder / "goodput"
        with cluster(home, gpus=SLOTS, policy="pollux", settings=SETTINGS) as client:
            ours = _runs(client, folder, elastic)
    return Outcome(NAME, SEEDS, _settings(), figures_of(static, ours))


def figures_of(static: list[Run], ours: list[Run]) -> list[Figure]:
    """The figures of both, seed by seed."""
    figures = [
        over_seeds(
            f"{each.name}: time to target",
            "s",
            [run.times_s[each.name] for run in ours],
            baseline=[run.times_s[each.name] for run in static],
        )
        for each in TRAININGS
    ]
    means = [[fmean(run.times_s.values()) for run in runs] for runs in (static, ours)]
    gains = ratios(*means)
    figures += [
        over_seeds("mean time to target", "s", means[1], baseline=means[0]),
        over_seeds("static over goodput", "times", gains, bounds=(LEAST_GAIN, MOST_GAIN)),
        over_seeds("changes of size", "", [float(run.resizes) for run in ours]),
        over_seeds("changes of batch alone", "", [float(run.retunes) for run in ours]),
        over_seeds("preemptions", "", [float(run.preemptions) for run in ours]),
    ]
    return figures


def _settings() -> dict[str, Any]:
    return {
        "slots": SLOTS,
        "policy": ["pollux", SETTINGS],
        "information": {
            "pollux": information_of(create("pollux", SETTINGS)),
            "fifo": information_of(create("fifo")),
        },
        "baseline": "fifo, one slot each",
        "batch": {"initial": INITIAL, "max_global": MOST, "max_per_gpu": MOST_PER_GPU},
        "trainings": {each.name: list(each[1:]) for each in TRAININGS},
        "training": list(Training._fields[1:]),
    }


def _runs(client: Client, folder: Path, asks: dict[str, Any]) -> list[Run]:
    wait_for_all(client, [_submit(client, folder, WARM_UP, 0, asks)], DEADLINE_S)
    return [_run(client, folder, seed, asks) for seed in SEEDS]


def _run(client: Client, folder: Path, seed: int, asks: dict[str, Any]) -> Run:
    jobs = [_submit(client, folder, each, seed, asks) for each in TRAININGS]
    wait_for_all(client, jobs, DEADLINE_S)
    shows = [client.job(job) for job in jobs]
    lines = [event["line"] for show in shows for event in show["story"]]
    return Run(
        {show["name"]: show["finish_s"] - show["submit_s"] for show in shows},
        sum(line.startswith("resized to") for line in lines),
        sum(line.startswith("retuned to") for line in lines),
        sum(show["preemptions"] for show in shows),
    )


def _submit(
    client: Client, folder: Path, training: Training, seed: int, asks: dict[str, Any]
) -> str:
    words = ["python", "train.py", training.name, seed, *training[1:]]
    job = {"name": training.name, "run": " ".join(map(str, words)), "workdir": str(folder)}
    job["start"] = WARM
    return str(client.submit(job | asks)["id"])
