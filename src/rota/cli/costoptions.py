"""The options that say what commands cost in a simulation."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import click

from rota.errors import InputError, did_you_mean
from rota.model.job import Suspension
from rota.sim.costsets import SETS, UNKNOWN
from rota.sim.machine import FREE, Costs, restarts
from rota.workload.trace import RESTART, SUSPENSIONS

MOST_COST_S = 1e10
COST_HELP = {
    "suspend_s": "Seconds that suspending a job takes.",
    "resume_s": "Seconds that resuming a job takes.",
    "migrate_s": "Seconds that moving a job to other nodes takes besides resuming it.",
    "cold_start_s": "Seconds that starting a job takes.",
    "resize_s": "Seconds until a running job has the other number of GPUs that it is given.",
    "resize_pause_s": "Seconds of them for which it stands still.",
}

DEFAULT_SET = RESTART

COST_OPTIONS = [
    click.option(
        "--costs",
        "cost_set",
        metavar="NAME|FILE",
        help="How jobs give their GPUs up, and what that costs: plain, never before they end; "
        "restart, from a checkpoint, 30 s where nothing is known; cooperative, as with rota.train, "
        "by the size of models that are known; or a YAML file with seconds by name, such as "
        f"restart_s.  [default: as the trace tells of each job; else plain for the log of a "
        f"cluster, {DEFAULT_SET} for others]",
    ),
    click.option(
        "--restart-s",
        type=float,
        metavar="SECONDS",
        help="Charge so much whenever a job gets GPUs, or others, and nothing else.",
    ),
    click.option(
        "--no-costs", "--no-overheads", is_flag=True, help="Charge nothing for any command."
    ),
    *(
        click.option(
            f"--{name.replace('_', '-')}",
            name,
            type=float,
            metavar="SECONDS",
            help=COST_HELP[name],
        )
        for name in Costs._fields
    ),
]


class Charges(NamedTuple):
    """Costs of commands: seconds, or a set of costs by name with ``given`` replacing some of them.

    For a set, ``costs`` are those of a job of which nothing is known. ``suspension`` is how all
    jobs are suspended; None: each as its trace tells.
    """

    costs: Costs
    cost_set: str = ""
    given: dict[str, float] = {}
    suspension: Suspension | None = None


def parse_costs(
    no_costs: bool,
    restart_s: float | None = None,
    cost_set: str | None = None,
    **given: float | None,
) -> Charges:
    """The charged costs: a set's, with what is given in their place. Raises InputError.

    ``restart_s`` stands for a whole set of its own; ``cost_set`` is the name of a set, or a file.
    A suspension of which nothing is known costs nothing.
    """
    chosen = {key: value for key, value in given.items() if value is not None}
    named = {"--costs": cost_set is not None, "--restart-s": restart_s is not None}
    named |= {"--no-costs": no_costs}
    whole = [option for option, is_given in named.items() if is_given]
    others = whole[1:]
    if whole and whole[0] != "--costs":
        others += [f"--{key.replace('_', '-')}" for key in chosen]
    if others:
        raise InputError(f"{whole[0]} and {others[0]} contradict each other; drop one")
    for key, value in chosen.items():
        check_cost(value, f"--{key.replace('_', '-')}")
    if no_costs:
        return Charges(FREE, suspension=Suspension.UNKNOWN)
    if cost_set is not None and cost_set not in SETS:
        read = _read_file(cost_set)
        restart_s = read.pop("restart_s", None)
        chosen = read | chosen
        if restart_s is None:
            return Charges(Costs()._replace(**chosen), suspension=Suspension.BOUNDARY)
    if restart_s is not None:
        check_cost(restart_s, "--restart-s")
        costs = restarts(restart_s)._replace(**chosen)
        return Charges(costs, suspension=Suspension.RESTART)
    name = cost_set or DEFAULT_SET
    how = SUSPENSIONS[name] if cost_set or chosen else None
    return Charges(SETS[name](UNKNOWN)._replace(**chosen), name, chosen, how)


def _read_file(path: str) -> dict[str, float]:
    """Seconds by name, of a YAML file. Raises InputError."""
    import yaml

    known = ("restart_s", *Costs._fields)
    try:
        read: Any = yaml.safe_load(Path(path).read_text())
    except FileNotFoundError:
        raise InputError(
            f"--costs: {path!r} is neither a set ({', '.join(SETS)}) nor a file"
            f"{did_you_mean(path, SETS)}"
        ) from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InputError(f"--costs {path}: it can't be read: {error}") from None
    if not isinstance(read, dict) or not read:
        raise InputError(f"--costs {path}: write seconds by name there, such as restart_s: 30")
    for key, value in read.items():
        if key not in known:
            hint = did_you_mean(str(key), known)
            names = ", ".join(known)
            raise InputError(f"--costs {path}: there is no {key!r}{hint}; known: {names}")
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InputError(f"--costs {path}: {key}: {value!r} is not a number of seconds")
        check_cost(value, f"--costs {path}: {key}")
    return {key: float(value) for key, value in read.items()}


def check_cost(seconds: float, option: str) -> None:
    """Raise InputError unless a command can cost so many seconds."""
    if not 0 <= seconds <= MOST_COST_S:
        raise InputError(f"{option}: {seconds} is not a number of seconds from 0 to 1e10")
