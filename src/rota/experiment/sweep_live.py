"""A search of twelve configurations on two slots: early feedback against one after another (live).

What Gandiva (Xiao et al., OSDI 2018) does for searches, on a real cluster, with the demo's vision
transformer, which learns digits. All configurations are handed in at once, and the search is over
when one of them reaches the target. Gandiva has them take turns, and gives the turns to those whose
curves promise most; the search ends those that are behind at the rungs of asynchronous successive
halving (ASHA; Li et al., MLSys 2020). Beside it the same configurations, in the same order, run
with the turns alone, with neither (each to completion, first in first out), and with the rungs
alone. Nothing was published for this set-up.

How soon an order comes to a good configuration is luck. So one order that was drawn at random is
begun at six places in turn, two configurations apart: each pair comes to the slots first in one of
them, and as the second to the sixth in the others.
"""

import tempfile
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from rota.client.client import Client
from rota.errors import SimulationError
from rota.experiment.base import Figure, Outcome, over_seeds
from rota.experiment.runs.live import cluster, wait_for_all
from rota.model.job import WARM
from rota.policy.information import information_of
from rota.policy.registry import create

NAME = "sweep-live"
SEEDS = [1, 2, 3, 4, 5, 6]  # each begins the order at another place
SLOTS = 2
DEADLINE_S = 600.0  # of one search
METRIC = "accuracy"
SPACE: dict[str, list[Any]] = {
    "optimizer": ["sgd", "adamw"],
    "lr": [0.0003, 0.003, 0.03],
    "width": [16, 64],
}


class Contest(NamedTuple):
    """The configurations, the number of reports of each, and the target that ends the search."""

    configurations: tuple[dict[str, Any], ...]
    reports: int
    target: float


class Arm(NamedTuple):
    """One way to go about it. Without ``rungs`` no trial is stopped before its end."""

    policy: str
    settings: dict[str, str]
    rungs: dict[str, int] | None = None


# Alone on a slot a configuration takes 12 to 25 s. Three of the twelve reach the target, after 31,
# 37 and 56 of their reports, and another three come close.
CONTEST = Contest(
    tuple(dict(zip(SPACE, values, strict=True)) for values in product(*SPACE.values())), 60, 0.94
)
GANDIVA = {"quantum_s": "2", "pack": "off"}  # as in the paper, a turn is about 100 mini-batches
RUNGS = {"eta": 3, "first": 1}
OURS, TURNS, FIFO, ASHA = "Gandiva with rungs", "Gandiva", "run to completion", "ASHA"
ARMS = {
    OURS: Arm("gandiva", GANDIVA, RUNGS),
    TURNS: Arm("gandiva", GANDIVA),
    FIFO: Arm("fifo", {}),
    ASHA: Arm("fifo", {}, RUNGS),
}
# Fixed before the first run.
LEAST_GAIN = 1.3  # over running to completion
MOST_GAIN = float(len(CONTEST.configurations))
MOST_OVER_ASHA = 1.1
NEVER = 100.0  # times as long: stands for no end, and is out of all bounds

# A job of its own, so that no trial has to wait for the loading of scikit-learn.
DIGITS = """
import torch
from sklearn.datasets import load_digits
images, labels = load_digits(return_X_y=True)
chosen = torch.randperm(len(images), generator=torch.Generator().manual_seed(1))
x = torch.tensor(images / 16, dtype=torch.float32).view(-1, 8, 8)
torch.save((x[chosen], torch.tensor(labels)[chosen]), "digits.pt")
"""
TRAIN = """
import sys
import torch
from torch import nn
import rota.train
kind, lr, width, reports = sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
torch.set_num_threads(1)
torch.manual_seed(0)
x, y = torch.load("digits.pt")
class ViT(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(4, width)
        self.position = nn.Parameter(0.02 * torch.randn(16, width))
        layer = nn.TransformerEncoderLayer(
            width, 4, 2 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 10))
    def forward(self, images):
        patches = images.unfold(1, 2, 2).unfold(2, 2, 2).flatten(3).flatten(1, 2)
        return self.head(self.encoder(self.embed(patches) + self.position).mean(dim=1))
model = ViT()
if kind == "sgd":
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
else:
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
with rota.train.session() as s:
    s.prepare(model, optimizer)
    for step in s.steps(20 * reports):
        chosen = torch.randint(1200, (32,))
        loss = nn.functional.cross_entropy(model(x[chosen]), y[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 19:
            model.eval()
            with torch.no_grad():
                right = (model(x[1200:]).argmax(1) == y[1200:]).float().mean().item()
            model.train()
            s.report(accuracy=right)
"""


class Race(NamedTuple):
    """Result of one search.

    ``time_s`` is from its submission to the report that reached the target, or to its end if none
    did. ``begun`` is the number of configurations that had had a slot by then, ``reports`` the
    number of reports they had made.
    """

    time_s: float
    reached: bool
    begun: int
    reports: int


def run() -> Outcome:
    """Run each order in each way. Raises SimulationError if a search goes wrong."""
    races: dict[str, list[Race]] = {arm: [] for arm in ARMS}
    for seed in SEEDS:
        for arm in ARMS:
            races[arm].append(race(ARMS[arm], CONTEST, seed))
    return Outcome(NAME, SEEDS, _settings(), figures_of(races))


def race(arm: Arm, contest: Contest, seed: int) -> Race:
    """One search in one way, on a cluster of its own. Raises SimulationError if it goes wrong."""
    with tempfile.TemporaryDirectory(prefix="rota-sweep-") as name:
        folder = Path(name)
        (folder / "digits.py").write_text(DIGITS)
        (folder / "train.py").write_text(TRAIN)
        home = folder / "home"
        with cluster(home, gpus=SLOTS, policy=arm.policy, settings=arm.settings) as client:
            digits = {"name": "digits", "run": "python digits.py", "workdir": str(folder)}
            digits["start"] = WARM
            wait_for_all(client, [client.submit(digits)["id"]], DEADLINE_S)
            search = client.submit_sweep(_fields(arm, contest, folder))["name"]
            for number, params in enumerate(in_order(contest, seed)):
                client.submit_trial(search, params, number=number)
            return race_of(_ended(client, search), contest.target)


def in_order(contest: Contest, seed: int) -> list[dict[str, Any]]:
    """The configurations in the order of a seed."""
    number = len(contest.configurations)
    drawn = Random(0).sample(contest.configurations, number)
    first = number * (seed - 1) // len(SEEDS)
    return drawn[first:] + drawn[:first]


def race_of(told: dict[str, Any], target: float) -> Race:
    """Result of a search that has ended, from the API's answer.

    Raises SimulationError if the search or one of its trials failed.
    """
    if told["outcome"] not in ("TARGET", "DONE"):
        raise SimulationError(f"sweep {told['name']}: {told['outcome']}: {told['message']}")
    for trial in told["trials"]:
        if trial["state"] in ("FAILED", "TIMEOUT"):
            raise SimulationError(f"trial {trial['number']}: {trial['state']}: {trial['message']}")
    reports = [report for trial in told["trials"] for report in trial["curve"]]
    passed = [at_s for _, at_s, value in reports if value is not None and value >= target]
    over_s = min(passed, default=told["finish_s"])
    starts = [each["first_start_s"] for each in told["trials"] if each["first_start_s"] is not None]
    return Race(
        over_s - told["submit_s"],
        bool(passed),
        sum(start_s <= over_s for start_s in starts),
        sum(at_s <= over_s for _, at_s, _ in reports),
    )


def figures_of(races: dict[str, list[Race]]) -> list[Figure]:
    """The figures of each arm's races, one for each seed."""
    times = {arm: [each.time_s for each in races[arm]] for arm in ARMS}
    figures = []
    for arm in ARMS:
        reached = float(sum(each.reached for each in races[arm]))
        figures += [
            over_seeds(f"{arm}: time to target", "s", times[arm], baseline=times[FIFO]),
            Figure(f"{arm}: orders in which it was reached", "", None, None, reached),
            over_seeds(f"{arm}: configurations begun", "", _floats(races[arm], "begun")),
            over_seeds(f"{arm}: reports until then", "", _floats(races[arm], "reports")),
        ]
    for number in range(len(times[OURS])):
        figures += [
            Figure(f"order {number + 1}, {arm}: time to target", "s", None, None, of[number])
            for arm, of in times.items()
        ]
    gains, over = _ratios(races[FIFO], races[OURS]), _ratios(races[OURS], races[ASHA])
    return [
        *figures,
        over_seeds(f"{FIFO} over {OURS}", "times", gains, bounds=(LEAST_GAIN, MOST_GAIN)),
        over_seeds(f"{OURS} over {ASHA}", "times", over, bounds=(0.0, MOST_OVER_ASHA)),
    ]


def _floats(races: Sequence[Race], name: str) -> list[float]:
    return [float(getattr(each, name)) for each in races]


def _ratios(races: Sequence[Race], others: Sequence[Race]) -> list[float]:
    """Time over the other's time, by seed; a search that never reaches the target is slowest."""
    ratios = []
    for one, other in zip(races, others, strict=True):
        slower = one.time_s / other.time_s if other.reached else 0.0
        ratios.append(slower if one.reached else NEVER)
    return ratios


def _settings() -> dict[str, Any]:
    return {
        "slots": SLOTS,
        "space": SPACE,
        "reports": CONTEST.reports,
        "target": CONTEST.target,
        "arms": {name: arm._asdict() for name, arm in ARMS.items()},
        "information": {
            arm.policy: information_of(create(arm.policy, arm.settings)) for arm in ARMS.values()
        },
        "baseline": FIFO,
    }


def _fields(arm: Arm, contest: Contest, folder: Path) -> dict[str, Any]:
    """The sweep file, whose trials this program hands in by itself, in its own order."""
    return {
        "name": NAME,
        "run": f"python train.py {{optimizer}} {{lr}} {{width}} {contest.reports}",
        "start": WARM,
        "workdir": str(folder),
        "sweep": {
            "metric": METRIC,
            "goal": "maximize",
            "target": contest.target,
            "space": {name: {"choice": values} for name, values in SPACE.items()},
            "algorithm": "manual",
            "max_trials": len(contest.configurations),
            "rungs": arm.rungs or "off",
            "reports": contest.reports,
        },
    }


def _ended(client: Client, search: str) -> dict[str, Any]:
    try:
        return client.wait_sweep(search, timeout_s=DEADLINE_S)
    except TimeoutError as error:
        raise SimulationError(f"{error}; it was to end long before") from None
