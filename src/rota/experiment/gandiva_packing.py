"""Packing jobs that leave their GPU idle: kept where it does more work, undone where it does less.

Gandiva's table (OSDI 2018) tells the throughput of jobs that take turns on a P40 and of the same
jobs packed: five VAEs 75.6 and 419.8 mini-batches a second, three super-resolution networks 56.2
and 145.2; ResNets lose by it. What is reproduced is that the policy comes to these packs, and out
of the others, by itself: it knows how far each job uses its GPU, tries, and measures. How fast jobs
are together is given to the simulator, so that the published sums come out. The five VAEs sum up to
more than five times one alone: what is published is against turns, whose switches cost them.

With ``data``, every pair of jobs that Gavel's authors measured on one P100 (OSDI 2020) is tried in
the same way: which are kept is a fact about the policy, how many of them gain one about the table.
"""

from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from rota.errors import DataMissingError
from rota.experiment.base import Figure, Outcome, information
from rota.experiment.runs.course import Course
from rota.model.cluster import parse_cluster
from rota.model.job import JobSpec
from rota.policy.registry import create
from rota.predict.interference import Interference
from rota.scenario.pool import over_cores
from rota.sim.machine import Costs
from rota.sim.simulation import Simulation
from rota.workload.readers.gavel import Pair, read_pairs
from rota.workload.trace import Trace

NAME = "gandiva-packing"
SEEDS: list[int] = []  # nothing here is drawn by chance
CLUSTER = "1x1"
# One change of turns keeps a GPU from working for 0.25 s: suspending and resuming, or starting.
COSTS = Costs(suspend_s=0.125, resume_s=0.125, migrate_s=1.5, cold_start_s=0.25)
LEAST_GAIN = 0.02
SETTINGS = {"least_gain": str(LEAST_GAIN)}
JOB_S = 7 * 86400.0
SETTLED_S = 3600.0  # by then every trial is over
WINDOW_S = 3600.0
TOLERANCE = 0.01


class Kind(NamedTuple):
    """Jobs alike: how far each uses a GPU alone, and how fast so many are, alone and packed."""

    model: str
    utilisation: float
    alone_per_s: float
    num_jobs: int
    packed_per_s: float

    @property
    def gain(self) -> float:
        """Throughput packed over alone."""
        return self.packed_per_s / self.alone_per_s

    @property
    def speed(self) -> float:
        """Speed of a job beside one other of its kind, so that the speeds of all sum up to gain."""
        return float((self.gain / self.num_jobs) ** (1 / (self.num_jobs - 1)))


VAE = Kind("vae", 0.117, 75.6, 5, 419.8)
SUPER_RESOLUTION = Kind("super-resolution", 0.141, 56.2, 3, 145.2)
# The table's ResNets have a negative gain; how large, and how far they use a GPU, is chosen here.
RESNET = Kind("resnet50", 0.8, 1.0, 2, 0.9)
PUBLISHED = {"five VAEs": VAE, "three super-resolution networks": SUPER_RESOLUTION}

TABLE = Path("gavel") / "simulation_throughputs.json.gz"
GPU_TYPE = "p100"
# Counted in the table beforehand: all pairs, those that do more work together, and the best.
PAIRS, PAIRS_THAT_GAIN, BEST_PAIR = 1759, 573, 1.863
PAIR_TRIAL_S = 900.0
GPU_GB = 16.0


def run(data: Path | None = None) -> Outcome:
    """Simulate the published table, and the pairs in ``data``. Raises DataMissingError."""
    figures = [figure for name, kind in PUBLISHED.items() for figure in _kept(name, kind)]
    figures += _undone()
    if data is not None:
        figures += pair_figures(read_pairs(_table(data), GPU_TYPE))
    return Outcome(NAME, SEEDS, _settings(data), figures)


def _table(data: Path) -> Path:
    if not (data / TABLE).is_file():
        raise DataMissingError(
            f"there is no {data / TABLE}; give the folder in which it lies as --data, "
            "or leave out --data to run the rest"
        )
    return data / TABLE


def _settings(data: Path | None) -> dict[str, Any]:
    kinds = [*PUBLISHED.values(), RESNET]
    speeds = {kind.model: round(kind.speed, 4) for kind in kinds}
    return {
        "cluster": CLUSTER,
        "costs": COSTS._asdict(),
        "policy": ["gandiva", SETTINGS],
        "baseline": "fifo",
        "information": information("gandiva", "fifo"),
        "utilisation": {kind.model: kind.utilisation for kind in kinds},
        "speed beside one of its kind": speeds,
        "settled_s": SETTLED_S,
        "window_s": WINDOW_S,
        "pairs": None if data is None else f"{GPU_TYPE} of {TABLE.name}",
    }


# -- the published table ---------------------------------------------------------------------------


class Packed(NamedTuple):
    """Jobs on one GPU: work per second in the window, over that of one job alone."""

    throughput: float
    num_sharing: int  # at its end
    packs: int  # how often more jobs began to share the GPU


def together(policy: str, kind: Kind) -> Packed:
    """Put all jobs of a kind on one GPU."""
    jobs = [JobSpec(f"job{i}", 1, 0.0, JOB_S, model=kind.model) for i in range(kind.num_jobs)]
    jobs = [job._replace(gpu_util=kind.utilisation) for job in jobs]
    pairs = {(kind.model, kind.model): (kind.speed, kind.speed)}
    course = Course(_simulation(policy, jobs, Interference(pairs)))
    packs = before = 0
    while course.next_s() <= SETTLED_S:
        course.step()
        packs += course.num_sharing() > before
        before = course.num_sharing()
    begun_s = sum(course.work_s(SETTLED_S))
    course.until(SETTLED_S + WINDOW_S)
    done_s = sum(course.work_s(SETTLED_S + WINDOW_S)) - begun_s
    return Packed(done_s / WINDOW_S, course.num_sharing(), packs)


def _simulation(
    policy: str, jobs: list[JobSpec], interference: Interference, **settings: str
) -> Simulation:
    given = {**SETTINGS, **settings} if policy == "gandiva" else {}
    trace, nodes = Trace(jobs, NAME), parse_cluster(CLUSTER)
    return Simulation(trace, nodes, create(policy, given), COSTS, interference=interference)


def _kept(name: str, kind: Kind) -> list[Figure]:
    alone, ours = together("fifo", kind).throughput, together("gandiva", kind)
    rate, gain, jobs = kind.alone_per_s, kind.gain, float(kind.num_jobs)
    near = (1 - TOLERANCE, 1 + TOLERANCE)
    low, high = (kind.packed_per_s * part for part in near)
    return [
        Figure(
            f"{name}: throughput",
            "mini-batches/s",
            kind.packed_per_s,
            rate * alone,
            rate * ours.throughput,
            low,
            high,
        ),
        Figure(
            f"{name}: packed over alone",
            "times",
            gain,
            1.0,
            ours.throughput / alone,
            gain * near[0],
            gain * near[1],
        ),
        Figure(f"{name}: jobs on the GPU", "", jobs, 1.0, float(ours.num_sharing), jobs, jobs),
    ]


def _undone() -> list[Figure]:
    alone, ours = together("fifo", RESNET).throughput, together("gandiva", RESNET)
    least = 1 - TOLERANCE
    return [
        Figure("two ResNets: packs tried", "", None, 0.0, float(ours.packs), 1.0, 1.0),
        Figure("two ResNets: jobs packed", "", 0.0, 0.0, float(ours.num_sharing), 0.0, 0.0),
        Figure(
            "two ResNets: with us over alone",
            "times",
            None,
            1.0,
            ours.throughput / alone,
            least,
            1.0,
        ),
    ]


# -- pairs that were measured ----------------------------------------------------------------------


def try_pair(speeds: tuple[float, float]) -> tuple[bool, bool]:
    """True if two jobs of these speeds beside each other were put together, and left so.

    Those of speed 0 could not run together: here they need more memory than there is.
    """
    memory_gb = GPU_GB / 4 if all(speeds) else GPU_GB
    jobs = [
        JobSpec(model, 1, 0.0, JOB_S, model=model, gpu_util=0.5, memory_gb=memory_gb)
        for model in ("one", "other")
    ]
    interference = Interference({("one", "other"): speeds})
    course = Course(_simulation("gandiva", jobs, interference, gpu_memory_gb=str(GPU_GB)))
    tried = False
    while course.next_s() <= PAIR_TRIAL_S:
        course.step()
        tried = tried or course.num_sharing() > 0
    return tried, course.num_sharing() > 0


def pair_figures(pairs: list[Pair]) -> list[Figure]:
    """Figures of the table's pairs, and of the pairs that the policy may pack."""
    single = [pair for pair in pairs if pair.num_gpus == 1]
    found = over_cores(try_pair, [(pair.speeds,) for pair in single], num_jobs=2)
    gains = [sum(pair.speeds) for pair in single]
    tried = [gain for gain, (once, _) in zip(gains, found, strict=True) if once]
    kept = [gain for gain, (_, left) in zip(gains, found, strict=True) if left]
    wrong = sum(gain <= 1 + LEAST_GAIN for gain in kept)
    missed = sum(gain > 1 + LEAST_GAIN for gain in gains) - (len(kept) - wrong)
    ran = sum(all(pair.speeds) for pair in pairs)
    gaining = sum(sum(pair.speeds) > 1 for pair in pairs)
    best = max(gains, default=0.0)
    return [
        _counted("pairs listed", "", len(pairs), (PAIRS, PAIRS)),
        _counted("pairs of jobs with one GPU", "", len(single)),
        _counted("pairs that ran together", "", ran),
        _counted(
            "pairs that do more work together", "", gaining, (PAIRS_THAT_GAIN, PAIRS_THAT_GAIN)
        ),
        _counted("the best of them", "times", best, (BEST_PAIR - 0.001, BEST_PAIR + 0.001)),
        _counted("pairs tried", "", len(tried)),
        _counted("pairs kept", "", len(kept)),
        _counted("pairs kept", "% of those tried", 100 * len(kept) / max(1, len(tried))),
        _counted(f"kept at {1 + LEAST_GAIN:g} or less", "", wrong, (0, 0)),
        _counted(f"not kept at more than {1 + LEAST_GAIN:g}", "", missed, (0, 0)),
        _counted("mean of those tried", "times", fmean(tried) if tried else 0.0),
        _counted("mean of those kept", "times", fmean(kept) if kept else 0.0),
    ]


def _counted(
    name: str, unit: str, ours: float, bounds: tuple[float, float] | None = None
) -> Figure:
    low, high = bounds or (None, None)
    return Figure(name, unit, None, None, float(ours), low, high)
