"""The options that say what goes wrong during a simulation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from rota.errors import InputError

if TYPE_CHECKING:
    from rota.sim.faults import Faults

# Defaults stand in the texts alone: what is not given is left to the simulator, whose module is not
# loaded for the sake of a help text.
FAULT_OPTIONS = [
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
        help="Mean time until a failed node is repaired.  [default: 3600]",
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
        help="Mean time for which it falls behind.  [default: 600]",
    ),
    click.option(
        "--straggler-speed",
        type=float,
        metavar="FACTOR",
        help="Its speed meanwhile, of its own.  [default: 0.5]",
    ),
    click.option(
        "--checkpoint-s",
        type=float,
        metavar="SECONDS",
        help="Work between a job's checkpoints; without it a lost job starts from nothing.",
    ),
]
FAULT_KEYS = (
    "mtbf_s",
    "mttr_s",
    "worker_mtbf_s",
    "straggler_every_s",
    "straggler_for_s",
    "straggler_speed",
    "checkpoint_s",
)
RANDOM_FAULTS = ("mtbf_s", "worker_mtbf_s", "straggler_every_s")
CAUSES = ("faults_file", *RANDOM_FAULTS)
# An option that changes how faults of a kind go -> the options of which one must be there.
DEPENDS = {
    "mttr_s": ("mtbf_s",),
    "straggler_for_s": ("straggler_every_s",),
    "straggler_speed": ("straggler_every_s",),
    "checkpoint_s": ("faults_file", "mtbf_s", "worker_mtbf_s"),
}


def parse_faults(faults_file: str | None = None, **given: float | None) -> Faults | None:
    """The faults that the options ask for, of seed 0; None if they ask for none.

    Raises InputError for a value that can't be, and for an option that has no effect.
    """
    chosen: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
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
    faults = Faults(**chosen)
    faults.check()
    return faults


def _name(key: str) -> str:
    return "--faults" if key == "faults_file" else f"--{key.replace('_', '-')}"
