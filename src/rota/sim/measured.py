"""True training speeds from measured profiles: by placement, batch and epoch."""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import accumulate
from math import inf
from typing import NamedTuple

from rota.errors import SimulationError
from rota.model.allocation import Allocation
from rota.model.cluster import Node
from rota.model.job import Elastic, JobSpec
from rota.sim.machine import Phase
from rota.workload.measured import Batch, Measured, Placement, epoch_at
from rota.workload.trace import Trace

GPUS_PER_NODE = 4  # of the cluster that the profiles were measured on
ROUNDING = 1e-9  # part of a job's whole work: so close to an epoch's end, it is reached


class Course(NamedTuple):
    """A job's training at one placement and batch: its speed in each epoch, and the epoch's end.

    Work is in the seconds that the job takes as it was submitted; ``until`` is the work at which
    the speed changes.
    """

    speeds: tuple[float, ...]
    until: tuple[float, ...]


class MeasuredSpeeds:
    """Speeds relative to the GPUs and the batch with which a job was submitted.

    The speed is that of statistical progress: the work of a job is what it has learned, with
    whatever batches, and each epoch has a speed of its own. On GPUs of a type that the job names in
    its ``speeds``, all of its steps are faster than measured by that factor; on several types the
    slowest counts.
    """

    source = "profiles"

    def __init__(self, profiles: Mapping[str, Measured]) -> None:
        self._profiles = dict(profiles)

    def profile_of(self, model: str) -> Measured:
        """The measurements of an application, which must exist."""
        return self._profiles[model]

    def profile(self, spec: JobSpec) -> Measured:
        """The measurements of the job's application. Raises SimulationError if there are none."""
        found = self._profiles.get(spec.model)
        if found is None:
            raise SimulationError(
                f"job {spec.job_id} trains {spec.model!r}, of which there is no profile; there are "
                f"{', '.join(self._profiles) or 'none'}"
            )
        return found

    def speed(self, spec: JobSpec, allocation: Allocation, nodes: list[Node]) -> float:
        """The job's speed in its first epoch."""
        return self.phase(spec, allocation, nodes, 0.0).speed

    def phase(
        self, spec: JobSpec, allocation: Allocation, nodes: list[Node], work_s: float
    ) -> Phase:
        """The job's speed on these GPUs after so much work, and the work until it changes."""
        placement = tuple(mask.bit_count() for _, mask in allocation.parts)
        batch = self.batch(spec, allocation)
        course = self.course(spec.model, spec.batch, spec.num_gpus, placement, batch)
        epoch, _ = self.standing(spec, work_s)
        speed = course.speeds[epoch]
        if spec.speeds:
            speed *= self.slowest(spec, allocation, nodes)[0]
        return Phase(speed, course.until[epoch])

    def slowest(
        self, spec: JobSpec, allocation: Allocation, nodes: list[Node]
    ) -> tuple[float, str]:
        """The job's speed on the slowest type of these GPUs, and that type.

        Raises SimulationError if it can't run there.
        """
        speeds = dict(spec.speeds)
        kinds = {nodes[node].gpu_type for node, _ in allocation.parts}
        speed, kind = min((speeds.get(kind, 1.0), kind) for kind in kinds)
        if speed <= 0:
            raise SimulationError(
                f"the policy puts job {spec.job_id} on {kind} GPUs, where by its speeds it can't "
                "run; use another cluster, or drop the job"
            )
        return speed, kind

    def standing(self, spec: JobSpec, work_s: float) -> tuple[int, float]:
        """(epoch, from 0; finished part of it) of the job after so much work."""
        ends = self.ends(spec.model, spec.batch, spec.num_gpus)
        epoch = epoch_at(ends, work_s + ROUNDING * ends[-1])
        before_s = ends[epoch - 1] if epoch else 0.0
        part = (work_s - before_s) / (ends[epoch] - before_s)
        return epoch, min(max(part, 0.0), 1.0)

    def batch(self, spec: JobSpec, allocation: Allocation) -> Batch:
        """The batch with which the job trains on these GPUs."""
        if allocation.batch is not None:
            return Batch(*allocation.batch)
        return self.profile(spec).split(spec.batch, allocation.num_gpus)

    def step_s(self, spec: JobSpec) -> float:
        """Seconds of a step on the GPUs that the job's duration is for."""
        profile = self.profile(spec)
        batch = profile.split(spec.batch, spec.num_gpus)
        return profile.step_s(consolidated(spec.num_gpus), batch)

    @lru_cache(maxsize=4096)  # noqa: B019  as many as there are kinds of jobs
    def ends(self, model: str, batch: int | None, num_gpus: int) -> tuple[float, ...]:
        """The work at the end of each epoch of jobs that asked for this batch and these GPUs."""
        return tuple(accumulate(self._reference(model, batch, num_gpus)))

    @lru_cache(maxsize=65536)  # noqa: B019
    def course(
        self, model: str, asked: int | None, num_gpus: int, placement: Placement, batch: Batch
    ) -> Course:
        """The speeds at ``placement`` and ``batch`` of jobs that asked for a batch and GPUs."""
        reference = self._reference(model, asked, num_gpus)
        here = self._profiles[model].epochs_s(placement, batch)
        speeds = tuple(_ratio(then, now) for then, now in zip(reference, here, strict=True))
        ends, until, change = self.ends(model, asked, num_gpus), [inf] * len(speeds), inf
        for epoch in range(len(speeds) - 2, -1, -1):
            if speeds[epoch] != speeds[epoch + 1]:
                change = ends[epoch]
            until[epoch] = change
        return Course(speeds, tuple(until))

    def _reference(self, model: str, batch: int | None, num_gpus: int) -> tuple[float, ...]:
        profile = self._profiles[model]
        return profile.epochs_s(consolidated(num_gpus), profile.split(batch, num_gpus))


def describe_alike(trace: Trace, nodes: Iterable[Node]) -> list[str]:
    """A sentence on the jobs that run alike on all GPU types, if there are several."""
    types = list(dict.fromkeys(node.gpu_type for node in nodes))
    alike = sum(1 for spec in trace if not any(kind in types for kind, _ in spec.speeds))
    if len(types) < 2 or not alike:
        return []
    named = [kind for kind in types if kind]
    return [
        f"{trace.name}: {alike:,} of {len(trace):,} jobs name no speed on {' or '.join(named)} "
        "GPUs, and run alike on all, as their profiles say; give the trace a column speeds, "
        f"with {named[-1]}=2 for twice as fast"
    ]


def _ratio(then: float, now: float) -> float:
    """Their ratio without the noise of the last bits, which would make equal speeds differ."""
    return float(f"{then / now:.12g}")


def consolidated(num_gpus: int) -> Placement:
    """``num_gpus`` GPUs on the fewest nodes, of those that profiles were measured on."""
    whole, rest = divmod(num_gpus, GPUS_PER_NODE)
    return (GPUS_PER_NODE,) * whole + ((rest,) if rest else ())


def played(trace: Trace, profiles: Mapping[str, Measured]) -> Trace:
    """The trace with the durations and epochs of the profiles, and the sizes of its jobs.

    A duration is that of the job's whole training on the GPUs and with the batch it asks for.
    """
    speeds = MeasuredSpeeds(profiles)
    jobs = []
    for spec in trace:
        profile = speeds.profile(spec)
        ends = speeds.ends(spec.model, spec.batch, spec.num_gpus)
        sizes = tuple(range(1, max(profile.most_gpus, spec.num_gpus) + 1))
        elastic = Elastic(sizes, by_restart=True) if len(sizes) > 1 else None
        epochs = profile.num_epochs
        jobs.append(spec._replace(duration_s=ends[-1], elastic=elastic, epochs=epochs))
    return trace.with_jobs(jobs)
