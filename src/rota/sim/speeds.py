"""Speeds of jobs by where they are placed, from the figures of the model catalogue."""

from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from math import exp, fsum, log
from typing import NamedTuple

from rota.errors import SimulationError, did_you_mean
from rota.model.allocation import Allocation
from rota.model.cluster import Node
from rota.model.job import JobSpec
from rota.predict.step_time import Shape, fewest_nodes, relative_speed
from rota.workload.catalog import ModelProfile, gpu_type, gpu_types, load, look_up
from rota.workload.trace import Trace


class Coverage(NamedTuple):
    """Number of a trace's jobs whose speed depends on their place, and number of the others.

    It depends if the catalogue has a step time of the job's model, or the trace gives its speeds.
    """

    known: int
    unknown: int  # jobs of a model without a step time in the catalogue
    unnamed: int  # jobs without a model


class CatalogSpeeds:
    """Speeds relative to the reference: the GPUs of ``reference`` on as few nodes as can be.

    A job runs at the speed of the slowest GPU type it got, with the gradients exchanged over as
    many nodes as it got. Jobs whose model the catalogue has no step time of run at 1.0 wherever
    they are, unless their trace tells their speed by GPU type. Where a model was not measured on a
    type, the typical ratio of the two types over all models stands in.

    ``reference`` is the GPU type that durations are for, by default the first that a node names;
    ``oversubscription`` by how much links between racks are slower than those of nodes.
    """

    source = "catalog"

    def __init__(
        self, nodes: Iterable[Node], reference: str | None = None, oversubscription: float = 1.0
    ) -> None:
        nodes = list(nodes)
        named = [node.gpu_type for node in nodes if node.gpu_type]
        self.reference = gpu_type(reference or (named[0] if named else ""))
        self.oversubscription = oversubscription
        self.types = tuple(dict.fromkeys(node.gpu_type for node in nodes))  # as nodes name them
        self._sizes: dict[str, list[int]] = {}  # GPU type -> sizes of its nodes, falling
        for node in nodes:
            self._sizes.setdefault(self._type(node.gpu_type), []).append(node.num_gpus)
        for sizes in self._sizes.values():
            sizes.sort(reverse=True)
        self._known: dict[tuple[str, tuple[tuple[str, float], ...], Shape], float] = {}
        self._fewest: dict[tuple[str, int], int] = {}

    def speed(self, spec: JobSpec, allocation: Allocation, nodes: list[Node]) -> float:
        """The job's speed on these GPUs, relative to the one that its duration is for.

        Raises SimulationError if it can't run on them.
        """
        if not spec.model and not spec.speeds:
            return 1.0
        if allocation.num_gpus != spec.num_gpus:
            return self._resized(spec, allocation, nodes)
        parts = allocation.parts
        on = [nodes[node] for node, _ in parts]
        links = self.oversubscription if len({node.rack for node in on}) > 1 else 1.0
        kinds = {node.gpu_type for node in on}
        speed, slowest = min(
            (self._speed(spec, Shape(kind, allocation.num_gpus, len(parts), links)), kind)
            for kind in kinds
        )
        if speed <= 0:
            raise SimulationError(
                f"the policy puts job {spec.job_id} on {slowest} GPUs, where its profile says that "
                "it can't run (speed 0); use a policy that chooses GPU types by the profile, such "
                "as max-min-fairness, or drop the job"
            )
        return speed

    def _resized(self, spec: JobSpec, allocation: Allocation, nodes: list[Node]) -> float:
        """The speed of an elastic job at another size than its duration is for.

        The global batch stays as it is, so that a GPU has a smaller part of it: strong scaling. A
        job of which the catalogue has no step time gains nothing from more GPUs.
        """
        profile = _timed(spec)
        like = spec._replace(num_gpus=allocation.num_gpus, elastic=None)
        speed = self.speed(like, allocation, nodes)
        if profile is None or profile.batch is None:
            return speed
        types = profile.step_times
        kind = self.reference if self.reference in types else next(iter(types))
        times = []
        for gpus in (spec.num_gpus, allocation.num_gpus):
            batch = profile.batch * spec.num_gpus / gpus
            spread = self._fewest_nodes(self.reference, gpus)
            times.append(types[kind].step_s(gpus, spread, batch))
        return speed * times[0] / times[1]

    def by_type(self, spec: JobSpec) -> tuple[tuple[str, float], ...]:
        """The job's speed on each GPU type of the cluster, on as few nodes as can be."""
        return tuple((kind, self.on_type(spec, kind)) for kind in self.types)

    def on_type(self, spec: JobSpec, kind: str) -> float:
        """The job's speed on one GPU type, in the cluster or not, on as few nodes as can be."""
        nodes = self._fewest_nodes(self._type(kind), spec.num_gpus)
        return self._speed(spec, Shape(kind, spec.num_gpus, nodes))

    def step_s(self, spec: JobSpec) -> float | None:
        """Seconds for one step where the job's duration is for; None if the catalogue has none."""
        profile = _timed(spec)
        if profile is None or profile.batch is None or self.reference not in profile.step_times:
            return None
        nodes = self._fewest_nodes(self.reference, spec.num_gpus)
        return profile.step_times[self.reference].step_s(spec.num_gpus, nodes, profile.batch)

    def _type(self, name: str) -> str:
        """The catalogue's name of a GPU type; one that nobody named is the reference."""
        return gpu_type(name) if name else self.reference

    def _speed(self, spec: JobSpec, at: Shape) -> float:
        key = (spec.model, spec.speeds, at)
        speed = self._known.get(key)
        if speed is None:
            speed = self._compute(spec, at._replace(gpu_type=self._type(at.gpu_type)))
            self._known[key] = speed
        return speed

    def _compute(self, spec: JobSpec, at: Shape) -> float:
        profile = _timed(spec)
        told = {self._type(kind): speed for kind, speed in spec.speeds}
        if profile is None or profile.batch is None:
            return told.get(at.gpu_type, 1.0)
        types = profile.step_times
        consolidated = Shape(at.gpu_type, at.gpus, self._fewest_nodes(at.gpu_type, at.gpus))
        if at.gpu_type in told:
            # The trace knows the type's speed; the catalogue what the placement does to it.
            kind = at.gpu_type if at.gpu_type in types else next(iter(types))
            return told[at.gpu_type] * self._ratio(profile, kind, at, consolidated)
        if at.gpu_type in types and self.reference in types:
            nodes = self._fewest_nodes(self.reference, at.gpus)
            reference = Shape(self.reference, at.gpus, nodes)
            return relative_speed(types, profile.batch, at, reference)
        kind = at.gpu_type if at.gpu_type in types else self.reference
        kind = kind if kind in types else next(iter(types))
        typical = typical_speed(at.gpu_type, self.reference)
        return typical * self._ratio(profile, kind, at, consolidated)

    def _ratio(self, profile: ModelProfile, kind: str, at: Shape, than: Shape) -> float:
        """Factor of the placement alone on the speed, by the model's step time on ``kind``."""
        assert profile.batch is not None
        at, than = at._replace(gpu_type=kind), than._replace(gpu_type=kind)
        return relative_speed(profile.step_times, profile.batch, at, than)

    def _fewest_nodes(self, kind: str, gpus: int) -> int:
        key = (kind, gpus)
        if key not in self._fewest:
            self._fewest[key] = max(1, fewest_nodes(self._sizes.get(kind, ()), gpus))
        return self._fewest[key]


def with_profiles(trace: Trace, nodes: Iterable[Node], reference: str | None = None) -> Trace:
    """The trace with what the catalogue knows of its models: skew, and speeds by GPU type.

    What the trace itself tells stays. Speeds are filled in where the nodes are of several types.
    """
    speeds = CatalogSpeeds(nodes, reference)
    several = len(speeds.types) > 1
    jobs = []
    for spec in trace:
        profile = look_up(spec.model) if spec.model else None
        if profile is not None:
            if spec.skew is None and profile.skew is not None:
                spec = spec._replace(skew=profile.skew)
            if several and not spec.speeds and profile.step_times:
                spec = spec._replace(speeds=speeds.by_type(spec))
        jobs.append(spec)
    return trace.with_jobs(jobs)


def coverage(trace: Iterable[JobSpec]) -> Coverage:
    """Number of a trace's jobs whose speed depends on their place, and of the others."""
    known = unknown = unnamed = 0
    for spec in trace:
        if spec.speeds or _timed(spec) is not None:
            known += 1
        elif spec.model:
            unknown += 1
        else:
            unnamed += 1
    return Coverage(known, unknown, unnamed)


def describe_unknown(trace: Trace, nodes: Iterable[Node]) -> list[str]:
    """Sentences on the jobs of which nobody knows how fast they run, and on the GPU types.

    A type is named if the catalogue does not have it, and jobs whose speeds on others are known run
    there as fast as on the type that durations are for.
    """
    sentences = []
    _, unknown, unnamed = coverage(trace)
    if unknown or unnamed:
        sentences.append(
            f"{trace.name}: neither the catalog nor the trace has speeds for {unknown + unnamed:,} "
            f"of {len(trace):,} jobs: they run at 1 wherever they are placed"
        )
    types = sorted({node.gpu_type for node in nodes if node.gpu_type})
    jobs = Counter((spec.model, spec.speeds, _timed(spec) is not None) for spec in trace)
    told = {gpu_type(kind) for _, speeds, _ in jobs for kind, _ in speeds}
    for kind in types:
        plain = gpu_type(kind)
        if plain in gpu_types():
            continue
        lacking = sum(
            number
            for (_, speeds, timed), number in jobs.items()
            if (plain not in map(gpu_type, dict(speeds)) if speeds else timed and len(types) > 1)
        )
        if lacking:
            hint = did_you_mean(plain, [*gpu_types(), *sorted(told)])
            sentences.append(
                f"cluster: neither the catalog nor the trace tells how fast {lacking:,} of "
                f"{len(trace):,} jobs run on GPU type {kind!r}{hint}: there they run as on the "
                "type that durations are for"
            )
    return sentences


def _timed(spec: JobSpec) -> ModelProfile | None:
    """The profile of the job's model if the catalogue can tell its step time."""
    profile = look_up(spec.model) if spec.model else None
    if profile is None or not profile.step_times or profile.batch is None:
        return None
    return profile


@lru_cache(maxsize=1024)
def typical_speed(kind: str, reference: str) -> float:
    """One GPU's speed against one of the reference type: the geometric mean over measured models.

    If no model was measured on both, over the types on which some was measured with each of them;
    1.0 if there is none.
    """
    if kind == reference:
        return 1.0
    direct = _mean_log(kind, reference)
    if direct is None:
        types = {name for profile in load().values() for name in profile.step_times}
        steps = [(_mean_log(kind, via), _mean_log(via, reference)) for via in sorted(types)]
        sums = [a + b for a, b in steps if a is not None and b is not None]
        direct = fsum(sums) / len(sums) if sums else 0.0
    return exp(direct)


@lru_cache(maxsize=1024)
def _mean_log(kind: str, reference: str) -> float | None:
    logs = []
    for profile in load().values():
        types, fits = profile.step_times, profile.fits
        if kind in types and reference in types and fits[kind].points and profile.batch:
            ratio = types[reference].compute_s(profile.batch) / types[kind].compute_s(profile.batch)
            logs.append(log(ratio))
    return fsum(logs) / len(logs) if logs else None
