"""Sweeps as the API tells of them, made from training runs that were recorded and simulated."""

from collections.abc import Callable, Sequence
from itertools import accumulate
from math import inf
from typing import Any, NamedTuple

from rota.model.cluster import parse_cluster
from rota.model.job import JobSpec
from rota.model.sweep import Sweep, SweepTrial
from rota.policy.registry import create
from rota.report.timeline import Timeline
from rota.sim.machine import Costs
from rota.sim.simulation import Simulation
from rota.workload.learning_curves import Run, load
from rota.workload.trace import Trace

SUBMIT_S = 1_700_000_000.0
SLOWER = 100.0  # an epoch lasts that many times what was recorded
LOG = ("learning_rate", "weight_decay", "init_scale")
INT = ("warmup_epochs", "width", "depth", "shift")
RANGE = ("dropout", "noise")


class _Trial(NamedTuple):
    """A recorded run, as long as the search lets it go on, and why it ended it there."""

    run: Run
    values: tuple[float | None, ...]
    why: str | None


class _Turn(NamedTuple):
    """A time in which a job ran, and on which GPUs of nodes; without an end it is running."""

    start_s: float
    end_s: float | None
    held: list[tuple[str, int]]


def recorded_sweep(
    search: str = "clusters-mlp",
    trials: int = 24,
    *,
    policy: str = "gandiva",
    cluster: str = "1x4",
    reports: int = 81,
    eta: int | None = 3,
    maximize: bool = True,
    until_s: float = inf,
    name: str = "recorded",
) -> dict[str, Any]:
    """The JSON document of a sweep over the first runs of a recorded ``search``.

    Who runs when is simulated under ``policy``. With ``eta`` only the best 1/eta of those that came
    to report 1, eta, eta² ... go on. Where it does not ``maximize``, the metric is the error.
    ``until_s`` after the submission it is looked at: until it has ended, by default.
    """
    recorded = load(search)
    chosen = _trials(recorded.runs[:trials], reports, eta, maximize)
    metric = "val_acc" if maximize else "val_error"
    sweep = Sweep(name, metric, maximize, reports=reports)
    jobs = [
        JobSpec(str(n), 1, 0.0, SLOWER * t.run.epoch_s * len(t.values), trial=SweepTrial(sweep, n))
        for n, t in enumerate(chosen)
    ]
    curves = {
        str(n): tuple(0.0 if v is None else v for v in t.values) for n, t in enumerate(chosen)
    }
    nodes = parse_cluster(cluster)
    simulation = Simulation(
        Trace(jobs), nodes, create(policy), Costs(0.125, 0.125, 2.0, 10.0), curves=curves
    )
    simulation.state.log = []
    while simulation.engine.now_s < until_s and simulation.step():
        pass
    now_s = min(until_s, simulation.engine.now_s)
    ran = _ran(simulation, len(chosen), now_s)
    told = [
        _told(n, trial, ran[n], now_s, max if maximize else min) for n, trial in enumerate(chosen)
    ]
    reached = [
        (value, -at_s, trial["number"])
        for trial in told
        for _, at_s, value in trial["curve"]
        if value is not None
    ]
    sign = 1 if maximize else -1
    value, before_s, number = max(reached, key=lambda r: (sign * r[0], r[1]), default=(0, 0, None))
    ended = all(trial["finish_s"] is not None for trial in told)
    return {
        "name": name,
        "user": "ada",
        "state": "ENDED" if ended else "RUNNING",
        "outcome": "DONE" if ended else None,
        "message": f"all {trials} trials have ended" if ended else None,
        "submit_s": SUBMIT_S,
        "finish_s": SUBMIT_S + now_s if ended else None,
        "request": _request(recorded.runs, name, metric, maximize, trials, eta, reports),
        "gpu_s": sum(trial["gpu_s"] for trial in told),
        "gpus": sum(node.num_gpus for node in nodes),
        "best": None
        if number is None
        else {
            "number": number,
            "value": value,
            "at_s": -before_s,
            "params": told[number]["params"],
        },
        "trials": told,
    }


def _trials(runs: Sequence[Run], reports: int, eta: int | None, maximize: bool) -> list[_Trial]:
    """The runs, each to the rung where it is not among the best, taken in order."""
    part = eta or 1
    rungs: dict[int, list[float]] = {part**k: [] for k in range(9)} if eta else {}
    found = []
    for run in runs:
        upto = min(run.diverged or reports, reports)
        values = [round(v if maximize else 1 - v, 4) for v in run.accuracies[:reports]]
        why = None
        for rung, came in rungs.items():
            if rung >= upto:
                break
            came.append(values[rung - 1])
            better = sum(v > came[-1] if maximize else v < came[-1] for v in came)
            if better >= max(1, len(came) // part):
                why = f"at report {rung} it was number {better + 1} of {len(came)}"
                upto = rung
                break
        told: list[float | None] = list(values[:upto])
        if why is None and run.diverged and run.diverged <= reports:
            told[-1] = None
            why = f"report {upto} is not a number"
        found.append(_Trial(run, tuple(told), why))
    return found


def _ran(simulation: Simulation, jobs: int, now_s: float) -> list[list[_Turn]]:
    """Of each job, when it ran and where."""
    state = simulation.state
    names = [node.name for node in state.nodes]
    ran: list[list[_Turn]] = [[] for _ in range(jobs)]
    for piece in Timeline(state.log or ()).segments:
        if piece.start_s < now_s:
            end_s = piece.end_s if piece.end_s <= now_s else None
            on = [(names[node], gpu) for node, gpu in piece.gpus]
            ran[piece.row].append(_Turn(piece.start_s, end_s, on))
    for row, since_s in enumerate(state.since_s):
        held = state.held[row]
        if held is not None and 0 <= since_s < now_s:
            on = [(names[node], gpu) for node, indices in held.gpus() for gpu in indices]
            ran[row].append(_Turn(since_s, None, on))
    return ran


def _told(
    number: int,
    trial: _Trial,
    ran: list[_Turn],
    now_s: float,
    best_of: Callable[..., float | None],
) -> dict[str, Any]:
    lengths = [(now_s if t.end_s is None else t.end_s) - t.start_s for t in ran]
    had = [0.0, *accumulate(lengths)]
    report_s = SLOWER * trial.run.epoch_s
    curve = []
    for n, value in enumerate(trial.values):
        need_s = (n + 1) * report_s - 1e-6
        turn = next((i for i, total in enumerate(had[1:]) if total >= need_s), None)
        if turn is None:
            break
        curve.append([n + 1, SUBMIT_S + ran[turn].start_s + need_s - had[turn], value])
    numbers = [value for _, _, value in curve if value is not None]
    ended = len(curve) == len(trial.values) and ran[-1].end_s is not None
    state = "RUNNING" if ran and ran[-1].end_s is None else "SUSPENDED" if ran else "PENDING"
    return {
        "number": number,
        "job_id": str(number + 1),
        "state": state if not ended else "CANCELLED" if trial.why else "SUCCEEDED",
        "params": dict(trial.run.parameters),
        "curve": curve,
        "value": best_of(numbers, default=None),
        "why": trial.why if ended else None,
        "message": None,
        "submit_s": SUBMIT_S,
        "first_start_s": SUBMIT_S + ran[0].start_s if ran else None,
        "finish_s": SUBMIT_S + (ran[-1].end_s or 0.0) if ended else None,
        "gpu_s": sum(lengths),
        "ran": [
            [SUBMIT_S + turn.start_s, None if turn.end_s is None else SUBMIT_S + turn.end_s]
            for turn in ran
        ],
        "ran_on": [[{"node": node, "gpus": [gpu]} for node, gpu in turn.held] for turn in ran],
    }


def _request(
    runs: Sequence[Run],
    name: str,
    metric: str,
    maximize: bool,
    trials: int,
    eta: int | None,
    reports: int,
) -> dict[str, Any]:
    return {
        "name": name,
        "run": "python train.py",
        "resources": {"gpus": 1},
        "sweep": {
            "metric": metric,
            "goal": "maximize" if maximize else "minimize",
            "space": {
                key: _dimension(key, [dict(run.parameters)[key] for run in runs])
                for key, _ in runs[0].parameters
            },
            "algorithm": {"name": "random", "seed": 0},
            "max_trials": trials,
            "parallel": "auto",
            "rungs": "off" if eta is None else {"eta": eta, "first": 1},
            "reports": reports,
            "max_failures": trials,
        },
    }


def _dimension(key: str, values: Sequence[Any]) -> dict[str, Any]:
    """What the values of a parameter were drawn from, as a sweep file says it."""
    if key in LOG:
        return {"log": [min(values), max(values)]}
    if key in INT:
        return {"int": [min(values), max(values)]}
    if key in RANGE:
        return {"range": [min(values), max(values)]}
    return {"choice": sorted(set(values))}
