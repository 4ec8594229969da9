"""Sweep files: a job file with a block ``sweep``, checked field by field."""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from rota.errors import JobFileError, did_you_mean
from rota.model.sweep import Sweep
from rota.request.array import ARRAY, IN_ORDER, INDEX, INDEX_ENV, sweep_block
from rota.request.jobfile import SWEEP, JobRequest, parse_job
from rota.request.searchspace import (
    Numbers,
    Space,
    check_params,
    grid_size,
    number_of,
    parse_space,
    space_fields,
)
from rota.request.trial_command import check_command, trial_command
from rota.request.values import check_keys, refuse, text_of, whole_within

FIELDS = (
    "metric",
    "goal",
    "target",
    "space",
    "algorithm",
    "max_trials",
    "parallel",
    "rungs",
    "reports",
    "gpu_hours",
    "max_failures",
)
NEED_METRIC = ("goal", "target", "rungs", "reports")
GOALS = ("maximize", "minimize")
BY_OPTUNA = ("tpe", "random")
GRIDS = ("grid", IN_ORDER)
ALGORITHMS = (*BY_OPTUNA, *GRIDS, "manual")
ALGORITHM = ("name", "seed")
RUNGS = ("eta", "first")
# What each trial gets, the last one in arrays.
ENV = ("ROTA_SWEEP", "ROTA_TRIAL", "ROTA_PARAMS", "ROTA_SWEEP_METRIC", INDEX_ENV)

MAX_NAME = 48  # characters, so that a trial's name is a job's name
MAX_METRIC_BYTES = 100
MAX_TRIALS = 10_000
MAX_FAILURES = 5  # unless the file says otherwise
MAX_REPORTS = 10_000
MAX_SEED = 2**32 - 1
MAX_GPU_HOURS = 1e9


class Rungs(NamedTuple):
    """The rungs at which trials are compared: report ``first``, then ``eta`` times as many each.

    The best 1/``eta`` of the trials that came so far go on.
    """

    eta: int
    first: int


class SweepRequest(NamedTuple):
    """A well-formed search; the controller decides if its trials fit the cluster.

    ``job`` is each trial's job, without its parameters; it has the search's name. ``max_trials`` is
    None if only the user's own program proposes trials, ``parallel`` None if Rota chooses how many
    are open at once, ``rungs`` None if trials are not compared before their end. ``metric`` is
    empty if trials report none, and are done when their commands have succeeded.
    """

    job: JobRequest
    metric: str
    maximize: bool
    space: Space
    algorithm: str
    seed: int = 0
    max_trials: int | None = None
    parallel: int | None = None
    rungs: Rungs | None = None
    target: float | None = None
    reports: int | None = None
    gpu_hours: float | None = None
    max_failures: int = MAX_FAILURES

    def to_fields(self) -> dict[str, Any]:
        """The JSON-able fields from which :func:`parse_sweep` makes this very request."""
        rungs = "off" if self.rungs is None else self.rungs._asdict()
        fields: dict[str, Any] = {
            "space": space_fields(self.space),
            "algorithm": {"name": self.algorithm, "seed": self.seed},
            "parallel": "auto" if self.parallel is None else self.parallel,
            "rungs": rungs,
            "max_failures": self.max_failures,
        }
        if self.metric:
            fields |= {"metric": self.metric, "goal": GOALS[0] if self.maximize else GOALS[1]}
        for name in ("target", "max_trials", "reports", "gpu_hours"):
            if getattr(self, name) is not None:
                fields[name] = getattr(self, name)
        return self.job.to_fields() | {SWEEP: fields}

    @property
    def is_array(self) -> bool:
        """True if it is an array: jobs that differ in an index alone."""
        return self.algorithm == IN_ORDER and [name for name, _ in self.space] == [INDEX]

    def sweep(self, name: str) -> Sweep:
        """The search as policies see it, under its final name."""
        return Sweep(name, self.metric, self.maximize, self.target, self.reports, self.is_array)


def shown(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields with only the names of environment variables, whose values may be secrets."""
    return {**fields, "env": dict.fromkeys(fields["env"], "")}


def is_sweep(fields: Any) -> bool:
    """True if a job file describes a search, or an array, which is one of indices."""
    return isinstance(fields, Mapping) and (SWEEP in fields or ARRAY in fields)


def parse_sweep(fields: Mapping[str, Any], *, workdir: str) -> SweepRequest:
    """The request made by ``fields``, as read from a job file with a block ``sweep``.

    ``workdir`` is as in :func:`~rota.request.jobfile.parse_job`. Raises JobFileError, which names
    the field, its value and the fix.
    """
    if not is_sweep(fields):
        raise JobFileError("sweep: it is missing; say what to search, and by which metric")
    if ARRAY in fields:
        if SWEEP in fields:
            refuse(ARRAY, fields[ARRAY], "a job file has an array or a sweep: leave one out")
        block = sweep_block(fields[ARRAY])
        fields = {key: fields[key] for key in fields if key != ARRAY} | {SWEEP: block}
    block = fields[SWEEP]
    example = "write fields, for example: {metric: val_acc, goal: maximize, ...}"
    check_keys(block, FIELDS, "sweep.", example)
    job = parse_job({key: fields[key] for key in fields if key != SWEEP}, workdir=workdir)
    if job.resume_from:
        refuse("resume_from", job.resume_from, "the trials of a search begin anew: leave it out")
    job = job._replace(name=_name(job.name, given=fields.get("name") is not None))
    _check_env(job)
    metric = _metric(block)
    algorithm, seed = _algorithm(block.get("algorithm"), metric)
    space = parse_space(block.get("space"))
    _check_space(space, algorithm)
    check_command(job.run, space)
    reports = _reports(block.get("reports"))
    rungs = _rungs(block.get("rungs"), reports)
    if rungs is not None and reports is not None and rungs.first > reports:
        fix = f"a trial reports {reports} times in all (sweep.reports): lower it, or rungs: off"
        refuse("sweep.rungs.first", rungs.first, fix)
    return SweepRequest(
        job=job,
        metric=metric,
        maximize=_maximize(block.get("goal")) if metric else False,
        space=space,
        algorithm=algorithm,
        seed=seed,
        max_trials=_max_trials(block.get("max_trials"), algorithm, space),
        parallel=_parallel(block.get("parallel")),
        rungs=rungs,
        target=_target(block.get("target")),
        reports=reports,
        gpu_hours=_gpu_hours(block.get("gpu_hours")),
        max_failures=_max_failures(block.get("max_failures"), algorithm),
    )


def trial_job(
    request: SweepRequest, name: str, number: int, params: Mapping[str, Any]
) -> JobRequest:
    """The job of one trial. ``name`` is the search's final one. Raises JobFileError.

    Parameters in the command are replaced by their values, as words of a shell.
    """
    checked = dict(check_params(request.space, params))
    run = trial_command(request.job.run, checked)
    as_json = json.dumps(checked, ensure_ascii=False)
    index = str(checked[INDEX]) if request.is_array else ""
    told = zip(ENV, (name, str(number), as_json, request.metric, index), strict=True)
    env = (*request.job.env, *((key, value) for key, value in told if value))
    job = request.job._replace(name=f"{name}.{index or number}", run=run, env=env)
    return parse_job(job.to_fields(), workdir="")  # the limits of a job hold for it as well


def _name(name: str, *, given: bool) -> str:
    if len(name) <= MAX_NAME:
        return name
    if given:
        refuse("name", name, f"names of sweeps have at most {MAX_NAME} characters")
    return name[:MAX_NAME]


def _check_env(job: JobRequest) -> None:
    for name, value in job.env:
        if name in ENV:
            refuse(f"env.{name}", value, "Rota sets it for each trial: leave it out")


def _check_space(space: Space, algorithm: str) -> None:
    if not space and algorithm != "manual":
        raise JobFileError(
            "sweep.space: there is no parameter to search; write for example "
            "space: {lr: {log: [1.0e-4, 1.0e-1]}}"
        )
    if algorithm not in GRIDS:
        return
    for name, dimension in space:
        if isinstance(dimension, Numbers) and dimension.size() is None:
            fix = "a grid needs steps: write {range: [0.1, 0.9], step: 0.1}, or {choice: [...]}"
            refuse(f"sweep.space.{name}", dimension.fields(), fix)
    size = grid_size(space)
    assert size is not None, "every dimension has an end"
    if size > MAX_TRIALS:
        raise JobFileError(
            f"sweep.space: this grid has {size if size < 10**12 else 'over a trillion'} points; "
            f"at most {MAX_TRIALS} work: write larger steps, or algorithm: random"
        )


def _metric(block: Mapping[str, Any]) -> str:
    """The name that trials report; "" if nothing in the block needs one."""
    value = block.get("metric")
    if value is None:
        for field in NEED_METRIC:
            if block.get(field) not in (None, False, "off"):
                raise JobFileError(
                    f"sweep.metric: it is missing, and sweep.{field} needs it; write the name that "
                    "your program reports, for example metric: val_acc for s.report(val_acc=...)"
                )
        return ""
    metric = text_of("sweep.metric", value, MAX_METRIC_BYTES)
    if not metric.strip() or not metric.isprintable():
        refuse("sweep.metric", metric, "write the name that your program gives to s.report")
    return metric


def _maximize(value: Any) -> bool:
    if value is None:
        raise JobFileError("sweep.goal: it is missing; write goal: maximize or goal: minimize")
    if not isinstance(value, str) or value not in GOALS:
        refuse("sweep.goal", value, f"write one of {', '.join(GOALS)}")
    return value == GOALS[0]


def _target(value: Any) -> float | None:
    return None if value is None else float(number_of("sweep.target", value))


def _algorithm(value: Any, metric: str) -> tuple[str, int]:
    """Its name and seed. Algorithms that learn from trials are no default without a metric."""
    fields = value if isinstance(value, Mapping) else {"name": value}
    check_keys(fields, ALGORITHM, "sweep.algorithm.")
    name, seed = fields.get("name"), fields.get("seed")
    if name is None:
        name = "tpe" if metric else "grid"
    if name == "tpe" and not metric:
        fix = "it learns from sweep.metric: write that, or algorithm: grid to try every point"
        refuse("sweep.algorithm", name, fix)
    if not isinstance(name, str) or name not in ALGORITHMS:
        hint = did_you_mean(name, ALGORITHMS) if isinstance(name, str) else ""
        refuse("sweep.algorithm", name, f"write one of {', '.join(ALGORITHMS)}{hint}")
    return name, whole_within("sweep.algorithm.seed", 0 if seed is None else seed, 0, MAX_SEED)


def _max_trials(value: Any, algorithm: str, space: Space) -> int | None:
    size = grid_size(space) if algorithm in GRIDS else None
    if value is None:
        if algorithm in BY_OPTUNA:
            raise JobFileError(
                f"sweep.max_trials: it is missing; say how many trials {algorithm} may try, "
                "for example max_trials: 40"
            )
        return size
    number = whole_within("sweep.max_trials", value, 1, MAX_TRIALS)
    return number if size is None else min(number, size)


def _parallel(value: Any) -> int | None:
    if value is None or value == "auto":
        return None
    return whole_within("sweep.parallel", value, 1, MAX_TRIALS, "auto, or how many trials are open")


def _rungs(value: Any, reports: int | None) -> Rungs | None:
    """The rungs; by default none is at a first report, unless trials make only one."""
    if value is None or value is False or value == "off":  # other YAML versions read off as False
        return None
    block = {} if value is True or value == "on" else value
    check_keys(block, RUNGS, "sweep.rungs.", "write off, or for example {eta: 3, first: 3}")
    given = {key: each for key, each in block.items() if each is not None}
    eta = whole_within("sweep.rungs.eta", given.get("eta", 3), 2, 100)
    first = given.get("first", eta if reports is None else min(eta, reports))
    return Rungs(eta, whole_within("sweep.rungs.first", first, 1, MAX_REPORTS, "a report"))


def _reports(value: Any) -> int | None:
    if value is None:
        return None
    return whole_within("sweep.reports", value, 1, MAX_REPORTS, "how often a trial reports")


def _gpu_hours(value: Any) -> float | None:
    if value is None:
        return None
    hours = number_of("sweep.gpu_hours", value)
    if not 0 < hours <= MAX_GPU_HOURS:
        refuse("sweep.gpu_hours", value, "write a number above 0")
    return float(hours)


def _max_failures(value: Any, algorithm: str) -> int:
    if value is None:  # a program that proposes trials itself gives up when it wants to
        return MAX_TRIALS if algorithm == "manual" else MAX_FAILURES
    return whole_within("sweep.max_failures", value, 0, MAX_TRIALS)
