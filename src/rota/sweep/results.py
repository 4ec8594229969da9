"""Searches from Python: submit one, wait, and get its results."""

import os
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

from rota.client.client import Client
from rota.errors import SweepError
from rota.model.sweep import Value
from rota.request.sweepfile import parse_sweep


class TrialResult(NamedTuple):
    """One trial of a search, as it was when the search ended.

    ``value`` is the best that it reported, None if it reported nothing; ``curve`` has a pair for
    each report: the step, and the value or None if that was not finite. ``state`` is its job's,
    ``why`` says in words why the search ended it, None if it did not. ``gpu_s`` are GPU-seconds.
    """

    number: int
    params: dict[str, Value]
    value: float | None
    state: str
    why: str | None
    job_id: str
    curve: tuple[tuple[int, float | None], ...]
    gpu_s: float


class Result(NamedTuple):
    """A search that is over, with its ``best`` trial and all trials by number.

    ``outcome`` is TARGET, DONE or BUDGET. ``gpu_s`` are GPU-seconds of all trials together.
    """

    name: str
    outcome: str
    best: TrialResult
    trials: tuple[TrialResult, ...]
    gpu_s: float


def search(
    run: str,
    *,
    space: Mapping[str, Any],
    metric: str,
    goal: str,
    client: Client | None = None,
    algorithm: str | Mapping[str, Any] | None = None,
    max_trials: int | None = None,
    target: float | None = None,
    parallel: int | str | None = None,
    rungs: Mapping[str, int] | str | None = None,
    reports: int | None = None,
    gpu_hours: float | None = None,
    max_failures: int | None = None,
    **job: Any,
) -> Result:
    """Run a search to its end, on the cluster.

    The arguments are those of the block ``sweep`` of a sweep file; what is left out has its
    default. ``job`` are the other fields of a job file: ``name``, ``resources``, ``env`` and so on,
    with the present folder for ``workdir``. Without a ``client`` there is one for this call.

    A search that is interrupted is cancelled. It warns if the controller can't carry the search on,
    and goes on waiting. Raises JobFileError for arguments that are wrong, and
    SweepError if the search failed, was cancelled, or has no trial with a value.
    """
    block: dict[str, Any] = {
        "space": space,
        "metric": metric,
        "goal": goal,
        "algorithm": algorithm,
        "max_trials": max_trials,
        "target": target,
        "parallel": parallel,
        "rungs": rungs,
        "reports": reports,
        "gpu_hours": gpu_hours,
        "max_failures": max_failures,
    }
    request = parse_sweep({"run": run, "sweep": block} | job, workdir=os.getcwd())
    if client is None:
        with Client() as own:
            return _finished(own, own.submit_sweep(request)["name"])
    return _finished(client, client.submit_sweep(request)["name"])


def _finished(client: Client, name: str) -> Result:
    error = None
    try:
        for brief in client.follow_sweep(name):
            if brief["driver_error"] not in (None, error):
                error = brief["driver_error"]
                warnings.warn(f"search {name}: {error}", stacklevel=3)
        told = client.sweep(name)
    except KeyboardInterrupt:
        client.cancel_sweep(name)
        raise
    if told["outcome"] in ("FAILED", "CANCELLED"):
        was = "failed" if told["outcome"] == "FAILED" else "was cancelled"
        why = f": {told['message']}" if told["message"] else ""
        raise SweepError(f"search {name} {was}{why}; see: rota sweep show {name}")
    if told["best"] is None:
        raise SweepError(
            f"search {name} has ended, and none of its trials has a value; "
            f"see: rota sweep show {name}"
        )
    trials = tuple(map(_trial, told["trials"]))
    best = next(trial for trial in trials if trial.number == told["best"]["number"])
    return Result(name, told["outcome"], best, trials, told["gpu_s"])


def _trial(told: Mapping[str, Any]) -> TrialResult:
    """The trial of which the controller tells this."""
    fields = {name: told[name] for name in TrialResult._fields}
    return TrialResult(**fields | {"curve": tuple((step, v) for step, _, v in told["curve"])})
