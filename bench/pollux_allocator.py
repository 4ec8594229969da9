"""Decisions of the policy ``pollux``: what they cost and how good they are, beside other searches.

    python bench/pollux_allocator.py --data DIR [--large]

``DIR`` holds ``pollux/workloads/workload-1.csv`` and ``pollux/profiles``: jobs of six applications,
as they were measured on nodes of 4 GPUs. Printed are

* CPU times of whole decisions: the first one, in which models are fitted; later ones in which
  nothing has changed but the time, and in which all jobs have told of another gradient noise; and
  the part of the knapsack in these. ``--large`` adds 10,000 GPUs and 3,000 jobs;
* what 60 jobs on 64 GPUs that all begin at once are worth by the published fitness, a harmonic
  mean (p = -1), beside water-filling and the published genetic search, which takes pymoo (the extra
  ``bench``; left out without it), and how far that is from what no allocation exceeds;
* the CPU time of a call of the genetic search, in the same run; with ``--large`` also on 1,000 GPUs
  for 300 jobs, from that of a few generations.

Exits with 1 if the allocation is worse than another's, or a job is left without GPUs.
"""

import argparse
import random
from collections.abc import Callable
from itertools import cycle, islice
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any, NamedTuple

import numpy as np
from _data import add_data, is_there
from goodput import Profile

import rota.policy.pollux.policy
from rota.model.cluster import parse_cluster
from rota.model.decide.decision import Decider
from rota.model.events import JobSubmitted, joined
from rota.model.measured.reports import BatchRange, GradientNoise, Learned, StepPoint
from rota.model.state.state import ClusterState
from rota.model.view import View
from rota.policy.pollux.knapsack import solve
from rota.policy.pollux.models import Models
from rota.policy.pollux.value import SMALL, power_mean_values
from rota.policy.registry import create
from rota.predict.goodput import Goodput
from rota.predict.goodput_table import canonical, tables
from rota.sim.measured import played
from rota.workload.measured_files import read_profiles
from rota.workload.readers import read_trace

CASES = [("16x4", 60, 10), ("250x4", 300, 50), ("2500x4", 3000, 2000)]  # the last: limit in ms
TICK_S = 60.0
REPEATS = 9
NODES, NODE_GPUS, JOBS = 16, 4, 60
GPUS = NODES * NODE_GPUS
CALLS, SEEDS = 4, 3
FEW = 2, 5  # generations, of a search that would take minutes
PUBLISHED = {"objective": "pollux"}
CERTAIN = 1e-9  # relative: rounding of the fitness


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_data(parser)
    parser.add_argument("--large", action="store_true", help="10,000 GPUs as well")
    options = parser.parse_args()
    if not is_there(options.data, "pollux/profiles", "pollux/workloads/workload-1.csv"):
        return 0
    load = Load(options.data / "pollux")
    ours_ms = print_times(load, CASES if options.large else CASES[:2])
    good = print_fitness(load, ours_ms[JOBS])
    if options.large:
        print_large(load, *CASES[1][:2], ours_ms[CASES[1][1]])
    limits_ms = {num_jobs: limit_ms for _, num_jobs, limit_ms in CASES}
    within = all(ms < limits_ms[num_jobs] for num_jobs, ms in ours_ms.items())
    return 0 if good and within else 1


# -- jobs that tell what was measured of their applications ----------------------------------------


class Load:
    """The jobs of a workload, over and over, all of them there at once."""

    def __init__(self, folder: Path) -> None:
        trace = read_trace(folder / "workloads" / "workload-1.csv")
        self.profiles = read_profiles(folder / "profiles", {spec.model for spec in trace})
        self.points = {name: all_points(folder / "profiles" / name) for name in self.profiles}
        self._specs = list(played(trace, self.profiles))

    def cluster(self, cluster: str, num_jobs: int) -> ClusterState:
        """A state in which so many jobs have arrived and none has begun."""
        state = ClusterState(keep_stories=False)
        for node in parse_cluster(cluster):
            state.apply(joined(0.0, node._replace(kind="gpu")))
        for number, spec in enumerate(islice(cycle(self._specs), num_jobs)):
            spec = spec._replace(job_id=str(number), submit_s=0.0)
            state.apply(JobSubmitted(0.0, spec))
        state.reports = Told(self, state)
        return state


class Told:
    """What the jobs tell: the steps of their application, and a noise that is each job's own."""

    def __init__(self, load: Load, state: ClusterState) -> None:
        self._state = state
        self._profiles = load.profiles
        self._points = load.points
        self._chance = random.Random(1)
        self._noise: list[GradientNoise] = []
        self.change(1.0)

    def change(self, spread: float) -> None:
        """Let every job have another noise, so many times larger or smaller at most."""
        self._noise = []
        for spec in self._state.spec:
            profile = self._profiles[spec.model]
            sqr, var = profile.noise(profile.init_batch, 0)
            times = self._chance.uniform(1.0, spread) ** self._chance.choice([-1, 1])
            self._noise.append(GradientNoise(sqr, var * times))

    def measured(self, row: int) -> tuple[StepPoint, ...]:
        return self._points[self._state.spec[row].model]

    def noise(self, row: int, now_s: float) -> GradientNoise:
        return self._noise[row]

    def batch_range(self, row: int) -> BatchRange:
        profile = self._profiles[self._state.spec[row].model]
        return BatchRange(
            profile.init_batch, profile.max_batch, profile.least_per_gpu, profile.most_per_gpu
        )

    def learned(self, row: int, now_s: float) -> Learned:
        return Learned(1.0, 100.0, 5000.0)


def all_points(folder: Path) -> tuple[StepPoint, ...]:
    """Everything that was measured of an application, the first of every place."""
    points = {point[:3]: StepPoint(*point) for point in reversed(Profile(folder).points)}
    return tuple(reversed(points.values()))


# -- what decisions cost ---------------------------------------------------------------------------


def print_times(load: Load, cases: list[tuple[str, int, int]]) -> dict[int, float]:
    """CPU times by case; the median of later decisions by the number of jobs, ms."""
    names = ("first", "nothing changed", "all noise changed", "of it the knapsack")
    print(f"{'decision, CPU ms':24}" + "".join(f" {name:>26}" for name in names) + "   limit")
    median_ms: dict[int, float] = {}
    for cluster, num_jobs, limit_ms in cases:
        for fits in ("kind", "job") if num_jobs == JOBS else ("kind",):
            times = decisions(load, cluster, num_jobs, fits)
            later_ms = max(median(times[name]) for name in names[1:3])
            median_ms.setdefault(num_jobs, later_ms)
            line = f"{f'{cluster}, {num_jobs} jobs, {fits}':24}"
            line += "".join(f" {spread(times[name]):>26}" for name in names)
            print(f"{line} {limit_ms:7}  {'within' if later_ms < limit_ms else 'OVER'}", flush=True)
    return median_ms


def decisions(load: Load, cluster: str, num_jobs: int, fits: str) -> dict[str, list[float]]:
    """CPU ms of decisions, one after another on the same jobs, by what has happened before."""
    state = load.cluster(cluster, num_jobs)
    decider = Decider(state, create("pollux", {"fits": fits}))
    solving: list[float] = []
    plain = rota.policy.pollux.policy.solve_pools
    rota.policy.pollux.policy.solve_pools = timed(plain, solving)
    try:
        times = {"first": [cpu_ms(lambda: decider.decide(TICK_S))]}
        times["nothing changed"] = [
            cpu_ms(lambda tick=tick: decider.decide(TICK_S * tick)) for tick in range(2, REPEATS)
        ]
        changed = []
        solving.clear()
        for tick in range(REPEATS, 2 * REPEATS):
            state.reports.change(1.1)
            changed.append(cpu_ms(lambda tick=tick: decider.decide(TICK_S * tick)))
    finally:
        rota.policy.pollux.policy.solve_pools = plain
    return times | {"all noise changed": changed, "of it the knapsack": solving}


def timed(function: Callable[..., Any], times: list[float]) -> Callable[..., Any]:
    """The same function, which adds its CPU ms to ``times``."""

    def call(*args: Any) -> Any:
        start_s = process_time()
        found = function(*args)
        times.append(1000 * (process_time() - start_s))
        return found

    return call


def cpu_ms(work: Callable[[], object]) -> float:
    start_s = process_time()
    work()
    return 1000 * (process_time() - start_s)


def spread(values: list[float], digits: int = 3) -> str:
    """The median, with minimum and maximum of several."""
    texts = [f"{value:.{digits}g}" for value in (median(values), min(values), max(values))]
    return texts[0] if len(values) == 1 else f"{texts[0]} ({texts[1]} - {texts[2]})"


# -- how good they are -----------------------------------------------------------------------------


class Cold(NamedTuple):
    """The problem: speedups over the fair share by job, nodes and GPUs, and the most GPUs."""

    speedups: Any  # [jobs, nodes + 1, GPUs + 1]
    most: Any

    def values(self, speedups: Any, gpus: int) -> Any:
        """The jobs' parts of the mean, minus infinity for those that can't have so many GPUs."""
        return np.where(self.most >= gpus, power_mean_values(speedups, -1.0), -np.inf)

    def fitness(self, state: Any) -> float:
        """Of an allocation, (jobs, nodes): the harmonic mean, nobody having restarted."""
        rows = np.arange(len(state))
        speedups = self.speedups[rows, np.count_nonzero(state, axis=1), state.sum(axis=1)]
        return float(1 / np.mean(1 / (speedups + SMALL)))


def cold(models: list[Goodput], most: list[int], gpus: int = GPUS) -> Cold:
    """Tables of all placements, in units of a node's share of what the fair share is worth."""
    shapes = [(k, n) for n in range(1, NODES + 1) for k in range(n, n * NODE_GPUS + 1)]
    fair = -(-gpus // len(models)), 1
    goodputs = tables(models, [*shapes, fair]).goodput
    table = np.zeros((len(models), NODES + 1, GPUS + 1))
    for number, (count, nodes) in enumerate(shapes):
        table[:, nodes, count] = goodputs[:, number] / goodputs[:, -1] / NODE_GPUS
    return Cold(table, np.minimum(most, GPUS))


def print_fitness(load: Load, ours_ms: float) -> bool:
    """The fitness of each, and whether ours is the best of them and nobody is left out."""
    state, policy = load.cluster(f"{NODES}x{NODE_GPUS}", JOBS), create("pollux", PUBLISHED)
    problem = cold(*knowledge(state, policy))
    Decider(state, policy).decide(0.0)
    ours = placed(state)
    sizes = [(0, 0), *canonical(NODE_GPUS, GPUS)]
    counts = [gpus for gpus, _ in sizes]
    values = np.stack([problem.values(problem.speedups[:, n, k], k) for k, n in sizes], axis=1)
    best = problem.speedups.max(axis=1)
    anywhere = np.stack([problem.values(best[:, k], k) for k in range(GPUS + 1)], axis=1)

    print(
        f"\n{f'{JOBS} jobs on {GPUS} GPUs at once':34} {'fitness':>26} {'GPUs':>5} {'without':>8}"
    )
    mine, water = show("ours", [ours], problem), on_nodes(filled(values, counts, GPUS), counts)
    others = [show("water-filling", [water], problem), *genetic(problem, ours_ms)]
    bounds = {
        "sizes as ours": solve(values, counts, GPUS).bound,
        "any size and place": solve(anywhere, list(range(GPUS + 1)), GPUS).bound,
    }
    for name, bound in bounds.items():
        most = 1 / (1 / SMALL - bound / JOBS)
        gap = max(0.0, 1 - mine / most)
        print(f"{f'none is better, {name}':34} {most:26.4f}   ours is {gap:.2%} below")
    good = mine >= max(others) * (1 - CERTAIN) and bool((ours.sum(axis=1) > 0).all())
    print("ours is the best, and leaves nobody out" if good else "OURS IS WORSE")
    return good


def knowledge(state: ClusterState, policy: Any) -> tuple[list[Goodput], list[int]]:
    """The models of the jobs, and the most GPUs that each can have."""
    rows = list(range(len(state.spec)))
    [known] = Models(shared=True).know(View(state, 0.0, policy), rows, {})
    return [each.model for each in known], [state.sizes(row)[-1] for row in rows]


def show(name: str, states: list[Any], problem: Cold) -> float:
    """Print a line for the allocations of some runs; the best fitness."""
    fitness = [problem.fitness(state) for state in states]
    gpus = median(int(state.sum()) for state in states)
    without = median(int((state.sum(axis=1) == 0).sum()) for state in states)
    print(f"{name:34} {spread(fitness, 4):>26} {gpus:5g} {without:8g}", flush=True)
    return max(fitness)


def placed(state: ClusterState) -> Any:
    """How many GPUs of each node each job has been given."""
    given = np.zeros((len(state.target), len(state.nodes)), dtype=int)
    for row, target in enumerate(state.target):
        for node, mask in target.parts if target is not None else ():
            given[row, node] = mask.bit_count()
    return given


def filled(values: Any, counts: list[int], capacity: int) -> list[int]:
    """Water-filling: again and again the step up that brings most for each further GPU."""
    choices = [0] * len(values)
    left = capacity
    while True:
        steps = [
            ((values[job, to] - values[job, at]) / (counts[to] - counts[at]), job, to)
            for job, at in enumerate(choices)
            for to in range(at + 1, len(counts))
            if counts[to] - counts[at] <= left and values[job, to] > values[job, at]
        ]
        if not steps:
            return choices
        _, job, to = max(steps)
        left -= counts[to] - counts[choices[job]]
        choices[job] = to


def on_nodes(choices: list[int], counts: list[int]) -> Any:
    """The largest jobs first, each on the nodes with the most free GPUs that hold it."""
    given = np.zeros((len(choices), NODES), dtype=int)
    free = np.full(NODES, NODE_GPUS)
    for job in sorted(range(len(choices)), key=lambda job: -choices[job]):
        gpus = counts[choices[job]]
        fitting = [node for node in range(NODES) if free[node] >= min(gpus, NODE_GPUS)]
        fitting.sort(key=lambda node: free[node])
        for node in fitting[: -(-gpus // NODE_GPUS)]:
            given[job, node] = min(gpus, NODE_GPUS)
            free[node] -= given[job, node]
    return given


def genetic(problem: Cold, ours_ms: float) -> list[float]:
    """Print what the genetic search finds in each of several calls; the best of each."""
    try:
        from _genetic import Search
    except ModuleNotFoundError as error:
        print(f"the genetic search is left out: {error}; install '.[bench]'")
        return []
    base = np.zeros((JOBS, NODES), dtype=int)
    new = np.ones(JOBS)  # nobody has restarted
    searches = [
        Search(problem.speedups, problem.most, base, NODE_GPUS, new, seed=CALLS * seed)
        for seed in range(SEEDS)
    ]
    best: list[float] = []
    calls_ms: list[float] = []
    for number in range(1, CALLS + 1):
        states: list[Any] = []
        for search in searches:
            start_s = process_time()
            states.append(search.call())
            calls_ms.append(1000 * (process_time() - start_s))
        best.append(show(f"genetic, {number} calls, {SEEDS} seeds", states, problem))
    ratios = [call_ms / ours_ms for call_ms in calls_ms]
    print(f"{'CPU ms of a genetic call':34} {spread(calls_ms):>26}   {spread(ratios)} times ours")
    return best


def print_large(load: Load, cluster: str, num_jobs: int, ours_ms: float) -> None:
    """The CPU time of a genetic call there, from calls of a few generations."""
    try:
        from _genetic import GENERATIONS, Search
    except ModuleNotFoundError:
        return
    state = load.cluster(cluster, num_jobs)
    problem = cold(*knowledge(state, create("pollux", PUBLISHED)), state.total_gpus)
    base, new = np.zeros((num_jobs, len(state.nodes)), dtype=int), np.ones(num_jobs)
    times = []
    for generations in FEW:
        search = Search(problem.speedups, problem.most, base, NODE_GPUS, new, seed=1)
        times.append(cpu_ms(lambda search=search, few=generations: search.call(few)))
    each_ms = (times[1] - times[0]) / (FEW[1] - FEW[0])
    call_ms = times[0] + (GENERATIONS - FEW[0]) * each_ms
    print(f"{f'{cluster}, {num_jobs} jobs: a genetic call':34} {call_ms / 1000:.0f} s from", end="")
    print(f" {FEW[0]} and {FEW[1]} generations, {call_ms / ours_ms:.0f} times ours")


if __name__ == "__main__":
    raise SystemExit(main())
