"""Information on training that a simulation gives to policies: reports, and truth to oracles."""

from functools import lru_cache

from rota.errors import SimulationError
from rota.model.allocation import Allocation
from rota.model.measured.reports import BatchRange, GradientNoise, Learned, StepPoint
from rota.model.state.state import ClusterState
from rota.sim.machine import Machine, SpeedModel
from rota.sim.measured import MeasuredSpeeds, consolidated


def attach(state: ClusterState, machine: Machine) -> None:
    """Let the jobs of a simulation report, and its state know the truth."""
    speeds = machine.speeds
    if isinstance(speeds, MeasuredSpeeds):
        state.truth = MeasuredTruth(state, speeds)
        state.reports = reports = MeasuredReports(state, speeds)
        machine.reporters.append(reports)
    else:
        state.truth = PlainTruth(state, speeds)


class PlainTruth:
    """Truth about jobs without steps: a second of work at speed 1 counts as one."""

    def __init__(self, state: ClusterState, speeds: SpeedModel | None) -> None:
        self._state = state
        self._speeds = speeds

    def step_s(self, row: int, gpus: int) -> float:
        """Seconds for a second of work. Raises SimulationError for more GPUs than there are."""
        if self._speeds is None:
            return 1.0
        spec, nodes = self._state.spec[row], self._state.nodes
        return 1.0 / self._speeds.speed(spec, self._fewest_nodes(gpus), nodes)

    def steps_left(self, row: int, now_s: float, whole_epochs: bool) -> float:
        """Seconds of work that are left."""
        return self._state.duration_s[row] - self._state.work(row, now_s)

    def _fewest_nodes(self, gpus: int) -> Allocation:
        nodes = [(-node.num_gpus, index) for index, node in enumerate(self._state.nodes)]
        parts = []
        for size, index in sorted(nodes):
            takes = min(-size, gpus)
            parts.append((index, (1 << takes) - 1))
            gpus -= takes
            if not gpus:
                return Allocation(tuple(sorted(parts)))
        raise SimulationError(f"the cluster has {gpus} GPUs less than an oracle asks about")


class MeasuredTruth:
    """Truth about jobs that play measured profiles."""

    def __init__(self, state: ClusterState, speeds: MeasuredSpeeds) -> None:
        self._state = state
        self._speeds = speeds

    def step_s(self, row: int, gpus: int) -> float:
        """Seconds of a whole step with the job's own batch, on nodes as those of the profiles."""
        spec = self._state.spec[row]
        return self._step_s(spec.model, spec.batch, gpus)

    @lru_cache(maxsize=65536)  # noqa: B019
    def _step_s(self, model: str, batch: int | None, gpus: int) -> float:
        profile = self._speeds.profile_of(model)
        return profile.step_s(consolidated(gpus), profile.split(batch, gpus))

    def steps_left(self, row: int, now_s: float, whole_epochs: bool) -> float:
        """Steps as they were counted with that batch; in the last epoch one, if by whole ones."""
        spec = self._state.spec[row]
        profile = self._speeds.profile(spec)
        steps = profile.steps(spec.batch)
        epoch, part = self._speeds.standing(spec, self._state.work(row, now_s))
        if whole_epochs:
            return max(1.0, steps[-1] - steps[epoch])
        before = steps[epoch - 1] if epoch else 0.0
        return steps[-1] - before - part * (steps[epoch] - before)


class MeasuredReports:
    """Reports of jobs that play measured profiles: exact, and only of what they have run."""

    def __init__(self, state: ClusterState, speeds: MeasuredSpeeds) -> None:
        self._state = state
        self._speeds = speeds
        self._points: dict[int, dict[tuple[int, int, int, str], StepPoint]] = {}
        self._batch: dict[int, int] = {}  # the whole batch with which it ran last

    def runs(self, row: int) -> None:
        """Note that the job begins to run where it is."""
        spec, held = self._state.spec[row], self._state.held[row]
        assert held is not None
        batch = self._speeds.batch(spec, held)
        self._batch[row] = batch.total(held.num_gpus)
        speed, gpu_type = self._speeds.slowest(spec, held, self._state.nodes)
        at = (len(held.parts), held.num_gpus, batch.size)
        points = self._points.setdefault(row, {})
        if (*at, gpu_type) not in points:
            placement = tuple(mask.bit_count() for _, mask in held.parts)
            step_s, sync_s = self._speeds.profile(spec).step(placement, batch.size)
            point = StepPoint(*at, (step_s - sync_s) / speed, step_s / speed, gpu_type)
            points[*at, gpu_type] = point

    def measured(self, row: int) -> tuple[StepPoint, ...]:
        """One point for each (nodes, GPUs, samples on a GPU, type), the first time first."""
        return tuple(self._points.get(row, {}).values())

    def noise(self, row: int, now_s: float) -> GradientNoise | None:
        """Noise of the present epoch with the present batch; None before it has run."""
        batch = self._batch.get(row)
        if batch is None:
            return None
        spec = self._state.spec[row]
        epoch, _ = self._speeds.standing(spec, self._state.work(row, now_s))
        return GradientNoise(*self._speeds.profile(spec).noise(batch, epoch))

    def batch_range(self, row: int) -> BatchRange:
        """The measured limits."""
        profile = self._speeds.profile(self._state.spec[row])
        return BatchRange(
            profile.init_batch, profile.max_batch, profile.least_per_gpu, profile.most_per_gpu
        )

    def learned(self, row: int, now_s: float) -> Learned:
        """Statistical progress up to now."""
        spec = self._state.spec[row]
        profile = self._speeds.profile(spec)
        epoch, part = self._speeds.standing(spec, self._state.work(row, now_s))
        before, after = profile.progress(epoch), profile.progress(epoch + 1)
        each = profile.progress(profile.num_epochs) / profile.num_epochs
        total = None if spec.epochs is None else spec.epochs * each
        return Learned(before + part * (after - before), each, total)
