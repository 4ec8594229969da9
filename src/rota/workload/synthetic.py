"""Synthetic traces with the shape of real load: bursts, sweeps, day cycle, sizes, durations.

Real load is not Poisson: arrivals follow the hour and the day, come in bursts, and a user who
searches hyper-parameters submits tens of equal jobs at once. Durations have several humps, and long
runs grow with the gang. `rota.workload.profiles` holds the tables.
"""

from bisect import bisect
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from math import ceil, erf, exp, log, sqrt
from random import Random

from rota.errors import TraceError, did_you_mean
from rota.model.job import JobSpec
from rota.workload.profiles import HOURS, LONGEST_S, MODELS, PROFILES, Hump, Profile
from rota.workload.trace import MAX_GPUS, Trace, collection_paused

SLOT_S = 600.0  # bursts last for ten minutes
SWEEP_JOBS = (5, 100)
SWEEP_S = 60.0  # a sweep is submitted within a minute
LONGEST_SPAN_S = 10 * 365 * 86_400.0
LOADS = (1e-6, 1e6)
MAX_JOBS = 20_000_000

# Gang size, and the durations of its jobs: one, or those of a whole sweep.
Unit = tuple[int, tuple[float, ...]]


def generate(
    profile: str = "philly",
    *,
    num_jobs: int | None = None,
    span_s: float | None = None,
    num_gpus: int,
    load: float = 1.0,
    seed: int = 0,
) -> Trace:
    """A trace of the profile's shape: ``num_jobs`` jobs, or as many as arrive in ``span_s``.

    ``load`` is the GPU-seconds that the jobs ask for over ``num_gpus`` times the span in which they
    arrive; time zero is a Monday's midnight. The number of jobs sets the span: exactly; the span
    sets the number of jobs, to within 1 % of the load where its jobs are small enough. Gangs larger
    than ``num_gpus`` are left out. Same arguments, same bits. Raises TraceError.
    """
    shape = _profile(profile, num_gpus)
    if (num_jobs is None) == (span_s is None):
        raise TraceError("give either num_jobs or span_s: with the load, one sets the other")
    if num_jobs is not None and not 1 <= num_jobs <= MAX_JOBS:
        raise TraceError(f"num_jobs is {num_jobs}; it must be from 1 to {MAX_JOBS}")
    if span_s is not None and not 1 <= span_s <= LONGEST_SPAN_S:
        raise TraceError(f"span_s is {span_s}; it must be from 1 s to ten years")
    if not LOADS[0] <= load <= LOADS[1]:
        raise TraceError(f"load is {load}; it must be from {LOADS[0]:f} to 1,000,000, such as 0.8")
    random = Random(f"{profile}/{seed}")
    with collection_paused():
        if num_jobs is not None:
            units = _units(shape, num_jobs, random)
            span_s = _gpu_s(units) / (num_gpus * load)
        else:
            assert span_s is not None
            units = _units_up_to(shape, span_s * num_gpus * load, random)
        if span_s > LONGEST_SPAN_S:
            raise TraceError(
                f"{num_jobs} jobs on {num_gpus} GPUs at load {load:g} arrive over "
                f"{span_s / 86_400 / 365:.0f} years, and ten is the most; "
                "give more GPUs, fewer jobs or a higher load"
            )
        arrivals = _arrivals(shape, units, span_s, random)
        del units
        name = f"{profile}-{len(arrivals)}-seed{seed}"
        too_large = sum(size > num_gpus for size, _ in PROFILES[profile].gpus)
        notes = [f"gangs of more than {num_gpus} GPUs are left out"] if too_large else []
        return Trace(_specs(shape, arrivals, random), name=name, notes=notes)


def _profile(name: str, num_gpus: int) -> Profile:
    shape = PROFILES.get(name)
    if shape is None:
        hint = did_you_mean(name, PROFILES)
        raise TraceError(f"profile: there is no {name!r}{hint}; known: {', '.join(PROFILES)}")
    if not 1 <= num_gpus <= MAX_GPUS:
        raise TraceError(f"num_gpus is {num_gpus}; it must be from 1 to {MAX_GPUS}")
    fitting = [(size, weight) for size, weight in shape.gpus if size <= num_gpus]
    total = sum(weight for _, weight in fitting)
    return shape._replace(gpus=tuple((size, weight / total) for size, weight in fitting))


# -- what the jobs are -----------------------------------------------------------------------------


def _units(shape: Profile, num_jobs: int, random: Random) -> list[Unit]:
    """``num_jobs`` jobs, alone and in sweeps, in random order.

    Sizes come in the numbers that the table says, and durations are drawn one from each of as many
    equally likely slices: a plain draw of a tail this heavy would miss its own mean by far.
    """
    counts = _apportion(num_jobs, [weight for _, weight in shape.gpus])
    units: list[Unit] = []
    sizes = list(_sweep_sizes(min(int(num_jobs * shape.sweep_share), counts[0]), random))
    short, *others = _humps(shape, 1)
    scale = sum(weight for weight, _, _ in others)
    others = [(weight / scale, mu, sigma) for weight, mu, sigma in others]
    for jobs, duration_s in zip(sizes, _durations(others, len(sizes), random), strict=True):
        failed = _durations(
            [(1.0, *short[1:])], sum(random.random() < short[0] for _ in range(jobs)), random
        )
        units.append((1, (*failed, *[duration_s] * (jobs - len(failed)))))
    counts[0] -= sum(sizes)
    for (size, _), count in zip(shape.gpus, counts, strict=True):
        units += [(size, (drawn,)) for drawn in _durations(_humps(shape, size), count, random)]
    random.shuffle(units)
    return units


def _units_up_to(shape: Profile, gpu_s: float, random: Random) -> list[Unit]:
    """Jobs that ask for ``gpu_s`` GPU-seconds in all, to within 1 % if they are small enough."""
    mean_gpu_s = sum(weight * size * _mean(_humps(shape, size)) for size, weight in shape.gpus)
    if gpu_s > MAX_JOBS * mean_gpu_s:
        raise TraceError(f"that makes more than {MAX_JOBS} jobs; give a shorter span or fewer GPUs")
    units: list[Unit] = []
    left = gpu_s
    for _ in range(8):
        for unit in _units(shape, ceil(1.05 * left / mean_gpu_s) + 20, random):
            asked = unit[0] * sum(unit[1])
            if asked <= left:
                units.append(unit)
                left -= asked
            if left <= 0.01 * gpu_s:
                return units
    # So short a span holds no whole job of this load: the shortest that were found stand for it.
    return units or [min(_units(shape, 20, random), key=lambda unit: unit[0] * sum(unit[1]))]


def _apportion(total: int, weights: Sequence[float]) -> list[int]:
    """Whole numbers near the weights that sum to ``total``, by largest remainder."""
    scale = total / sum(weights)
    counts = [int(weight * scale) for weight in weights]
    by_remainder = sorted(
        range(len(weights)), key=lambda index: counts[index] - weights[index] * scale
    )
    for index in by_remainder[: total - sum(counts)]:
        counts[index] += 1
    return counts


def _sweep_sizes(total: int, random: Random) -> Iterator[int]:
    low, high = map(log, SWEEP_JOBS)
    while total >= SWEEP_JOBS[0]:
        jobs = min(total, round(exp(low + (high - low) * random.random())))
        yield jobs
        total -= jobs


def _humps(shape: Profile, size: int) -> list[Hump]:
    return list(next(humps for most, humps in shape.humps if size <= most))


def _durations(humps: Sequence[Hump], count: int, random: Random) -> list[float]:
    """``count`` durations in whole seconds, one from each equally likely slice of the mixture."""
    from statistics import NormalDist

    quantile, draw = NormalDist().inv_cdf, random.random
    bounds = list(accumulate(weight for weight, _, _ in humps))
    # Within a hump, the part of it that lies below LONGEST_S: u -> low + u * slope.
    pieces = []
    for bound, (weight, mu, sigma) in zip(bounds, humps, strict=True):
        slope = _phi((log(LONGEST_S) - mu) / sigma) / weight
        pieces.append(((weight - bound) * slope, slope, mu, sigma))
    del bounds[-1]
    drawn = []
    for index in range(count):
        u = (index + draw()) / count
        low, slope, mu, sigma = pieces[bisect(bounds, u)]
        within = low + u * slope
        if not 1e-12 < within < 1 - 1e-12:  # rounding has left the hump
            within = 1e-12 if within < 0.5 else 1 - 1e-12
        drawn.append(exp(mu + sigma * quantile(within)) // 1 + 1.0)
    return drawn


def _mean(humps: Iterable[Hump]) -> float:
    """The mean of the mixture in seconds, cut at LONGEST_S."""
    mean_s = 0.0
    for weight, mu, sigma in humps:
        cut = (log(LONGEST_S) - mu) / sigma
        mean_s += weight * exp(mu + sigma * sigma / 2) * _phi(cut - sigma) / _phi(cut)
    return mean_s


def _phi(z: float) -> float:
    return (1 + erf(z / sqrt(2))) / 2


def _gpu_s(units: Iterable[Unit]) -> float:
    return sum(size * sum(durations) for size, durations in units)


# -- when they come --------------------------------------------------------------------------------


def _arrivals(
    shape: Profile, units: list[Unit], span_s: float, random: Random
) -> list[tuple[float, int, float, int]]:
    """(submit_s, gang size, duration_s, sweep or -1) of every job in order of arrival."""
    edges = _slot_edges(shape, units, span_s, random)
    last, slot, width_s = len(edges) - 1, 0, SLOT_S
    draw = random.random
    # The units are in random order: the first to come may be the first of them.
    points = sorted([draw() * edges[-1] for _ in units])
    arrivals = []
    for number, ((size, durations), point) in enumerate(zip(units, points, strict=True)):
        while point >= edges[slot] and slot < last:
            slot += 1
        if slot == last:
            width_s = span_s - last * SLOT_S
        at_s = slot * SLOT_S + draw() * width_s
        if len(durations) == 1:
            arrivals.append((at_s // 1, size, durations[0], -1))
            continue
        for duration_s in durations:
            late_s = min(at_s + draw() * SWEEP_S, span_s)
            arrivals.append((late_s // 1, size, duration_s, number))
    arrivals.sort()
    return arrivals


def _slot_edges(shape: Profile, units: list[Unit], span_s: float, random: Random) -> list[float]:
    """The cumulated weights of the ten-minute slots: the cycle times a gamma-distributed burst.

    Arrivals in sweeps of S jobs have a variance of E[S^2] / E[S] times their mean. A burst of mean
    1 and variance v adds v times the slot's mean; v is what is left of the profile's dispersion.
    """
    slots = max(1, ceil(span_s / SLOT_S))
    per_week = [day * hour for day in shape.days for hour in HOURS]
    base = [per_week[int(slot * SLOT_S // 3600) % len(per_week)] for slot in range(slots)]
    base[-1] *= (span_s - (slots - 1) * SLOT_S) / SLOT_S
    num_jobs = sum(len(durations) for _, durations in units)
    by_sweeps = sum(len(durations) ** 2 for _, durations in units) / num_jobs
    by_bursts = shape.dispersion - by_sweeps
    if by_bursts > 0:
        scale = num_jobs / sum(base) / by_bursts
        gamma = random.gammavariate
        edges = list(
            accumulate(gamma(weight * scale, 1.0) if weight > 0 else 0.0 for weight in base)
        )
        if edges[-1] > 0:
            return edges
    return list(accumulate(base))


# -- whose they are --------------------------------------------------------------------------------


def _specs(
    shape: Profile, arrivals: list[tuple[float, int, float, int]], random: Random
) -> list[JobSpec]:
    draw = random.random
    bounds = list(accumulate(weight for _, weight in shape.vcs))
    total, last = bounds[-1], len(bounds) - 1
    owners = [
        (name, [f"{name}-u{user}" for user in range(shape.users_per_vc)]) for name, _ in shape.vcs
    ]
    limits = [hours * 3600.0 for hours, _ in MODELS[:-1]]
    models = [names for _, names in MODELS]
    sweeps: dict[int, tuple[float, float, float]] = {}
    # The tuple's own constructor: half the time of JobSpec's, which fills in the defaults.
    new, rest = tuple.__new__, tuple(JobSpec("", 1, 0.0))[9:]
    priority: int = JobSpec._field_defaults["priority"]
    specs = []
    for number, (submit_s, size, duration_s, sweep) in enumerate(arrivals):
        if sweep < 0:
            whose, who, what = draw(), draw(), draw()
        elif sweep in sweeps:
            whose, who, what = sweeps[sweep]
        else:
            whose, who, what = sweeps[sweep] = draw(), draw(), draw()
        vc, users = owners[min(bisect(bounds, whose * total), last)]
        # A few users submit most jobs.
        user = users[int(len(users) * who * who * who)]
        fitting = models[bisect(limits, size * duration_s)]
        model = fitting[int(what * len(fitting))]
        fields = (str(number), size, submit_s, duration_s, priority, "", user, vc, model, *rest)
        specs.append(new(JobSpec, fields))
    return specs
