"""The figures of the demo: measurements under each policy, and predictions."""

from collections.abc import Sequence
from statistics import fmean, median
from typing import Any, NamedTuple

from rota.demo.cluster import JobRecord, Run
from rota.demo.workload import Training
from rota.model.cluster import Node
from rota.model.job import JobSpec
from rota.policy.registry import create
from rota.report.timeline import Timeline
from rota.sim.machine import Costs
from rota.sim.simulation import Simulation
from rota.workload.trace import Trace

FIRST = 100  # mini-batches
BASELINE = "fifo-backfill"  # predicted only, so that the demo takes no longer


class JobFigures(NamedTuple):
    """Figures of one job.

    Turns are those of the first policy; times are seconds from its submission, by column of
    :attr:`Comparison.columns`.
    """

    training: Training
    steps: int
    value: float | None
    reached: bool
    suspensions: int
    suspend_median_s: float
    suspend_max_s: float
    resume_median_s: float
    resume_max_s: float
    step_time_s: float
    first_100_s: dict[str, float | None]
    completion_s: dict[str, float]

    @property
    def target(self) -> str:
        """The target as text, such as ``≥ 0.9``."""
        return f"{'≥' if self.training.higher_is_better else '≤'} {self.training.target:g}"


class Comparison(NamedTuple):
    """All jobs, and the averages of each column: measured and predicted, by policy.

    ``baseline_s`` is the average completion that is predicted under :data:`BASELINE`.
    """

    runs: dict[str, Run]
    settings: dict[str, dict[str, str]]
    jobs: list[JobFigures]
    first_100_s: dict[str, float | None]  # None if a job never did 100
    completion_s: dict[str, float]
    all_done_s: dict[str, float]  # from the first submission to the last end
    baseline_s: float

    @property
    def policies(self) -> list[str]:
        """The measured policies, in order."""
        return list(self.runs)

    @property
    def columns(self) -> list[str]:
        """The columns: one for each measured policy, then one for each prediction."""
        return list(self.completion_s)


class Lengths(NamedTuple):
    """Device time of a job: before its first step, per step, and in total."""

    start_s: float
    step_s: float
    total_s: float

    @property
    def first_100_s(self) -> float:
        """Device time up to the hundredth mini-batch."""
        return self.start_s + FIRST * self.step_s


def compare(
    runs: dict[str, Run], trainings: Sequence[Training], settings: dict[str, dict[str, str]]
) -> Comparison:
    """Compare runs of the same trainings with each other, and with the simulator's predictions.

    The predictions use the step times and start-up times measured under the first policy and the
    switch costs measured there, and nothing of the other runs.
    """
    first = next(iter(runs.values()))
    lengths = [needs(first.timeline, row, job) for row, job in enumerate(first.jobs)]
    costs = measured_costs(first.timeline)
    slots = first.timeline.num_gpus
    timelines = {f"{policy} measured": run.timeline for policy, run in runs.items()}
    first_100 = {
        f"{policy} measured": [reported_first_100_s(run, row) for row in range(len(trainings))]
        for policy, run in runs.items()
    }
    for policy in runs:
        column = f"{policy} predicted"
        known = predict(trainings, lengths, slots, policy, settings[policy], costs)
        timelines[column] = known
        first_100[column] = [
            _since(known, row, length.first_100_s) for row, length in enumerate(lengths)
        ]
    completion = {column: completions_s(timeline) for column, timeline in timelines.items()}
    baseline = predict(trainings, lengths, slots, BASELINE, {}, costs)
    return Comparison(
        runs,
        settings,
        [
            _figures(
                training,
                first,
                row,
                {column: values[row] for column, values in first_100.items()},
                {column: values[row] for column, values in completion.items()},
            )
            for row, training in enumerate(trainings)
        ],
        {column: average(values) for column, values in first_100.items()},
        {column: fmean(values) for column, values in completion.items()},
        {
            column: max(timeline.finish_s.values()) - min(timeline.submit_s)
            for column, timeline in timelines.items()
        },
        fmean(completions_s(baseline)),
    )


def needs(timeline: Timeline, row: int, job: JobRecord) -> Lengths:
    """The device time that a job spent before its first step, and per step from then on.

    A step's time includes its part of what happens between steps, such as validation.
    """
    total_s = timeline.device_s(row, 0.0, float("inf"))
    first = next((report for report in job.reports if report["step_time_s"] is not None), None)
    if first is None or not job.progress["step"]:
        return Lengths(total_s, 0.0, total_s)
    before_s = timeline.device_s(row, 0.0, first["at_s"])
    start_s = max(0.0, before_s - first["step"] * first["step_time_s"])
    return Lengths(start_s, (total_s - start_s) / job.progress["step"], total_s)


def step_time_s(job: JobRecord) -> float:
    """Mean time per mini-batch, each report weighted by its steps; without suspensions."""
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
    """Policy settings for trainings that last seconds.

    Under gandiva jobs take turns and are never packed on one slot. Under tiresias a job that has
    had 15 GPU-seconds moves behind the others.
    """
    settings = {
        "gandiva": {"quantum_s": str(quantum_s), "pack": "off"},
        "tiresias": {"thresholds": "15"},
    }
    return settings.get(policy, {})


def predict(
    trainings: Sequence[Training],
    lengths: Sequence[Lengths],
    slots: int,
    policy: str,
    settings: dict[str, str],
    costs: Costs,
) -> Timeline:
    """Simulate these trainings under a policy."""
    jobs = [
        JobSpec(str(row), training.gpus, training.at_s, length.total_s)
        for row, (training, length) in enumerate(zip(trainings, lengths, strict=True))
    ]
    simulation = Simulation(
        Trace(jobs, "the demo"), [Node("here", slots)], create(policy, settings), costs
    )
    events: list[Any] = []
    simulation.state.log = events
    simulation.run()
    timeline = Timeline(events)
    timeline.num_gpus = slots
    return timeline


def reported_first_100_s(run: Run, row: int) -> float | None:
    """Seconds from submission until the job had done 100 mini-batches; None if it never did."""
    at_s = run.jobs[row].progress.get("first_100_s")
    return None if at_s is None else at_s - run.timeline.submit_s[row]


def average(values: list[float | None]) -> float | None:
    """The mean, or None if a value is missing: the mean of the others would flatter."""
    known = [value for value in values if value is not None]
    return fmean(known) if known and len(known) == len(values) else None


def completions_s(timeline: Timeline) -> list[float]:
    """The time from submission to the end, of each job."""
    return [timeline.finish_s[row] - at_s for row, at_s in enumerate(timeline.submit_s)]


def _since(timeline: Timeline, row: int, service_s: float) -> float | None:
    at_s = timeline.time_at_service(row, service_s)
    return None if at_s is None else at_s - timeline.submit_s[row]


def _figures(
    training: Training,
    run: Run,
    row: int,
    first_100_s: dict[str, float | None],
    completion_s: dict[str, float],
) -> JobFigures:
    job, switches = run.jobs[row], run.timeline.switches[row]
    value = job.progress["metrics"].get(training.metric)
    sign = 1 if training.higher_is_better else -1
    return JobFigures(
        training=training,
        steps=job.progress["step"],
        value=value,
        reached=value is not None and sign * value >= sign * training.target,
        suspensions=len(switches.suspend_s),
        suspend_median_s=median(switches.suspend_s or [0.0]),
        suspend_max_s=max(switches.suspend_s, default=0.0),
        resume_median_s=median(switches.resume_s or [0.0]),
        resume_max_s=max(switches.resume_s, default=0.0),
        step_time_s=step_time_s(job),
        first_100_s=first_100_s,
        completion_s=completion_s,
    )
