"""Jobs on nodes that an engine lends, against the engine's own queue and against this machine.

    python bench/engines.py [--on slurm,ray,kubernetes] [--parts start,short,shared,scale]
                            [--repeats 5]

A Slurm of eleven nodes, a Ray of two, and a Kubernetes of three with a stand-in for its kubelets
are started on this machine, as root. Both sides of a part are measured in turns in the same run, on
different nodes; printed are median, minimum and maximum. `start`: seconds from the submission of a
training to its first step, on a held node of each engine and under `rota up` alone. The other parts
are Slurm's, whose queue is what others use: `short`: 200 short jobs until the last one has ended,
through Rota, by `sbatch` one by one, and as one array of Slurm's. `shared`: eight one-GPU trainings
on a node of four, until each has done a hundred steps. `scale`: ten pilots more and ten fewer, and
what the controller calls of Slurm.
"""

import argparse
import contextlib
import itertools
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "tests"))

from rota.client.client import Client  # noqa: E402
from rota.experiment.engines_timeslice import SCRIPT  # noqa: E402
from rota.experiment.runs.live import cluster, wait_for_all  # noqa: E402
from rota.model.job import JobState  # noqa: E402
from support import kubernetes as kubernetes_engine  # noqa: E402
from support import ray as ray_engine  # noqa: E402
from support import slurm as engine  # noqa: E402
from support.kubelets import ROTA_IMAGE  # noqa: E402

PARTS = ("start", "short", "shared", "scale")
NODES, SHORT_NODES = 11, 2
SHORT_JOBS, SHORT_MB = 200, 10
SHARED_JOBS, STEPS, EARLY_STEPS, STEP_S, QUANTUM_S = 8, 400, 100, 0.05, 2.0
MORE = 10
WITHIN_S = 600.0
LOOK_S = 0.05  # between two looks at what has yet to end
ACTIVE = [state.name for state in JobState if not state.is_final]
MOST_START, LEAST_SHORT, LEAST_SHARED = 1.2, 3.0, 1.0  # targets
COMMANDS = ("sbatch", "squeue", "scancel", "sinfo", "scontrol")  # of the controller


class Bench:
    """A folder for what jobs write, and the words of ``rota up`` for nodes of an engine.

    Nodes of the engine have it as ``there``, if that is not where it is.
    """

    def __init__(
        self, base: Path, repeats: int, options: Sequence[str], there: Path | None = None
    ) -> None:
        self.base, self.repeats, self.options = base, repeats, options
        self.there = there or base
        (base / "train.py").write_text(SCRIPT)
        self._numbers = itertools.count()

    def held(
        self, nodes: int, gpus: int, policy: str, *options: str, **settings: object
    ) -> contextlib.AbstractContextManager[Client]:
        """A cluster of Rota on so many nodes."""
        return cluster(
            self.base / f"held{next(self._numbers)}",
            gpus=gpus,
            nodes=nodes,
            policy=policy,
            settings={key: str(value) for key, value in settings.items()},
            options=[*self.options, *options],
        )

    def train(self, client: Client, steps: int, folder: Path | None = None) -> tuple[str, Path]:
        """Submit a training; its id, and the file with the time of each step.

        It runs in the base folder, which is this ``folder`` where it runs.
        """
        out = self.out()
        run = f"python train.py {out.name} {steps} {STEP_S}"
        return client.submit({"run": run, "workdir": str(folder or self.base)})["id"], out

    def out(self) -> Path:
        return self.base / f"steps{next(self._numbers)}"

    def in_turns(self, sides: Mapping[str, Callable[[], float]]) -> dict[str, list[float]]:
        """What each side gives, behind one to warm up; each comes first in turn."""
        found: dict[str, list[float]] = {name: [] for name in sides}
        for number in range(1 + self.repeats):
            order = list(sides) if number % 2 else list(sides)[::-1]
            for name in order:
                value = sides[name]()
                print(f"{name}: {value:.2f} s", file=sys.stderr, flush=True)
                if number:
                    found[name].append(value)
        return found


class SlurmBench(Bench):
    """The same with a Slurm, of whose nodes pilots get the first ones."""

    def __init__(self, base: Path, repeats: int, slurm: engine.Slurm) -> None:
        super().__init__(base, repeats, ("--on", "slurm"))
        self.slurm = slurm

    def held(
        self, nodes: int, gpus: int, policy: str, *options: str, **settings: object
    ) -> contextlib.AbstractContextManager[Client]:
        """A cluster of Rota on so many of the first nodes."""
        others = ",".join(self.slurm.nodes[nodes:])
        words = [f"--sbatch=--exclude={others}", *options]
        return super().held(nodes, gpus, policy, *words, **settings)

    def sbatch(self, command: str, *options: str) -> None:
        """Submit a job of one task to the last nodes, which pilots leave alone."""
        words = ["--ntasks=1", "--output=/dev/null", f"--chdir={self.base}", *options]
        self.slurm.run("sbatch", *words, f"--wrap={command}")

    def until_empty(self, name: str) -> None:
        """Wait until Slurm has no more of the jobs of a name."""
        while self.slurm.run("squeue", "-h", f"--name={name}"):
            time.sleep(LOOK_S)


# -- the parts -------------------------------------------------------------------------------------


def start(bench: Bench) -> Iterator[str]:
    """From the submission of a training to its first step."""
    alone = cluster(bench.base / "alone", gpus=2, policy="gandiva")
    with bench.held(1, 2, "gandiva") as held, alone as local:

        def first_step(client: Client, folder: Path) -> float:
            began_s = time.time()
            job, out = bench.train(client, 1, folder)
            wait_for_all(client, [job], WITHIN_S)
            return float(out.read_text().split()[0]) - began_s

        found = bench.in_turns(
            {
                "on a held node": lambda: first_step(held, bench.there),
                "rota up": lambda: first_step(local, bench.base),
            }
        )
    ours, other = found.values()
    yield row("submission to the first step, s", ours, other)
    yield judged(median(ours) / median(other), f"{MOST_START:g} at most")


def short(bench: SlurmBench) -> Iterator[str]:
    """Short jobs until the last one has ended."""
    others = ",".join(bench.slurm.nodes[:-SHORT_NODES])
    options = [f"--exclude={others}", "--job-name=short", f"--mem={SHORT_MB}"]
    with bench.held(SHORT_NODES, engine.CPUS, "fifo-backfill") as client:

        def through_rota() -> float:
            began_s = time.monotonic()
            job = {"run": "true", "workdir": str(bench.base)}
            jobs = [client.submit(job)["id"] for _ in range(SHORT_JOBS)]
            while client.jobs(states=ACTIVE):
                time.sleep(LOOK_S)
            took_s = time.monotonic() - began_s
            wait_for_all(client, jobs, WITHIN_S)  # each has succeeded
            return took_s

        def by_slurm(*array: str) -> float:
            began_s = time.monotonic()
            for _ in range(1 if array else SHORT_JOBS):
                bench.sbatch("true", *options, *array)
            bench.until_empty("short")
            return time.monotonic() - began_s

        found = bench.in_turns(
            {
                "through Rota": through_rota,
                "sbatch": by_slurm,
                "array": lambda: by_slurm(f"--array=1-{SHORT_JOBS}"),
            }
        )
    ours, other, array = found.values()
    yield row(f"{SHORT_JOBS} short jobs, s", ours, other)
    yield judged(median(other) / median(ours), f"{LEAST_SHORT:g} at least")
    yield row("the same against one array of Slurm's, s", ours, array)
    yield judged(median(array) / median(ours), "")


def shared(bench: SlurmBench) -> Iterator[str]:
    """Trainings of one GPU each, twice as many as GPUs, until each has done some steps."""
    node = bench.slurm.nodes[-1]
    options = [f"--nodelist={node}", "--gres=gpu:1", "--mem=500", "--job-name=shared"]
    with bench.held(1, engine.GPUS, "gandiva", quantum_s=QUANTUM_S, pack="off") as client:

        def by_slurm() -> float:
            began_s, outs = time.time(), [bench.out() for _ in range(SHARED_JOBS)]
            for out in outs:
                words = [sys.executable, bench.base / "train.py", out, STEPS, STEP_S]
                bench.sbatch(" ".join(map(str, words)), *options)
            bench.until_empty("shared")
            return early_s(outs) - began_s

        def through_rota() -> float:
            began_s = time.time()
            jobs, outs = zip(*(bench.train(client, STEPS) for _ in range(SHARED_JOBS)), strict=True)
            wait_for_all(client, jobs, WITHIN_S)
            return early_s(outs) - began_s

        found = bench.in_turns({"through Rota": through_rota, "Slurm's queue": by_slurm})
    ours, other = found.values()
    yield row(
        f"{SHARED_JOBS} jobs on {engine.GPUS} GPUs, all at step {EARLY_STEPS}, s", ours, other
    )
    yield judged(median(other) / median(ours), f"more than {LEAST_SHARED:g}")


def early_s(outs: Sequence[Path]) -> float:
    """When the last job had done its early steps."""
    return max(float(out.read_text().split()[EARLY_STEPS - 1]) for out in outs)


def scale(bench: SlurmBench) -> Iterator[str]:
    """Ten pilots more, and ten fewer, once."""
    calls = bench.base / "calls"
    gate = bench.base / "gate"
    options = ["--on", "slurm", "--nodes", f"1..{1 + MORE}"]
    with contextlib.ExitStack() as stack:
        with logged(bench.base / "bin", calls):
            up = cluster(bench.base / "scaled", gpus=1, policy="fifo-backfill", options=options)
            client = stack.enter_context(up)
        began_s = time.time()
        wait = f"until [ -e {gate} ]; do sleep 0.1; done"
        job = {"run": f"sh -c '{wait}'", "workdir": str(bench.base)}
        jobs = [client.submit(job)["id"] for _ in range(1 + MORE)]
        while any(client.job(each)["state"] != "RUNNING" for each in jobs):
            time.sleep(0.2)
        up_s = time.time() - began_s
        gate.touch()
        wait_for_all(client, jobs, WITHIN_S)
        ended_s = time.time()
        while len(bench.slurm.jobs("PD,R,CG,S")) > 1:
            time.sleep(0.2)
        down_s = time.time() - ended_s
        times = [float(line) for line in calls.read_text().split()]
    gaps = [after - before for before, after in itertools.pairwise(times)]
    yield f"{MORE} pilots more: {up_s:.1f} s until jobs run on all; {MORE} fewer: {down_s:.1f} s"
    yield f"calls to Slurm: {len(times)}; the shortest time between two: {min(gaps):.2f} s"
    yield f"calls within a second of the one before: {sum(gap < 1.0 for gap in gaps)} (target 0)"


@contextlib.contextmanager
def logged(folder: Path, calls: Path) -> Iterator[None]:
    """Have each of Slurm's commands write down when it is called, in what is started meanwhile."""
    folder.mkdir()
    for name in COMMANDS:
        command = folder / name
        text = f'#!/bin/sh\ndate +%s.%N >>{calls}\nexec {shutil.which(name)} "$@"\n'
        command.write_text(text)
        command.chmod(0o755)
    before = os.environ["PATH"]
    os.environ["PATH"] = f"{folder}{os.pathsep}{before}"
    try:
        yield
    finally:
        os.environ["PATH"] = before


# -- what is printed -------------------------------------------------------------------------------


def row(name: str, ours: list[float], other: list[float]) -> str:
    return f"{name:<44}{spread(ours)}{spread(other)}"


def judged(times: float, target: str) -> str:
    return f"{'  times':<44}{times:>25.2f}" + (f"   target: {target}" if target else "")


def spread(values: list[float]) -> str:
    return f"{f'{median(values):.2f} ({min(values):.2f}, {max(values):.2f})':>25}"


# -- the engines -----------------------------------------------------------------------------------


@contextlib.contextmanager
def on_slurm(base: Path, repeats: int) -> Iterator[Bench]:
    """Pilots of a Slurm."""
    (base / "slurm").mkdir()
    with engine.slurm(base / "slurm", NODES) as slurm:
        os.environ.update(slurm.environment)
        yield SlurmBench(base / "jobs", repeats, slurm)


@contextlib.contextmanager
def on_ray(base: Path, repeats: int) -> Iterator[Bench]:
    """Nodes of a Ray."""
    with ray_engine.ray() as ray:
        os.environ.update(ray.environment)
        yield Bench(base / "jobs", repeats, ("--on", "ray"))


@contextlib.contextmanager
def on_kubernetes(base: Path, repeats: int) -> Iterator[Bench]:
    """Pods of a Kubernetes, which have the folder of the jobs as a claim."""
    (base / "kubernetes").mkdir()
    with kubernetes_engine.kubernetes(base / "kubernetes") as kubernetes:
        os.environ.update(kubernetes.environment)
        kubernetes.add_namespace("bench")
        folder = kubernetes.add_claim("bench", "jobs")
        words = ["--on", "kubernetes", "--namespace", "bench", "--image", ROTA_IMAGE]
        yield Bench(folder, repeats, [*words, "--volume", "jobs:/jobs"], Path("/jobs"))


ENGINES: Mapping[str, tuple[Callable[[], str], Callable[[Path, int], Any]]] = {
    "slurm": (engine.why_none, on_slurm),
    "ray": (ray_engine.why_none, on_ray),
    "kubernetes": (kubernetes_engine.why_none, on_kubernetes),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--on", default=",".join(ENGINES))
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    print(f"{'':<56}{'through Rota, on nodes held':>27}{'against':>23}")
    for name in options.on.split(","):
        why_none, on = ENGINES[name]
        if reason := why_none():
            print(f"skipped: {reason}")
            continue
        before = dict(os.environ)
        with tempfile.TemporaryDirectory(prefix="rota-") as folder:
            (Path(folder) / "jobs").mkdir()
            with on(Path(folder), options.repeats) as bench:
                for part in options.parts.split(","):
                    if part == "start" or isinstance(bench, SlurmBench):
                        for line in globals()[part](bench):
                            print(f"{name + ':':<12}{line}", flush=True)
        os.environ.clear()
        os.environ.update(before)


if __name__ == "__main__":
    main()
