"""Simulations described by values that can be sent to another process."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from rota.errors import PolicySettingError, RotaError
from rota.model.cluster import Node, parse_cluster
from rota.model.job import JobSpec, Suspension
from rota.model.state.state import ClusterState
from rota.policy.information import information_of
from rota.policy.registry import create
from rota.predict.interference import Interference
from rota.report.metrics import summarise
from rota.scenario.pool import over_cores
from rota.sim.machine import Costs
from rota.sim.simulation import Simulation
from rota.workload.trace import SUSPENSIONS, Trace

if TYPE_CHECKING:
    from rota.report.sketch import Sketch
    from rota.sim.cores import Validating
    from rota.sim.faults import Faults
    from rota.sim.measured import MeasuredSpeeds
    from rota.sim.rented import RentedNodes
    from rota.sim.speeds import CatalogSpeeds
    from rota.workload.measured import Measured


class Workload(NamedTuple):
    """Source of the jobs: a file, or a generator's profile with a number of jobs or a span."""

    file: str | None
    format: str = "auto"
    strict: bool = False
    profile: str | None = None
    num_jobs: int | None = None
    span_s: float | None = None
    unit: str = "s"  # of a file's durations
    tz: str = ""  # of a file's times that tell no zone; "": UTC


class Case(NamedTuple):
    """One run: its policy, jobs and cluster, and the results that are wanted.

    ``given`` are the policy's settings as text. ``costs`` are charged; with the name of a
    ``cost_set``, each job is charged those of the set, with ``costs_given`` replacing some.
    ``oversubscription`` is by how much links between racks are slower than those of nodes.
    ``profiles`` is a folder of measured profiles, which then give the speeds; ``interval_s`` allows
    decisions only at its multiples; with ``node_start_s`` the cluster's nodes are rented as the
    policy asks for them. ``faults`` are drawn with the case's own seed; the summary names them as
    ``faults_given``. ``history`` asks for the figures that need the run's course, ``drawn`` for a
    sketch of it, ``with_gpus`` for the holders of GPUs in the sketch. ``interference`` is the part
    of its speed that a job on several nodes loses beside another such job. ``suspension`` is how
    all jobs are suspended; None: each as its trace tells.
    """

    policy: str
    given: dict[str, str]
    workload: Workload
    cluster: str
    costs: Costs
    cost_set: str = ""
    costs_given: dict[str, float] = {}
    speeds: str = "auto"
    oversubscription: float = 1.0
    faults: Faults | None = None
    faults_given: dict[str, Any] = {}
    seed: int = 0
    load: float = 1.0
    history: bool = False
    drawn: bool = False
    with_gpus: bool = False
    profiles: str | None = None
    interval_s: float | None = None
    node_start_s: float | None = None
    interference: float = 0.0
    suspension: Suspension | None = None


class CaseResult(NamedTuple):
    """Result of a case. ``cpu_s`` in the summary is that of reading the jobs and of the run."""

    summary: dict[str, Any]
    sketch: Sketch | None


def run_cases(
    cases: Sequence[Case], names: Sequence[str], *, workers: int | None, num_jobs: int
) -> list[CaseResult | RotaError]:
    """The results of ``cases``, in their order; for a failed case its error, with its name.

    ``names`` identify the cases. ``workers`` and ``num_jobs`` (about how many a case simulates) are
    as for :func:`~rota.scenario.pool.over_cores`.
    """
    # Runs of the same jobs follow each other: a process keeps the jobs that it drew last.
    order = sorted(range(len(cases)), key=lambda index: _jobs_of(cases[index]))
    calls = [(cases[index], names[index]) for index in order]
    found = over_cores(_try_case, calls, num_jobs=num_jobs, workers=workers)
    results = dict(zip(order, found, strict=True))
    return [results[index] for index in range(len(cases))]


def _jobs_of(case: Case) -> tuple[float, int, str]:
    """The parts of a case that its jobs depend on, among cases that run together."""
    return case.load, case.seed, case.cluster


def run_case(case: Case, name: str = "") -> CaseResult:
    """Run a case in this process. Raises RotaError, with the name in front."""
    try:
        summary, _, drawn = run_to_end(case)
    except RotaError as error:
        raise type(error)(f"{name}: {error}" if name else str(error)) from None
    return CaseResult(summary, drawn)


def _try_case(case: Case, name: str) -> CaseResult | RotaError:
    try:
        return run_case(case, name)
    except RotaError as error:
        return error


def run_to_end(
    case: Case, begun: Callable[[ClusterState, int], None] = lambda state, num_jobs: None
) -> tuple[dict[str, Any], ClusterState, Sketch | None]:
    """The summary of a case, its final state, and its sketch if one is wanted.

    ``begun`` is called with the state that will change, and with the number of jobs.
    """
    nodes = parse_cluster(case.cluster)
    trace, load_cpu_s = load(case.workload, case.seed, case.load, sum(n.num_gpus for n in nodes))
    began_s = time.process_time()
    trace = trace.suspended_as(case.suspension)
    speeds: CatalogSpeeds | MeasuredSpeeds | Validating | None = None
    by_type: CatalogSpeeds | None = None
    if case.profiles is not None:
        trace, speeds = _with_profiles(trace, case.profiles)
    elif uses_catalog(case, trace, nodes):
        trace, by_type = _with_speeds(trace, nodes, case.oversubscription)
        speeds = by_type
    policy: Any = create(case.policy, case.given)
    if policy.cpus is not None and not any(node.millicores for node in nodes):
        raise PolicySettingError(
            f"policy {case.policy}: cpus={policy.settings['cpus']} has no effect on a cluster that "
            "tells no CPU cores; add them, for example "
            f"--cluster {case.cluster}:cpus=24, or drop it"
        )
    cores = None
    if policy.cpus is not None:
        from rota.sim.cores import CatalogCores, Validating, validates  # here: others need none

        cores = CatalogCores(seed=case.seed, speeds=by_type)
        if case.profiles is None and validates(trace):
            speeds = Validating(speeds)
    if policy.fill is None and any(spec.is_background for spec in trace):
        raise PolicySettingError(
            f"policy {case.policy}: with fill=off the background jobs of {trace.name} wait for "
            "ever; leave fill=off out, or drop these jobs"
        )
    faults = None if case.faults is None else case.faults._replace(seed=case.seed)
    rented = _rented(case)
    simulation = Simulation(
        trace,
        nodes,
        policy,
        _charged(case),
        speeds=speeds,
        faults=faults,
        interference=Interference(links=case.interference),
        interval_s=case.interval_s,
        cloud=rented,
        cpus=cores,
    )
    if case.history or case.drawn:
        simulation.state.log = []
    nodes = list(simulation.state.nodes)  # others may be rented later
    begun(simulation.state, len(trace))
    state, decisions = simulation.run()
    summary = summarise(
        state,
        decisions=decisions,
        policy=case.policy,
        needs_duration=policy.needs_duration,
    )
    cpu_s = load_cpu_s + time.process_time() - began_s
    summary |= {"information": information_of(policy), "settings": dict(policy.settings)}
    summary |= {"trace": trace.name, "rejected": trace.num_rejected, **_setting(case)}
    if case.cost_set and case.suspension is None:
        summary |= _costs_by_job(trace)
    summary["speeds"] = "none" if speeds is None else speeds.source
    summary |= rented.figures() if rented else {}
    if state.has_background_jobs:
        summary |= simulation.machine.fills.figures()
    drawn = None
    if case.history or case.drawn:
        from rota.report.eta import Past
        from rota.report.gauges import gpu_shares
        from rota.report.history import History

        past, log = Past(), state.log or ()
        step_s = speeds.step_s if speeds is not None else None
        history = History(past.noting(log), nodes, step_s)
        summary |= history.figures() | {"eta": past.errors()}
        end_s = max(state.finish_s, default=0.0)
        for name, of in (("user", attrgetter("user")), ("queue", attrgetter("vc"))):
            summary[f"gpu_share_by_{name}"] = gpu_shares(state, end_s, of)
        if case.drawn:
            from rota.report.sketch import sketch

            drawn = sketch(state, history, state.nodes, with_gpus=case.with_gpus)
    summary["cpu_s"] = cpu_s
    return summary, state, drawn


def _charged(case: Case) -> Costs | Callable[[JobSpec], Costs]:
    if not case.cost_set:
        return case.costs
    from rota.sim.costsets import SETS, by_job  # here: only these read the catalog of models

    if case.suspension is None:
        return by_job
    of, given = SETS[case.cost_set], case.costs_given
    return (lambda spec: of(spec)._replace(**given)) if given else of


def _costs_by_job(trace: Trace) -> dict[str, Any]:
    """The name of the costs that the jobs are charged, and those of a job of unknown size."""
    from rota.sim.costsets import BY_JOB, SETS, UNKNOWN

    kinds = {spec.suspension for spec in trace}
    if len(kinds) > 1:
        return {"costs": BY_JOB}
    name = next(word for word, kind in SUSPENSIONS.items() if kind in kinds)
    return {"costs": name, "overheads": SETS[name](UNKNOWN)._asdict()}


def _setting(case: Case) -> dict[str, Any]:
    """Settings of the case, for its summary."""
    return {
        "cluster": case.cluster,
        "seed": case.seed,
        "load": case.load,
        "overheads": case.costs._asdict(),
        "costs": case.cost_set,
        "faults": case.faults_given,
        "profiles": case.profiles,
        "interval_s": case.interval_s,
        "node_start_s": case.node_start_s,
        "oversubscription": case.oversubscription,
        "interference": case.interference,
    }


def _rented(case: Case) -> RentedNodes | None:
    if case.node_start_s is None:
        return None
    from rota.sim.rented import RentedNodes  # here: most simulations rent none

    return RentedNodes(case.node_start_s)


def load(workload: Workload, seed: int, load: float, num_gpus: int) -> tuple[Trace, float]:
    """The jobs, and the CPU seconds that it took to read or draw them. Raises TraceError.

    A file's jobs have a seed of their own and a load of 1: dividing the arrival times by ``load``
    gives other loads. Durations stay. The latest workload is kept.
    """
    if workload.file is None:
        return _drawn(workload, seed, load, num_gpus)
    trace, cpu_s = _read(workload)
    return (trace if load == 1 else _faster(trace, load)), cpu_s


@lru_cache(maxsize=1)
def _read(workload: Workload) -> tuple[Trace, float]:
    from rota.workload.readers import read_trace

    assert workload.file is not None
    began_s = time.process_time()
    how = (workload.format, workload.strict, workload.unit, workload.tz)
    trace = read_trace(workload.file, *how)
    return trace, time.process_time() - began_s


@lru_cache(maxsize=1)
def _drawn(workload: Workload, seed: int, load: float, num_gpus: int) -> tuple[Trace, float]:
    from rota.workload.synthetic import generate

    assert workload.profile is not None
    began_s = time.process_time()
    trace = generate(
        workload.profile,
        num_jobs=workload.num_jobs,
        span_s=workload.span_s,
        num_gpus=num_gpus,
        load=load,
        seed=seed,
    )
    return trace, time.process_time() - began_s


def _faster(trace: Trace, load: float) -> Trace:
    return trace.with_jobs(spec._replace(submit_s=spec.submit_s / load) for spec in trace)


def uses_catalog(case: Case, trace: Trace, nodes: list[Node]) -> bool:
    """True if jobs' speeds come from the catalog of models, or from the trace by GPU type."""
    if case.profiles is not None:
        return False
    if case.speeds == "auto":
        matters = case.oversubscription != 1 or any(node.gpu_type for node in nodes)
        return matters and any(spec.model or spec.speeds for spec in trace.jobs)
    return case.speeds == "catalog"


def _with_profiles(trace: Trace, folder: str) -> tuple[Trace, MeasuredSpeeds]:
    from rota.sim.measured import MeasuredSpeeds, played

    profiles = _profiles(folder, frozenset(spec.model for spec in trace))
    return played(trace, profiles), MeasuredSpeeds(profiles)


@lru_cache(maxsize=1)
def _profiles(folder: str, applications: frozenset[str]) -> dict[str, Measured]:
    from rota.workload.measured_files import read_profiles

    return read_profiles(folder, applications)


def _with_speeds(
    trace: Trace, nodes: list[Node], oversubscription: float
) -> tuple[Trace, CatalogSpeeds]:
    from rota.sim.speeds import CatalogSpeeds, with_profiles

    speeds = CatalogSpeeds(nodes, oversubscription=oversubscription)
    return with_profiles(trace, nodes), speeds
