"""A training by layer and background jobs in its gaps on two cores, against other ways (live).

What DeepPool (Park et al., MLSys 2022) is for, on a real cluster of two slots: a training of two
ranks whose convolutions run on both and whose wide linear layers run on rank 0 alone, so that rank
1 waits for them; and on each slot a background training, which the stage for background jobs
places. In each repeat the same foreground is alone first, then beside the background jobs, and then
beside programs that nobody holds back: as they come (fair share), with nice 19 (which does nothing
between sessions), and with the least weight of their sessions. At last foreground and background
take turns, all as foreground jobs under ``gandiva``.

Judged are the foreground's steps beside background jobs over those alone, and the CPU time of these
over what the foreground leaves of the slots when it is alone. A repeat is not counted if others
have used the slots' cores, or if the foreground waited for a core when it was alone. Published are
GPUs and no CPU cores.
"""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle, pairwise
from pathlib import Path
from statistics import fmean, quantiles
from typing import Any, NamedTuple

from rota.client.client import Client
from rota.errors import SimulationError
from rota.experiment.base import Figure, Outcome, over_seeds
from rota.experiment.runs.cores import Used, busy_s, cores_of, used
from rota.experiment.runs.live import cluster
from rota.model.job import WARM
from rota.policy.information import information_of
from rota.policy.registry import create

NAME = "deeppool-live"
SEEDS = [1, 2, 3, 4, 5]  # repeats that count
SLOTS = 2
BATCH, WIDTH = 32, 1024  # samples of a step on both ranks; of the layers that rank 0 has alone
MOST_SLOWDOWN = 1.1  # that the foreground allows
# Pairs are judged, and tried again, in seconds: this lasts minutes.
SETTINGS = {"fill_trial_s": "5", "fill_pause_s": "1"}
TURN_S = 2.0  # under gandiva
ALONE, BACKGROUND = "alone", "background jobs"
FAIR, NICE, WEIGHT, TURNS = "fair share", "nice 19", "least weight of a session", "gandiva's turns"
LOOSE = (FAIR, NICE, WEIGHT)
SETTLE_S, SPAN_S = 2.0, 6.0  # until steps are counted; over which they are
WARM_STEPS = 30
LEAST_STEPS = 3  # of a span, which is longer where the foreground stands still
DEADLINE_S = 60.0  # for whatever is waited for
COMES_S = 20.0  # for background jobs that come back, unless they have been undone
LAST_REPEAT_S = 270.0  # when no further one is begun
MOST_OTHERS = 0.05  # of the slots' cores, used by others
MOST_DELAY = 0.15  # of the CPU time of the foreground alone, in which it waited for a core
LEAST_HARVEST, MOST_HARVEST = 0.8, 1.2  # fixed beforehand
LEAST_STEP, MOST_STEP = 0.9, 1.1

FRONT = """
import os, sys, time
import torch, rota.train
from torch import nn
from torch.utils.data import TensorDataset
batch, width = map(int, sys.argv[2:4])
torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(),
    nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
    nn.Linear(16 * 16 * 16, width), nn.ReLU(),
    nn.Linear(width, 10),
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = TensorDataset(torch.randn(512, 3, 32, 32), torch.randint(10, (512,)))
with rota.train.session() as s, open(f"front-{s.rank}.steps", "w", buffering=1) as told:
    plan = {"6": 1, "8": 1}  # the linear layers, on rank 0; all others on both ranks
    model, optimizer = s.prepare(model, optimizer, reduction="burst", plan=plan)
    loader = s.loader(data, batch_size=batch)
    print(os.getpid(), file=told)
    for epoch in s.epochs(1_000_000):
        for samples in loader:
            for x, y in samples:
                nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            print(time.monotonic(), file=told)
"""

BACK = """
import ctypes, os, signal, sys, time
import torch, rota.train
from torch import nn
name = sys.argv[2]
ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # it ends with whoever has started it
torch.set_num_threads(1)
model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(5)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x = torch.randn(64, 256)
with rota.train.session() as s, open(f"{name}.steps", "w", buffering=1) as told:
    model, optimizer = s.prepare(model, optimizer)
    print(os.getpid(), file=told)
    for step in s.steps(1_000_000_000):
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 100 == 0:
            print(time.monotonic(), file=told)
"""


class Span(NamedTuple):
    """What was seen while the foreground went on for some seconds."""

    steps_s: list[float]  # what its steps took
    front: Used  # of its ranks, for each second
    back: Used  # of the background
    others: float  # part of the cores' time that anybody else had

    @property
    def step_s(self) -> float:
        """A mean step."""
        return fmean(self.steps_s)

    @property
    def left(self) -> float:
        """CPU seconds that the foreground leaves of the slots in a second."""
        return SLOTS - self.front.cpu_s


Repeat = dict[str, Span]  # by way


class Course(NamedTuple):
    """All repeats, those that do not count apart, and the turns beside their own foreground."""

    repeats: list[Repeat]
    rejected: int
    turns: Repeat


def run() -> Outcome:
    """Run the repeats. Raises SimulationError if a job fails, or if others disturbed them all."""
    with tempfile.TemporaryDirectory(prefix="rota-deeppool-") as name:
        course = measured(Path(name))
    if not course.repeats:
        raise SimulationError(
            f"{NAME}: others used the slots' cores in all of {course.rejected} repeats; run it "
            "while nothing else runs on this machine"
        )
    return Outcome(NAME, SEEDS, _settings(), figures_of(course))


def figures_of(course: Course) -> list[Figure]:
    """The figures of all ways over the foreground alone, repeat by repeat."""
    repeats = course.repeats
    alone = [each[ALONE] for each in repeats]
    figures = [
        Figure(
            "repeats that count", "", None, None, len(repeats), float(len(SEEDS)), float(len(SEEDS))
        ),
        Figure("repeats that others disturbed", "", None, None, course.rejected),
        over_seeds("foreground alone: step", "ms", [1e3 * each.step_s for each in alone]),
        over_seeds(
            "CPU time that it leaves of the slots", "", [each.left / SLOTS for each in alone]
        ),
    ]
    for way in (BACKGROUND, *LOOSE):
        judged = way == BACKGROUND
        figures += _figures(
            way, [(each[ALONE], each[way]) for each in repeats if way in each], judged=judged
        )
    return figures + _figures(TURNS, [(course.turns[ALONE], course.turns[TURNS])], judged=False)


def _figures(way: str, pairs: Sequence[tuple[Span, Span]], *, judged: bool) -> list[Figure]:
    if not pairs:
        return []
    steps, late, harvest = zip(*(compared(*pair) for pair in pairs), strict=True)
    return [
        over_seeds(
            f"{way}: step over alone",
            "times",
            steps,
            bounds=(LEAST_STEP, MOST_STEP) if judged else None,
        ),
        over_seeds(f"{way}: 95th percentile of steps over alone", "times", late),
        over_seeds(
            f"{way}: harvest of the CPU time left",
            "",
            harvest,
            bounds=(LEAST_HARVEST, MOST_HARVEST) if judged else None,
        ),
    ]


def compared(alone: Span, beside: Span) -> tuple[float, float, float]:
    """The mean step and the 95th percentile over those alone; the harvest of what was left."""
    late = _late_s(beside.steps_s) / _late_s(alone.steps_s)
    return beside.step_s / alone.step_s, late, beside.back.cpu_s / alone.left


def is_disturbed(alone: Span, beside: Span | None = None) -> bool:
    """True if others took part. Only alone tells the foreground's wait for a core of them."""
    if alone.front.delay_s > MOST_DELAY * alone.front.cpu_s:
        return True
    return any(each.others > MOST_OTHERS for each in (alone, beside) if each is not None)


def _late_s(steps_s: Sequence[float]) -> float:
    """The 95th percentile of steps."""
    return quantiles(steps_s, n=20)[-1]


def _settings() -> dict[str, Any]:
    return {
        "slots": SLOTS,
        "policy": ["fifo", SETTINGS],
        "information": {
            "fifo": information_of(create("fifo")),
            "gandiva": information_of(create("gandiva")),
        },
        "baseline": ALONE,
        "batch": BATCH,
        "width of the layers of rank 0": WIDTH,
        "max_slowdown": MOST_SLOWDOWN,
        "turn_s": TURN_S,
        "settle_s, span_s": [SETTLE_S, SPAN_S],
        "disturbed beyond: others, run delay": [MOST_OTHERS, MOST_DELAY],
    }


def measured(folder: Path) -> Course:
    """Run foreground, background and the other ways, with the present module's spans."""
    (folder / "front.py").write_text(FRONT)
    (folder / "back.py").write_text(BACK)
    with cluster(folder / "fill", gpus=SLOTS, policy="fifo", settings=SETTINGS) as client:
        front = Foreground(client, folder)
        with Loose(folder, front.cores) as loose:
            jobs = Jobs(client, folder)
            repeats, rejected = _repeats(front, jobs, loose)
    settings = {"quantum_s": str(TURN_S), "pack": "off"}
    with cluster(folder / "turns", gpus=SLOTS, policy="gandiva", settings=settings) as client:
        turns = _turns(client, folder)
    return Course(repeats, rejected, turns)


def _repeats(front: "Foreground", jobs: "Jobs", loose: "Loose") -> tuple[list[Repeat], int]:
    """The repeats that count, and the number of others."""
    until_s = time.monotonic() + LAST_REPEAT_S
    repeats: list[Repeat] = []
    rejected = 0
    while len(repeats) < len(SEEDS) and time.monotonic() < until_s:
        alone = front.span(())
        if is_disturbed(alone):
            rejected += 1
            continue
        with jobs.running() as pids:
            beside = front.span(pids)
        if is_disturbed(alone, beside):
            rejected += 1
            continue
        repeat = {ALONE: alone, BACKGROUND: beside}
        for way in LOOSE:
            with loose.running(way) as pids:
                repeat[way] = front.span(pids)
        repeats.append(repeat)
    return repeats, rejected


def _turns(client: Client, folder: Path) -> Repeat:
    """The foreground alone, and in turns with jobs that were background jobs before."""
    front = Foreground(client, folder)
    alone = front.span(())
    jobs = [_submit(client, folder, f"python back.py back {each}", each) for each in _backs(TURNS)]
    pids = [_told(folder, each)[0] for each in _backs(TURNS)]
    time.sleep(SETTLE_S)
    # As many turns of each: a turn of the one, then one of the others.
    beside = front.span(pids, max(1, round(SPAN_S / TURN_S)) * 2 * TURN_S)
    _end(client, [front.job, *jobs])
    return {ALONE: alone, TURNS: beside}


def _backs(way: str) -> list[str]:
    kind = way.partition(" ")[0].partition("'")[0]
    return [f"{kind}-{slot}" for slot in range(SLOTS)]


class Foreground:
    """The foreground training as a job on all slots, once it has passed its first steps."""

    def __init__(self, client: Client, folder: Path) -> None:
        self._folder = folder
        for rank in range(SLOTS):
            (folder / f"front-{rank}.steps").unlink(missing_ok=True)
        run = f"python front.py front {BATCH} {WIDTH}"
        slots = {"gpus": SLOTS}
        share = {"role": "foreground", "max_slowdown": MOST_SLOWDOWN}
        self.job = _submit(client, folder, run, "front", resources=slots, share=share)
        told = [_told(folder, f"front-{rank}", WARM_STEPS) for rank in range(SLOTS)]
        self._pids = [pid for pid, _ in told]
        self.cores = sorted(cores_of(self._pids))

    def span(self, back: Sequence[int], for_s: float | None = None) -> Span:
        """Let it go on, beside these processes, for so many seconds (SPAN_S)."""
        began, began_s = self._read(back), time.monotonic()
        time.sleep(for_s if for_s is not None else SPAN_S)
        _, before = _told(self._folder, "front-0")
        had = sum(at_s < began_s for at_s in before)
        _told(self._folder, "front-0", had + LEAST_STEPS)
        ended, ended_s = self._read(back), time.monotonic()
        passed_s = ended_s - began_s
        front, theirs, busy = (
            Used(*(now - then for now, then in zip(late, early, strict=True)))
            for late, early in zip(ended, began, strict=True)
        )
        others_s = busy.cpu_s - front.cpu_s - theirs.cpu_s
        _, stamps = _told(self._folder, "front-0")
        within = [at_s for at_s in stamps if began_s <= at_s <= ended_s]
        steps_s = [late - early for early, late in pairwise(within)]
        return Span(
            steps_s,
            Used(front.cpu_s / passed_s, front.delay_s / passed_s),
            Used(theirs.cpu_s / passed_s, theirs.delay_s / passed_s),
            max(0.0, others_s) / (passed_s * len(self.cores)),
        )

    def _read(self, back: Sequence[int]) -> tuple[Used, Used, Used]:
        return used(self._pids), used(back), Used(busy_s(self.cores), 0.0)


class Jobs:
    """Background jobs, suspended but for their spans."""

    def __init__(self, client: Client, folder: Path) -> None:
        self._client = client
        share = {"role": "background"}
        names = _backs(BACKGROUND)
        runs = [f"python back.py back {name}" for name in names]
        self._jobs = [
            _submit(client, folder, run, name, share=share)
            for run, name in zip(runs, names, strict=True)
        ]
        self._pids = [_told(folder, name)[0] for name in names]
        self._suspend()

    @contextlib.contextmanager
    def running(self) -> Iterator[list[int]]:
        """Their processes; they run inside, if the stage for background jobs has them run."""
        for job in self._jobs:
            self._client.resume(job)
        with contextlib.suppress(SimulationError):
            self._wait_for("RUNNING", COMES_S)
        time.sleep(SETTLE_S)
        yield self._pids
        self._suspend()

    def _suspend(self) -> None:
        for job in self._jobs:
            self._client.suspend(job)
        self._wait_for("SUSPENDED", DEADLINE_S)

    def _wait_for(self, state: str, within_s: float) -> None:
        for job in self._jobs:
            _until(
                lambda job=job: self._client.job(job)["state"] == state,  # type: ignore[misc]
                f"job {job} is {state}",
                within_s,
            )


class Loose:
    """The same programs beside the cluster, by way; each stopped but for its spans."""

    def __init__(self, folder: Path, cores: Sequence[int]) -> None:
        self._folder, self._cores = folder, cores
        self._processes: dict[str, list[subprocess.Popen[bytes]]] = {}

    def __enter__(self) -> "Loose":
        for way in LOOSE:
            self._processes[way] = [
                self._start(name, core)
                for name, core in zip(_backs(way), cycle(self._cores), strict=False)
            ]
        try:
            for way in LOOSE:
                for name in _backs(way):
                    _told(self._folder, name, 1)
                self._lower(way)
                self._signal(way, signal.SIGSTOP)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for way, processes in self._processes.items():
            self._signal(way, signal.SIGKILL)
            for process in processes:
                process.wait()

    @contextlib.contextmanager
    def running(self, way: str) -> Iterator[list[int]]:
        """The processes of a way; they run inside."""
        self._signal(way, signal.SIGCONT)
        time.sleep(SETTLE_S)
        yield [process.pid for process in self._processes[way]]
        self._signal(way, signal.SIGSTOP)

    def _start(self, name: str, core: int) -> "subprocess.Popen[bytes]":
        process = subprocess.Popen(
            [sys.executable, "back.py", "back", name],
            cwd=self._folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={k: v for k, v in os.environ.items() if not k.startswith("ROTA_")},
            start_new_session=True,  # as managers of processes start them
        )
        os.sched_setaffinity(process.pid, {core})
        return process

    def _lower(self, way: str) -> None:
        for process in self._processes[way]:
            if way == NICE:
                os.setpriority(os.PRIO_PROCESS, process.pid, 19)
            elif way == WEIGHT:
                with contextlib.suppress(OSError):  # a kernel without autogroups
                    Path(f"/proc/{process.pid}/autogroup").write_text("19")

    def _signal(self, way: str, number: signal.Signals) -> None:
        for process in self._processes[way]:
            if process.poll() is None:
                process.send_signal(number)


def _told(folder: Path, name: str, at_least: int = 0) -> tuple[int, list[float]]:
    """The process that tells of its steps in this file, and when each was over."""
    file = folder / f"{name}.steps"

    def lines() -> list[str]:
        text = file.read_text() if file.exists() else ""
        return text[: text.rfind("\n") + 1].splitlines()

    _until(lambda: len(lines()) > at_least, f"{name} trains")
    pid, *stamps = lines()
    return int(pid), [float(each) for each in stamps]


def _until(holds: Callable[[], bool], what: str, within_s: float = DEADLINE_S) -> None:
    deadline = time.monotonic() + within_s
    while not holds():
        if time.monotonic() > deadline:
            raise SimulationError(f"{NAME}: after {within_s:.0f} s it is not so that {what}")
        time.sleep(0.1)


def _end(client: Client, jobs: Sequence[str]) -> None:
    for job in jobs:
        client.cancel(job)
    for job in jobs:
        _until(lambda job=job: client.job(job)["state"] == "CANCELLED", f"job {job} is over")  # type: ignore[misc]


def _submit(client: Client, folder: Path, run: str, name: str, **more: Any) -> str:
    job = {"name": name, "run": run, "workdir": str(folder), "start": WARM}
    return str(client.submit(job | more)["id"])
