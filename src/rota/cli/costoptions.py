"""The options that say what commands cost in a simulation."""

from __future__ import annotations

import click

from rota.errors import InputError
from rota.sim.machine import FREE, Costs, restarts

MOST_COST_S = 1e10
COST_HELP = {
    "suspend_s": "Seconds that suspending a job takes.",
    "resume_s": "Seconds that resuming a job takes.",
    "migrate_s": "Seconds that moving a job to other nodes takes besides resuming it.",
    "cold_start_s": "Seconds that starting a job takes.",
    "resize_s": "Seconds until a running job has the other number of GPUs that it is given.",
    "resize_pause_s": "Seconds of them for which it stands still.",
}

COST_OPTIONS = [
    click.option(
        "--restart-s",
        type=float,
        metavar="SECONDS",
        help="Charge so much whenever a job gets GPUs, or others, and nothing else.",
    ),
    click.option("--no-overheads", is_flag=True, help="Charge nothing for any command."),
    *(
        click.option(
            f"--{name.replace('_', '-')}",
            name,
            type=float,
            metavar="SECONDS",
            help=f"{COST_HELP[name]}  [default: {default:g}]",
        )
        for name, default in Costs()._asdict().items()
    ),
]


def parse_costs(no_overheads: bool, restart_s: float | None = None, **given: float | None) -> Costs:
    """The charged costs: the defaults with what is given in their place. Raises InputError.

    ``restart_s`` stands for a whole set of its own.
    """
    chosen = {key: value for key, value in given.items() if value is not None}
    if restart_s is not None:
        check_cost(restart_s, "--restart-s")
        others = [f"--{key.replace('_', '-')}" for key in chosen]
        if no_overheads or others:
            other = others[0] if others else "--no-overheads"
            raise InputError(f"--restart-s and {other} contradict each other; drop one")
        return restarts(restart_s)
    for key, value in chosen.items():
        option = f"--{key.replace('_', '-')}"
        check_cost(value, option)
        if no_overheads:
            raise InputError(f"{option} and --no-overheads contradict each other; drop one")
    return FREE if no_overheads else Costs()._replace(**chosen)


def check_cost(seconds: float, option: str) -> None:
    """Raise InputError unless a command can cost so many seconds."""
    if not 0 <= seconds <= MOST_COST_S:
        raise InputError(f"{option}: {seconds} is not a number of seconds from 0 to 1e10")
