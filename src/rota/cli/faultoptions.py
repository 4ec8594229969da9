"""The options that say what goes wrong during a simulation."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from rota.errors import InputError

if TYPE_CHECKING:
    from rota.sim.faults import Faults

MTTR_S, STRAGGLER_FOR_S, STRAGGLER_SPEED = 3600.0, 600.0, 0.5

OPTIONS = [
    click.option(
        "--faults",
        "faults_file",
        metavar="FILE",
        help="Faults written down: CSV or .json with at_s,what,node,for_s,gpu,speed.",
    ),
    click.option(
        "--mtbf-s",
        type=float,
        metavar="SECONDS",
        help="Mean time between failures of a node, drawn at random.",
    ),
    click.option(
        "--mttr-s",
        type=float,
        metavar="SECONDS",
        help=f"Mean time until a failed node is repaired.  [default: {MTTR_S:g}]",
    ),
    click.option(
        "--worker-mtbf-s",
        type=float,
        metavar="SECONDS",
        help="Mean time between crashes of what runs on one GPU, drawn at random.",
    ),
    click.option(
        "--straggler-every-s",
        type=float,
        metavar="SECONDS",
        help="Mean time until a node falls behind for a while, drawn at random.",
    ),
    click.option(
        "--straggler-for-s",
        type=float,
        metavar="SECONDS",
        help=f"Mean time for which it falls behind.  [default: {STRAGGLER_FOR_S:g}]",
    ),
    click.option(
        "--straggler-speed",
        type=float,
        metavar="FACTOR",
        help=f"Its speed meanwhile, of its own.  [default: {STRAGGLER_SPEED:g}]",
    ),
    click.option(
        "--checkpoint-s",
        type=float,
        metavar="SECONDS",
        help="Work between a job's checkpoints; without it a lost job starts from nothing.",
    ),
]
# An option that changes how faults of a kind go -> the options of which one must be there.
CAUSES = ("faults_file", "mtbf_s", "worker_mtbf_s", "straggler_every_s")
DEPENDS = {
    "mttr_s": ("mtbf_s",),
    "straggler_for_s": ("straggler_every_s",),
    "straggler_speed": ("straggler_every_s",),
    "checkpoint_s": ("faults_file", "mtbf_s", "worker_mtbf_s"),
}


def fault_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of faults; their values are what :func:`parse_faults` takes."""
    for option in reversed(OPTIONS):
        command = option(command)
    return command


def parse_faults(seed: int, faults_file: str | None = None, **given: float | None) -> Faults | None:
    """The faults that the options ask for, drawn from ``seed``; None if they ask for none.

    Raises InputError naming the option, its value and what it must be, and for an option that
    has no effect.
    """
    chosen: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    for key, value in chosen.items():
        _check(key, value)
    there = {*chosen, *(["faults_file"] if faults_file is not None else [])}
    for key, needed in DEPENDS.items():
        if key in chosen and not there.intersection(needed):
            raise InputError(
                f"{_name(key)} has no effect without {' or '.join(map(_name, needed))}; "
                "give one, or drop it"
            )
    if not there.intersection(CAUSES):
        return None
    from rota.sim.faults import Faults
    from rota.sim.faultscript import read_faults

    if faults_file is not None:
        chosen["script"] = read_faults(faults_file)
    defaults = {
        "mttr_s": MTTR_S,
        "straggler_for_s": STRAGGLER_FOR_S,
        "straggler_speed": STRAGGLER_SPEED,
    }
    return Faults(seed=seed, **(defaults | chosen))


def _check(key: str, value: float) -> None:
    if key == "straggler_speed":
        if not 0 < value <= 1:
            raise InputError(f"{_name(key)}: {value:g} is not a number above 0 and at most 1")
    elif not 0 < value < float("inf"):
        raise InputError(f"{_name(key)}: {value:g} is not a number of seconds above zero")


def _name(key: str) -> str:
    return "--faults" if key == "faults_file" else f"--{key.replace('_', '-')}"
