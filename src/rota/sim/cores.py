"""CPU cores in a simulation: speeds by the catalogue's curves, and what jobs tell of them.

Policies see reports alone: step times with noise, of what a job has run, as a live job tells them.
"""

from __future__ import annotations

import random
from functools import lru_cache
from heapq import heappop, heappush
from math import exp
from typing import TYPE_CHECKING, NamedTuple

from rota.model.allocation import Allocation
from rota.model.cluster import Node
from rota.model.job import JobSpec
from rota.model.measured.phase_times import EVALUATE, TRAIN
from rota.model.measured.reports import CoreTime
from rota.model.state.state import ClusterState
from rota.sim.machine import Machine, Phase, SpeedModel
from rota.workload.catalog import look_up
from rota.workload.catalog.core_curve import GPU_TYPE, CoreCurve
from rota.workload.catalog.core_curve import TRAIN as TRAINING
from rota.workload.catalog.core_curve import VALIDATE as VALIDATION
from rota.workload.trace import Trace

if TYPE_CHECKING:
    from rota.sim.speeds import CatalogSpeeds

# Of jobs whose model has a curve of validation: so much work, one after the other.
TRAIN_S, EVALUATE_S = 540.0, 60.0
STEP_S = 0.3  # of jobs whose step time nobody knows
NOISE = 0.02  # standard deviation of what a job tells, as a part of it
SETTLED_STEPS = 25  # under the same conditions, after which a job has told of them
ROUNDING_S = 1e-6


class CatalogCores:
    """Speeds by CPU cores relative to the share of a GPU: all cores of its node, by its GPUs.

    Jobs whose model has no curve in the catalogue run alike with any number. On nodes of several
    kinds the one with the least cores for a GPU counts. A faster GPU has a use for more cores, and
    is no faster with few, since it is their speed that then counts: ``speeds`` tell how fast each
    type is, without which all are as those of the curves. ``noise`` is that of what jobs tell of
    their step times, as a part of them, drawn by ``seed``.
    """

    def __init__(
        self, noise: float = NOISE, seed: int = 0, speeds: CatalogSpeeds | None = None
    ) -> None:
        self.noise = noise
        self.seed = seed
        self._speeds = speeds

    def factor(
        self,
        spec: JobSpec,
        allocation: Allocation,
        nodes: list[Node],
        millicores: int,
        work_s: float,
    ) -> float:
        """The part of its speed on these GPUs that the job has with so many cores."""
        curves = curves_of(spec.model)
        if not curves:
            return 1.0
        places = allocation.nodes()
        share = min(nodes[node].millicores / nodes[node].num_gpus for node in places)
        curve = curves.get(self.phase(spec, work_s))
        if curve is None or not share:
            return 1.0
        cores, share = millicores / (1000 * allocation.num_gpus), share / 1000
        if self._speeds is None:
            return curve.relative(cores, share)
        reference, types = self._speeds.reference, {nodes[node].gpu_type for node in places}
        here = min(self._speeds.on_type(spec, each) for each in types)
        there, measured = (self._speeds.on_type(spec, each) for each in (reference, GPU_TYPE))
        speed, base = curve.speed(cores, here / measured), curve.speed(share, there / measured)
        return speed / base * there / here

    def phase(self, spec: JobSpec, work_s: float) -> str:
        """The phase that the job is in after so much work."""
        return phase_at(work_s)[0] if EVALUATE in curves_of(spec.model) else TRAIN


@lru_cache(maxsize=1024)
def curves_of(model: str) -> dict[str, CoreCurve]:
    """The catalogue's curves of a model by phase."""
    profile = look_up(model) if model else None
    if profile is None:
        return {}
    found = ((TRAIN, profile.core_curve(TRAINING)), (EVALUATE, profile.core_curve(VALIDATION)))
    return {phase: curve for phase, curve in found if curve is not None}


def phase_at(work_s: float) -> tuple[str, float]:
    """The phase after so much work of a job that validates from time to time, and its end."""
    rounds, at_s = divmod(work_s + ROUNDING_S, TRAIN_S + EVALUATE_S)
    began_s = rounds * (TRAIN_S + EVALUATE_S)
    if at_s < TRAIN_S:
        return TRAIN, began_s + TRAIN_S
    return EVALUATE, began_s + TRAIN_S + EVALUATE_S


class Validating:
    """A speed model in which jobs whose model has a curve of validation validate now and then."""

    source = "catalog"

    def __init__(self, speeds: SpeedModel | None) -> None:
        self._speeds = speeds

    def speed(self, spec: JobSpec, allocation: Allocation, nodes: list[Node]) -> float:
        """The job's speed on these GPUs, in each phase relative to that of its duration."""
        return 1.0 if self._speeds is None else self._speeds.speed(spec, allocation, nodes)

    def phase(
        self, spec: JobSpec, allocation: Allocation, nodes: list[Node], work_s: float
    ) -> Phase:
        """The job's speed, and the work at the end of the phase that it is in."""
        until_s = phase_at(work_s)[1] if EVALUATE in curves_of(spec.model) else float("inf")
        return Phase(self.speed(spec, allocation, nodes), until_s)

    def step_s(self, spec: JobSpec) -> float | None:
        """Seconds of a step where the job's duration is for; None if nobody knows."""
        of = getattr(self._speeds, "step_s", None)
        return None if of is None else of(spec)


def validates(trace: Trace) -> bool:
    """True if the catalogue tells of the validation of some job."""
    return any(EVALUATE in curves_of(spec.model) for spec in trace)


class Stint(NamedTuple):
    """A time under the same conditions, and the service of the job at which it tells of them."""

    number: int
    place: Allocation
    millicores: int | None
    phase: str
    settled_s: float
    step_s: float


Kind = tuple[str, int, int, str, tuple[int, int] | None]  # model, GPUs, nodes, phase, batch


class NoisyCoreTimes:
    """The step times by cores, and the phases, that simulated jobs have told.

    A job tells once of each time under the same conditions, when it has lasted for as many steps
    as a probe has. Jobs of a model are of one kind; one without a model is of a kind of its own.
    """

    def __init__(self, state: ClusterState, machine: Machine) -> None:
        self._state = state
        self._machine = machine
        self._stints: dict[int, Stint] = {}
        self._due: list[tuple[float, int, int]] = []  # when, row and number of a stint
        self._sums: dict[Kind, dict[tuple[str, int], tuple[float, int]]] = {}
        self._told: dict[Kind, tuple[CoreTime, ...]] = {}  # their means
        self._count = 0

    def runs(self, row: int) -> None:
        """Note the conditions under which the job runs from now on."""
        state = self._state
        place, now_s = state.held[row], state.since_s[row]
        assert place is not None
        phase = self._phase(row, now_s)
        millicores, before = state.held_cpus.get(row), self._stints.get(row)
        self.catch_up(now_s)
        if before is not None and before.phase != phase and state.target_cpus:
            state.changed.append(row)
            state.decision_needed = True
        if before is not None and before[1:4] == (place, millicores, phase):
            stint = before
        else:
            self._count += 1
            step_s = self._step_s(row, phase)
            lasts_s = step_s * (1 if phase == EVALUATE else SETTLED_STEPS) - ROUNDING_S
            settled_s = state.service(row, now_s) + lasts_s
            stint = Stint(self._count, place, millicores, phase, settled_s, step_s)
            self._stints[row] = stint
        self._expect(row, stint, now_s)

    def phase(self, row: int) -> str:
        """The phase that the job is in."""
        stint = self._stints.get(row)
        return TRAIN if stint is None else stint.phase

    def core_times(
        self, row: int, place: Allocation, phase: str, now_s: float
    ) -> tuple[CoreTime, ...]:
        """The mean times of the job's kind, by GPU type and cores."""
        return self._told.get(self._kind(row, place, phase), ())

    def _phase(self, row: int, now_s: float) -> str:
        cpus = self._machine.cpus
        assert cpus is not None
        return cpus.phase(self._state.spec[row], self._state.work(row, now_s))

    def _kind(self, row: int, place: Allocation, phase: str) -> Kind:
        model = self._state.spec[row].model or f"#{row}"
        return model, place.num_gpus, len(place.parts), phase, place.batch

    def _step_s(self, row: int, phase: str) -> float:
        """Seconds of a step of the job as it runs now; in validation, of all of that."""
        state, of = self._state, getattr(self._machine.speeds, "step_s", None)
        if phase == EVALUATE:
            return EVALUATE_S / state.speed[row]
        return ((of and of(state.spec[row])) or STEP_S) / state.speed[row]

    def _expect(self, row: int, stint: Stint, now_s: float) -> None:
        left_s = stint.settled_s - self._state.service(row, now_s)
        if left_s > 0:
            heappush(self._due, (now_s + left_s, row, stint.number))

    def catch_up(self, now_s: float) -> None:
        """Let jobs tell what they have measured by now: before each decision."""
        while self._due and self._due[0][0] <= now_s:
            _, row, number = heappop(self._due)
            stint = self._stints[row]
            if stint.number == number and self._state.service(row, now_s) >= stint.settled_s:
                self._tell(row, stint)

    def _tell(self, row: int, stint: Stint) -> None:
        if stint.millicores is None or stint.place.shared:
            return
        cpus = self._machine.cpus
        assert cpus is not None
        chance = random.Random(f"{cpus.seed} {stint.number}")
        step_s = stint.step_s * exp(chance.gauss(0.0, cpus.noise))
        nodes = self._state.nodes
        gpu_type = "+".join(sorted({nodes[node].gpu_type for node in stint.place.nodes()}))
        kind, key = self._kind(row, stint.place, stint.phase), (gpu_type, stint.millicores)
        total, count = self._sums.setdefault(kind, {}).get(key, (0.0, 0))
        self._sums[kind][key] = total + step_s, count + 1
        self._told[kind] = tuple(
            CoreTime(*key, total / count)
            for key, (total, count) in sorted(self._sums[kind].items())
        )
