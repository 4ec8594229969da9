"""Two loader-bound and two compute-bound trainings on two cores, under three ways to share (live).

What SAD (SoCC 2018) is for, on a real cluster. Loader workers decompress and augment with zlib and
numpy, each batch until it has used its CPU seconds, so that a step costs the same on any machine; a
sleep stands in for a GPU. The loader-bound trainings gain from more than their even part of the two
cores, up to about 0.85; the compute-bound ones need a twentieth. The same four run with cores
apportioned by what they are worth, split evenly, and not controlled, one after another, again and
again: what else the machine does changes slowly, so that neighbours compare. Then a fifth job comes
with 16 loader workers and tells nothing of its steps: how much of its speed does the slowest of the
four keep? Nothing was published for this set-up.
"""

import contextlib
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from rota.client.client import Client
from rota.errors import SimulationError
from rota.experiment.base import Figure, Outcome, over_seeds, ratios
from rota.experiment.runs.live import cluster
from rota.model.job import WARM
from rota.policy.information import information_of
from rota.policy.registry import create

NAME = "sad-live"
SEEDS = [1, 2, 3]  # repeats; each begins with another way
SLOTS = 16  # an eighth of a core for each, of the two
SAD, EQUAL, OFF = "sad", "equal", "off"
WAYS = (SAD, EQUAL, OFF)
# Of sad: these runs last seconds, not hours; the compute-bound trainings lend all but an eighth.
SETTINGS = {"cpu_period_s": "10", "cpu_floor": "none"}
LOADER = 0.085, 0.1  # a batch: CPU seconds of the loader, seconds of sleep in place of a GPU
COMPUTE = 0.004, 0.4
TRAININGS = {"loader-1": LOADER, "loader-2": LOADER, "compute-1": COMPUTE, "compute-2": COMPUTE}
INTRUDER_WORKERS = 16
SPAN_S = 15.0  # over which steps are counted
WARM_STEPS = 8
QUIET_S, LEARN_S = 40.0, 180.0  # sad has learned once the cores stay, or then
DEADLINE_S = 120.0
LEAST_GAIN, MOST_GAIN = 1.3, 4.0  # of sad over equal, fixed beforehand
LEAST_KEPT = 0.9

SCRIPT = """
import sys, time, zlib
import numpy, torch, rota.train
cpu_s, sleep_s, workers = float(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
torch.set_num_threads(1)

class Images(torch.utils.data.Dataset):
    def __init__(self):
        drawn = numpy.random.default_rng(0)
        images = drawn.integers(0, 9, (256, 64, 64), numpy.uint8)
        self.packed = [zlib.compress(image.tobytes()) for image in images]

    def __len__(self):
        return len(self.packed)

    def augmented(self, index):
        image = numpy.frombuffer(zlib.decompress(self.packed[index]), numpy.uint8).reshape(64, 64)
        left, top = numpy.random.randint(0, 16, 2)
        cut = image[top : top + 48, left : left + 48].astype(numpy.float32) / 9
        return torch.from_numpy(cut[:, ::-1].copy()).flatten()

    def __getitems__(self, indices):
        until_s = time.process_time() + cpu_s
        made = [self.augmented(index) for index in indices]
        while time.process_time() < until_s:
            made[0] = self.augmented(indices[0])
        return made

model = torch.nn.Linear(48 * 48, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

def step(images):
    model(images).square().mean().backward()
    time.sleep(sleep_s)

if workers:  # a program that knows nothing of Rota
    while True:
        for images in torch.utils.data.DataLoader(Images(), batch_size=4, num_workers=workers):
            step(images)
with rota.train.session() as s:
    model, optimizer = s.prepare(model, optimizer)
    loader = s.loader(Images(), batch_size=4, shards=1, num_workers="auto")
    for epoch in s.epochs(10_000):
        for batch in loader:
            for images in batch:
                step(images)
            optimizer.step()
            optimizer.zero_grad()
"""


class Run(NamedTuple):
    """Steps in a second of each training: the four alone, and beside the fifth job."""

    alone: dict[str, float]
    beside: dict[str, float]
    cores: dict[str, float]  # that the four had alone; empty where nobody controls them


def run() -> Outcome:
    """Run the repeats. Raises SimulationError if a job fails."""
    runs: dict[str, list[Run]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory(prefix="rota-sad-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        (folder / "train.py").write_text(SCRIPT)
        clients = {}
        for way in WAYS:
            settings = {OFF: {}, EQUAL: {"cpus": EQUAL}, SAD: {"cpus": SAD} | SETTINGS}[way]
            home = folder / way
            up = cluster(home, gpus=SLOTS, policy="fifo", settings=settings)
            clients[way] = stack.enter_context(up)
        held_by = clients[SAD].nodes()[0]["cores_held_by"]
        for way in WAYS:  # no later start has to load torch, and sad knows both kinds
            _learn(clients[way], folder, is_long=way == SAD)
        for seed in SEEDS:
            for place in range(len(WAYS)):
                way = WAYS[(seed + place) % len(WAYS)]
                runs[way].append(_run(clients[way], folder))
    return Outcome(NAME, SEEDS, _settings(held_by), figures_of(runs))


def figures_of(runs: dict[str, list[Run]]) -> list[Figure]:
    """The figures of all ways, repeat by repeat."""
    figures = []
    for name in TRAININGS:
        speeds = {way: [run.alone[name] for run in runs[way]] for way in WAYS}
        for way in (SAD, OFF):
            figures.append(
                over_seeds(f"{name}: speed, {way}", "1/s", speeds[way], baseline=speeds[EQUAL])
            )
        given = [run.cores[name] for run in runs[SAD]]
        figures.append(over_seeds(f"{name}: cores, {SAD}", "", given))
    gains = {way: _gains(runs[way], runs[EQUAL]) for way in (SAD, OFF)}
    kept = {way: [kept_of(run) for run in runs[way]] for way in WAYS}
    against = {
        way: [
            min(one.beside[name] / other.alone[name] for name in TRAININGS)
            for one, other in zip(runs[way], runs[EQUAL], strict=True)
        ]
        for way in WAYS
    }
    bounds = (LEAST_GAIN, MOST_GAIN)
    figures += [
        over_seeds(f"mean speed over {EQUAL}, {SAD}", "times", gains[SAD], bounds=bounds),
        over_seeds(f"mean speed over {EQUAL}, {OFF}", "times", gains[OFF]),
    ]
    for way in WAYS:
        judged = (LEAST_KEPT, MOST_GAIN) if way == SAD else None
        figures += [
            over_seeds(f"kept by the slowest beside a fifth, {way}", "", kept[way], bounds=judged),
            over_seeds(f"the same, of its speed alone under {EQUAL}, {way}", "", against[way]),
        ]
    return figures


def kept_of(run: Run) -> float:
    """The part of its speed that the training keeps which loses most to the fifth job."""
    return min(run.beside[name] / run.alone[name] for name in TRAININGS)


def _gains(runs: list[Run], others: list[Run]) -> list[float]:
    """By repeat, the mean over the trainings of speed over the other speed."""
    return [
        fmean(ratios([one.alone[each] for each in TRAININGS], [two.alone[e] for e in TRAININGS]))
        for one, two in zip(runs, others, strict=True)
    ]


def _settings(held_by: str) -> dict[str, Any]:
    return {
        "slots": SLOTS,
        "ways": list(WAYS),
        "policy": ["fifo", SETTINGS],
        "information": {"fifo": information_of(create("fifo"))},
        "baseline": EQUAL,
        "held_by": held_by,
        "a batch: cpu_s, sleep_s": TRAININGS,
        "loader workers of the fifth job": INTRUDER_WORKERS,
        "span_s": SPAN_S,
    }


def _learn(client: Client, folder: Path, *, is_long: bool) -> None:
    """Run the four until their cores stay the same, where somebody learns of them."""
    jobs = _start(client, folder)
    if is_long:
        began_s = changed_s = time.monotonic()
        before: list[Any] = []
        while time.monotonic() < min(changed_s + QUIET_S, began_s + LEARN_S):
            time.sleep(1.0)
            if (now := [_cores(client, job) for job in jobs.values()]) != before:
                before, changed_s = now, time.monotonic()
    _end(client, list(jobs.values()))


def _run(client: Client, folder: Path) -> Run:
    jobs = _start(client, folder)
    alone = _speeds(client, jobs)
    cores = {name: _cores(client, job) or 0.0 for name, job in jobs.items()}
    fifth = _submit(client, folder, "fifth", (LOADER[0], 0.0), INTRUDER_WORKERS)
    _until(lambda: client.job(fifth)["state"] == "RUNNING", f"job {fifth} runs")
    _passed(client, jobs)
    beside = _speeds(client, jobs)
    _end(client, [*jobs.values(), fifth])
    return Run(alone, beside, cores)


def _start(client: Client, folder: Path) -> dict[str, str]:
    """The four, by name, once each has passed its first steps."""
    jobs = {name: _submit(client, folder, name, batch) for name, batch in TRAININGS.items()}
    _passed(client, jobs)
    return jobs


def _passed(client: Client, jobs: dict[str, str]) -> None:
    """Wait until each job has passed some more steps."""
    first = {job: _step(client, job)[0] for job in jobs.values()}
    for name, job in jobs.items():
        _until(lambda job=job: _step(client, job)[0] >= first[job] + WARM_STEPS, f"{name} trains")  # type: ignore[misc]


def _speeds(client: Client, jobs: dict[str, str]) -> dict[str, float]:
    """Steps in a second of each job, over the same seconds."""
    before = {name: _step(client, job) for name, job in jobs.items()}
    time.sleep(SPAN_S)
    speeds = {}
    for name, job in jobs.items():
        (step, at_s), (old, old_s) = _step(client, job), before[name]
        speeds[name] = (step - old) / (at_s - old_s) if at_s > old_s else 1e-3
    return speeds


def _step(client: Client, job: str) -> tuple[int, float]:
    """The last step that the job has told of, and when."""
    told = client.job(job)["progress"] or {}
    return told.get("step") or 0, told.get("at_s") or 0.0


def _cores(client: Client, job: str) -> float | None:
    told = client.job(job)["cores"]
    return None if told is None else told["given"]


def _until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not holds():
        if time.monotonic() > deadline:
            raise SimulationError(f"after {DEADLINE_S:.0f} s it is not so that {what}")
        time.sleep(0.2)


def _end(client: Client, jobs: list[str]) -> None:
    for job in jobs:
        client.cancel(job)
    for job in jobs:
        _until(lambda job=job: client.job(job)["state"] == "CANCELLED", f"job {job} is over")  # type: ignore[misc]


def _submit(
    client: Client, folder: Path, name: str, batch: tuple[float, float], workers: int = 0
) -> str:
    kind = name.partition("-")[0]
    job = {
        "name": name,
        "run": f"python train.py {kind} {batch[0]} {batch[1]} {workers}",
        "start": WARM,
        "workdir": str(folder),
    }
    return str(client.submit(job)["id"])
