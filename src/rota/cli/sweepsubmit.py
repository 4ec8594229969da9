"""Submits searches for ``rota submit``, and shows their progress until they end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from rota.cli.connection import connected, echo_warnings
from rota.cli.failedstarts import FailedStarts, failed_starts_printed
from rota.cli.present import structure_text
from rota.cli.text import number_text
from rota.errors import NeverFitsError
from rota.model.allocation import gpus_text
from rota.model.naming import few
from rota.report.text import printable

if TYPE_CHECKING:
    from rota.client.client import Client
    from rota.request.sweepfile import SweepRequest

ENDED_WELL = ("TARGET", "DONE", "BUDGET")
SWEEP_FAILED, NEVER_PLACED, INTERRUPTED = 4, 3, 130


def hand_in(request: SweepRequest, wait: bool, dry_run: bool, as_json: bool) -> int:
    """Submit a search, or check it; the exit code. Ctrl-C leaves it running, and says so."""
    with connected() as client:
        try:
            if dry_run:
                _echo_plan(client.check_sweep(request), request, as_json)
                return 0
            begun = client.submit_sweep(request)
            submitted = client.cursor
        except NeverFitsError as error:
            if not (dry_run or wait):
                raise
            click.echo(f"error: {error}", err=True)
            return NEVER_PLACED
        click.echo(structure_text(begun) if as_json else begun["name"])
        try:
            click.echo(_truth(begun, request), err=True)
            echo_warnings(begun)
            if not wait:
                return 0
            with failed_starts_printed(client, submitted, FailedStarts(sweep=begun["name"])):
                return follow(client, begun["name"])
        except KeyboardInterrupt:
            return detach(begun["name"])


def detach(name: str) -> int:
    """Say that the search goes on without us; the exit code."""
    click.echo(
        f"\ndetached; sweep {name} goes on. `rota sweep wait {name}` waits for it again, "
        f"`rota sweep cancel {name}` ends it",
        err=True,
    )
    return INTERRUPTED


def follow(client: Client, name: str, timeout_s: float | None = None) -> int:
    """Tell each new best until the search ends; the exit code. Raises TimeoutError."""
    best, error = None, None
    for told in client.follow_sweep(name, timeout_s=timeout_s):
        if told["best"] is not None and told["best"] != best:
            best = told["best"]
            click.echo(f"sweep {name}: {_best_text(told)}", err=True)
        if told["driver_error"] is not None and told["driver_error"] != error:
            error = told["driver_error"]
            click.echo(f"sweep {name}: {printable(error)}", err=True)
    message = f": {printable(told['message'])}" if told["message"] else ""
    what = "array" if told["array"] else "sweep"
    click.echo(f"{what} {name} {told['outcome']}{message}", err=True)
    found = told["best"] is not None or "metric" not in told["request"]["sweep"]
    well = told["outcome"] in ENDED_WELL and found
    if told["array"]:  # each task counts
        well = well and not told["trials"]["failed"]
    return 0 if well else SWEEP_FAILED


def _truth(begun: Mapping[str, Any], request: SweepRequest) -> str:
    """One line: what is going to happen, and where to look."""
    name = begun["name"]
    taken = f" ({request.job.name!r} was taken)" if name != request.job.name else ""
    if request.is_array:
        tasks = "1 task" if request.max_trials == 1 else f"{request.max_trials} tasks"
        few_at_once = request.parallel is not None and request.parallel < (request.max_trials or 0)
        what = f"{tasks}, {request.parallel} at once" if few_at_once else tasks
        return f"array {name}{taken}: {what}; `rota sweep show {name}` tells how it stands"
    many = "trials" if request.max_trials is None else f"up to {_counted(request.max_trials)}"
    if request.algorithm == "manual":
        many += " that your own program proposes"
    else:
        many += f", proposed by {request.algorithm}"
    if request.metric:
        goal = "the highest" if request.maximize else "the lowest"
        target = "" if request.target is None else f", until it is {request.target:g}"
        many += f", for {goal} {printable(request.metric)}{target}"
    return f"sweep {name}{taken}: {many}; `rota sweep show {name}` tells how it stands"


def _counted(trials: int) -> str:
    return "1 trial" if trials == 1 else f"{trials} trials"


def _best_text(told: Mapping[str, Any]) -> str:
    """``trial 7 has val_acc 0.943 (lr=0.01 width=32)``, the best so far."""
    best, metric = told["best"], told["request"]["sweep"].get("metric")
    params = " ".join(f"{name}={number_text(value)}" for name, value in best["params"].items())
    line = f"trial {best['number']} has {metric} {number_text(best['value'])}"
    return printable(f"{line} ({params})" if params else line)


def _echo_plan(plan: Mapping[str, Any], request: SweepRequest, as_json: bool) -> None:
    if as_json:
        click.echo(structure_text(plan))
        return
    noun = "task" if request.is_array else "trial"
    click.echo(
        f"{taken_text(plan['sweep'], plan['free_gpus'], f'each {noun}')}\n"
        f"a {noun}, for example: {printable(plan['trial']['run'])}"
    )


def taken_text(fields: Mapping[str, Any], free_gpus: int, what: str) -> str:
    """One line on a dry run of a request: what each of its jobs needs and waits for."""
    needs = f"{what} needs {gpus_text(fields['resources']['gpus'])}"
    awaited = few([_awaited_text(**each) for each in fields.get("depends_on", ())])
    waits = f", and waits until {printable(awaited)}" if awaited else ""
    free = {0: "none is", 1: "1 is"}.get(free_gpus, f"{free_gpus} are")
    return f"{fields['name']}: it can be taken; {needs}{waits}; {free} free"


def _awaited_text(job: str, when: str) -> str:
    return f"job {job} has {when}"
