"""The figures of the demo: measurements under some policies, and predictions for all."""

from collections.abc import Callable, Sequence
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
BASELINE = "fifo"  # what others are held against


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
    """All jobs, and the averages of each column: measured under some policies, predicted for all.

    ``foretold`` has the predicted run under each policy. A run that was cut off has no column.
    """

    runs: dict[str, Run]
    foretold: dict[str, Timeline]
    jobs: list[JobFigures]
    first_100_s: dict[str, float | None]  # None if a job never did 100
    completion_s: dict[str, float]
    all_done_s: dict[str, float]  # from the first submission to the last end

    @property
    def policies(self) -> list[str]:
        """The policies, in order."""
        return list(self.foretold)

    @property
    def columns(self) -> list[str]:
        """The columns: one for each measured policy, then one for each prediction."""
        return list(self.completion_s)

    def column(self, policy: str) -> str:
        """The column of a policy: that of its measured run, if there is a whole one."""
        ran = f"{policy} measured"
        return ran if ran in self.completion_s else f"{policy} predicted"

    def errors(self, policy: str) -> tuple[float, float | None]:
        """How far predictions for a measured policy are off, as parts of what was measured.

        Of the average completion, and of the first mini-batches, None if a job never did so many.
        """
        ran, foretold = f"{policy} measured", f"{policy} predicted"
        early_s, early_foretold_s = self.first_100_s[ran], self.first_100_s[foretold]
        early = None
        if early_s is not None and early_foretold_s is not None:
            early = abs(early_foretold_s / early_s - 1)
        return abs(self.completion_s[foretold] / self.completion_s[ran] - 1), early


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

    There is a prediction for each policy of ``settings``. All use the step times, the start-up
    times and the costs of launches and switches measured in the first run, and nothing of others.
    """
    first = next(iter(runs.values()))
    lengths = [needs(first.timeline, row, job) for row, job in enumerate(first.jobs)]
    for row in first.cut_off:
        lengths[row] = whole(lengths[row], trainings[row])
    costs = measured_costs(first.timeline)
    slots = first.timeline.num_gpus
    foretold = {
        policy: predict(trainings, lengths, slots, policy, given, costs)
        for policy, given in settings.items()
    }
    ended = {policy: run for policy, run in runs.items() if not run.cut_off}
    timelines = {f"{policy} measured": run.timeline for policy, run in ended.items()}
    timelines |= {f"{policy} predicted": timeline for policy, timeline in foretold.items()}
    first_100 = {
        f"{policy} measured": [reported_first_100_s(run, row) for row in range(len(trainings))]
        for policy, run in ended.items()
    }
    first_100 |= {
        f"{policy} predicted": [
            _since(timeline, row, length.first_100_s) for row, length in enumerate(lengths)
        ]
        for policy, timeline in foretold.items()
    }
    completion = {column: completions_s(timeline) for column, timeline in timelines.items()}
    return Comparison(
        runs,
        foretold,
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
    )


def needs(timeline: Timeline, row: int, job: JobRecord) -> Lengths:
    """The device time that a job spent before its first step, and per step from then on.

    A step's time includes its part of what happens between steps, such as validation.
    """
    total_s = timeline.device_s(row, 0.0, float("inf"))
    first = next((report for report in job.reports if report["step_time_s"] is not None), None)
    if first is None or not job.progress.get("step"):
        return Lengths(total_s, 0.0, total_s)
    before_s = timeline.device_s(row, 0.0, first["at_s"])
    start_s = max(0.0, before_s - first["step"] * first["step_time_s"])
    return Lengths(start_s, (total_s - start_s) / job.progress["step"], total_s)


def whole(part: Lengths, training: Training) -> Lengths:
    """The device time of a whole job of which only a part was measured.

    One that has reported no step takes as long as the training does on quiet cores.
    """
    if not part.step_s:
        step_s = training.seconds / training.steps
        return Lengths(part.total_s, step_s, part.total_s + training.seconds)
    return part._replace(total_s=part.start_s + training.steps * part.step_s)


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


def measured_costs(timeline: Timeline) -> Callable[[JobSpec], Costs]:
    """The costs of this run's commands, for the simulator: of each job its own launch.

    Suspensions and resumptions have the median of all. What a program does before its first step is
    in its own device time. A job's launch counts although it is short: policies that spare young
    jobs do so for ten times its length.
    """
    switches = timeline.switches
    suspensions = [seconds for each in switches.values() for seconds in each.suspend_s]
    resumptions = [seconds for each in switches.values() for seconds in each.resume_s]
    usual = Costs(
        suspend_s=median(suspensions) if suspensions else 0.0,
        resume_s=median(resumptions) if resumptions else 0.0,
    )

    def of(job: JobSpec) -> Costs:
        return usual._replace(cold_start_s=fmean(switches[int(job.job_id)].launch_s or [0.0]))

    return of


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
    costs: Costs | Callable[[JobSpec], Costs],
) -> Timeline:
    """Simulate these trainings under a policy; the id of each job is its row."""
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
    value = job.progress.get("metrics", {}).get(training.metric)
    sign = 1 if training.higher_is_better else -1
    return JobFigures(
        training=training,
        steps=job.progress.get("step", 0),
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
