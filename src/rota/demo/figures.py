"""The figures of the demo: what was measured under both policies, and what was predicted."""

from statistics import fmean, median
from typing import Any, NamedTuple

from rota.demo.cluster import JobRecord, Run
from rota.demo.workload import TRAININGS
from rota.model.cluster import Node
from rota.model.job import JobSpec
from rota.policy.registry import create
from rota.report.timeline import Timeline, shares
from rota.sim.machine import Costs
from rota.sim.simulation import Simulation
from rota.workload.trace import Trace

FIRST = 100  # mini-batches


class JobFigures(NamedTuple):
    """One job, under both policies. Times are seconds from its submission."""

    name: str
    share: float
    steps: int
    metric: str
    value: float | None
    target: str
    reached: bool
    suspensions: int
    suspend_median_s: float
    suspend_max_s: float
    resume_median_s: float
    resume_max_s: float
    step_time_s: float
    first_100_s: dict[str, float | None]  # by column of Comparison.columns


class Comparison(NamedTuple):
    """All jobs, and the averages of each column: measured and predicted, by policy."""

    slicing: Run
    fifo: Run
    quantum_s: float
    jobs: list[JobFigures]
    first_100_s: dict[str, float | None]  # None if a job never did 100
    completion_s: dict[str, float]
    share_spread: float  # largest deviation of a share from an equal one, as a part of that
    columns: tuple[str, ...] = (
        "gandiva measured",
        "fifo measured",
        "gandiva predicted",
        "fifo predicted",
    )


class Lengths(NamedTuple):
    """How much device time a job needs: before its first step, per step, and altogether."""

    start_s: float
    step_s: float
    total_s: float

    @property
    def first_100_s(self) -> float:
        """Device time up to the hundredth mini-batch."""
        return self.start_s + FIRST * self.step_s


def compare(slicing: Run, fifo: Run, quantum_s: float) -> Comparison:
    """Put both runs beside each other, and beside the simulator's prediction for each.

    The prediction knows the step times and start-up times measured under gandiva and the switch
    costs measured there; nothing of the FIFO run.
    """
    lengths = [needs(slicing.timeline, row, job) for row, job in enumerate(slicing.jobs)]
    costs = measured_costs(slicing.timeline)
    slots = slicing.timeline.num_gpus
    timelines = {
        "gandiva measured": slicing.timeline,
        "fifo measured": fifo.timeline,
        "gandiva predicted": predict(lengths, slots, "gandiva", quantum_s, costs),
        "fifo predicted": predict(lengths, slots, "fifo", quantum_s, costs),
    }
    rows = range(len(slicing.jobs))
    first_100 = {
        "gandiva measured": [reported_first_100_s(slicing, row) for row in rows],
        "fifo measured": [reported_first_100_s(fifo, row) for row in rows],
        **{
            column: [_since(timelines[column], row, lengths[row].first_100_s) for row in rows]
            for column in ("gandiva predicted", "fifo predicted")
        },
    }
    share = shares(slicing.timeline, list(rows))
    return Comparison(
        slicing,
        fifo,
        quantum_s,
        [
            _figures(slicing, row, share[row], {c: v[row] for c, v in first_100.items()})
            for row in rows
        ],
        {column: average(values) for column, values in first_100.items()},
        {column: average_completion_s(timeline) for column, timeline in timelines.items()},
        max(abs(part * len(rows) - 1) for part in share.values()),
    )


def needs(timeline: Timeline, row: int, job: JobRecord) -> Lengths:
    """The device time that a job spent before its first step, and per step from then on.

    A step here has its part of all that goes on between steps, such as validation.
    """
    total_s = timeline.device_s(row, 0.0, float("inf"))
    first = next((report for report in job.reports if report["step_time_s"] is not None), None)
    if first is None or not job.progress["step"]:
        return Lengths(total_s, 0.0, total_s)
    before_s = timeline.device_s(row, 0.0, first["at_s"])
    start_s = max(0.0, before_s - first["step"] * first["step_time_s"])
    return Lengths(start_s, (total_s - start_s) / job.progress["step"], total_s)


def step_time_s(job: JobRecord) -> float:
    """Mean time per mini-batch, each report weighted by its steps; suspensions are not in it."""
    busy_s = steps = 0.0
    before = 0
    for report in job.reports:
        new = report["step"] - before
        before = report["step"]
        if report["step_time_s"] is not None and new > 0:
            busy_s += report["step_time_s"] * new
            steps += new
    return busy_s / steps if steps else 0.0


def measured_costs(timeline: Timeline) -> Costs:
    """The median costs of this run's switches, for the simulator."""
    suspensions = [s for switches in timeline.switches.values() for s in switches.suspend_s]
    resumptions = [s for switches in timeline.switches.values() for s in switches.resume_s]
    return Costs(
        suspend_s=median(suspensions) if suspensions else 0.0,
        resume_s=median(resumptions) if resumptions else 0.0,
        cold_start_s=0.0,  # start-up is in the jobs' own device time
    )


def settings_of(policy: str, quantum_s: float) -> dict[str, str]:
    """Under gandiva the jobs take turns and nothing else: they are not packed on one slot."""
    return {"quantum_s": str(quantum_s), "pack": "off"} if policy == "gandiva" else {}


def predict(
    lengths: list[Lengths], slots: int, policy: str, quantum_s: float, costs: Costs
) -> Timeline:
    """What the simulator says that these jobs do under a policy."""
    trace = Trace(
        [JobSpec(str(row), 1, 0.0, length.total_s) for row, length in enumerate(lengths)],
        "the demo",
    )
    settings = settings_of(policy, quantum_s)
    simulation = Simulation(trace, [Node("here", slots)], create(policy, settings), costs)
    events: list[Any] = []
    simulation.state.log = events
    simulation.run()
    timeline = Timeline(events)
    timeline.num_gpus = slots
    return timeline


def reported_first_100_s(run: Run, row: int) -> float | None:
    """When the job had done 100 mini-batches, from its submission; None if it never did."""
    at_s = run.jobs[row].progress.get("first_100_s")
    return None if at_s is None else at_s - run.timeline.submit_s[row]


def average(values: list[float | None]) -> float | None:
    """Their mean, or None if one is missing: the others alone would flatter."""
    known = [value for value in values if value is not None]
    return fmean(known) if known and len(known) == len(values) else None


def average_completion_s(timeline: Timeline) -> float:
    """Mean time from submission to the end."""
    return fmean(end_s - timeline.submit_s[row] for row, end_s in timeline.finish_s.items())


def _since(timeline: Timeline, row: int, service_s: float) -> float | None:
    at_s = timeline.time_at_service(row, service_s)
    return None if at_s is None else at_s - timeline.submit_s[row]


def _figures(run: Run, row: int, share: float, first_100_s: dict[str, float | None]) -> JobFigures:
    training, job, switches = TRAININGS[row], run.jobs[row], run.timeline.switches[row]
    value = job.progress["metrics"].get(training.metric)
    sign = 1 if training.higher_is_better else -1
    return JobFigures(
        name=training.name,
        share=share,
        steps=job.progress["step"],
        metric=training.metric,
        value=value,
        target=f"{'≥' if training.higher_is_better else '≤'} {training.target:g}",
        reached=value is not None and sign * value >= sign * training.target,
        suspensions=len(switches.suspend_s),
        suspend_median_s=median(switches.suspend_s or [0.0]),
        suspend_max_s=max(switches.suspend_s, default=0.0),
        resume_median_s=median(switches.resume_s or [0.0]),
        resume_max_s=max(switches.resume_s, default=0.0),
        step_time_s=step_time_s(job),
        first_100_s=first_100_s,
    )
